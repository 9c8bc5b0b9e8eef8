"""Point 3 of the contract: fully masked rows return zeros, never NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.fixtures import (
  DIMS,
  FLOAT32,
  assert_trees_close,
  assert_trees_equal,
  assert_trees_finite,
  draw,
  draw_loss,
  engines,
  expected,
  kinds,
  replaced,
  results_and_gradients,
)

import attention

B, T, S = DIMS["BTS"]


# Ways to make row 1 of batch 1 empty. Each returns a mask [B T S] and the changed bias [T S].


def empty_by_mask(bias):
  mask = np.ones((B, T, S), bool)
  mask[:, 1] = False
  return mask, bias


def empty_in_one_batch(bias):
  mask = np.random.default_rng(3).random((B, T, S)) < 0.6
  mask[0, 1], mask[1, 1] = True, False
  return mask, bias


def empty_by_bias(bias):
  return np.ones((B, T, S), bool), replaced(bias, 1, -np.inf)


def empty_by_both(bias):
  mask = np.ones((B, T, S), bool)
  mask[:, 1, 2:] = False
  return mask, replaced(bias, np.s_[1, :2], -np.inf)


every_emptiness = pytest.mark.parametrize(
  "empty", [empty_by_mask, empty_in_one_batch, empty_by_bias, empty_by_both]
)


@kinds
@every_emptiness
@engines
def test_empty_rows_give_zeros(kind, empty, implementation):
  inputs = draw(kind, "BTH", "BSH", "BSD", bias="TS")
  mask, bias = empty(inputs.bias)
  inputs = inputs._replace(bias=bias)
  desired = expected(kind, inputs, mask=mask)

  def run(of_loss):
    return results_and_gradients(kind, inputs, of_loss, mask=mask, implementation=implementation)

  of_loss = draw_loss(desired)
  (context, weights, logsumexp), slopes = run(of_loss)
  assert_trees_close((context, weights, logsumexp), tuple(desired), FLOAT32)
  np.testing.assert_array_equal(context[1, 1], np.zeros(DIMS["D"]))
  np.testing.assert_array_equal(weights[1, 1], np.zeros(S))
  assert logsumexp[1, 1] == -np.inf
  assert_trees_finite(slopes)
  np.testing.assert_array_equal(slopes.queries[1, 1], np.zeros(DIMS["H"]))
  # An empty row has zero gradients, whatever the incoming gradient.
  is_empty = np.isneginf(desired.logsumexp)
  for anything in (1e30, np.nan):
    from_above = [
      np.where(np.expand_dims(is_empty, tuple(range(2, array.ndim))), anything, array) for array in of_loss
    ]
    assert_trees_equal(run(tuple(from_above))[1], slopes)


@kinds
@pytest.mark.parametrize("num_keys", [0, S])
@engines
def test_all_rows_empty_gives_zero_gradients(kind, num_keys, implementation):
  inputs = draw(kind, "BTH", "BSH", "BSD", bias="TS")
  inputs = inputs._replace(
    keys=inputs.keys[:, :num_keys],
    values=inputs.values[:, :num_keys],
    bias=inputs.bias[:, :num_keys],
  )
  desired = expected(kind, inputs, mask=False)
  outputs, slopes = results_and_gradients(
    kind,
    inputs,
    draw_loss(desired),
    mask=np.zeros((B, T, num_keys), bool),
    implementation=implementation,
  )
  assert_trees_equal(outputs, tuple(desired))
  assert_trees_equal(slopes, jax.tree.map(np.zeros_like, slopes))


@pytest.mark.parametrize(
  "normalizer", [attention.Sparsemax(), attention.Entmax15(), attention.StickBreaking(), attention.Sigmoid()]
)
@engines
def test_no_keys_give_zeros_with_any_normalizer(normalizer, implementation):
  queries, keys = np.ones((B, T, 7), np.float32), np.ones((B, 0, 7), np.float32)

  def context(queries):
    return attention.scaled_dot_product_attention(
      queries, keys, keys[..., :5], normalizer=normalizer, implementation=implementation
    )

  np.testing.assert_array_equal(context(queries), np.zeros((B, T, 5)))
  np.testing.assert_array_equal(jax.grad(lambda queries: jnp.sum(context(queries)))(queries), 0 * queries)
