"""Dropout of units, words and states."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.layers.dropout import StateDropout, WordDropout, unit_dropout

B, T, E, H, V = 53, 7, 11, 13, 17
RATE = 0.25
rng = np.random.default_rng(0)
VECTORS = rng.normal(size=(B, T, E)).astype(np.float32)
TOKENS = rng.integers(V, size=(B, T))


def drop(layer, *arguments):
  rngs = {"dropout": jax.random.key(0)}
  run = jax.jit(lambda *arguments: layer.apply({}, *arguments, deterministic=False, rngs=rngs))
  return np.asarray(run(*arguments))


def assert_share(is_dropped, number, rate=RATE):
  """Asserts that a fraction of about `rate` of independent choices is True."""
  assert abs(np.mean(is_dropped) - rate) < 5 * np.sqrt(rate * (1 - rate) / number)


def assert_scaled(actual, is_dropped):
  np.testing.assert_allclose(actual, np.where(is_dropped, 0, VECTORS / (1 - RATE)), rtol=1e-6)


def test_variational_dropout_shares_units_across_positions():
  actual = drop(unit_dropout(RATE, variational=True), VECTORS)
  is_dropped = np.all(actual == 0, axis=1)
  assert_scaled(actual, is_dropped[:, None])
  assert_share(is_dropped, B * E)
  assert len(np.unique(is_dropped, axis=0)) > B / 2  # sentences are independent


def test_dropout_is_independent_across_positions():
  is_dropped = drop(unit_dropout(RATE), VECTORS) == 0
  assert_share(is_dropped, is_dropped.size)
  assert_share(is_dropped[:, 0] & is_dropped[:, 1], B * E, rate=RATE**2)


def test_word_dropout_drops_every_occurrence():
  actual = drop(WordDropout(RATE), VECTORS, TOKENS)
  is_dropped = np.all(actual == 0, axis=-1)
  assert_scaled(actual, is_dropped[..., None])
  choices = [is_dropped[b, TOKENS[b] == token] for b in range(B) for token in np.unique(TOKENS[b])]
  assert all(np.all(choice == choice[0]) for choice in choices)
  assert_share([choice[0] for choice in choices], len(choices))


def test_word_dropout_varies_across_sentences():
  words = np.broadcast_to(np.arange(T), (B, T))
  is_dropped = np.all(drop(WordDropout(RATE), VECTORS, words) == 0, axis=-1)
  assert_share(is_dropped, is_dropped.size)
  one_word, two_words = np.mean(is_dropped, axis=0), np.mean(is_dropped[:, :-1] ^ is_dropped[:, 1:], axis=0)
  assert np.all((one_word > 0.05) & (one_word < 0.65)) and np.all(two_words > 0.05)


def test_dropped_nan_words_give_zeros():
  words, vectors = np.arange(40)[None], np.full((1, 40, E), np.nan, np.float32)

  @jax.jit
  def run(vectors):
    rngs = {"dropout": jax.random.key(0)}
    dropped, pull = jax.vjp(
      lambda vectors: WordDropout(RATE).apply({}, vectors, words, deterministic=False, rngs=rngs), vectors
    )
    return dropped, *pull(dropped)

  actual, gradient = jax.device_get(run(vectors))
  is_dropped = np.all(actual == 0, axis=-1)
  assert np.any(is_dropped) and np.all(np.isnan(actual[~is_dropped]))
  np.testing.assert_array_equal(gradient[is_dropped], 0.0)


def test_state_masks_keep_the_mean():
  def masks(layer):
    return [layer(jnp.ones((B, H)), deterministic=False) for _ in range(2)]

  run = jax.jit(lambda rng: StateDropout(RATE).apply({}, rngs={"dropout": rng}, method=masks))
  one, other = jax.device_get(run(jax.random.key(0)))
  for mask in (one, other):
    np.testing.assert_allclose(mask, np.where(mask == 0, 0, 1 / (1 - RATE)), rtol=1e-6)
    assert_share(mask == 0, mask.size)
  assert_share((one == 0) & (other == 0), one.size, rate=RATE**2)  # each call draws another


@pytest.mark.parametrize(
  ("layer", "arguments"), [(WordDropout(RATE), (VECTORS, TOKENS)), (StateDropout(RATE), (VECTORS[:, 0],))]
)
def test_dropout_keeps_bfloat16(layer, arguments):
  half, *others = arguments
  assert drop(layer, half.astype(jnp.bfloat16), *others).dtype == jnp.bfloat16


@pytest.mark.parametrize(("rate", "deterministic"), [(RATE, True), (0.0, False)])
def test_no_dropout_needs_no_rng(rate, deterministic):
  actual = WordDropout(rate).apply({}, VECTORS, TOKENS, deterministic=deterministic)
  np.testing.assert_array_equal(actual, VECTORS)
  assert StateDropout(rate).apply({}, VECTORS[:, 0], deterministic=deterministic) is None


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_invalid_rates_raise(rate):
  with pytest.raises(ValueError, match=rf"word_dropout_rate must be a number in \[0, 1\), got {rate}"):
    WordDropout(rate).apply({}, VECTORS, TOKENS)
  with pytest.raises(ValueError, match=rf"recurrent_dropout_rate must be a number in \[0, 1\), got {rate}"):
    StateDropout(rate).apply({}, VECTORS[:, 0])
