"""Stateful attention and local attention: properties that tests of the decoder do not cover."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.fixtures import FLOAT32, assert_close

import attention
from attention import masks
from attention.layers.stateful_attention import LocationAwareAttention, MonotonicAttention

B, S, H, D, A = 2, 5, 3, 7, 11


def look(layer, variables, queries, sources, **options):
  """Returns the weights [B T S] of consecutive steps."""

  def run(layer):
    keys_values = layer.project_kv(sources)
    state, found = layer.initial_state(keys_values), []
    for t in range(queries.shape[1]):
      output = layer.step(queries[:, t], keys_values, state, **options)
      state = output.state
      found.append(output.weights)
    return jnp.stack(found, axis=1)

  return jax.jit(lambda variables: layer.apply(variables, method=run, rngs={"dropout": jax.random.key(2)}))(
    variables
  )


def drawn(layer, T=4):
  rng = np.random.default_rng(0)
  queries = jnp.asarray(rng.normal(size=(B, T, H)), jnp.float32)
  sources = jnp.asarray(rng.normal(size=(B, S, D)), jnp.float32)

  def whole(layer):
    keys_values = layer.project_kv(sources)
    return layer.step(queries[:, 0], keys_values, layer.initial_state(keys_values))

  variables = layer.init(jax.random.key(0), method=whole)
  # Large enough for weights that differ.
  return jax.tree.map(lambda leaf: 3 * leaf, variables), queries, sources


def test_location_filters_change_attention():
  layer = LocationAwareAttention(features=A, num_filters=1, kernel_size=1, accumulate_weights=True)
  variables, queries, sources = drawn(layer)
  params = variables["params"]
  # The same query repeatedly. A location of 1 moves each unit to where tanh is -1, and the score to its
  # minimum.
  params = params | {
    "filters": jnp.full((1, 1), -100.0),
    "location_kernel": jnp.ones((1, A)),
    "score_vector": jnp.full(A, 50.0),
  }
  weights = look(layer, {"params": params}, jnp.repeat(queries[:, :1], S, axis=1), sources)
  # Each step attends to a key that no previous step attended to.
  np.testing.assert_array_equal(np.sort(np.argmax(weights, axis=-1), axis=-1), np.tile(np.arange(S), (B, 1)))


def test_masked_keys_stay_hidden():
  for layer in (LocationAwareAttention(features=A), MonotonicAttention(features=A)):
    weights = look(layer, *drawn(layer), mask=masks.lengths(source=jnp.array([2, 4])))
    np.testing.assert_array_equal(weights[0, :, 2:], 0)
    np.testing.assert_array_equal(weights[1, :, 4:], 0)
    assert np.all(weights[0, :, :2] > 0)


def test_noise_is_drawn_in_training_only():
  layer = MonotonicAttention(features=A, noise=2.0)
  still, moved = (look(layer, *drawn(layer), deterministic=flag) for flag in (True, False))
  assert_close(
    still, look(MonotonicAttention(features=A, noise=0.0), *drawn(layer), deterministic=False), FLOAT32
  )
  assert np.all(np.abs(still - moved).max(axis=-1) > 1e-3)


def test_very_negative_offset_reaches_the_end():
  layer = MonotonicAttention(features=A, offset=-100.0)
  np.testing.assert_array_equal(look(layer, *drawn(layer), hard=True), 0)


@pytest.mark.parametrize("name", ["num_filters", "kernel_size"])
def test_sizes_are_at_least_one(name):
  with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1, got 0"):
    drawn(LocationAwareAttention(features=A, **{name: 0}))


@pytest.mark.parametrize(
  "layer",
  [
    LocationAwareAttention(features=A),
    LocationAwareAttention(features=A, accumulate_weights=True),
    MonotonicAttention(features=A),
  ],
  ids=["location_aware", "coverage", "monotonic"],
)
def test_calls_attend_query_by_query(layer):
  variables, queries, sources = drawn(layer)
  assert jax.tree.map(jnp.shape, layer.init(jax.random.key(0), queries, sources)) == jax.tree.map(
    jnp.shape, variables
  )
  mask = masks.lengths(source=jnp.array([2, 4]))
  context, weights = layer.apply(variables, queries, sources, mask=mask, return_weights=True)
  assert_close(weights, look(layer, variables, queries, sources, mask=mask), FLOAT32)
  assert_close(context, np.einsum("BTS,BSD->BTD", weights, sources), 10 * FLOAT32)
  # The first query attends before the second, which therefore attends to another key.
  alone = layer.apply(variables, queries[:, 1:2], sources, mask=mask, return_weights=True)[1]
  assert np.max(np.abs(alone[:, 0] - weights[:, 1])) > 1e-3


def test_unsupported_calls_raise():
  layer = MonotonicAttention(features=A)
  variables, queries, sources = drawn(layer)
  with pytest.raises(ValueError, match="bias must be None for stateful attention, got"):
    layer.apply(variables, queries, sources, bias=jnp.zeros((B, 1, S)))
  with pytest.raises(ValueError, match=r"inputs_q must have axes \[B T H\], got shape"):
    layer.apply(variables, queries[:, None], sources)


@pytest.mark.parametrize(
  ("layer", "message"),
  [
    (
      MonotonicAttention(features=A, normalizer=attention.Sparsemax()),
      "for monotonic attention, got Sparsemax",
    ),
    (attention.LocalAttention(normalizer=attention.Sparsemax()), "for local attention, got Sparsemax"),
  ],
)
def test_stepwise_attention_takes_no_normalizer(layer, message):
  with pytest.raises(ValueError, match="normalizer must be None " + message):
    layer.init(jax.random.key(0), jnp.ones((B, 2, H)), jnp.ones((B, S, D)))


def test_zero_score_vector_has_finite_gradients():
  layer = MonotonicAttention(features=A)
  variables, queries, sources = drawn(layer)
  params = variables["params"] | {"score_vector": jnp.zeros(A)}

  def loss(params):
    return jnp.sum(layer.apply({"params": params}, queries, sources) ** 2)

  value, gradients = jax.jit(jax.value_and_grad(loss))(params)
  chex.assert_tree_all_finite((value, gradients))


def test_monotonic_attention_without_keys():
  layer = MonotonicAttention(features=A)
  variables, queries, sources = drawn(layer)
  np.testing.assert_array_equal(layer.apply(variables, queries, sources[:, :0]), 0.0)


def local(dtype, T=50, S=1000):
  """Returns the weights [T S] of local attention to equal keys, in a dtype."""
  layer, rng = attention.LocalAttention(), np.random.default_rng(0)
  queries = jnp.asarray(rng.normal(size=(T, 4)), jnp.bfloat16)
  variables = layer.init(jax.random.key(0), queries, queries)
  exact = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16).astype(dtype), variables)
  keys = jnp.zeros((S, 4), dtype)
  return layer.apply(exact, queries.astype(dtype), keys, return_weights=True)[1]


def test_local_attention_in_half_precision():
  half, whole = local(jnp.bfloat16), local(jnp.float32)
  assert half.dtype == jnp.bfloat16
  np.testing.assert_allclose(half.astype(jnp.float32), whole, atol=1e-3)


def test_local_weights_match_the_paper():
  layer, keys = attention.LocalAttention(window_radius=3.0), jnp.zeros((20, 4))
  variables = jax.tree.map(jnp.zeros_like, layer.init(jax.random.key(0), keys, keys))
  weights = layer.apply(variables, keys[:1], keys, return_weights=True)[1][0]
  # The center is 20 sigmoid(0); 7 keys are at distance of at most 3; the deviation is half of that.
  distances = np.arange(20) - 10
  wanted = np.where(np.abs(distances) <= 3, np.exp(-(distances**2) / (2 * 1.5**2)) / 7, 0)
  assert_close(weights, wanted, FLOAT32)


def test_local_attention_of_nan_queries():
  layer, rng = attention.LocalAttention(), np.random.default_rng(0)
  queries = jnp.asarray(rng.normal(size=(1, 2, 4)), jnp.float32)
  keys = jnp.asarray(rng.normal(size=(1, S, 4)), jnp.float32)
  variables = layer.init(jax.random.key(0), queries, keys)
  broken = queries.at[0, 1].set(jnp.nan)
  context, weights = layer.apply(variables, broken, keys, return_weights=True)
  assert np.all(np.isnan(weights[0, 1])) and np.all(np.isnan(context[0, 1]))
  desired = layer.apply(variables, queries, keys)
  assert_close(context[0, 0], desired[0, 0], FLOAT32)
  mask = jnp.array([[[True] * S, [False] * S]])

  def loss(variables, queries):
    return jnp.sum(layer.apply(variables, queries, keys, mask=mask) ** 2)

  gradients = jax.jit(jax.grad(loss, (0, 1)))
  chex.assert_tree_all_finite(gradients(variables, broken))
  chex.assert_trees_all_equal(gradients(variables, broken)[0], gradients(variables, queries)[0])


@pytest.mark.parametrize("window_radius", [0.0, -1.0, np.nan])
def test_a_window_has_a_width(window_radius):
  layer = attention.LocalAttention(window_radius=window_radius)
  with pytest.raises(ValueError, match="window_radius must be above 0, got"):
    layer.init(jax.random.key(0), jnp.ones((B, 2, H)), jnp.ones((B, S, D)))
