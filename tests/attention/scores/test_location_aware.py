"""Location-aware scores."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention
from attention import LocationAware, masks

pytestmark = pytest.mark.slow

CLOSE = {"rtol": 4e-6, "atol": 4e-6}

B, T, S, H, D = 2, 3, 5, 11, 13
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


def formula(queries, keys, values, score_vector, kernel, locations, mask):
  """Returns contexts [B T D] with an array of all pre-activations."""
  pairs = queries[:, :, None] + keys[:, None] + jnp.einsum("BTSC,CH->BTSH", locations, kernel)
  scores = jnp.where(mask, jnp.einsum("BTSH,H->BTS", jnp.tanh(pairs), score_vector), -1e30)
  return jnp.where(mask.any(-1)[..., None], jnp.einsum("BTS,BSD->BTD", jax.nn.softmax(scores), values), 0)


def draw_mask():
  mask = np.random.default_rng(1).random((B, T, S)) < 0.6
  mask[1, 2] = False
  return mask


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
@pytest.mark.usefixtures("float64")
def test_derivatives_match_the_formula(implementation):
  inputs, mask = draw(np.float64), draw_mask()
  directions = {name: array[::-1] for name, array in inputs.items()}

  @jax.jit
  def derivatives(inputs):
    def of(function):
      def loss(inputs):
        context = function(**inputs, mask=mask)
        return jnp.sum(jnp.sin(context)), context

      return jax.jvp(jax.grad(loss, has_aux=True), (inputs,), (directions,))

    ours = functools.partial(attend, implementation=implementation, block_sizes=(2, 2))
    return of(ours), of(formula)

  chex.assert_trees_all_close(*derivatives(inputs), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
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
  np.testing.assert_allclose(result.weights[0], np.array([1, 1, more]) / (2 + more), **CLOSE)


def test_location_features_match_convolution():
  rng = np.random.default_rng(0)
  weights, filters = rng.normal(size=(B, T, S)).astype(np.float32), rng.normal(size=(R, C)).astype(np.float32)
  desired = np.zeros((B, T, S, C))
  for s, r in np.ndindex(S, R):
    if 0 <= s + r - R // 2 < S:
      desired[:, :, s] += weights[:, :, s + r - R // 2, None] * filters[r]
  np.testing.assert_allclose(attention.location_features(weights, filters), desired, **CLOSE)


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
