"""Point 4 of the contract: NaN and infinity in masked positions never affect outputs or gradients.

Conversely, NaN and infinity in allowed positions are not hidden.
"""

import jax
import numpy as np
import pytest
from helpers.fixtures import (
  BLOCK_SIZES,
  DIMS,
  FLOAT32,
  assert_trees_close,
  assert_trees_equal,
  assert_trees_finite,
  attend,
  compiled_together,
  draw,
  draw_loss,
  engines,
  expected,
  few_kinds,
  kinds,
  replaced,
  results,
  results_and_gradients,
)

from attention import masks

# Exactness must also hold for the formula that is fast for many scores.
pytestmark = pytest.mark.usefixtures("additive_in_loops")

B, T, S = DIMS["BTS"]

CORRUPTIONS = {"nan": np.nan, "infinity": np.inf, "minus_infinity": -np.inf}
every_corruption = pytest.mark.parametrize("bad", CORRUPTIONS.values(), ids=CORRUPTIONS)
keys_and_values = pytest.mark.parametrize(
  "arguments", [("keys",), ("values",), ("keys", "values")], ids="_and_".join
)


def run(kind, inputs, mask, of_loss, implementation):
  return results_and_gradients(kind, inputs, of_loss, mask=mask, implementation=implementation)


def assert_same(kind, clean, corrupted, mask, implementation, rows=slice(None), factor=1.0, exactly=True):
  """Asserts that results in some rows, and gradients of a loss on them, equal those of finite inputs.

  Returns the gradients. The loss is multiplied by `factor`.
  """
  desired = expected(kind, clean, mask=mask)
  is_counted = np.isin(np.arange(T), np.arange(T)[rows])
  of_loss = tuple(
    np.where(np.expand_dims(is_counted, tuple(range(1, array.ndim - 1))), factor * array, 0)
    for array in draw_loss(desired)
  )
  outputs, slopes = run(kind, corrupted, mask, of_loss, implementation)
  assert_trees_close([array[:, rows] for array in outputs], [array[:, rows] for array in desired], FLOAT32)
  assert_trees_finite(slopes)
  of_clean = run(kind, clean, mask, of_loss, implementation)[1]
  if exactly:
    assert_trees_equal(slopes, of_clean)
  else:
    assert_trees_close(slopes, of_clean, FLOAT32)
  return slopes


@kinds
@every_corruption
@keys_and_values
@engines
def test_masked_keys_never_affect_results(kind, bad, arguments, implementation):
  inputs = draw(kind, "BTH", "BSH", "BSD", bias="TS")
  is_padding = np.arange(S) >= np.array([3, 5])[:, None]
  mask = np.broadcast_to(~is_padding[:, None], (B, T, S))
  corrupted = inputs._replace(
    **{name: replaced(getattr(inputs, name), is_padding, bad) for name in arguments}
  )
  slopes = assert_same(kind, inputs, corrupted, mask, implementation)
  for slope in (slopes.keys, slopes.values):
    np.testing.assert_array_equal(slope[is_padding], np.zeros_like(slope[is_padding]))


@kinds
@every_corruption
@keys_and_values
@engines
def test_masked_rows_ignore_a_corrupted_key(kind, bad, arguments, implementation):
  # Causal, T < S: only the last query may attend to the last key. The loss depends on the other rows.
  inputs = draw(kind, "BTH", "BSH", "BSD", bias="TS")
  mask = np.broadcast_to(np.tri(T, S, S - T, dtype=bool), (B, T, S))
  corrupted = inputs._replace(
    **{name: replaced(getattr(inputs, name), np.s_[:, -1], bad) for name in arguments}
  )
  assert_same(kind, inputs, corrupted, mask, implementation, rows=slice(-1))


@compiled_together
def context_and_tangent(kind, implementation, inputs, mask):
  """Returns the context and its tangent along the keys and values themselves."""

  def context(keys, values):
    options = {"mask": mask, "implementation": implementation, "block_sizes": BLOCK_SIZES}
    return attend(kind, inputs._replace(keys=keys, values=values), **options)

  return jax.jvp(context, inputs[1:3], inputs[1:3])


@few_kinds
@engines
def test_masked_nan_tangents_are_ignored(kind, implementation):
  # If a key or value is NaN, its tangent usually is, too.
  inputs = draw(kind)
  mask = np.broadcast_to(np.arange(S) < 3, (T, S))

  def tangents_of(beyond):
    keys, values = (replaced(array, np.s_[3:], beyond) for array in (inputs.keys, inputs.values))
    return context_and_tangent(kind, implementation, inputs._replace(keys=keys, values=values), mask)

  assert_trees_equal(tangents_of(np.nan), tangents_of(0.0))


@kinds
@every_corruption
@engines
def test_empty_row_query_is_ignored(kind, bad, implementation):
  inputs = draw(kind, "BTH", "BSH", "BSD", bias="TS")
  mask = np.broadcast_to((np.arange(T) < 2)[:, None], (B, T, S))
  corrupted = inputs._replace(queries=replaced(inputs.queries, np.s_[:, 2], bad))
  slopes = assert_same(kind, inputs, corrupted, mask, implementation)
  np.testing.assert_array_equal(slopes.queries[:, 2], np.zeros_like(slopes.queries[:, 2]))


@kinds
@every_corruption
@engines
def test_masked_bias_is_ignored(kind, bad, implementation):
  inputs = draw(kind, "BTH", "BSH", "BSD", bias="TS")
  pairs = np.tri(T, S, dtype=bool)
  pairs[1] = False
  mask = np.broadcast_to(pairs, (B, T, S))
  corrupted = inputs._replace(bias=replaced(inputs.bias, ~pairs, bad))
  slopes = assert_same(kind, inputs, corrupted, mask, implementation)
  np.testing.assert_array_equal(np.where(pairs, 0, slopes.bias), np.zeros((T, S)))


@kinds
@every_corruption
@engines
def test_key_masked_by_bias_is_ignored(kind, bad, implementation):
  # Only the last query may attend to the last two keys. The loss depends on the other rows.
  inputs = draw(kind, "BTH", "BSH", "BSD", bias="TS")
  inputs = inputs._replace(bias=replaced(inputs.bias, np.s_[:-1, 3:], -np.inf))
  corrupted = inputs._replace(
    keys=replaced(inputs.keys, np.s_[:, 3:], bad), values=replaced(inputs.values, np.s_[:, 3:], bad)
  )
  assert_same(kind, inputs, corrupted, np.ones((B, T, S), bool), implementation, rows=slice(-1))


library_kinds = pytest.mark.parametrize("kind", ["scaled_dot_product", "additive", "bilinear", "cosine"])


@library_kinds
@engines
def test_masked_overflowing_scores_are_ignored(kind, implementation):
  # Finite keys whose scores, or intermediate squares, overflow float32.
  inputs = draw(kind, "BTH", "BSH", "BSD", bias="TS")
  mask = np.broadcast_to(np.arange(S) < 3, (B, T, S))
  corrupted = inputs._replace(keys=replaced(inputs.keys, np.s_[:, 3:], 1e38))
  # Additive scores choose their formula by the largest number, so their rounding may differ.
  assert_same(kind, inputs, corrupted, mask, implementation, exactly=kind != "additive")


@library_kinds
@engines
def test_masked_overflowing_values_are_ignored(kind, implementation):
  # Values whose products with the gradient are infinite.
  inputs = draw(kind, "BTH", "BSH", "BSD", bias="TS")
  mask = np.broadcast_to(np.arange(S) < 3, (B, T, S))
  corrupted = inputs._replace(values=replaced(inputs.values, np.s_[:, 3:], 3e38))
  assert_same(kind, inputs, corrupted, mask, implementation, factor=1e6)


@pytest.mark.parametrize("kind", ["scaled_dot_product", "bilinear"])
@engines
def test_empty_row_query_may_overflow(kind, implementation):
  inputs = draw(kind, "BTH", "BSH", "BSD", bias="TS")
  inputs = inputs._replace(parameters=jax.tree.map(lambda array: np.float32(1e10) * array, inputs.parameters))
  inputs = inputs._replace(queries=np.float32(1e-10) * inputs.queries)
  mask = np.broadcast_to((np.arange(T) < 2)[:, None], (B, T, S))
  corrupted = inputs._replace(queries=replaced(inputs.queries, np.s_[:, 2], 1e30))
  assert_same(kind, inputs, corrupted, mask, implementation)


# NaN in allowed positions is not hidden.


@kinds
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@engines
def test_nonfinite_bias_affects_only_its_row(kind, bad, implementation):
  inputs = draw(kind, "BTH", "BSH", "BSD", bias="TS")
  mask = np.ones((B, T, S), bool)
  desired = expected(kind, inputs, mask=mask)
  of_loss = draw_loss(desired)
  for array in of_loss:
    array[:, 1] = 0
  corrupted = inputs._replace(bias=replaced(inputs.bias, (1, 3), bad))
  outputs, slopes = run(kind, corrupted, mask, of_loss, implementation)
  for actual, array in zip(outputs, desired, strict=True):
    assert np.all(np.isnan(actual[:, 1]))
    assert_trees_close(actual[:, [0, 2]], array[:, [0, 2]], FLOAT32)
  assert_trees_equal(slopes, run(kind, inputs, mask, of_loss, implementation)[1])


@kinds
@pytest.mark.parametrize("argument", ["queries", "keys"])
@engines
def test_attended_nan_makes_the_row_nan(kind, argument, implementation):
  inputs = draw(kind, "BTH", "BSH", "BSD", bias="TS")
  # The first query holds it, or only the last query may attend to it. No masked weight is NaN.
  position, query = {"queries": (0, 0), "keys": (-1, -1)}[argument]
  array = replaced(getattr(inputs, argument), (1, position, 3), np.nan)
  mask = np.broadcast_to(np.tri(T, S, S - T, dtype=bool), (B, T, S))
  of_loss = draw_loss(expected(kind, inputs))
  outputs, _ = run(kind, inputs._replace(**{argument: array}), mask, of_loss, implementation)
  is_nonfinite = np.zeros((B, T), bool)
  is_nonfinite[1, query] = True
  context, weights, logsumexp = map(np.isnan, outputs)
  np.testing.assert_array_equal(logsumexp, is_nonfinite)
  np.testing.assert_array_equal(context, np.broadcast_to(is_nonfinite[..., None], context.shape))
  np.testing.assert_array_equal(weights, is_nonfinite[..., None] & mask)


@kinds
@every_corruption
@pytest.mark.parametrize("argument", ["queries", "keys", "values"])
@engines
def test_unmasked_nonfinite_inputs_are_not_hidden(kind, bad, argument, implementation):
  # Number 3 of the last query, key or value. Both NaN and infinity make the row non-finite.
  inputs = draw(kind)
  array = replaced(getattr(inputs, argument), (-1, 3), bad)
  context, _, _ = results(kind, inputs._replace(**{argument: array}), implementation=implementation)
  is_nonfinite = np.ones(DIMS["TD"], bool)
  if argument == "queries":
    is_nonfinite[:-1] = False
  np.testing.assert_array_equal(np.isfinite(context)[:, 3], ~is_nonfinite[:, 3])
  if argument != "values":
    np.testing.assert_array_equal(np.isfinite(context), ~is_nonfinite)


@kinds
@every_corruption
@pytest.mark.parametrize("argument", ["queries", "keys", "values"])
@engines
def test_nan_rows_give_no_gradient(kind, bad, argument, implementation):
  # Only the last query may attend to the last key. The gradients are those of a loss on the other rows.
  inputs = draw(kind, "BTH", "BSH", "BSD", bias="TS")
  mask = np.broadcast_to(np.tri(T, S, S - T, dtype=bool), (B, T, S))
  of_loss = draw_loss(expected(kind, inputs))
  of_others = tuple(replaced(array, np.s_[:, -1], 0.0) for array in of_loss)
  desired = run(kind, inputs, mask, of_others, implementation)[1]
  corrupted = inputs._replace(**{argument: replaced(getattr(inputs, argument), np.s_[:, -1, 3], bad)})
  outputs, slopes = run(kind, corrupted, mask, of_loss, implementation)
  assert np.all(np.isnan(outputs[0][:, -1])) and np.all(np.isnan(outputs[2][:, -1]))
  assert_trees_equal(slopes, desired)


@engines
def test_overflowing_rows_are_not_empty(implementation):
  # 1e30 * -1e30 is -infinity in float32. NaN hides nothing; zeros, as for an empty row, would.
  inputs = draw("scaled_dot_product")._replace(
    queries=np.float32([[1e30]]), keys=np.float32([[-1e30]]), values=np.float32([[1.0]])
  )
  for array in results(
    "scaled_dot_product", inputs, mask=masks.causal(), implementation=implementation, alone=True
  ):
    assert np.all(np.isnan(array))


@engines
def test_nan_query_without_keys_is_empty(implementation):
  inputs = draw("scaled_dot_product")
  inputs = inputs._replace(
    queries=replaced(inputs.queries, 1, np.nan), keys=inputs.keys[:0], values=inputs.values[:0]
  )
  context, _, logsumexp = results("scaled_dot_product", inputs, implementation=implementation, alone=True)
  np.testing.assert_array_equal(context, np.zeros(DIMS["TD"]))
  np.testing.assert_array_equal(logsumexp, np.full(T, -np.inf))
