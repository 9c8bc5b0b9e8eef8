"""Dropout of units, words and states."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.fixtures import FLOAT32, assert_close
from helpers.model_reference import random_parameters

import attention
from attention.layers.dropout import StateDropout, WordDropout, unit_dropout

DIMS = chex.Dimensions(B=53, T=7, E=11, H=13, V=17)
RATE = 0.25
random = np.random.default_rng(0)
VECTORS = jnp.asarray(random.normal(size=DIMS["BTE"]), jnp.float32)
TOKENS = random.integers(DIMS.V, size=DIMS["BT"])


def drop(layer, *arguments, seed=0):
  return layer.apply({}, *arguments, deterministic=False, rngs={"dropout": jax.random.key(seed)})


def assert_share(is_dropped, number):
  """Asserts that a fraction of about RATE of independent choices is True."""
  assert abs(np.mean(is_dropped) - RATE) < 5 * np.sqrt(RATE * (1 - RATE) / number)


def assert_scaled(actual, is_dropped):
  assert_close(actual, np.where(is_dropped, 0, VECTORS / (1 - RATE)), FLOAT32)


def test_variational_dropout_shares_units_across_positions():
  actual = drop(unit_dropout(RATE, variational=True), VECTORS)
  is_dropped = np.all(actual == 0, axis=1)
  assert_scaled(actual, is_dropped[:, None])
  assert_share(is_dropped, DIMS.B * DIMS.E)
  assert len(np.unique(is_dropped, axis=0)) > DIMS.B / 2  # every sentence is independent


def test_dropout_is_independent_across_positions():
  is_dropped = np.asarray(drop(unit_dropout(RATE), VECTORS) == 0)
  assert_share(is_dropped, is_dropped.size)
  both = np.mean(is_dropped[:, 0] & is_dropped[:, 1])
  assert abs(both - RATE**2) < 5 * RATE / np.sqrt(DIMS.B * DIMS.E)


def test_word_dropout_drops_every_occurrence():
  actual = drop(WordDropout(RATE), VECTORS, jnp.asarray(TOKENS))
  is_dropped = np.all(actual == 0, axis=-1)
  assert_scaled(actual, is_dropped[..., None])
  fates = [{token: is_dropped[b, TOKENS[b] == token] for token in TOKENS[b]} for b in range(DIMS.B)]
  choices = [fate for sentence in fates for fate in sentence.values()]
  assert all(np.all(fate == fate[0]) for fate in choices)
  assert_share([fate[0] for fate in choices], len(choices))


def test_word_dropout_varies_across_sentences():
  words = jnp.broadcast_to(jnp.arange(DIMS.T), DIMS["BT"])
  is_dropped = np.all(drop(WordDropout(RATE), VECTORS, words) == 0, axis=-1)
  assert_share(is_dropped, is_dropped.size)
  shares = np.concatenate(
    [np.mean(is_dropped, axis=0), np.mean(is_dropped[:, :-1] ^ is_dropped[:, 1:], axis=0)]
  )
  assert np.all((shares > 0.05) & (shares < 0.65))  # neither one word everywhere, nor two words together


def test_dropped_nan_words_give_zeros():
  words, vectors = jnp.arange(40)[None], jnp.full((1, 40, DIMS.E), jnp.nan)
  actual, pull = jax.vjp(lambda vectors: drop(WordDropout(RATE), vectors, words), vectors)
  is_dropped = np.all(actual == 0, axis=-1)
  assert np.any(is_dropped) and np.all(np.isnan(actual[~is_dropped]))
  np.testing.assert_array_equal(pull(actual)[0][is_dropped], 0.0)


def test_state_masks_keep_the_mean():
  def masks(layer):
    return [layer(jnp.ones(DIMS["BH"]), deterministic=False) for _ in range(2)]

  one, other = StateDropout(RATE).apply({}, rngs={"dropout": jax.random.key(0)}, method=masks)
  for mask in (one, other):
    assert_close(mask, np.where(mask == 0, 0, 1 / (1 - RATE)), FLOAT32)
    assert_share(mask == 0, mask.size)
  both = np.mean((one == 0) & (other == 0))
  assert abs(both - RATE**2) < 5 * RATE / np.sqrt(one.size)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_dropout_keeps_the_dtype(dtype):
  vectors = VECTORS.astype(dtype)
  assert drop(WordDropout(RATE), vectors, jnp.asarray(TOKENS)).dtype == dtype
  assert drop(StateDropout(RATE), vectors[:, 0]).dtype == dtype


def test_zero_rates_need_no_rng():
  words = VECTORS, jnp.asarray(TOKENS)
  for rate, deterministic in ((RATE, True), (0.0, False)):  # without an rng
    actual = WordDropout(rate).apply({}, *words, deterministic=deterministic)
    np.testing.assert_array_equal(actual, VECTORS)
    assert StateDropout(rate).apply({}, VECTORS[:, 0], deterministic=deterministic) is None


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_invalid_rates_raise(rate):
  with pytest.raises(ValueError, match=rf"word_dropout_rate must be a number in \[0, 1\), got {rate}"):
    WordDropout(rate).apply({}, VECTORS, jnp.asarray(TOKENS))
  with pytest.raises(ValueError, match=rf"recurrent_dropout_rate must be a number in \[0, 1\), got {rate}"):
    StateDropout(rate).apply({}, VECTORS[:, 0])


@pytest.mark.parametrize("layer", [attention.EncoderLayer, attention.DecoderLayer])
def test_dropped_sublayers_return_inputs(layer):
  rng = np.random.default_rng(0)
  inputs, sources = (jnp.asarray(rng.normal(size=(2, length, 6)), jnp.float32) for length in (3, 5))
  arguments = (inputs, sources) if layer is attention.DecoderLayer else (inputs,)
  module = layer(num_heads=2, mlp_dim=7, dropout_rate=1 - 1e-6)
  variables = random_parameters(module, *arguments)
  outputs = module.apply(variables, *arguments, deterministic=False, rngs={"dropout": jax.random.key(0)})
  np.testing.assert_array_equal(outputs, inputs)
  assert np.all(np.abs(module.apply(variables, *arguments) - inputs).max(axis=-1) > 0.1)
