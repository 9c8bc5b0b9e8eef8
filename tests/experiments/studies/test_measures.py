"""What studies measure of a translator."""

import types

import jax
import numpy as np
import pytest
from helpers.model_reference import random_parameters

import attention
from experiments.data.task import Example
from experiments.data.text_processor import TextProcessor
from experiments.data.tokenizers import WordTokenizer
from experiments.data.toy import sentence_sampler
from experiments.data.vocabularies import Vocabulary
from experiments.evaluation.metrics import AlignedAttention, alignment_error_rate
from experiments.studies import alignment, explanation, fixed_vector, scan_lengths


class FakeTranslator:
  """A translator with fixed outputs. Sources are the indices of the outputs."""

  def __init__(self, examples, outputs, no_eos_outputs=()):
    self.task = types.SimpleNamespace(examples=lambda split, count: examples)
    self._outputs, self._no_eos_outputs = outputs, no_eos_outputs

  def with_decode_options(self, *, allow_eos):
    assert not allow_eos
    return FakeTranslator(self.task.examples("test", 0), self._no_eos_outputs)

  def n_best(self, sources, *, with_attention):
    return [[types.SimpleNamespace(tokens=tuple(self._outputs[int(source[0])]))] for source in sources]

  def translate(self, texts):
    return [types.SimpleNamespace(text=self._outputs[int(text)]) for text in texts]


def numbered_examples(targets):
  return [
    Example((str(i),), tuple(target), None, source_text=str(i), target_text=target)
    for i, target in enumerate(targets)
  ]


def test_early_ends_are_counted():
  outputs = "abc", "ab", "ac", "abcd", ""  # right, ends early, wrong, too long, empty
  no_eos_outputs = "abcde", "abccc", "acbcc", "abcd", "xbcde"
  assert scan_lengths.measure(FakeTranslator(numbered_examples(["abc"] * 5), outputs, no_eos_outputs)) == {
    "test/ends_early": 0.4,
    "oracle_length/exact_match": 0.6,
  }


def test_scores_are_split_by_length():
  examples, length_ranges = numbered_examples("abcd"), [(3, 5), (6, 8), (9, 9)]
  metrics = {"match": lambda texts, references: float(texts == references)}
  translator = FakeTranslator(examples, "abxd")
  scores = fixed_vector.by_length(translator, examples, [3, 5, 6, 9], length_ranges, metrics)
  assert scores == {"3-5 words/match": 1.0, "6-8 words/match": 0.0, "9-9 words/match": 1.0}


def test_error_rates_of_shifted_weights():
  links = frozenset({(0, 0), (1, 1), (2, 0)})
  examples = [Example(("a", "b"), ("c", "d", "e"), links, "a b", "c d e")]
  weights = np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0], [1, 0, 0.0]])  # one step late

  def shifted_rate(rows):
    return alignment_error_rate([AlignedAttention(np.array(rows), links)])

  translator = types.SimpleNamespace(
    task=types.SimpleNamespace(examples=lambda split, count: examples),
    score_tokens=lambda pairs: [types.SimpleNamespace(attention=weights)],
    heads=lambda pairs: [types.SimpleNamespace(decoder=np.stack([[weights, np.roll(weights, -1, 0)]]))],
  )
  none = [0, 0, 0]
  assert alignment.measure(translator) == {
    "aer/shift=-1": shifted_rate([none, *weights[:3]]),
    "aer/shift=0": shifted_rate(weights),
    "aer/shift=1": 0,
    "aer/layer=0 head=0": shifted_rate(weights),
    "aer/layer=0 head=1": 0,
  }


def test_bounds_have_one_link_per_word():
  pairs = [sentence_sampler.pair(seed=0, split="test", index=i) for i in range(1000)]
  num_right = sum(len({t for t, _ in pair.alignment}) for pair in pairs)
  total = sum(len(pair.target) + len(pair.alignment) for pair in pairs)
  row = next(alignment.extra_rows())
  assert row["test/alignment_error_rate"] == pytest.approx(1 - 2 * num_right / total)


def test_changed_weights_change_the_distribution():
  language = TextProcessor(WordTokenizer(), Vocabulary(tuple("abcdefg")), lowercase=True)
  # All words are linked to all source positions.
  examples = [
    Example((*source,), (*target,), frozenset(np.ndindex(len(target), len(source) + 1)), source, target)
    for source, target in (("abc", "de"), ("gf", "a"))
  ]
  sides = attention.RecurrentEncoder, attention.RecurrentDecoder
  model = attention.Seq2Seq(*(side(len(language.vocabulary), embed_dim=5, features=7) for side in sides))
  words = np.ones((2, 3), np.int32)
  params = random_parameters(model, words, words[:, 0], words)["params"]
  task = types.SimpleNamespace(source=language, target=language, examples=lambda split, count: examples)
  translator = types.SimpleNamespace(task=task, model=model, params=params)
  measures = explanation.measure(translator)
  # Restricting the weights to the links changes nothing, and removing the linked ones leaves none.
  assert measures["tvd/alone"] == pytest.approx(0, abs=1e-5)
  assert measures["p/alone"] == pytest.approx(measures["p/model"], abs=1e-5)
  for name in ("tvd/without", "tvd/shuffled", "tvd/uniform"):
    assert 1e-3 < measures[name] < 1
  assert 0 <= measures["jsd/adversarial"] <= np.log(2)
  assert measures["share/unaligned"] == pytest.approx(2 / 5)  # two ends of sentences


def test_shuffles_keep_sentences_and_padding():
  weights = np.array([[0.1, 0.2, 0.7, 0.0, 0.0], [0.15, 0.25, 0.3, 0.24, 0.06]])
  is_word = np.array([[True, True, True, False, False], [True] * 5])
  shuffled = [np.asarray(explanation.shuffle(weights, is_word, jax.random.key(seed))) for seed in range(50)]
  for array in shuffled:
    np.testing.assert_allclose(np.sort(array), np.sort(weights), rtol=1e-6)
    np.testing.assert_array_equal(array[0, 3:], 0.0)
  assert len({tuple(array[0]) for array in shuffled}) == 6


def test_distances_of_distributions_by_hand():
  p, q = np.float32([[1, 0], [0.5, 0.5], [0.25, 0.75]]), np.float32([[0, 1], [1, 0], [0.25, 0.75]])
  np.testing.assert_allclose(explanation.total_variation(p, q), [1, 0.5, 0], atol=1e-6)
  # log 2; H(3/4, 1/4) - H(1/2, 1/2) / 2 = 0.5623351 - 0.3465736; 0. Weights need not sum to one.
  desired = [0.6931472, 0.2157616, 0]
  np.testing.assert_allclose(explanation.jensen_shannon(2 * p, 3 * q), desired, atol=1e-6)
