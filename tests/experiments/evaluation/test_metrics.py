"""Metrics of translations and of attention weights, by hand."""

import math

import numpy as np
import pytest

from experiments.evaluation import metrics
from experiments.evaluation.metrics import AlignedAttention

# Two target words and EOS; three source words and EOS.
FIRST = AlignedAttention(
  np.array([[0.5, 0.25, 0.125, 0.125], [0.0, 0.25, 0.625, 0.125], [1.0, 0.0, 0.0, 0.0]]),
  frozenset({(0, 0), (0, 1), (1, 1)}),
)
# One target word and EOS; one source word and EOS. The target word attends to EOS.
SECOND = AlignedAttention(np.array([[0.25, 0.75], [0.0, 1.0]]), frozenset({(0, 0)}))


def test_bleu_matches_worked_examples():
  # The second sentence adds 1 right word of 1 and no n-grams; the corpus has 6 words on both sides.
  expected = 100 * (5 / 6 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25
  assert math.isclose(metrics.corpus_bleu(["a b c d x", "f"], ["a b c d e", "f"]), expected, rel_tol=1e-9)
  # The brevity penalty.
  assert metrics.corpus_bleu(["a b c d"], ["a b c d e"]) == pytest.approx(100 * math.exp(1 - 5 / 4), rel=1e-9)


def test_chrf_matches_worked_example():
  # Precision and recall of 1, 2, 3 letters are 2/3, 1/2, 0 on both sides.
  assert math.isclose(metrics.corpus_chrf(["abx"], ["abc"]), 100 * (2 / 3 + 1 / 2 + 0) / 3, rel_tol=1e-6)


ACCURACIES = [
  (["ab"], ["ab"], 1.0),
  (["xy"], ["ab"], 1 / 3),  # EOS is right
  (["a"], ["abc"], 1 / 4),
  (["abc"], ["a"], 1 / 2),
  (["a", "bxxx"], ["a", "bcde"], 4 / 7),  # over the corpus, not a mean over sentences
]


@pytest.mark.parametrize(("hypotheses", "references", "expected"), ACCURACIES)
def test_token_accuracy_counts_eos(hypotheses, references, expected):
  assert metrics.token_accuracy([*map(list, hypotheses)], [*map(list, references)]) == expected


def test_exact_match_by_hand():
  assert metrics.exact_match(["a b", "c", "d", "E"], ["a b", "c", "x", "e"]) == 0.5


CORPUS_METRICS = metrics.corpus_bleu, metrics.corpus_chrf, metrics.exact_match, metrics.token_accuracy


@pytest.mark.parametrize("metric", CORPUS_METRICS)
def test_invalid_corpora_are_errors(metric):
  for hypotheses, references, message in (
    ([], [], r"must have at least one sentence, got none$"),
    (["a", "b"], ["a"], r"^hypotheses and references must have the same length, got 2 and 1$"),
    (["a", "b", "c"], "a b", r"^references must be .*, got the string 'a b'$"),
    ("a b", ["a", "b", "c"], r"^hypotheses must be .*, got the string 'a b'$"),
  ):
    with pytest.raises(ValueError, match=message):
      metric(hypotheses, references)


def test_alignment_error_rate_by_hand():
  # Predicted links (0, 0), (1, 2); true links (0, 0), (0, 1), (1, 1); 1 in common.
  assert math.isclose(metrics.alignment_error_rate([FIRST]), 1 - 2 * 1 / (2 + 3))
  # EOS is not linked.
  assert metrics.alignment_error_rate([SECOND]) == 1.0
  # In the corpus: 1 in common, 2 + 0 predicted links, 3 + 1 true links.
  assert math.isclose(metrics.alignment_error_rate([FIRST, SECOND]), 1 - 2 * 1 / (2 + 4))
  # Zero weights are not linked.
  assert metrics.alignment_error_rate([AlignedAttention(np.zeros((2, 3)), {(0, 0)})]) == 1.0
  weights = np.array([[0.1, 0.9, 0.0], [0.8, 0.2, 0.0], [0.9, 0.1, 0.0]])
  assert metrics.alignment_error_rate([AlignedAttention(weights, {(0, 1), (1, 0)})]) == 0.0


def test_possible_links_are_not_missed():
  weights = np.array([[0.9, 0.1, 0.0, 0.0], [0.1, 0.0, 0.9, 0.0], [0.8, 0.1, 0.1, 0.0], [0.0, 0.0, 0.0, 1.0]])
  # A = (0, 0), (1, 2), (2, 0); S = (0, 0), (1, 1); P = S and (1, 2): 1 - (1 + 2) / (3 + 2).
  sentence = AlignedAttention(weights, {(0, 0), (1, 1)}, {(1, 2)})
  assert metrics.alignment_error_rate([sentence]) == pytest.approx(1 - 3 / 5)
  assert metrics.alignment_error_rate([sentence._replace(possible=())]) == pytest.approx(1 - 2 / 5)
  with pytest.raises(ValueError, match=r"got \(3, 0\)"):
    metrics.alignment_error_rate([sentence._replace(possible={(3, 0)})])


def test_error_rate_needs_links():
  only_possible = FIRST._replace(alignment=(), possible={(0, 0)})
  unlinked = SECOND._replace(alignment=(), possible={(0, 0)})
  assert all(metrics.has_error_rate([sentence]) for sentence in (FIRST, SECOND, only_possible))
  assert not any(metrics.has_error_rate([sentence]) for sentence in (unlinked, FIRST._replace(alignment=())))


def test_attention_mass_by_hand():
  # First word 0.5 + 0.25, second word 0.25; the mean is over words.
  assert metrics.attention_mass([FIRST]) == 0.5
  assert math.isclose(metrics.attention_mass([FIRST, SECOND]), (0.75 + 0.25 + 0.25) / 3)


def test_float16_is_summed_in_float64():
  # 1/3 in float16 is 0.333251953125; a float16 sum of 6144 of them would stop increasing.
  weights = np.full((2049, 4), 1 / 3, np.float16)
  alignment = {(t, s) for t in range(2048) for s in range(3)}
  assert metrics.attention_mass([AlignedAttention(weights, alignment)]) == 3 * 0.333251953125


def test_missing_links_are_errors():
  empty = AlignedAttention(np.array([[0.0, 1.0], [0.0, 1.0]]), ())
  with pytest.raises(ValueError, match=r"must have at least one true or predicted link, got none$"):
    metrics.alignment_error_rate([empty])
  with pytest.raises(ValueError, match=r"must have at least one true link, got none$"):
    metrics.attention_mass([empty])


@pytest.mark.parametrize("metric", [metrics.alignment_error_rate, metrics.attention_mass])
@pytest.mark.parametrize("link", [(2, 0), (-1, 0), (0, 3), (0, -1)])
def test_links_must_be_in_range(metric, link):
  message = rf"must link 2 target words and 3 source words, counted from 0, got \({link[0]}, {link[1]}\)$"
  with pytest.raises(ValueError, match=message):
    metric([FIRST._replace(alignment={link})])
