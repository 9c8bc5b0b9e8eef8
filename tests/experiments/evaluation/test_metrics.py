"""Tests of experiments/evaluation/metrics.py."""

import math

import numpy as np
import pytest

from experiments.evaluation.metrics import (
  AlignedAttention,
  alignment_error_rate,
  attention_mass,
  corpus_bleu,
  corpus_chrf,
  exact_match,
  token_accuracy,
)

# Two target words and EOS; three source words and EOS.
FIRST = AlignedAttention(
  np.array([[0.5, 0.25, 0.125, 0.125], [0.0, 0.25, 0.625, 0.125], [1.0, 0.0, 0.0, 0.0]]),
  frozenset({(0, 0), (0, 1), (1, 1)}),
)
# One target word and EOS; one source word and EOS. The target word attends to EOS.
SECOND = AlignedAttention(np.array([[0.25, 0.75], [0.0, 1.0]]), frozenset({(0, 0)}))


def test_bleu_sums_over_the_corpus():
  # The second sentence adds 1 right word of 1 and no n-grams; the corpus has 6 words on both sides.
  expected = 100 * (5 / 6 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25
  score = corpus_bleu(["a b c d x", "f"], ["a b c d e", "f"])
  assert math.isclose(score, expected, rel_tol=1e-9)


def test_bleu_has_a_brevity_penalty():
  score = corpus_bleu(["a b c d"], ["a b c d e"])
  assert math.isclose(score, 100 * math.exp(1 - 5 / 4), rel_tol=1e-9)


def test_chrf_matches_worked_example():
  # One letter each: only unigrams count. 2 of 3 letters on both sides, so F = 2/3; bigrams: 1 of 2;
  # trigrams: 0 of 1. Precision = recall, so F is their mean.
  expected = 100 * (2 / 3 + 1 / 2 + 0) / 3
  assert math.isclose(corpus_chrf(["abx"], ["abc"]), expected, rel_tol=1e-6)


def test_exact_match_by_hand():
  assert exact_match(["a b", "c", "d", "E"], ["a b", "c", "x", "e"]) == 0.5


def test_token_accuracy_counts_eos():
  assert token_accuracy([["a", "b"]], [["a", "b"]]) == 1.0
  assert token_accuracy([["x", "y"]], [["a", "b"]]) == 1 / 3


def test_missing_tokens_are_wrong():
  assert token_accuracy([["a"]], [["a", "b", "c"]]) == 1 / 4


def test_additional_tokens_are_wrong():
  assert token_accuracy([["a", "b", "c"]], [["a"]]) == 1 / 2


def test_token_accuracy_sums_over_the_corpus():
  # 2 of 2 positions and 2 of 5: 4/7. The mean over sentences would be 0.7.
  hypotheses = [["a"], ["b", "x", "x", "x"]]
  assert token_accuracy(hypotheses, [["a"], ["b", "c", "d", "e"]]) == 4 / 7


@pytest.mark.parametrize("metric", [corpus_bleu, corpus_chrf, exact_match, token_accuracy])
def test_invalid_corpora_are_errors(metric):
  with pytest.raises(ValueError, match=r"must have at least one sentence, got none$"):
    metric([], [])
  with pytest.raises(ValueError, match=r"^hypotheses and references must have the same length, got 2 and 1$"):
    metric(["a", "b"], ["a"])
  with pytest.raises(ValueError, match=r"^references must be .*, got the string 'a b'$"):
    metric(["a", "b", "c"], "a b")


def test_alignment_error_rate_by_hand():
  # Predicted links (0, 0), (1, 2); true links (0, 0), (0, 1), (1, 1); 1 in common.
  assert math.isclose(alignment_error_rate([FIRST]), 1 - 2 * 1 / (2 + 3))


def test_eos_is_not_linked():
  assert alignment_error_rate([SECOND]) == 1.0
  # In the corpus: 1 in common, 2 + 0 predicted links, 3 + 1 true links.
  assert math.isclose(alignment_error_rate([FIRST, SECOND]), 1 - 2 * 1 / (2 + 4))


def test_correct_links_have_no_error():
  weights = np.array([[0.1, 0.9, 0.0], [0.8, 0.2, 0.0], [0.9, 0.1, 0.0]])
  assert alignment_error_rate([AlignedAttention(weights, {(0, 1), (1, 0)})]) == 0.0


def test_zero_weights_are_not_linked():
  weights = np.zeros((2, 3))
  assert alignment_error_rate([AlignedAttention(weights, {(0, 0)})]) == 1.0


def test_attention_mass_by_hand():
  # First word 0.5 + 0.25, second word 0.25.
  assert attention_mass([FIRST]) == 0.5


def test_attention_mass_averages_over_words():
  assert math.isclose(attention_mass([FIRST, SECOND]), (0.75 + 0.25 + 0.25) / 3)


def test_float16_is_summed_in_float64():
  # 1/3 in float16 is 0.333251953125; a float16 sum of 6144 of them would stop increasing.
  weights = np.full((2049, 4), 1 / 3, np.float16)
  alignment = {(t, s) for t in range(2048) for s in range(3)}
  expected = 3 * 0.333251953125
  assert attention_mass([AlignedAttention(weights, alignment)]) == expected


def test_missing_links_are_errors():
  empty = AlignedAttention(np.array([[0.0, 1.0], [0.0, 1.0]]), ())
  with pytest.raises(ValueError, match=r"must have at least one true or predicted link, got none$"):
    alignment_error_rate([empty])
  with pytest.raises(ValueError, match=r"must have at least one true link, got none$"):
    attention_mass([empty])


@pytest.mark.parametrize("metric", [alignment_error_rate, attention_mass])
@pytest.mark.parametrize("link", [(2, 0), (0, 3), (0, -1)])
def test_links_must_be_in_range(metric, link):
  message = rf"must link 2 target words and 3 source words, counted from 0, got \({link[0]}, {link[1]}\)$"
  with pytest.raises(ValueError, match=message):
    metric([FIRST._replace(alignment={link})])
