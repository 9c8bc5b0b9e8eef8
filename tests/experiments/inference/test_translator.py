"""Tests of experiments/inference/translator.py."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.model_reference import random_parameters

from configs import base
from experiments.cli.config_fields import ConfigError
from experiments.cli.errors import DataError, TrainingDiverged
from experiments.data import batches
from experiments.data.batches import make_batch
from experiments.data.task import Example
from experiments.data.text_processor import TextProcessor
from experiments.data.tokenizers import WordTokenizer
from experiments.data.vocabularies import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Vocabulary
from experiments.inference.decoding import DecodeOptions
from experiments.inference.translator import Translator, make_translator
from experiments.learning.model import make_model

SOURCE_WORDS = tuple("abcde")
TARGET_WORDS = tuple("vwxyz")
MAX_LENGTH = 7
END_BIAS = {"recurrent": 1.0, "transformer": 4.0}

# Sentences of more than 15 words are padded to 32. The lengths are not sorted.
LENGTHS = (3, 17, 1, 5, 2, 4, 15)


class LetterTask:
  """A task with letters as words."""

  source = TextProcessor(WordTokenizer(), Vocabulary(SOURCE_WORDS), lowercase=True)
  target = TextProcessor(WordTokenizer(), Vocabulary(TARGET_WORDS), lowercase=True)


def best(translator, sources, **options):
  """Returns the best translation of each source."""
  return [hypotheses[0] for hypotheses in translator.n_best(sources, **options)]


MODELS = {
  "additive": {"attention": "additive"},
  "none": {"attention": "none"},
  "transformer": {"decoder": "transformer", "position_encoding": "relative"},
}


@functools.cache
def _model(name):
  """Returns an untrained model and its parameters."""
  changes = MODELS[name]
  model = make_model(
    base.Model(embed_dim=5, features=6, num_heads=2, **changes),
    source_vocabulary_size=len(LetterTask.source.vocabulary),
    target_vocabulary_size=len(LetterTask.target.vocabulary),
  )
  batch = make_batch([[4]], [[4]], source_length=2, target_length=2)
  arguments = (batch.sources, batch.source_lengths, batch.inputs)
  # Large parameters, so that translations differ.
  params = jax.tree.map(lambda leaf: 3.0 * leaf, random_parameters(model, *arguments, seed=3)["params"])
  # PAD and BOS are improbable, as after training.
  bias = params["decoder"]["logits"]["bias"].at[np.array([PAD_ID, BOS_ID])].set(-1e4)
  # Some translations end before the maximum length, some do not.
  params["decoder"]["logits"]["bias"] = bias.at[EOS_ID].add(END_BIAS[changes.get("decoder", "recurrent")])
  return model, params


def _translator(attention="additive", batch_size=5, change=None, max_length=MAX_LENGTH, **decode_options):
  """Returns a translator. `change` modifies its parameters."""
  model, params = _model(attention)
  params = params if change is None else change(params)
  return Translator(
    LetterTask(),
    model,
    params,
    batch_size=batch_size,
    decode_options=DecodeOptions(max_length, **decode_options),
  )


def _with_bias(symbols, values):
  """Returns a function that sets the output biases of some ids."""

  def change(params):
    params = jax.tree.map(lambda leaf: leaf, params)
    bias = params["decoder"]["logits"]["bias"]
    params["decoder"]["logits"]["bias"] = bias.at[np.array(symbols)].set(np.array(values, np.float32))
    return params

  return change


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
  """Returns log-probabilities [T V] and weights [T S] of one sentence, without source padding.

  Targets are padded to a fixed length, to compile once.
  """
  model, params = _model(attention)
  ids = LetterTask.source.vocabulary.encode(source)
  batch = make_batch([ids], [inputs], source_length=len(ids) + 1, target_length=18)
  logits, weights = _APPLY(params, batch.sources, batch.source_lengths, batch.inputs, model=model)
  return _log_softmax(logits[0]), None if weights is None else np.asarray(weights[0])


def _pairs():
  return [(example.source, example.target) for example in _examples()]


def _greedy(source, kind):
  """Returns ids, log-probability and weights of the greedy translation, decoded token by token."""
  ids, score = [], 0.0
  while True:
    log_probabilities, weights = _alone(source, ids, kind)
    best_id = int(log_probabilities[len(ids)].argmax())
    score += log_probabilities[len(ids), best_id]
    ids.append(best_id)
    if best_id == EOS_ID or len(ids) == MAX_LENGTH:
      return ids, score, weights[: len(ids)]


def _ids(translation):
  """Returns the ids of a translation, with EOS unless it is truncated."""
  # "<unk>" is not a word of the vocabulary, so it is encoded as UNK_ID.
  return LetterTask.target.vocabulary.encode(translation.tokens) + [EOS_ID] * (not translation.is_truncated)


@pytest.fixture(scope="module")
def translations():
  return best(_translator(), _sources())


@pytest.fixture(scope="module")
def scored():
  return _translator().score_tokens(_pairs())


@pytest.mark.parametrize("kind", [pytest.param("additive", marks=pytest.mark.exhaustive), "transformer"])
def test_translations_are_greedy_and_in_order(kind):
  has_eos = set()
  for source, translation in zip(_sources(), best(_translator(kind), _sources()), strict=True):
    ids, score, weights = _greedy(source, kind)
    assert translation.tokens == LetterTask.target.vocabulary.decode(ids)
    has_eos.add(ids[-1] == EOS_ID)
    assert translation.is_truncated == (ids[-1] != EOS_ID)
    np.testing.assert_allclose(translation.score, score, rtol=1e-5)
    assert translation.attention.shape == weights.shape == (len(ids), len(source) + 1)
    np.testing.assert_allclose(translation.attention, weights, atol=1e-5)
  assert has_eos == {True, False}


def test_eos_can_be_disallowed():
  for source, translation in zip(_sources(), best(_translator(allow_eos=False), _sources()), strict=True):
    assert translation.is_truncated and len(translation.tokens) == MAX_LENGTH
    inputs = LetterTask.target.vocabulary.encode(translation.tokens)
    log_probabilities = _alone(source, inputs)[0][: len(inputs)]
    log_probabilities[:, EOS_ID] = -np.inf
    assert np.argmax(log_probabilities, axis=-1).tolist() == inputs


def test_untrained_eos_is_not_scored(scored):
  model, params = _model("additive")
  options = {"batch_size": 5, "decode_options": DecodeOptions(MAX_LENGTH), "train_eos": False}
  pairs = Translator(LetterTask(), model, params, **options).score_tokens(_pairs())
  for (source, target), pair, full_pair in zip(_pairs(), pairs, scored, strict=True):
    inputs = LetterTask.target.vocabulary.encode(target)
    end = _alone(source, inputs)[0][len(inputs), EOS_ID]
    assert pair.num_tokens == full_pair.num_tokens - 1 == len(inputs)
    np.testing.assert_allclose(pair.log_probability, full_pair.log_probability - end, rtol=1e-4)


def test_weights_of_all_heads_need_shorter_sentences():
  for pair in ((("a",) * 5_000, ("x",)), (("a",), ("x",) * 5_000)):
    with pytest.raises(DataError, match=r"must have at most 4,096 tokens .* got 5,000$"):
      _translator().heads_of_tokens([(("a",), ("x",)), pair])


def test_smaller_batches_give_equal_translations(translations, monkeypatch):
  monkeypatch.setattr(batches, "_MAX_FULL_LENGTH", 16)
  shorter = best(_translator(), _sources())
  assert [item.tokens for item in shorter] == [item.tokens for item in translations]
  np.testing.assert_allclose([item.score for item in shorter], [item.score for item in translations], 1e-5)


def test_texts_are_tokenized_and_detokenized():
  translator = _translator()
  texts = ["A b", "", "c"]
  translations = translator.translate(texts)
  for translation, expected in zip(translations, best(translator, [("a", "b"), (), ("c",)]), strict=True):
    assert (translation.text, translation.tokens, translation.score) == (
      " ".join(expected.tokens),
      expected.tokens,
      expected.score,
    )
  assert (translations[1].text, translations[1].tokens, translations[1].attention) == ("", (), None)
  scored = translator.score([("a B", "x  y"), ("c", "")])
  assert [translation[:2] for translation in scored] == [
    translation[:2] for translation in translator.score_tokens([(("a", "b"), ("x", "y")), (("c",), ())])
  ]


def test_scores_match_the_model(scored):
  for example, pair in zip(_examples(), scored, strict=True):
    ids = LetterTask.target.vocabulary.encode(example.target)
    log_probabilities, weights = _alone(example.source, ids)
    loss = -sum(log_probabilities[t, token] for t, token in enumerate([*ids, EOS_ID]))
    np.testing.assert_allclose(-pair.log_probability, loss, rtol=1e-5)
    assert pair.num_tokens == len(ids) + 1  # EOS is counted
    assert pair.attention.shape == (len(ids) + 1, len(example.source) + 1)
    np.testing.assert_allclose(pair.attention, weights[: len(ids) + 1], atol=1e-5)
    np.testing.assert_allclose(pair.attention.sum(axis=1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("symbol", [PAD_ID, BOS_ID])
def test_special_ids_are_never_generated(symbol):
  change = _with_bias([symbol, EOS_ID], [1e4, -1e4])
  (translation,) = best(_translator(batch_size=1, change=change), [("a", "b", "c")])
  assert len(translation.tokens) == MAX_LENGTH


def test_diverged_models_are_reported():
  translator = _translator(
    batch_size=1, change=lambda params: jax.tree.map(lambda leaf: leaf * np.nan, params)
  )
  with pytest.raises(TrainingDiverged, match="loss or attention of the model is not finite"):
    translator.score_tokens([(("a", "b"), ("x",))])
  with pytest.raises(TrainingDiverged, match="translation score of the model is not finite"):
    best(translator, [("a", "b")])


def test_bfloat16_scores_are_float32():
  half = _translator(change=lambda params: optax.tree.cast(params, "bfloat16"))
  scored = half.score_tokens(_pairs()[:5])
  assert all(pair.attention.dtype == np.float32 for pair in scored)
  # bfloat16 numbers have 8 significant bits.
  losses = [-pair.log_probability for pair in scored]
  assert losses != jnp.array(losses, jnp.bfloat16).astype(jnp.float32).tolist()


BEAM_SIZE, N_BEST, LENGTH_PENALTY = 4, 3, 0.7


@pytest.fixture(scope="module")
def n_best():
  decode_options = {"beam_size": BEAM_SIZE, "n_best": N_BEST, "length_penalty": LENGTH_PENALTY}
  return _translator(**decode_options).n_best(_sources())


def _normalized(score, length):
  """Wu et al. 2016, arXiv:1609.08144, equation 14."""
  return score / ((5 + length) / 6) ** LENGTH_PENALTY


def test_n_best_are_in_order(n_best):
  for translations in n_best:
    assert len(translations) == N_BEST
    assert len({(translation.tokens, translation.is_truncated) for translation in translations}) == N_BEST
    assert translations == sorted(
      translations, key=lambda translation: (translation.is_truncated, -translation.score)
    )


def test_n_best_scores_and_weights(n_best):
  for source, translations in zip(_sources(), n_best, strict=True):
    for translation in translations:
      ids = _ids(translation)
      log_probabilities, weights = _alone(source, ids[: len(translation.tokens)])
      score = sum(log_probabilities[t, token] for t, token in enumerate(ids))
      np.testing.assert_allclose(translation.score, _normalized(score, len(ids)), rtol=1e-4)
      assert translation.attention.shape == (len(ids), len(source) + 1)
      np.testing.assert_allclose(translation.attention, weights[: len(ids)], atol=1e-5)


SAMPLING = {"temperature": 1.5, "top_k": 3}


def _sample(seed, **options):
  return best(_translator(seed=seed, **SAMPLING | options), _sources())


def test_samples_depend_on_the_seed():
  first, same_seed, *other_seeds = (_sample(seed) for seed in (5, 5, 6, 2**32 - 1))
  for translation, other in zip(first, same_seed, strict=True):
    assert (translation.tokens, translation.score, translation.is_truncated) == (
      other.tokens,
      other.score,
      other.is_truncated,
    )
  for other in other_seeds:
    assert [translation.tokens for translation in other] != [translation.tokens for translation in first]


def test_samples_depend_on_example_ids():
  batched = _sample(5)
  example_ids = list(range(len(batched)))
  single = [
    _translator(seed=5, batch_size=1, **SAMPLING).n_best([source], example_ids=[example_id])[0][0]
    for example_id, source in zip(example_ids, _sources(), strict=True)
  ]
  assert [translation.tokens for translation in single] == [translation.tokens for translation in batched]
  reordered = _translator(seed=5, **SAMPLING).n_best(_sources(), example_ids=example_ids[::-1])
  assert [best.tokens for (best,) in reordered] != [translation.tokens for translation in batched]


def test_samples_are_in_top_k():
  ranks = set()
  for seed in range(3):
    for source, translation in zip(_sources(), _sample(seed), strict=True):
      ids = _ids(translation)
      log_probabilities, weights = _alone(source, ids[: len(translation.tokens)])
      ranks |= {
        int((log_probabilities[t] > log_probabilities[t, token]).sum()) for t, token in enumerate(ids)
      }
      score = sum(log_probabilities[t, token] for t, token in enumerate(ids))
      np.testing.assert_allclose(translation.score, score, rtol=1e-4)
      np.testing.assert_allclose(translation.attention, weights[: len(ids)], atol=1e-5)
  assert ranks == {0, 1, 2}


def test_no_attention_has_no_weights():
  translator = _translator("none")
  (translation,) = best(translator, [("a", "b")])
  assert translation.attention is None
  (pair,) = translator.score_tokens([(("a", "b"), ("x",))])
  assert pair.attention is None
  log_probabilities, _ = _alone(("a", "b"), LetterTask.target.vocabulary.encode(("x",)), "none")
  expected = (
    -log_probabilities[0, LetterTask.target.vocabulary.encode(("x",))[0]] - log_probabilities[1, EOS_ID]
  )
  np.testing.assert_allclose(-pair.log_probability, expected, rtol=1e-5)


@pytest.mark.parametrize("texts", ["abc", [3], [("a", "b")]])
def test_texts_must_be_strings(texts):
  with pytest.raises(TypeError, match=r"^texts must be a list of strings, got "):
    _translator().translate(texts)


@pytest.mark.parametrize("pairs", [("ab", "cd"), ["ab"], [("a", 3)], [("a", "b", "c")]])
def test_pairs_must_be_strings(pairs):
  for method in ("score", "heads"):
    with pytest.raises(
      TypeError, match=r"^pairs must be a list of \(source, translation\), both strings, got "
    ):
      getattr(_translator(), method)(pairs)


def test_unknown_search_fields_are_errors():
  model, params = _model("none")
  with pytest.raises(ConfigError, match=r"^decode_options must have fields among max_length, .*, got beam$"):
    make_translator(base.Config(), LetterTask(), model, params, {"beam": 2})


TEXTS = ("The cat, it sees the dog!", "A dog saw <unk> cats.", "l'albero \u00e8 alto: perch\u00e9?", "No cat")


class TextTask:
  """A task with the same sentences on both sides."""

  def __init__(self, tokenization):
    options = {"lowercase": True, "min_count": 1, "vocabulary_size": 0, "subword_model": "unigram"}
    self.source = self.target = TextProcessor.learn(TEXTS, tokenization=tokenization, **options)


@pytest.mark.parametrize("tokenization", ["word", "character", "subword"])
def test_decoded_scores_match_teacher_forcing(tokenization):
  task = TextTask(tokenization)
  size = len(task.source.vocabulary)
  model = make_model(
    base.Model(embed_dim=5, features=6), source_vocabulary_size=size, target_vocabulary_size=size
  )
  batch = make_batch([[4]], [[4]], source_length=2, target_length=2)
  params = random_parameters(model, batch.sources, batch.source_lengths, batch.inputs, seed=5)["params"]
  # Special ids are probable.
  bias = (
    params["decoder"]["logits"]["bias"].at[np.array([PAD_ID, BOS_ID, UNK_ID])].add(4.0).at[EOS_ID].add(4.0)
  )
  params["decoder"]["logits"]["bias"] = bias
  decode_options = DecodeOptions(max_length=9, beam_size=4, n_best=4, length_penalty=0.0)
  translator = Translator(task, model, params, batch_size=4, decode_options=decode_options)
  n_best = translator.n_best(translator.source_tokens(TEXTS))
  finished = [
    (text, translation)
    for text, translations in zip(TEXTS, n_best, strict=True)
    for translation in translations
    if not translation.is_truncated
  ]
  assert any("<unk>" in translation.tokens for _, translation in finished) == (tokenization != "subword")
  pairs = translator.pair_tokens(
    [(text, " ".join(translation.tokens)) for text, translation in finished], are_tokens=True
  )
  assert [target for _, target in pairs] == [translation.tokens for _, translation in finished]
  for (_, translation), pair in zip(finished, translator.score_tokens(pairs), strict=True):
    np.testing.assert_allclose(pair.log_probability, translation.score, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(pair.attention, translation.attention, atol=1e-5)
  # Texts have the same scores if they are tokenized into the same tokens.
  texts = [
    (text, translation.text)
    for text, translation in finished
    if task.target.tokenize(translation.text) == translation.tokens
  ]
  scores = [
    translation.score
    for _, translation in finished
    if task.target.tokenize(translation.text) == translation.tokens
  ]
  assert scores
  np.testing.assert_allclose([pair.log_probability for pair in translator.score(texts)], scores, rtol=1e-4)


def test_blank_texts_are_not_translated():
  translator = _translator()
  assert [translation.tokens for translation in translator.translate(["\u200b", " \u200d\ufeff "])] == [
    (),
    (),
  ]


def test_n_best_may_return_fewer():
  # One token: EOS, or one of six words, which are truncated.
  (translations,) = _translator(batch_size=1, max_length=1, beam_size=11, n_best=11).n_best([("c",)])
  assert translations[0].tokens == ()
  assert {translation.tokens for translation in translations[1:]} == {
    ("<unk>",),
    *((word,) for word in TARGET_WORDS),
  }
  assert len(translations) == 7
