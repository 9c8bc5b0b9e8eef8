"""Fully masked rows and masked positions: empty rows give zeros, and nothing leaks from masked positions.

Conversely, NaN and infinity in allowed positions are not hidden.
"""

import functools

import chex
import jax
import numpy as np
import pytest
from cases import DIMS, FLOAT32, SCORES, Inputs, attend, attend_fully, draw, expected, random_like, replaced

import attention

B, T, S = DIMS["BTS"]
CAUSAL = np.broadcast_to(np.tri(T, S, S - T, dtype=bool), (B, T, S))  # only the last query sees the last key

each_kind = pytest.mark.parametrize("kind", SCORES)
each_engine = pytest.mark.parametrize("implementation", ["dense", "blockwise"])
each_corruption = pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])


@functools.partial(jax.jit, static_argnums=3)
def run(inputs, mask, cotangents, implementation):
  """Returns results and gradients. Tests use the same shapes, so that few programs are compiled."""
  results, pull = jax.vjp(
    lambda inputs: attend_fully(inputs, mask=mask, implementation=implementation), inputs
  )
  return results, pull(cotangents)[0]


def random_cotangents(kind, zero_rows=None):
  """Returns the factors of a loss, one array per result, which are 0 in some rows [T]."""
  cotangents = random_like(jax.tree.map(np.float32, expected(kind, draw(kind))))
  if zero_rows is None:
    return cotangents
  return jax.tree.map(lambda array: replaced(array, np.s_[:, zero_rows], 0), cotangents)


# Ways to make row 1 of batch 1 empty. Each returns a mask [B T S] and a bias [T S].


def empty_by_mask(bias):
  return replaced(np.ones((B, T, S), bool), np.s_[:, 1], False), bias


def empty_in_one_batch(bias):
  mask = np.random.default_rng(3).random((B, T, S)) < 0.6
  mask[0, 1], mask[1, 1] = True, False
  return mask, bias


def empty_by_bias(bias):
  return np.ones((B, T, S), bool), replaced(bias, 1, -np.inf)


def empty_by_both(bias):
  return replaced(np.ones((B, T, S), bool), np.s_[:, 1, 2:], False), replaced(bias, np.s_[1, :2], -np.inf)


@each_kind
@pytest.mark.parametrize("empty", [empty_by_mask, empty_in_one_batch, empty_by_bias, empty_by_both])
@each_engine
def test_empty_rows_give_zeros(kind, empty, implementation):
  inputs = draw(kind)
  mask, bias = empty(inputs.bias)
  inputs = inputs._replace(bias=bias)
  cotangents = random_cotangents(kind)
  results, slopes = run(inputs, mask, cotangents, implementation)
  desired = expected(kind, inputs, mask=mask)
  chex.assert_trees_all_close(results, desired, **FLOAT32)
  chex.assert_trees_all_equal(results.context[1, 1], np.zeros(DIMS["D"]))
  chex.assert_trees_all_equal(results.weights[1, 1], np.zeros(S))
  assert results.logsumexp[1, 1] == -np.inf
  chex.assert_tree_all_finite(slopes)
  chex.assert_trees_all_equal(slopes.queries[1, 1], np.zeros(DIMS["H"]))
  # An empty row has zero gradients, whatever the incoming gradient.
  is_empty = np.isneginf(desired.logsumexp)
  for anything in (1e30, np.nan):
    from_above = jax.tree.map(lambda array: replaced(array, is_empty, anything), cotangents)  # noqa: B023
    chex.assert_trees_all_equal(run(inputs, mask, from_above, implementation)[1], slopes)


@each_kind
@each_engine
def test_all_rows_empty(kind, implementation):
  inputs, mask = draw(kind), np.zeros((B, T, S), bool)
  results, slopes = run(inputs, mask, random_cotangents(kind), implementation)
  chex.assert_trees_all_equal(results, expected(kind, inputs, mask=mask))
  chex.assert_trees_all_equal(slopes, jax.tree.map(np.zeros_like, slopes))


def assert_same(kind, clean, corrupted, mask, implementation, unseen_row=None):
  """Asserts that corruption changes no results but those of one row, and no gradients.

  Returns the gradients.
  """
  cotangents = random_cotangents(kind, unseen_row)
  results, slopes = run(corrupted, mask, cotangents, implementation)
  desired, desired_slopes = run(clean, mask, cotangents, implementation)
  seen = [t for t in range(T) if t != unseen_row]
  chex.assert_trees_all_equal(
    *(jax.tree.map(lambda array: array[:, seen], tree) for tree in (results, desired))
  )
  chex.assert_tree_all_finite(slopes)
  chex.assert_trees_all_equal(slopes, desired_slopes)
  return slopes


@each_kind
@each_corruption
@each_engine
def test_masked_keys_never_leak(kind, bad, implementation):
  inputs = draw(kind)
  is_padding = np.arange(S) >= np.array([3, 5])[:, None]
  mask = np.broadcast_to(~is_padding[:, None], (B, T, S))
  keys, values = (replaced(array, is_padding, bad) for array in (inputs.keys, inputs.values))
  for corrupted in ({"keys": keys}, {"values": values}, {"keys": keys, "values": values}):
    slopes = assert_same(kind, inputs, inputs._replace(**corrupted), mask, implementation)
    for slope in (slopes.keys, slopes.values):
      chex.assert_trees_all_equal(slope[is_padding], np.zeros_like(slope[is_padding]))


@each_kind
@each_corruption
@each_engine
def test_keys_of_one_row_never_leak(kind, bad, implementation):
  inputs = draw(kind)
  keys, values = (replaced(array, np.s_[:, -1], bad) for array in (inputs.keys, inputs.values))
  for corrupted in ({"keys": keys}, {"values": values}, {"keys": keys, "values": values}):
    assert_same(kind, inputs, inputs._replace(**corrupted), CAUSAL, implementation, unseen_row=T - 1)
  by_bias = inputs._replace(bias=replaced(inputs.bias, np.s_[:-1, -1], -np.inf))
  corrupted = by_bias._replace(keys=keys, values=values)
  assert_same(kind, by_bias, corrupted, np.ones((B, T, S), bool), implementation, unseen_row=T - 1)


@each_kind
@each_corruption
@each_engine
def test_empty_row_queries_never_leak(kind, bad, implementation):
  inputs = draw(kind)
  mask = np.broadcast_to((np.arange(T) < 2)[:, None], (B, T, S))
  corrupted = inputs._replace(queries=replaced(inputs.queries, np.s_[:, 2], bad))
  slopes = assert_same(kind, inputs, corrupted, mask, implementation)
  chex.assert_trees_all_equal(slopes.queries[:, 2], np.zeros_like(slopes.queries[:, 2]))


@each_kind
@each_corruption
@each_engine
def test_masked_biases_never_leak(kind, bad, implementation):
  inputs = draw(kind)
  pairs = replaced(np.tri(T, S, dtype=bool), 1, False)
  corrupted = inputs._replace(bias=replaced(inputs.bias, ~pairs, bad))
  slopes = assert_same(kind, inputs, corrupted, np.broadcast_to(pairs, (B, T, S)), implementation)
  chex.assert_trees_all_equal(np.where(pairs, 0, slopes.bias), np.zeros((T, S), np.float32))


@pytest.mark.parametrize("kind", ["scaled_dot_product", "bilinear", "cosine"])
@each_engine
def test_masked_overflow_never_leaks(kind, implementation):
  # Finite keys whose scores or squares overflow float32, and values whose products with gradients do.
  inputs, mask = draw(kind), np.broadcast_to(np.arange(S) < 3, (B, T, S))
  assert_same(
    kind, inputs, inputs._replace(keys=replaced(inputs.keys, np.s_[:, 3:], 1e38)), mask, implementation
  )
  corrupted = inputs._replace(values=replaced(inputs.values, np.s_[:, 3:], 3e38))
  assert_same(kind, inputs, corrupted, mask, implementation)


@each_kind
@each_engine
def test_masked_nan_tangents_never_leak(kind, implementation):
  # If a key or value is NaN, its tangent usually is, too.
  inputs, mask = draw(kind), np.broadcast_to(np.arange(S) < 3, (B, T, S))

  def results(*arrays):
    return attend_fully(Inputs(*arrays), mask=mask, implementation=implementation)

  tangents = jax.jit(lambda inputs: jax.jvp(results, tuple(inputs), tuple(inputs)))

  clean, corrupted, huge = (
    inputs._replace(
      keys=replaced(inputs.keys, np.s_[:, 3:], beyond), values=replaced(inputs.values, np.s_[:, 3:], beyond)
    )
    for beyond in (0.0, np.nan, 1e38)
  )
  chex.assert_trees_all_equal(tangents(corrupted), tangents(clean))
  if kind not in ("additive", "user_defined"):  # whose scores may differ in their last bits, or overflow
    chex.assert_trees_all_equal(tangents(huge), tangents(clean))


# NaN in allowed positions is not hidden.


@each_kind
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@each_engine
def test_nonfinite_bias_affects_only_its_row(kind, bad, implementation):
  inputs, mask = draw(kind), np.ones((B, T, S), bool)
  corrupted = inputs._replace(bias=replaced(inputs.bias, (1, 3), bad))
  assert_same(kind, inputs, corrupted, mask, implementation, unseen_row=1)
  results, _ = run(corrupted, mask, random_cotangents(kind), implementation)
  for array in results:
    assert np.all(np.isnan(array[:, 1]))


@each_kind
@each_corruption
@pytest.mark.parametrize("argument", ["queries", "keys", "values"])
@each_engine
def test_attended_nonfinite_rows_are_nan(kind, bad, argument, implementation):
  # Only the last query may attend to the last key. Its row gives no gradients.
  inputs = draw(kind)
  corrupted = inputs._replace(**{argument: replaced(getattr(inputs, argument), np.s_[:, -1, 3], bad)})
  results, slopes = run(corrupted, CAUSAL, random_cotangents(kind), implementation)
  for array in (results.context, results.logsumexp):
    assert np.all(np.isnan(array[:, -1])) and np.all(np.isfinite(array[:, :-1]))
  chex.assert_trees_all_equal(
    np.isnan(results.weights), replaced(np.zeros((B, T, S), bool), np.s_[:, -1], True)
  )
  desired = run(inputs, CAUSAL, random_cotangents(kind, [T - 1]), implementation)[1]
  chex.assert_trees_all_equal(slopes, desired)


@each_engine
@pytest.mark.parametrize("argument", ["queries", "keys", "values"])
def test_overflowing_vectors_give_nan(argument, implementation):
  # Each number is finite, but their sum is not.
  vectors = {name: np.float32([[1e-38, 1e-38]]) for name in ("queries", "keys", "values")}
  vectors[argument] = np.float32([[3e38, 3e38]])
  inputs = Inputs(attention.ScaledDotProduct(), *vectors.values())
  assert np.all(np.isnan(attend(inputs, implementation=implementation)))


@each_engine
def test_overflowing_rows_are_not_empty(implementation):
  # 1e30 * -1e30 is -infinity in float32. NaN hides nothing; zeros, as for an empty row, would.
  vectors = np.float32([[1e30]]), np.float32([[-1e30]]), np.float32([[1.0]])
  for array in attend_fully(Inputs(attention.ScaledDotProduct(), *vectors), implementation=implementation):
    assert np.all(np.isnan(array))


@each_engine
def test_nan_query_without_keys_is_empty(implementation):
  inputs = draw("scaled_dot_product", bias=None)
  inputs = inputs._replace(queries=replaced(inputs.queries, (1, 1), np.nan))
  inputs = inputs._replace(keys=inputs.keys[:, :0], values=inputs.values[:, :0])
  context, _, logsumexp = attend_fully(inputs, implementation=implementation)
  chex.assert_trees_all_equal(context, np.zeros(DIMS["BTD"]))
  chex.assert_trees_all_equal(logsumexp, np.full((B, T), -np.inf))
