"""Location-aware scores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.fixtures import DIFFERENCES, DIMS, FLOAT32, assert_close, assert_trees_close, mostly_blockwise

import attention
from attention import LocationAware, masks

B, T, S, H, D = DIMS["BTSHD"]
R, C = 4, 3


def draw(dtype=np.float32):
  rng = np.random.default_rng(0)
  shapes = {
    "queries": (B, T, H),
    "keys": (B, S, H),
    "values": (B, S, D),
    "score_vector": (H,),
    "kernel": (C, H),
    "locations": (B, T, S, C),
  }
  return {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


def attend(queries, keys, values, score_vector, kernel, locations, **options):
  return attention.attend(LocationAware(score_vector, kernel, locations), queries, keys, values, **options)


def expected(queries, keys, values, score_vector, kernel, locations, mask):
  """Returns contexts [B T D], pair by pair."""
  contexts = np.zeros((B, T, D))
  for b, t in np.ndindex(B, T):
    allowed = [s for s in range(S) if mask[b, t, s]]
    scores = np.array(
      [
        np.sum(score_vector * np.tanh(queries[b, t] + keys[b, s] + locations[b, t, s] @ kernel))
        for s in allowed
      ]
    )
    weights = np.exp(scores - scores.max(initial=-np.inf)) if allowed else scores
    for s, weight in zip(allowed, weights / weights.sum() if allowed else weights, strict=True):
      contexts[b, t] += weight * values[b, s]
  return contexts


def draw_mask():
  mask = np.random.default_rng(1).random((B, T, S)) < 0.6
  mask[1, 2] = False
  return mask


@mostly_blockwise
def test_contexts_match_reference(implementation):
  inputs, mask = draw(), draw_mask()
  run = jax.jit(lambda inputs: attend(**inputs, mask=mask, implementation=implementation, block_sizes=(2, 2)))
  assert_close(run(inputs), expected(**draw(np.float64), mask=mask), FLOAT32)


@mostly_blockwise
def test_derivatives_match_reference(implementation, float64):
  inputs, mask = draw(np.float64), draw_mask()
  rng = np.random.default_rng(2)
  direction = {name: rng.normal(size=array.shape) for name, array in inputs.items()}
  factors = rng.normal(size=(B, T, D))

  def loss(inputs):
    return jnp.sum(factors * attend(**inputs, mask=mask, implementation=implementation, block_sizes=(2, 2)))

  def at(step):
    moved = {name: array + step * direction[name] for name, array in inputs.items()}
    return moved, np.sum(factors * expected(**moved, mask=mask))

  step = 1e-5
  (ahead, one), (behind, other) = at(step), at(-step)
  gradient = jax.jit(jax.grad(loss))
  slopes = gradient(inputs)
  by_reverse = sum(np.sum(slopes[name] * direction[name]) for name in inputs)
  by_forward = jax.jit(lambda inputs: jax.jvp(loss, (inputs,), (direction,))[1])(inputs)
  np.testing.assert_allclose([by_reverse, by_forward], (one - other) / (2 * step), rtol=DIFFERENCES)
  second = jax.jit(lambda inputs: jax.jvp(jax.grad(loss), (inputs,), (direction,))[1])(inputs)
  differences = jax.tree.map(lambda one, other: (one - other) / (2 * step), gradient(ahead), gradient(behind))
  assert_trees_close(second, differences, 10 * DIFFERENCES)


@mostly_blockwise
def test_masked_keys_are_ignored_exactly(implementation):
  inputs, mask = draw(), np.broadcast_to(np.arange(S) != 1, (B, T, S))

  def run(inputs):
    def loss(inputs):
      return jnp.sum(attend(**inputs, mask=mask, implementation=implementation))

    return jax.jit(jax.value_and_grad(loss))(inputs)

  spoilt = dict(inputs, keys=inputs["keys"].copy(), values=inputs["values"].copy())
  spoilt["keys"][:, 1], spoilt["values"][:, 1] = np.nan, np.inf
  jax.tree.map(np.testing.assert_array_equal, run(spoilt), run(inputs))


def test_blockwise_stores_no_pair_features():
  T = S = 64
  A = 16
  shapes = (T, A), (S, A), (S, A), (A,), (1, A), (T, S, 1)
  arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]

  def loss(*arguments):
    return jnp.sum(attend(*arguments, implementation="blockwise", block_sizes=(8, 8)))

  text = jax.jit(jax.grad(loss, argnums=range(6))).lower(*arguments).compile().as_text()
  assert f"f32[{T},{S},{A}]" not in text


def test_a_location_draws_attention():
  # tanh(0 + 0 + 5) is 0.9999: the score of the marked key is 0.9999 above the others.
  locations = np.zeros((1, 3, 1), np.float32)
  locations[0, 2] = 5.0
  result = attend(
    np.zeros((1, 1), np.float32),
    np.zeros((3, 1), np.float32),
    np.zeros((3, 1), np.float32),
    np.ones(1, np.float32),
    np.ones((1, 1), np.float32),
    locations,
    return_weights=True,
  )
  more = np.exp(np.tanh(5.0))
  assert_close(result.weights[0], np.array([1, 1, more]) / (2 + more), FLOAT32)


def test_location_features_match_convolution():
  rng = np.random.default_rng(0)
  weights, filters = rng.normal(size=(B, T, S)).astype(np.float32), rng.normal(size=(R, C)).astype(np.float32)
  desired = np.zeros((B, T, S, C))
  for s, r in np.ndindex(S, R):
    if 0 <= s + r - R // 2 < S:
      desired[:, :, s] += weights[:, :, s + r - R // 2, None] * filters[r]
  assert_close(attention.location_features(weights, filters), desired, FLOAT32)


def test_single_position_filter_is_coverage():
  coverage = np.random.default_rng(0).random((T, S)).astype(np.float32)
  np.testing.assert_array_equal(
    attention.location_features(coverage, np.ones((1, 1), np.float32)), coverage[..., None]
  )


@pytest.mark.parametrize(
  ("name", "shape", "words"),
  [
    ("score_vector", (H + 1,), r"score_vector must have the width of the queries \(11\), got shape \(12,\)"),
    ("kernel", (C, H + 1), r"kernel must have the width of the queries \(11\), got shape \(3, 12\)"),
    ("locations", (B, T, S, C + 1), r"locations must have C of the kernel \(3\), got shape \(3, 5, 4\)"),
    ("locations", (T, S), r"LocationAware.locations must have axes \[... T S C\], got shape \(3, 5\)"),
    (
      "locations",
      (B, T, S + 1, C),
      r"LocationAware.locations must be broadcastable to \(2, 3, 5, 3\), got shape \(2, 3, 6, 3\)",
    ),
  ],
)
def test_mismatched_arrays_raise(name, shape, words):
  inputs = draw() | {name: np.zeros(shape, np.float32)}
  with pytest.raises(ValueError, match=words):
    attend(**inputs, mask=masks.causal())


def test_features_of_integers_are_an_error():
  with pytest.raises(ValueError, match="weights must be floating-point, got int32"):
    attention.location_features(np.ones((1, 3), np.int32), np.ones((1, 1), np.float32))
