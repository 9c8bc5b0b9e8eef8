"""Tests of experiments/translation/evaluation.py."""

import jax
import numpy as np
import pytest
from models import random_parameters

from configs import base
from experiments.translation import metrics
from experiments.translation.batches import make_batch
from experiments.translation.evaluation import Scored, Translation, Translator
from experiments.translation.mistakes import Diverged
from experiments.translation.models import make_model
from experiments.translation.tasks import Example
from experiments.translation.vocabularies import END, PAD, START, Vocabulary

SOURCE_WORDS = tuple("abcde")
TARGET_WORDS = tuple("vwxyz")
MAX_TARGET_LENGTH = 7
END_BIAS = 1.0

# More words than 15 need longer arrays than the others; the lengths are in no order.
LENGTHS = (3, 17, 1, 5, 2, 4, 15)


class LetterTask:
  """Letters for words."""

  source_vocabulary = Vocabulary(SOURCE_WORDS)
  target_vocabulary = Vocabulary(TARGET_WORDS)

  def detokenize(self, words):
    return " ".join(words)


def _make(attention):
  """Returns an untrained model and its parameters."""
  model = make_model(
    base.Model(attention=attention, embedding_width=5, width=6, num_heads=2),
    source_vocabulary_size=len(LetterTask.source_vocabulary),
    target_vocabulary_size=len(LetterTask.target_vocabulary),
  )
  batch = make_batch([[4]], [[4]], source_length=2, target_length=2)
  arguments = (batch.sources, batch.source_lengths, batch.inputs)
  # Large parameters, so that translations differ.
  params = jax.tree.map(lambda leaf: 3.0 * leaf, random_parameters(model, *arguments, seed=3)["params"])
  # As after training, nothing makes it say the symbols that are in no target.
  bias = params["decoder"]["logits"]["bias"].at[np.array([PAD, START])].set(-1e4)
  # It ends some sentences, and some not.
  params["decoder"]["logits"]["bias"] = bias.at[END].add(END_BIAS)
  return model, params


MODELS = {attention: _make(attention) for attention in ("additive", "none")}


def _translator(attention="additive", batch_size=5):
  model, params = MODELS[attention]
  return Translator(LetterTask(), model, params, batch_size=batch_size, max_target_length=MAX_TARGET_LENGTH)


def _sources():
  rng = np.random.default_rng(0)
  return [tuple(rng.choice(SOURCE_WORDS, length).tolist()) for length in LENGTHS]


def _examples():
  rng = np.random.default_rng(1)
  targets = [tuple(rng.choice(TARGET_WORDS, length).tolist()) for length in (2, 3, 4, 1, 6, 17, 5)]
  return [
    Example(source, target, frozenset({(0, 0)}), "source", " ".join(target))
    for source, target in zip(_sources(), targets, strict=True)
  ]


def _log_softmax(logits):
  logits = np.asarray(logits, np.float64)
  shifted = logits - logits.max(axis=-1, keepdims=True)
  return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


_APPLY = jax.jit(
  lambda params, *arguments, model: model.apply({"params": params}, *arguments), static_argnames="model"
)


def _alone(source, inputs, attention="additive"):
  """Returns log-probabilities [T V] and weights [T S] of one sentence, without padding in the source.

  What stands after the inputs does not change what comes before: one length of them is compiled once.
  """
  model, params = MODELS[attention]
  ids = LetterTask.source_vocabulary.encode(source)
  batch = make_batch([ids], [inputs], source_length=len(ids) + 1, target_length=18)
  logits, weights = _APPLY(params, batch.sources, batch.source_lengths, batch.inputs, model=model)
  return _log_softmax(logits[0]), None if weights is None else np.asarray(weights[0])


def _greedy(source):
  """Returns ids, their log-probability and the weights of the greedy translation, word by word."""
  ids, score = [], 0.0
  while True:
    log_probabilities, weights = _alone(source, ids)
    best = int(log_probabilities[len(ids)].argmax())
    score += log_probabilities[len(ids), best]
    ids.append(best)
    if best == END or len(ids) > MAX_TARGET_LENGTH:
      return ids, score, weights[: len(ids)]


@pytest.fixture(scope="module")
def translations():
  return _translator().translate(_sources())


@pytest.fixture(scope="module")
def scored():
  return _translator().score(_examples())


def test_translations_are_greedy_and_in_order(translations):
  ends = set()
  for source, found in zip(_sources(), translations, strict=True):
    ids, score, weights = _greedy(source)
    assert found.words == LetterTask.target_vocabulary.decode(ids)[:MAX_TARGET_LENGTH]
    ends.add(ids[-1] == END)
    if ids[-1] == END:
      np.testing.assert_allclose(found.score, score, rtol=1e-5)
      assert found.weights.shape == weights.shape == (len(found.words) + 1, len(source) + 1)
      np.testing.assert_allclose(found.weights, weights, atol=1e-5)
  assert ends == {True, False}


def test_the_size_of_the_batch_does_not_change_translations(translations):
  others = _translator(batch_size=1).translate(_sources())
  for one, other in zip(translations, others, strict=True):
    assert one.words == other.words
    np.testing.assert_allclose(one.score, other.score, rtol=1e-5)
    np.testing.assert_allclose(one.weights, other.weights, atol=1e-5)


def test_no_sentences_have_no_translations():
  assert _translator().translate([]) == []
  assert _translator().score([]) == []


def test_scores_are_those_of_the_model_alone(scored):
  for example, one in zip(_examples(), scored, strict=True):
    ids = LetterTask.target_vocabulary.encode(example.target)
    log_probabilities, weights = _alone(example.source, ids)
    loss = -sum(log_probabilities[t, token] for t, token in enumerate([*ids, END]))
    np.testing.assert_allclose(one.loss, loss, rtol=1e-5)
    assert one.tokens == len(ids) + 1  # the end symbol is counted
    assert one.weights.shape == (len(ids) + 1, len(example.source) + 1)
    np.testing.assert_allclose(one.weights, weights[: len(ids) + 1], atol=1e-5)
    np.testing.assert_allclose(one.weights.sum(axis=1), 1.0, rtol=1e-5)


def test_the_size_of_the_batch_does_not_change_scores(scored):
  others = _translator(batch_size=1).score(_examples())
  for one, other in zip(scored, others, strict=True):
    assert one.tokens == other.tokens
    np.testing.assert_allclose(one.loss, other.loss, rtol=1e-5)
    np.testing.assert_allclose(one.weights, other.weights, atol=1e-5)


def test_all_unknown_words_are_the_same_word(translations):
  known, *_ = _sources()
  strange, stranger = _translator().translate([("q", *known[1:]), ("qq", *known[1:])])
  assert strange.words == stranger.words
  assert strange.score == stranger.score
  assert strange.score != translations[0].score


def test_a_translation_that_was_cut_has_a_row_for_each_word():
  model, params = MODELS["additive"]
  params = jax.tree.map(lambda leaf: leaf, params)
  bias = params["decoder"]["logits"]["bias"]
  params["decoder"]["logits"]["bias"] = bias.at[END].set(-1e4)
  translator = Translator(LetterTask(), model, params, batch_size=5, max_target_length=MAX_TARGET_LENGTH)
  (found,) = translator.translate([("a", "b", "c")])
  assert len(found.words) == MAX_TARGET_LENGTH
  assert found.weights.shape == (MAX_TARGET_LENGTH, 4)
  assert found.is_cut


@pytest.mark.parametrize("symbol", [PAD, START])
def test_a_translation_has_no_symbol_that_is_no_word(symbol):
  model, params = MODELS["additive"]
  params = jax.tree.map(lambda leaf: leaf, params)
  bias = params["decoder"]["logits"]["bias"]
  params["decoder"]["logits"]["bias"] = bias.at[np.array([symbol, END])].set(np.array([1e4, -1e4]))
  translator = Translator(LetterTask(), model, params, batch_size=1, max_target_length=MAX_TARGET_LENGTH)
  (found,) = translator.translate([("a", "b", "c")])
  assert len(found.words) == MAX_TARGET_LENGTH


def test_a_model_that_diverged_is_told_so():
  model, params = MODELS["additive"]
  params = jax.tree.map(lambda leaf: leaf * np.float32(np.nan), params)
  translator = Translator(LetterTask(), model, params, batch_size=1, max_target_length=MAX_TARGET_LENGTH)
  with pytest.raises(Diverged, match="not finite"):
    translator.score([Example(("a", "b"), ("x",), None, "source", "x")])


def test_a_model_without_attention_has_no_weights():
  translator = _translator("none")
  (found,) = translator.translate([("a", "b")])
  assert found.weights is None
  (one,) = translator.score([Example(("a", "b"), ("x",), None, "source", "x")])
  assert one.weights is None
  log_probabilities, _ = _alone(("a", "b"), LetterTask.target_vocabulary.encode(("x",)), "none")
  expected = -log_probabilities[0, LetterTask.target_vocabulary.encode(("x",))[0]] - log_probabilities[1, END]
  np.testing.assert_allclose(one.loss, expected, rtol=1e-5)


FIRST = Example(("a", "b"), ("x", "y"), frozenset({(0, 0), (1, 1)}), "source", "x y")
SECOND = Example(("c",), ("z", "v", "w"), frozenset({(2, 0)}), "source", "z v w")
UNALIGNED = Example(("d",), ("z",), None, "source", "z")


@pytest.fixture
def table_driven(monkeypatch):
  """Gives a translator that finds "x y" and "z w", and attends as the tests say by hand."""
  translator = _translator()
  words = {("a", "b"): ("x", "y"), ("c",): ("z", "w"), ("d",): ("z",)}
  first = np.array([[0.5, 0.25, 0.25], [0.75, 0.25, 0.0], [0.0, 0.0, 1.0]])
  second = np.array([[0.0, 1.0], [0.25, 0.75], [0.625, 0.375], [0.0, 1.0]])
  scored = {
    FIRST: Scored(1.0, 3, first),
    SECOND: Scored(2.5, 4, second),
    UNALIGNED: Scored(7.0, 2, np.full((2, 2), 0.5)),
  }
  monkeypatch.setattr(
    translator, "translate", lambda sources: [Translation(words[tuple(s)], 0.0, None) for s in sources]
  )
  monkeypatch.setattr(translator, "score", lambda examples: [scored[example] for example in examples])
  return translator


def test_metrics_are_as_worked_out_by_hand(table_driven):
  values = table_driven.evaluate([FIRST, SECOND])
  texts, references = ["x y", "z w"], ["x y", "z v w"]
  assert values == {
    "sentences": 2.0,
    "exact_match": 0.5,
    "bleu": metrics.corpus_bleu(texts, references),
    "chrf": metrics.corpus_chrf(texts, references),
    # x, y and the end; z.
    "token_accuracy": pytest.approx(4 / 7),
    # Of all tokens, not the mean of the sentences' means.
    "loss": pytest.approx(3.5 / 7),
    # Found are (0, 0), (1, 0) and (2, 0); the first and the last are right.
    "alignment_error_rate": pytest.approx(1 - 2 * 2 / (3 + 3)),
    "attention_mass": pytest.approx((0.5 + 0.25 + 0.625) / 3),
  }


def test_bleu_and_chrf_compare_translations_with_the_true_ones(table_driven):
  true, found = tuple("xyzvw"), tuple("xyzvv")
  example = Example(("e",), true, None, "source", "x y z v w")
  table_driven.translate = lambda sources: [Translation(found, 0.0, None)]
  table_driven.score = lambda examples: [Scored(1.0, 6, None)]
  values = table_driven.evaluate([example])
  for name, metric in (("bleu", metrics.corpus_bleu), ("chrf", metrics.corpus_chrf)):
    assert values[name] == metric(["x y z v v"], ["x y z v w"])
    assert 1.0 < values[name] < 99.0


def test_attention_is_scored_where_alignments_are_known(table_driven):
  values = table_driven.evaluate([FIRST, UNALIGNED])
  assert values["attention_mass"] == pytest.approx((0.5 + 0.25) / 2)
  assert values["loss"] == pytest.approx(8.0 / 5)
  assert values["sentences"] == 2.0


def test_without_alignments_there_are_no_metrics_of_attention(table_driven):
  values = table_driven.evaluate([UNALIGNED])
  assert values["exact_match"] == 1.0
  assert not {"alignment_error_rate", "attention_mass"} & set(values)


def test_empty_alignments_alone_give_no_metrics_of_attention(table_driven):
  empty = UNALIGNED._replace(alignment=frozenset())
  scored = table_driven.score([UNALIGNED])
  table_driven.score = lambda examples: scored
  assert not {"alignment_error_rate", "attention_mass"} & set(table_driven.evaluate([empty]))


def test_spaces_of_a_reference_decide_no_exact_match(table_driven):
  scored = table_driven.score([FIRST])
  table_driven.score = lambda examples: scored
  assert table_driven.evaluate([FIRST._replace(target_text=" x  y ")])["exact_match"] == 1.0


def test_without_attention_there_are_no_metrics_of_attention():
  values = _translator("none").evaluate([FIRST, SECOND])
  assert not {"alignment_error_rate", "attention_mass"} & set(values)
  assert values["sentences"] == 2.0
