"""Merging attention to parts of the keys."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention
from attention import add_sink, masks, merge_partials

CLOSE = {"rtol": 4e-6, "atol": 4e-6}


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_merged_parts_match_the_whole(implementation):
  rng = np.random.default_rng(0)
  vectors = [rng.normal(size=(2, length, 11)).astype(np.float32) for length in (3, 5, 5)]
  score = attention.Additive(np.float32([0.4] * 11))

  def part(queries, keys, values, start, end, implementation):
    """Returns the context and the logsumexp of some keys; the last are masked for the first query."""
    options = {"mask": masks.causal(1 - start), "implementation": implementation}
    keys, values = keys[:, start:end], values[:, start:end]
    output = attention.attend(score, queries, keys, values, return_logsumexp=True, **options)
    return output.context, output.logsumexp

  @jax.jit
  def both_passes(vectors):
    def loss(outputs):
      context, logsumexp = outputs
      return jnp.sum(context**2) + jnp.sum(logsumexp**2), outputs

    def in_parts(vectors):
      bounds = ((0, 2), (2, 3), (3, 5))
      return loss(merge_partials([part(*vectors, *ends, implementation) for ends in bounds]))

    def whole(vectors):
      return loss(part(*vectors, 0, 5, "dense"))

    return [jax.grad(function, has_aux=True)(vectors) for function in (in_parts, whole)]

  (slopes, merged), (desired_slopes, desired) = both_passes(vectors)
  chex.assert_trees_all_close(merged, desired, **CLOSE)
  chex.assert_trees_all_close(slopes, desired_slopes, rtol=3e-5, atol=3e-5)


def test_merged_nan_only_if_attended():
  spoiled, _ = merge_partials(
    [(jnp.full((1, 1), jnp.nan), jnp.array([-200.0])), (jnp.ones((1, 1)), jnp.zeros(1))]
  )
  assert np.isnan(spoiled[0, 0])
  kept, _ = merge_partials(
    [(jnp.full((1, 1), jnp.nan), jnp.array([-jnp.inf])), (jnp.ones((1, 1)), jnp.zeros(1))]
  )
  assert kept[0, 0] == 1


def test_merged_hand_values():
  contexts = jnp.array([[2.0]]), jnp.array([[8.0]])
  context, logsumexp = merge_partials(
    [(contexts[0], jnp.log(jnp.array([3.0]))), (contexts[1], jnp.array([0.0]))]
  )
  np.testing.assert_allclose(context, [[(3 * 2 + 8) / 4]], **CLOSE)
  np.testing.assert_allclose(logsumexp, [np.log(4.0)], **CLOSE)


def test_results_have_all_leading_axes():
  context, logsumexp = merge_partials(
    [(jnp.ones((5, 1, 2, 3)), jnp.zeros(2)), (jnp.ones((2, 3)), jnp.zeros((7, 2)))]
  )
  assert context.shape == (5, 7, 2, 3)
  np.testing.assert_allclose(logsumexp, np.full((5, 7, 2), np.log(2)), **CLOSE)


def test_logsumexps_of_any_size_merge():
  context, logsumexp = merge_partials(
    [(jnp.array([[1.0]]), jnp.array([1e4])), (jnp.array([[3.0]]), jnp.array([1e4]))]
  )
  np.testing.assert_allclose(context, [[2.0]], **CLOSE)
  np.testing.assert_allclose(logsumexp, [1e4 + np.log(2)], **CLOSE)


def test_empty_nan_partials_are_ignored():
  empty = jnp.full((2, 3), jnp.nan), jnp.full(2, -jnp.inf)
  something = jnp.ones((2, 3)), jnp.array([0.0, -jnp.inf])

  def run(empty, something):
    return merge_partials([empty, something])

  (context, logsumexp), pull = jax.vjp(run, empty, something)
  np.testing.assert_array_equal(context, [[1.0] * 3, [0.0] * 3])
  np.testing.assert_array_equal(logsumexp, [0.0, -np.inf])
  chex.assert_tree_all_finite(pull((jnp.ones((2, 3)), jnp.ones(2))))


def test_merging_keeps_dtypes():
  context, logsumexp = merge_partials([(jnp.ones((2, 3), jnp.bfloat16), jnp.ones(2))] * 2)
  assert context.dtype == jnp.bfloat16
  assert logsumexp.dtype == jnp.float32


def test_sink_takes_its_share():
  context = jnp.ones((2, 3, 5, 7))
  logsumexp = jnp.zeros((2, 3, 5))
  sink = np.log(np.float32([1.0, 3.0, 7.0]))
  shared, total = add_sink(context, logsumexp, sink)
  np.testing.assert_allclose(shared[1, :, 2, 4], [1 / 2, 1 / 4, 1 / 8], **CLOSE)
  np.testing.assert_allclose(total[1, :, 2], np.log([2.0, 4.0, 8.0]), **CLOSE)
  # Gradient with respect to the sink: the derivative of 1 / (1 + e^sink), 2 * 5 * 7 times.
  slope = jax.grad(lambda sink: jnp.sum(add_sink(context, logsumexp, sink)[0]))(sink)
  np.testing.assert_allclose(slope, -70 * np.array([1 / 4, 3 / 16, 7 / 64]), **CLOSE)


def test_mismatched_sink_raises():
  with pytest.raises(ValueError, match=r"sink must be broadcastable .* \(2, 3\), got shape \(5,\)"):
    add_sink(jnp.ones((2, 3, 7)), jnp.zeros((2, 3)), np.zeros(5))


@pytest.mark.parametrize(
  ("partials", "message"),
  [
    ([], "partials must contain at least one pair"),
    ([(jnp.ones((2, 3)), None, jnp.ones(2))], r"must be a pair, \(context, logsumexp\), got tuple"),
    ([jnp.ones((2, 3))], r"must be a pair, \(context, logsumexp\), got "),
    ([(jnp.ones((2, 3)), None)], "logsumexp must be an array, got None"),
    (
      [(jnp.ones((2, 3)), jnp.ones(1))],
      r"partials must be pairs of .* got context \(2, 3\) float32 .* logsumexp \(1,\)",
    ),
    (
      [(jnp.ones((2, 3)), jnp.ones(3))],
      r"partials must be pairs of .* got context \(2, 3\) float32 .* logsumexp \(3,\)",
    ),
    (
      [(jnp.ones((2, 3), dtype), jnp.ones(2)) for dtype in (jnp.float32, jnp.bfloat16)],
      r"same T, D and dtype, got context \(2, 3\) float32 and then context .* bfloat16",
    ),
    ([(jnp.ones((2, D), int), jnp.ones(2)) for D in (3, 3)], "context must be floating-point, got int32"),
    (
      [(jnp.ones((2, D)), jnp.ones(2)) for D in (3, 1)],
      r"same T, D and dtype, got context \(2, 3\) .* and then context \(2, 1\) float32",
    ),
    ([(jnp.ones(2), jnp.ones(2))], r"context must have axes \[... T D\], got shape \(2,\)"),
  ],
)
def test_mismatched_partials_raise(partials, message):
  with pytest.raises(ValueError, match=message):
    merge_partials(partials)
