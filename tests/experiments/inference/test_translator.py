"""Translation and scoring, by an untrained model of letters."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.model_reference import random_parameters

from configs import base
from experiments.cli.config_fields import ConfigError
from experiments.cli.errors import DataError, TrainingDiverged
from experiments.data.batches import make_batch
from experiments.data.text_processor import TextProcessor
from experiments.data.tokenizers import WordTokenizer
from experiments.data.vocabularies import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Vocabulary
from experiments.inference.decoding import DecodeOptions
from experiments.inference.translator import Translator, make_translator
from experiments.learning.model import make_model

SOURCE_WORDS, TARGET_WORDS = tuple("abcde"), tuple("vwxyz")
MAX_LENGTH = 7
RNG = np.random.default_rng(0)
# A source of more than 15 words is padded to 32. The lengths are not sorted.
SOURCES = [tuple(RNG.choice(SOURCE_WORDS, length).tolist()) for length in (3, 17, 1, 3, 1, 3)]
TARGETS = [tuple(RNG.choice(TARGET_WORDS, length).tolist()) for length in (2, 17, 4, 1, 3, 5)]
PAIRS = list(zip(SOURCES, TARGETS, strict=True))
SHORT = [SOURCES[i] for i in (0, 2, 3, 4, 5)]  # one batch


class LetterTask:
  """A task with letters as words."""

  source = TextProcessor(WordTokenizer(), Vocabulary(SOURCE_WORDS), lowercase=True)
  target = TextProcessor(WordTokenizer(), Vocabulary(TARGET_WORDS), lowercase=True)


def with_bias(params, bias_by_id):
  """Returns parameters with other output biases of some ids."""
  decoder = params["decoder"]
  ids, values = zip(*bias_by_id.items(), strict=True)
  bias = decoder["logits"]["bias"].at[np.array(ids)].set(np.array(values, np.float32))
  return params | {"decoder": decoder | {"logits": decoder["logits"] | {"bias": bias}}}


@functools.cache
def model_and_params(kind="additive", size=9):
  config, words = base.Model(attention=kind, embed_dim=5, features=6), jnp.ones((1, 2), jnp.int32)
  model = make_model(config, source_vocabulary_size=size, target_vocabulary_size=size)
  params = random_parameters(model, words, words[:, 0], words, seed=4)["params"]
  params = jax.tree.map(lambda leaf: 3 * leaf, params)  # large, so that translations differ
  # PAD and BOS are improbable, as after training. Some translations end before the maximum length.
  return model, with_bias(params, {PAD_ID: -1e4, BOS_ID: -1e4, EOS_ID: 0.0})


def make_translator_of(task, kind="additive", *, batch_size=5, bias_by_id=None, **decode_options):
  model, params = model_and_params(kind, len(task.source.vocabulary))
  params = with_bias(params, bias_by_id) if bias_by_id else params
  options = DecodeOptions(**({"max_length": MAX_LENGTH} | decode_options))
  return Translator(task, model, params, batch_size=batch_size, decode_options=options)


make_letters = functools.partial(make_translator_of, LetterTask())


@functools.partial(jax.jit, static_argnames="model")
def log_probabilities_and_weights(params, batch, model):
  arguments = batch.sources, batch.source_lengths, batch.inputs
  logits, weights = model.apply({"params": params}, *arguments)
  return jax.nn.log_softmax(logits)[0], None if weights is None else weights[0]


def alone(source, inputs, kind="additive"):
  """Returns log-probabilities [T V] and weights [T S] of one sentence, without padding of the source."""
  model, params = model_and_params(kind)
  ids = LetterTask.source.vocabulary.encode(source)
  batch = make_batch([ids], [inputs], source_length=len(ids) + 1, target_length=18)  # compiled once
  return log_probabilities_and_weights(params, batch, model)


def ids_of(translation):
  """Returns the ids of a translation, with EOS unless it is truncated."""
  return LetterTask.target.vocabulary.encode(translation.tokens) + [EOS_ID] * (not translation.is_truncated)


def score_of(source, ids):
  """Returns the log-probability and the weights of ids, which may end with EOS."""
  log_probabilities, weights = alone(source, ids[:-1])
  return sum(log_probabilities[t, token] for t, token in enumerate(ids)), weights[: len(ids)]


def assert_is_scored(translation, score, weights):
  np.testing.assert_allclose(translation.score, score, rtol=1e-4)
  np.testing.assert_allclose(translation.attention, weights, atol=1e-5)


def tokens_of(hypotheses):
  return [best.tokens for best, *_ in hypotheses]


@pytest.fixture(scope="module")
def translations():
  return [best for (best,) in make_letters().n_best(SOURCES)]


@pytest.fixture(scope="module")
def scored():
  return make_letters().score_tokens(PAIRS)


def test_translations_are_greedy_and_in_order(translations):
  for source, translation in zip(SOURCES, translations, strict=True):
    ids = ids_of(translation)
    log_probabilities, _ = alone(source, ids[:-1])
    assert np.argmax(log_probabilities, axis=-1)[: len(ids)].tolist() == ids
    assert_is_scored(translation, *score_of(source, ids))
    assert translation.text == " ".join(translation.tokens)
    assert len(ids) == MAX_LENGTH or not translation.is_truncated
  assert {translation.is_truncated for translation in translations} == {True, False}


def test_eos_can_be_disallowed():
  for source, (translation,) in zip(SHORT, make_letters(allow_eos=False).n_best(SHORT), strict=True):
    assert translation.is_truncated and len(translation.tokens) == MAX_LENGTH
    ids = ids_of(translation)
    log_probabilities, _ = alone(source, ids)
    others = log_probabilities[:MAX_LENGTH].at[:, EOS_ID].set(-jnp.inf)
    assert np.argmax(others, axis=-1).tolist() == ids


def test_scores_match_the_model(scored):
  without_eos = dataclasses.replace(make_letters(), train_eos=False).score_tokens(PAIRS)
  for (source, target), pair, shorter in zip(PAIRS, scored, without_eos, strict=True):
    ids = [*LetterTask.target.vocabulary.encode(target), EOS_ID]
    log_probability, weights = score_of(source, ids)
    np.testing.assert_allclose(pair.log_probability, log_probability, rtol=1e-4)
    assert (pair.num_tokens, shorter.num_tokens) == (len(ids), len(ids) - 1)
    np.testing.assert_allclose(pair.attention, weights, atol=1e-5)
    end = alone(source, ids[:-1])[0][len(ids) - 1, EOS_ID]
    np.testing.assert_allclose(shorter.log_probability, pair.log_probability - end, rtol=1e-4, atol=1e-4)


def test_texts_are_tokenized(translations):
  translator = make_letters()
  texts = [" ".join(SHORT[0]).upper(), "", " ".join(SHORT[1]), "\u200b", " \u200d\ufeff "]
  first, empty, second, *blank = translator.translate(texts)
  assert [(item.text, item.tokens) for item in (first, second)] == [translations[i][:2] for i in (0, 2)]
  assert (empty.text, empty.tokens, empty.score, empty.attention) == ("", (), 0.0, None)
  assert [item.tokens for item in blank] == [(), ()]
  assert translator.pair_tokens([("a B", "X  y"), ("c", "")]) == [(("a", "b"), ("x", "y")), (("c",), ())]
  by_text = translator.score([(" ".join(source).upper(), " ".join(target)) for source, target in PAIRS[:1]])
  by_tokens = translator.score_tokens(PAIRS[:1])
  assert by_text[0][:2] == by_tokens[0][:2]


def test_special_ids_are_never_generated():
  translator = make_letters(bias_by_id={PAD_ID: 1e4, BOS_ID: 1e4, EOS_ID: -1e4, UNK_ID: 2.0})
  translations = translator.n_best(SHORT)
  assert all(len(tokens) == MAX_LENGTH for tokens in tokens_of(translations))
  assert "<unk>" in itertools.chain(*tokens_of(translations))  # it can be generated


def test_diverged_models_are_reported():
  params = jax.tree.map(lambda leaf: leaf * np.nan, make_letters().params)
  translator = dataclasses.replace(make_letters(), params=params)
  with pytest.raises(TrainingDiverged, match="loss or attention of the model is not finite"):
    translator.score_tokens(PAIRS[:1])
  with pytest.raises(TrainingDiverged, match="translation score of the model is not finite"):
    translator.n_best(SHORT)


def test_n_best_are_in_order():
  n_best = make_letters(beam_size=4, n_best=3, length_penalty=0.7).n_best(SHORT)
  for source, hypotheses in zip(SHORT, n_best, strict=True):
    assert len({(item.tokens, item.is_truncated) for item in hypotheses}) == len(hypotheses) == 3
    assert hypotheses == sorted(hypotheses, key=lambda item: (item.is_truncated, -item.score))
    for translation in hypotheses:
      ids = ids_of(translation)
      score, weights = score_of(source, ids)
      # Wu et al. 2016, arXiv:1609.08144, equation 14.
      assert_is_scored(translation, score / ((5 + len(ids)) / 6) ** 0.7, weights)


def test_n_best_may_return_fewer():
  # One token: EOS, or one of six words, which are truncated.
  ((first, *others),) = make_letters(batch_size=1, max_length=1, beam_size=11, n_best=11).n_best([("c",)])
  assert (first.tokens, first.is_truncated, len(others)) == ((), False, 6)


def test_samples_depend_on_seed_and_ids():
  options = {"temperature": 1.5, "top_k": 3}
  samples = {seed: make_letters(seed=seed, **options).n_best(SHORT) for seed in (5, 6, 2**32 - 1)}
  assert len({str(tokens_of(hypotheses)) for hypotheses in samples.values()}) == 3
  # The numbers are those of the sentence, in any row.
  translator, ids = make_letters(seed=5, **options), [4, 3, 2, 1, 0]
  assert tokens_of(translator.n_best(SHORT[::-1], example_ids=ids))[::-1] == tokens_of(samples[5])
  assert tokens_of(translator.n_best(SHORT, example_ids=ids)) != tokens_of(samples[5])
  ranks = set()
  for source, (translation,) in zip(SHORT * 3, itertools.chain(*samples.values()), strict=True):
    ids = ids_of(translation)
    log_probabilities, _ = alone(source, ids)
    ranks |= {int((log_probabilities[t] > log_probabilities[t, token]).sum()) for t, token in enumerate(ids)}
    assert_is_scored(translation, *score_of(source, ids))
  assert ranks == {0, 1, 2}


def test_no_attention_has_no_weights():
  translator = make_letters("none", batch_size=1)
  ((translation,),) = translator.n_best([("a", "b", "c")])
  (pair,) = translator.score_tokens([(("a", "b", "c"), translation.tokens)])
  assert translation.attention is None and pair.attention is None
  end = alone(("a", "b", "c"), ids_of(translation), "none")[0][len(translation.tokens), EOS_ID]
  expected = translation.score + (end if translation.is_truncated else 0)
  np.testing.assert_allclose(pair.log_probability, expected, rtol=1e-5)


def test_heads_are_those_of_the_decoder(scored):
  heads = make_letters().heads_of_tokens(PAIRS)
  for (source, target), found, pair in zip(PAIRS, heads, scored, strict=True):
    assert (found.source, found.target, found.encoder) == (source, target, None)
    np.testing.assert_allclose(found.decoder, [[pair.attention]], rtol=1e-5, atol=1e-6)


def test_heads_of_bfloat16_are_float32():
  model, params = model_and_params()
  half = make_translator(base.Config(model=base.Model(dtype="bfloat16")), LetterTask(), model, params)
  assert {leaf.dtype for leaf in jax.tree.leaves(half.params)} == {jnp.dtype("bfloat16")}
  assert half.heads_of_tokens(PAIRS[:1])[0].decoder.dtype == np.float32


class TextTask:
  """A task with the same subwords on both sides."""

  texts = ("The cat, it sees the dog!", "A dog saw <unk> cats.", "l'albero è alto: perché?", "No cat")
  source = target = TextProcessor.learn(
    texts, tokenization="subword", lowercase=True, min_count=1, vocabulary_size=0, subword_model="unigram"
  )


def test_decoded_scores_match_teacher_forcing():
  # Both are normalized without the ids that are never generated: here also UNK, since bytes replace it.
  likely = dict.fromkeys((PAD_ID, BOS_ID, UNK_ID), 99.0) | {EOS_ID: 4.0}
  options = {"beam_size": 4, "n_best": 4, "length_penalty": 0.0}
  translator = make_translator_of(TextTask(), batch_size=4, bias_by_id=likely, **options)
  n_best = zip(TextTask.texts, translator.n_best(translator.source_tokens(TextTask.texts)), strict=True)
  pairs = [(text, best) for text, found in n_best for best in found if not best.is_truncated]
  assert pairs and not any("<unk>" in best.tokens for _, best in pairs)
  tokens = translator.pair_tokens([(text, " ".join(best.tokens)) for text, best in pairs], are_tokens=True)
  assert [target for _, target in tokens] == [best.tokens for _, best in pairs]
  for (_, best), pair in zip(pairs, translator.score_tokens(tokens), strict=True):
    np.testing.assert_allclose(pair.log_probability, best.score, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(pair.attention, best.attention, atol=1e-5)
  with pytest.raises(DataError, match="tokens must be written by translate --tokens, got 'never'"):
    translator.pair_tokens([("a", "never")], are_tokens=True)


INVALID = [
  (lambda t: t.translate("abc"), TypeError, "texts must be a list of strings, got 'abc'"),
  (lambda t: t.translate([3]), TypeError, r"texts must be a list of strings, got \[3\]"),
  (lambda t: t.score(("ab", "cd")), TypeError, r"pairs must be .* \(source, translation\), both strings"),
  (lambda t: t.heads([("a", 3)]), TypeError, r"pairs must be .*, both strings, got \('a', 3\)"),
  (lambda t: t.heads_of_tokens([(("a",), ("x",) * 4_097)]), DataError, "most 4,096 tokens .* got 4,097$"),
]


@pytest.mark.parametrize(("call", "error", "message"), INVALID)
def test_invalid_arguments_are_errors(call, error, message):
  with pytest.raises(error, match=message):
    call(make_letters())


def test_decoding_follows_the_config():
  evaluation = base.Evaluation(max_decode_length=5, beam_size=3, length_penalty=0.25, batch_size=7)
  config = base.Config(evaluation=evaluation, train=base.Train(train_eos=False))
  arguments = config, LetterTask(), *model_and_params()
  with pytest.raises(ConfigError, match=r"decode_options must have fields among max_length, .*, got beam$"):
    make_translator(*arguments, {"beam": 2})
  translator = make_translator(*arguments, {"n_best": 2, "beam_size": 4})
  assert translator.decode_options == DecodeOptions(5, beam_size=4, length_penalty=0.25, n_best=2)
  assert (translator.batch_size, translator.train_eos) == (7, False)
  assert translator.with_decode_options(seed=3).decode_options == translator.decode_options._replace(seed=3)
