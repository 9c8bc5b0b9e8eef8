"""Merging attention to parts of the keys."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.fixtures import (
  DIMS,
  ENGINES,
  FLOAT32,
  SCORES,
  always,
  assert_close,
  assert_trees_finite,
  attend,
  draw,
  expected,
  expected_gradients,
)

from attention import add_sink, masks, merge_partials

T, S = DIMS["TS"]


def in_parts(kind, inputs, sizes, **options):
  """Returns the merged attention to consecutive parts of the keys with the given sizes."""
  ends = np.cumsum(sizes)
  partials = []
  for start, end in zip(ends - sizes, ends, strict=True):
    part = inputs._replace(keys=inputs.keys[..., start:end, :], values=inputs.values[..., start:end, :])
    mask = masks.causal(1 - int(start))
    result = attend(kind, part, mask=mask, return_logsumexp=True, **options)
    partials.append((result.context, result.logsumexp))
  return merge_partials(partials)


@pytest.mark.parametrize(
  ("kind", "implementation"),
  always(
    *(("scaled_dot_product", "blockwise"), ("additive", "blockwise"), ("cosine", "dense")),
    of=list(itertools.product(SCORES, ENGINES)),
  ),
)
def test_merged_parts_match_the_whole(kind, implementation):
  inputs = draw(kind, "BTH", "BSH", "BSD")
  # The last part is fully masked for the first query.
  allowed = np.tri(T, S, 1, dtype=bool)
  desired = expected(kind, inputs, mask=allowed)
  rng = np.random.default_rng(1)
  of_loss = [rng.normal(size=array.shape) for array in desired]
  of_loss[1] *= 0.0

  def run(inputs):
    return in_parts(kind, inputs, [2, 1, 2], implementation=implementation)

  outputs, pull = jax.vjp(jax.jit(run), inputs)
  assert_close(outputs[0], desired.context, FLOAT32)
  assert_close(outputs[1], desired.logsumexp, FLOAT32)
  slopes = pull((jnp.asarray(of_loss[0], jnp.float32), jnp.asarray(of_loss[2], jnp.float32)))[0]
  reference = expected_gradients(kind, inputs, of_loss, mask=allowed)
  for actual, one in zip(jax.tree.leaves(slopes), jax.tree.leaves(reference), strict=True):
    assert_close(actual, one, 16 * FLOAT32)


def test_merged_nan_only_if_attended():
  spoiled, _ = merge_partials(
    [(jnp.full((1, 1), jnp.nan), jnp.array([-200.0])), (jnp.ones((1, 1)), jnp.zeros(1))]
  )
  assert np.isnan(spoiled[0, 0])
  kept, _ = merge_partials(
    [(jnp.full((1, 1), jnp.nan), jnp.array([-jnp.inf])), (jnp.ones((1, 1)), jnp.zeros(1))]
  )
  assert kept[0, 0] == 1


def test_hand_values():
  contexts = jnp.array([[2.0]]), jnp.array([[8.0]])
  context, logsumexp = merge_partials(
    [(contexts[0], jnp.log(jnp.array([3.0]))), (contexts[1], jnp.array([0.0]))]
  )
  assert_close(context, [[(3 * 2 + 8) / 4]], FLOAT32)
  assert_close(logsumexp, [np.log(4.0)], FLOAT32)


def test_results_have_all_leading_axes():
  context, logsumexp = merge_partials(
    [(jnp.ones((5, 1, 2, 3)), jnp.zeros(2)), (jnp.ones((2, 3)), jnp.zeros((7, 2)))]
  )
  assert context.shape == (5, 7, 2, 3)
  assert_close(logsumexp, np.full((5, 7, 2), np.log(2)), FLOAT32)


def test_logsumexps_of_any_size_merge():
  context, logsumexp = merge_partials(
    [(jnp.array([[1.0]]), jnp.array([1e4])), (jnp.array([[3.0]]), jnp.array([1e4]))]
  )
  assert_close(context, [[2.0]], FLOAT32)
  assert_close(logsumexp, [1e4 + np.log(2)], FLOAT32)


def test_empty_nan_partials_are_ignored():
  empty = jnp.full((2, 3), jnp.nan), jnp.full(2, -jnp.inf)
  something = jnp.ones((2, 3)), jnp.array([0.0, -jnp.inf])

  def run(empty, something):
    return merge_partials([empty, something])

  (context, logsumexp), pull = jax.vjp(run, empty, something)
  np.testing.assert_array_equal(context, [[1.0] * 3, [0.0] * 3])
  np.testing.assert_array_equal(logsumexp, [0.0, -np.inf])
  assert_trees_finite(pull((jnp.ones((2, 3)), jnp.ones(2))))


def test_merging_keeps_dtypes():
  context, logsumexp = merge_partials([(jnp.ones((2, 3), jnp.bfloat16), jnp.ones(2))] * 2)
  assert context.dtype == jnp.bfloat16
  assert logsumexp.dtype == jnp.float32


def test_sink_takes_its_share():
  context = jnp.ones((2, 3, 5, 7))
  logsumexp = jnp.zeros((2, 3, 5))
  sink = np.log(np.float32([1.0, 3.0, 7.0]))
  shared, total = add_sink(context, logsumexp, sink)
  assert_close(shared[1, :, 2, 4], [1 / 2, 1 / 4, 1 / 8], FLOAT32)
  assert_close(total[1, :, 2], np.log([2.0, 4.0, 8.0]), FLOAT32)
  # Gradient with respect to the sink: the derivative of 1 / (1 + e^sink), 2 * 5 * 7 times.
  slope = jax.grad(lambda sink: jnp.sum(add_sink(context, logsumexp, sink)[0]))(sink)
  assert_close(slope, -70 * np.array([1 / 4, 3 / 16, 7 / 64]), FLOAT32)


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
    (
      [(jnp.ones((2, D), int), jnp.ones(2)) for D in (3, 3)],
      "context must be floating-point, got int32",
    ),
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
