"""Attention that remembers where it looked: what the decoder's tests do not see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import FLOAT32, assert_close

from attention import masks
from attention.layers.stepwise import LocationAwareAttention, MonotonicAttention

B, S, H, D, A = 2, 5, 3, 7, 11


def look(layer, variables, queries, sources, **options):
  """Returns the weights [B T S] of looks one after the other."""

  def run(layer):
    prepared = layer.prepare(sources)
    remembered, found = layer.remember_nothing(prepared), []
    for t in range(queries.shape[1]):
      looked = layer.attend_next(queries[:, t], prepared, remembered, **options)
      remembered = looked.remembered
      found.append(looked.weights)
    return jnp.stack(found, axis=1)

  return layer.apply(variables, method=run, rngs={"dropout": jax.random.key(2)})


def drawn(layer, T=4):
  rng = np.random.default_rng(0)
  queries = jnp.asarray(rng.normal(size=(B, T, H)), jnp.float32)
  sources = jnp.asarray(rng.normal(size=(B, S, D)), jnp.float32)

  def whole(layer):
    prepared = layer.prepare(sources)
    return layer.attend_next(queries[:, 0], prepared, layer.remember_nothing(prepared))

  variables = layer.init(jax.random.key(0), method=whole)
  # Large enough for weights that differ.
  return jax.tree.map(lambda leaf: 3 * leaf, variables), queries, sources


def test_what_was_looked_at_repels_once_a_filter_says_so():
  layer = LocationAwareAttention(width=A, num_filters=1, filter_width=1, accumulates=True)
  variables, queries, sources = drawn(layer)
  params = variables["params"]
  # One query over and over; a location of 1 takes each unit to where tanh is -1, and the score to its lowest.
  params = params | {
    "filters": jnp.full((1, 1), -100.0),
    "location_kernel": jnp.ones((1, A)),
    "score_vector": jnp.full(A, 50.0),
  }
  weights = look(layer, {"params": params}, jnp.repeat(queries[:, :1], S, axis=1), sources)
  # Each look finds what none before it has found, until all are.
  np.testing.assert_array_equal(np.sort(np.argmax(weights, axis=-1), axis=-1), np.tile(np.arange(S), (B, 1)))


def test_a_mask_hides_keys_at_every_look():
  for layer in (LocationAwareAttention(width=A), MonotonicAttention(width=A)):
    weights = look(layer, *drawn(layer), mask=masks.lengths(source=jnp.array([2, 4])))
    np.testing.assert_array_equal(weights[0, :, 2:], 0)
    np.testing.assert_array_equal(weights[1, :, 4:], 0)
    assert np.all(weights[0, :, :2] > 0)


def test_noise_is_drawn_in_training_alone_and_for_each_look_and_key():
  layer = MonotonicAttention(width=A, noise=2.0)
  still, moved = (look(layer, *drawn(layer), deterministic=flag) for flag in (True, False))
  assert_close(
    still, look(MonotonicAttention(width=A, noise=0.0), *drawn(layer), deterministic=False), FLOAT32
  )
  assert np.all(np.abs(still - moved).max(axis=-1) > 1e-3)


def test_an_offset_far_below_zero_goes_to_the_end():
  layer = MonotonicAttention(width=A, offset=-100.0)
  np.testing.assert_array_equal(look(layer, *drawn(layer), is_hard=True), 0)


@pytest.mark.parametrize("name", ["num_filters", "filter_width"])
def test_sizes_are_at_least_one(name):
  with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
    drawn(LocationAwareAttention(width=A, **{name: 0}))
