"""Tests of experiments/translation/translator.py."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.model_reference import random_parameters

from configs import base
from experiments.cli.config_fields import ConfigError
from experiments.cli.errors import TrainingDiverged
from experiments.tasks import Example
from experiments.text.batches import make_batch
from experiments.text.text_processor import TextProcessor
from experiments.text.tokenizers import WordTokenizer
from experiments.text.vocabularies import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Vocabulary
from experiments.translation.decoding import DecodeOptions
from experiments.translation.model import make_model
from experiments.translation.step import cast
from experiments.translation.translator import Translator, make_translator

SOURCE_WORDS = tuple("abcde")
TARGET_WORDS = tuple("vwxyz")
MAX_LENGTH = 7
END_BIAS = {"recurrent": 1.0, "transformer": 4.0}

# More words than 15 need longer arrays than the others; the lengths are in no order.
LENGTHS = (3, 17, 1, 5, 2, 4, 15)


class LetterTask:
  """Letters for words."""

  source = TextProcessor(WordTokenizer(), Vocabulary(SOURCE_WORDS), lowercase=True)
  target = TextProcessor(WordTokenizer(), Vocabulary(TARGET_WORDS), lowercase=True)


def best(translator, sources, **options):
  """Returns the best translation of each source, which are tokens."""
  return [found[0] for found in translator.n_best(sources, **options)]


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
  # As after training, nothing makes it say the symbols that are in no target.
  bias = params["decoder"]["logits"]["bias"].at[np.array([PAD_ID, BOS_ID])].set(-1e4)
  # It ends some sentences, and some not.
  params["decoder"]["logits"]["bias"] = bias.at[EOS_ID].add(END_BIAS[changes.get("decoder", "recurrent")])
  return model, params


def _translator(attention="additive", batch_size=5, change=None, max_length=MAX_LENGTH, **search):
  """Returns a translator; `change` makes other parameters of the model's."""
  model, params = _model(attention)
  params = params if change is None else change(params)
  return Translator(
    LetterTask(), model, params, batch_size=batch_size, search=DecodeOptions(max_length, **search)
  )


def _with_bias(symbols, values):
  """Returns a function that makes a model say some symbols always or never."""

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
  """Returns log-probabilities [T V] and weights [T S] of one sentence, without padding in the source.

  What stands after the inputs does not change what comes before: one length of them is compiled once.
  """
  model, params = _model(attention)
  ids = LetterTask.source.vocabulary.encode(source)
  batch = make_batch([ids], [inputs], source_length=len(ids) + 1, target_length=18)
  logits, weights = _APPLY(params, batch.sources, batch.source_lengths, batch.inputs, model=model)
  return _log_softmax(logits[0]), None if weights is None else np.asarray(weights[0])


def _pairs():
  return [(example.source, example.target) for example in _examples()]


def _greedy(source, kind):
  """Returns ids, their log-probability and the weights of the greedy translation, word by word."""
  ids, score = [], 0.0
  while True:
    log_probabilities, weights = _alone(source, ids, kind)
    best = int(log_probabilities[len(ids)].argmax())
    score += log_probabilities[len(ids), best]
    ids.append(best)
    if best == EOS_ID or len(ids) == MAX_LENGTH:
      return ids, score, weights[: len(ids)]


def _ids(translation):
  """Returns the tokens of a translation, with the end of the sentence unless it was cut."""
  # "<unk>" is no word of the vocabulary, so its id is that of the unknown.
  return LetterTask.target.vocabulary.encode(translation.tokens) + [EOS_ID] * (not translation.is_truncated)


@pytest.fixture(scope="module")
def translations():
  return best(_translator(), _sources())


@pytest.fixture(scope="module")
def scored():
  return _translator().score_tokens(_pairs())


@pytest.mark.parametrize("kind", [pytest.param("additive", marks=pytest.mark.exhaustive), "transformer"])
def test_translations_are_greedy_and_in_order(kind):
  ends = set()
  for source, found in zip(_sources(), best(_translator(kind), _sources()), strict=True):
    ids, score, weights = _greedy(source, kind)
    assert found.tokens == LetterTask.target.vocabulary.decode(ids)
    ends.add(ids[-1] == EOS_ID)
    assert found.is_truncated == (ids[-1] != EOS_ID)
    np.testing.assert_allclose(found.score, score, rtol=1e-5)
    assert found.attention.shape == weights.shape == (len(ids), len(source) + 1)
    np.testing.assert_allclose(found.attention, weights, atol=1e-5)
  assert ends == {True, False}


def test_translations_may_have_no_end():
  for source, found in zip(_sources(), best(_translator(ends=False), _sources()), strict=True):
    assert found.is_truncated and len(found.tokens) == MAX_LENGTH
    inputs = LetterTask.target.vocabulary.encode(found.tokens)
    log_probabilities = _alone(source, inputs)[0][: len(inputs)]
    log_probabilities[:, EOS_ID] = -np.inf
    assert np.argmax(log_probabilities, axis=-1).tolist() == inputs


def test_unlearnt_ends_have_no_score(scored):
  model, params = _model("additive")
  options = {"batch_size": 5, "search": DecodeOptions(MAX_LENGTH), "train_eos": False}
  found = Translator(LetterTask(), model, params, **options).score_tokens(_pairs())
  for (source, target), one, whole in zip(_pairs(), found, scored, strict=True):
    inputs = LetterTask.target.vocabulary.encode(target)
    end = _alone(source, inputs)[0][len(inputs), EOS_ID]
    assert one.num_tokens == whole.num_tokens - 1 == len(inputs)
    np.testing.assert_allclose(one.log_probability, whole.log_probability - end, rtol=1e-4)


def test_texts_are_cut_and_joined():
  translator = _translator()
  texts = ["A b", "", "c"]
  found = translator.translate(texts)
  for one, other in zip(found, best(translator, [("a", "b"), (), ("c",)]), strict=True):
    assert (one.text, one.tokens, one.score) == (" ".join(other.tokens), other.tokens, other.score)
  assert (found[1].text, found[1].tokens, found[1].attention) == ("", (), None)
  scored = translator.score([("a B", "x  y"), ("c", "")])
  assert [one[:2] for one in scored] == [
    one[:2] for one in translator.score_tokens([(("a", "b"), ("x", "y")), (("c",), ())])
  ]


def test_scores_are_those_of_the_model(scored):
  for example, one in zip(_examples(), scored, strict=True):
    ids = LetterTask.target.vocabulary.encode(example.target)
    log_probabilities, weights = _alone(example.source, ids)
    loss = -sum(log_probabilities[t, token] for t, token in enumerate([*ids, EOS_ID]))
    np.testing.assert_allclose(-one.log_probability, loss, rtol=1e-5)
    assert one.num_tokens == len(ids) + 1  # the end symbol is counted
    assert one.attention.shape == (len(ids) + 1, len(example.source) + 1)
    np.testing.assert_allclose(one.attention, weights[: len(ids) + 1], atol=1e-5)
    np.testing.assert_allclose(one.attention.sum(axis=1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("symbol", [PAD_ID, BOS_ID])
def test_special_ids_are_never_chosen(symbol):
  change = _with_bias([symbol, EOS_ID], [1e4, -1e4])
  (found,) = best(_translator(batch_size=1, change=change), [("a", "b", "c")])
  assert len(found.tokens) == MAX_LENGTH


def test_diverged_models_are_reported():
  translator = _translator(
    batch_size=1, change=lambda params: jax.tree.map(lambda leaf: leaf * np.nan, params)
  )
  with pytest.raises(TrainingDiverged, match="loss or attention is not finite"):
    translator.score_tokens([(("a", "b"), ("x",))])
  with pytest.raises(TrainingDiverged, match="score of a translation is not finite"):
    best(translator, [("a", "b")])


def test_half_precision_is_summed_in_single():
  half = _translator(change=lambda params: cast(params, "bfloat16"))
  scored = half.score_tokens(_pairs()[:5])
  assert all(one.attention.dtype == np.float32 for one in scored)
  # A number of half precision has 8 bits.
  losses = [-one.log_probability for one in scored]
  assert losses != jnp.array(losses, jnp.bfloat16).astype(jnp.float32).tolist()


BEAM_SIZE, N_BEST, LENGTH_PENALTY = 4, 3, 0.7


@pytest.fixture(scope="module")
def n_best():
  search = {"beam_size": BEAM_SIZE, "n_best": N_BEST, "length_penalty": LENGTH_PENALTY}
  return _translator(**search).n_best(_sources())


def _normalised(score, length):
  """Wu et al. 2016, arXiv:1609.08144, equation 14."""
  return score / ((5 + length) / 6) ** LENGTH_PENALTY


def test_n_best_are_in_order(n_best):
  for found in n_best:
    assert len(found) == N_BEST
    assert len({(one.tokens, one.is_truncated) for one in found}) == N_BEST
    assert found == sorted(found, key=lambda one: (one.is_truncated, -one.score))


def test_n_best_scores_and_weights(n_best):
  for source, found in zip(_sources(), n_best, strict=True):
    for one in found:
      ids = _ids(one)
      log_probabilities, weights = _alone(source, ids[: len(one.tokens)])
      score = sum(log_probabilities[t, token] for t, token in enumerate(ids))
      np.testing.assert_allclose(one.score, _normalised(score, len(ids)), rtol=1e-4)
      assert one.attention.shape == (len(ids), len(source) + 1)
      np.testing.assert_allclose(one.attention, weights[: len(ids)], atol=1e-5)


DRAWING = {"temperature": 1.5, "top_k": 3}


def _drawn(seed, **options):
  return best(_translator(seed=seed, **DRAWING | options), _sources())


def test_samples_depend_on_the_seed():
  first, again, *others = (_drawn(seed) for seed in (5, 5, 6, 2**32 - 1))
  for one, other in zip(first, again, strict=True):
    assert (one.tokens, one.score, one.is_truncated) == (other.tokens, other.score, other.is_truncated)
  for other in others:
    assert [one.tokens for one in other] != [one.tokens for one in first]


def test_samples_depend_on_the_number():
  whole = _drawn(5)
  numbers = list(range(len(whole)))
  alone = [
    _translator(seed=5, batch_size=1, **DRAWING).n_best([source], numbers=[number])[0][0]
    for number, source in zip(numbers, _sources(), strict=True)
  ]
  assert [one.tokens for one in alone] == [one.tokens for one in whole]
  others = _translator(seed=5, **DRAWING).n_best(_sources(), numbers=numbers[::-1])
  assert [best.tokens for (best,) in others] != [one.tokens for one in whole]


def test_samples_are_likely():
  ranks = set()
  for seed in range(3):
    for source, one in zip(_sources(), _drawn(seed), strict=True):
      ids = _ids(one)
      log_probabilities, weights = _alone(source, ids[: len(one.tokens)])
      ranks |= {
        int((log_probabilities[t] > log_probabilities[t, token]).sum()) for t, token in enumerate(ids)
      }
      score = sum(log_probabilities[t, token] for t, token in enumerate(ids))
      np.testing.assert_allclose(one.score, score, rtol=1e-4)
      np.testing.assert_allclose(one.attention, weights[: len(ids)], atol=1e-5)
  assert ranks == {0, 1, 2}


def test_no_attention_has_no_weights():
  translator = _translator("none")
  (found,) = best(translator, [("a", "b")])
  assert found.attention is None
  (one,) = translator.score_tokens([(("a", "b"), ("x",))])
  assert one.attention is None
  log_probabilities, _ = _alone(("a", "b"), LetterTask.target.vocabulary.encode(("x",)), "none")
  expected = (
    -log_probabilities[0, LetterTask.target.vocabulary.encode(("x",))[0]] - log_probabilities[1, EOS_ID]
  )
  np.testing.assert_allclose(-one.log_probability, expected, rtol=1e-5)


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


def test_unknown_search_fields_are_refused():
  model, params = _model("none")
  with pytest.raises(ConfigError, match=r"^search must have the fields max_length, beam_size, .*, got beam$"):
    make_translator(base.Config(), LetterTask(), model, params, {"beam": 2})


TEXTS = ("The cat, it sees the dog!", "A dog saw <unk> cats.", "l'albero \u00e8 alto: perch\u00e9?", "No cat")


class TextTask:
  """The same few sentences on both sides."""

  def __init__(self, unit):
    options = {"lowercase": True, "min_count": 1, "vocabulary_size": 0, "subwords": "unigram"}
    self.source = self.target = TextProcessor.learn(TEXTS, unit=unit, **options)


@pytest.mark.parametrize("unit", ["word", "character", "subword"])
def test_found_translations_keep_their_score(unit):
  task = TextTask(unit)
  size = len(task.source.vocabulary)
  model = make_model(
    base.Model(embed_dim=5, features=6), source_vocabulary_size=size, target_vocabulary_size=size
  )
  batch = make_batch([[4]], [[4]], source_length=2, target_length=2)
  params = random_parameters(model, batch.sources, batch.source_lengths, batch.inputs, seed=5)["params"]
  # As likely as not it says what stands for no token, and ends.
  bias = (
    params["decoder"]["logits"]["bias"].at[np.array([PAD_ID, BOS_ID, UNK_ID])].add(4.0).at[EOS_ID].add(4.0)
  )
  params["decoder"]["logits"]["bias"] = bias
  search = DecodeOptions(max_length=9, beam_size=4, n_best=4, length_penalty=0.0)
  translator = Translator(task, model, params, batch_size=4, search=search)
  found = translator.n_best(translator.source_tokens(TEXTS))
  ended = [
    (text, one) for text, each in zip(TEXTS, found, strict=True) for one in each if not one.is_truncated
  ]
  assert any("<unk>" in one.tokens for _, one in ended) == (unit != "subword")
  pairs = translator.pair_tokens([(text, " ".join(one.tokens)) for text, one in ended], are_tokens=True)
  assert [target for _, target in pairs] == [one.tokens for _, one in ended]
  for (_, one), read in zip(ended, translator.score_tokens(pairs), strict=True):
    np.testing.assert_allclose(read.log_probability, one.score, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(read.attention, one.attention, atol=1e-5)
  # Of their texts, too, where these are cut into the same tokens.
  texts = [(text, one.text) for text, one in ended if task.target.tokenize(one.text) == one.tokens]
  same = [one.score for _, one in ended if task.target.tokenize(one.text) == one.tokens]
  assert same
  np.testing.assert_allclose([read.log_probability for read in translator.score(texts)], same, rtol=1e-4)


def test_invisible_texts_are_not_translated():
  translator = _translator()
  assert [one.tokens for one in translator.translate(["\u200b", " \u200d\ufeff "])] == [(), ()]


def test_fewer_translations_than_asked():
  # Of one token: the end, or one of six words, which are cut.
  (found,) = _translator(batch_size=1, max_length=1, beam_size=11, n_best=11).n_best([("c",)])
  assert found[0].tokens == ()
  assert {one.tokens for one in found[1:]} == {("<unk>",), *((word,) for word in TARGET_WORDS)}
  assert len(found) == 7
