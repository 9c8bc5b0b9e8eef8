"""Attention that depends on previous weights; tests of the recurrent decoder compare it with formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.model_reference import random_parameters

import attention
from attention import masks

B, T, S, H, D, A = 2, 4, 5, 3, 7, 11
rng = np.random.default_rng(0)
QUERIES = rng.normal(size=(B, T, H)).astype(np.float32)
SOURCES = rng.normal(size=(B, S, D)).astype(np.float32)
LAYERS = {
  "location_aware": attention.LocationAwareAttention(A),
  "coverage": attention.LocationAwareAttention(A, accumulate_weights=True),
  "monotonic": attention.MonotonicAttention(A),
}
MASK = masks.lengths(source=np.array([2, 4]))


def steps(layer, variables, queries=QUERIES, **options):
  """Returns the contexts [B T D] and weights [B T S] of one step after another."""

  def run(layer):
    keys_values = layer.project_kv(SOURCES)
    state, results = layer.initial_state(keys_values), []
    for t in range(queries.shape[1]):
      context, weights, state = layer.step(queries[:, t], keys_values, state, **options)
      results.append((context, weights))
    return [jnp.stack(arrays, axis=1) for arrays in zip(*results, strict=True)]

  return layer.apply(variables, method=run, rngs={"dropout": jax.random.key(2)})


@pytest.mark.parametrize("name", LAYERS)
def test_calls_attend_query_by_query(name):
  layer, options = LAYERS[name], {"mask": MASK, "return_weights": True}
  variables = random_parameters(layer, QUERIES, SOURCES)

  @jax.jit
  def run(variables):
    return (
      steps(layer, variables, mask=MASK),
      layer.apply(variables, QUERIES, SOURCES, **options),
      layer.apply(variables, QUERIES[:, 1:2], SOURCES, **options)[1],
    )

  desired, (context, weights), alone = jax.device_get(run(variables))
  np.testing.assert_allclose(context, desired[0], rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(weights, desired[1], rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(context, weights @ SOURCES, rtol=1e-4, atol=1e-5)
  assert not np.any(weights[0, :, 2:]) and not np.any(weights[1, :, 4:]) and np.all(weights[0, 0, :2] > 0)
  # The first query attends before the second, which therefore attends to another key.
  assert np.max(np.abs(alone[:, 0] - weights[:, 1])) > 1e-4


def test_coverage_avoids_attended_keys():
  layer = attention.LocationAwareAttention(A, num_filters=1, kernel_size=1, accumulate_weights=True)
  # A location of 1 moves each unit to where tanh is -1, and the score to its minimum.
  small = jax.tree.map(lambda leaf: leaf / 10, random_parameters(layer, QUERIES, SOURCES)["params"])
  params = small | {
    "filters": jnp.full((1, 1), -100.0),
    "location_kernel": jnp.ones((1, A)),
    "score_vector": jnp.full(A, 1e4),
  }
  same = np.repeat(QUERIES[:, :1], S, axis=1)
  weights = jax.jit(lambda: steps(layer, {"params": params}, same)[1])()
  # Each step attends to a key that no previous step attended to.
  np.testing.assert_array_equal(np.sort(np.argmax(weights, axis=-1), axis=-1), np.tile(np.arange(S), (B, 1)))


def test_noise_is_drawn_in_training_only():
  layer = attention.MonotonicAttention(A, noise=2.0)
  variables = random_parameters(layer, QUERIES, SOURCES)

  @jax.jit
  def run(variables):
    training = [steps(item, variables, deterministic=False)[1] for item in (layer, layer.clone(noise=0.0))]
    return *training, steps(layer, variables)[1]

  noisy, noiseless, still = jax.device_get(run(variables))
  np.testing.assert_array_equal(noiseless, still)
  assert np.all(np.abs(still - noisy).max(axis=-1) > 1e-4)


def test_hard_attention_may_reach_the_end():
  layer = attention.MonotonicAttention(A)
  params = random_parameters(layer, QUERIES, SOURCES)["params"]
  weights = jax.jit(lambda offset: steps(layer, {"params": params | {"offset": offset}}, hard=True)[1])
  assert not np.any(weights(jnp.float32(-100)))
  np.testing.assert_array_equal(weights(jnp.float32(100)), np.eye(S)[np.zeros((B, T), int)])


def test_initial_energies():
  layer = attention.MonotonicAttention(A, offset=-3.0)
  params = jax.jit(layer.init)(jax.random.key(0), QUERIES, SOURCES)["params"]
  assert params["offset"] == -3 and params["gain"] == pytest.approx(A**-0.5)


def test_zero_score_vector_has_finite_gradients():
  layer = attention.MonotonicAttention(A)
  params = random_parameters(layer, QUERIES, SOURCES)["params"] | {"score_vector": jnp.zeros(A)}
  loss = jax.jit(jax.grad(lambda params: jnp.sum(layer.apply({"params": params}, QUERIES, SOURCES) ** 2)))
  assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(loss(params)))


def test_monotonic_attention_without_keys():
  layer = attention.MonotonicAttention(A)
  context = jax.jit(lambda variables: layer.apply(variables, QUERIES, SOURCES[:, :0]))(
    random_parameters(layer, QUERIES, SOURCES)
  )
  np.testing.assert_array_equal(context, np.zeros((B, T, D)))


@pytest.mark.parametrize(
  ("queries", "options", "message"),
  [
    (QUERIES, {"bias": np.zeros((B, 1, S))}, "bias must be None for stateful attention, got ndarray"),
    (QUERIES[0], {}, r"inputs_q must have axes \[B T H\], got shape \(4, 3\)"),
    (QUERIES, {"mask": np.ones((3, T, S), bool)}, r"mask must be broadcastable to .*\(3, 4, 5\)"),
  ],
)
def test_unsupported_calls_raise(queries, options, message):
  layer = LAYERS["monotonic"]
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(lambda rng: layer.init(rng, queries, SOURCES, **options), jax.random.key(0))
