"""Points 3 and 4 of the contract, for numbers of scores for which XLA calls library functions.

These return the maximum of NaN and other numbers as one of the others. Default compiler options.
"""

import functools

import jax
import numpy as np
import pytest
from helpers.fixtures import (
  ENGINES,
  FLOAT32,
  SCORES,
  Inputs,
  always,
  assert_trees_close,
  attend_fully,
  compiled_together,
)

from attention import masks

T, S, H, D = 257, 263, 5, 7
BAD_QUERY, BAD_KEY = 11, 211  # a key that most queries of a causal mask may not attend to
ALLOWED = np.tri(T, S, S - T, dtype=bool) & (np.arange(T) != 13)[:, None]


@functools.cache
def drawn(kind):
  rng = np.random.default_rng(0)
  sizes = {"H": H, "K": H}
  parameters = {
    name: np.asarray(rng.uniform(0.2, 0.6, [sizes[axis] for axis in axes]), np.float32)
    for name, axes in SCORES[kind].parameters.items()
  }
  vectors = (rng.normal(size=shape).astype(np.float32) for shape in ((T, H), (S, H), (S, D)))
  bias = rng.normal(size=(T, S)).astype(np.float32)
  of_loss = tuple(rng.normal(size=shape).astype(np.float32) for shape in ((T, D), (T, S), (T,)))
  return Inputs(*vectors, parameters, bias), of_loss


@compiled_together
def results_and_gradients(kind, implementation, inputs, of_loss):
  mask = masks.causal(offset=S - T) & masks.from_array((np.arange(T) != 13)[:, None])
  run = functools.partial(attend_fully, kind, mask=mask, implementation=implementation)
  results, pull = jax.vjp(run, inputs)
  return results, pull(of_loss)[0]


@pytest.mark.parametrize("kind", always("scaled_dot_product", of=SCORES))
@pytest.mark.parametrize("implementation", always("blockwise", of=ENGINES))
def test_broken_and_empty_rows_at_size(kind, implementation):
  inputs, of_loss = drawn(kind)
  bad_positions = {"queries": BAD_QUERY, "keys": BAD_KEY, "values": BAD_KEY, "bias": BAD_QUERY}
  for argument, position in bad_positions.items():
    is_broken = ALLOWED[:, position] if position == BAD_KEY else np.arange(T) == position
    of_others = tuple(np.where(is_broken.reshape(-1, *[1] * (array.ndim - 1)), 0, array) for array in of_loss)
    desired, gradients = results_and_gradients(kind, implementation, inputs, of_others)
    np.testing.assert_array_equal(desired[0][13], np.zeros(D))
    assert desired[2][13] == -np.inf
    for bad in (np.nan, np.inf):
      array = np.array(getattr(inputs, argument))
      array[position, 3] = bad
      corrupted = inputs._replace(**{argument: array})
      results, slopes = results_and_gradients(kind, implementation, corrupted, of_loss)
      for result, wanted in zip(results, desired, strict=True):
        assert_trees_close(result[~is_broken], wanted[~is_broken], FLOAT32)
      context, weights, logsumexp = results
      assert np.all(np.isnan(context[is_broken])) and np.all(np.isnan(logsumexp[is_broken]))
      np.testing.assert_array_equal(np.isnan(weights), is_broken[:, None] & ALLOWED)
      assert_trees_close(slopes, gradients, 10 * FLOAT32)
