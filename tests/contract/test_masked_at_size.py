"""Empty and broken rows, for numbers of scores for which XLA calls library functions.

These return the maximum of NaN and other numbers as one of the others.
"""

import functools

import chex
import jax
import numpy as np
import pytest

import attention
from attention import masks

pytestmark = pytest.mark.slow

T, S, H, D = 257, 263, 5, 7
BAD_QUERY, BAD_KEY = 11, 211  # a key that most queries of a causal mask may not attend to
EMPTY = 13
ALLOWED = np.tri(T, S, S - T, dtype=bool) & (np.arange(T) != EMPTY)[:, None]
RNG = np.random.default_rng(0)
SCORES = {
  "scaled_dot_product": attention.ScaledDotProduct(),
  "additive": attention.Additive(np.float32(RNG.uniform(0.2, 0.6, size=H))),
}
ARRAYS = {
  "queries": np.float32(RNG.normal(size=(T, H))),
  "keys": np.float32(RNG.normal(size=(S, H))),
  "values": np.float32(RNG.normal(size=(S, D))),
  "bias": np.float32(RNG.normal(size=(T, S))),
}
COTANGENTS = tuple(np.float32(RNG.normal(size=shape)) for shape in ((T, D), (T, S), (T,)))


@functools.partial(jax.jit, static_argnums=2)
def results_and_gradients(score, arrays, implementation, cotangents):
  mask = masks.causal(offset=S - T) & masks.from_array((np.arange(T) != EMPTY)[:, None])
  options = {"return_weights": True, "return_logsumexp": True, "implementation": implementation}
  results, pull = jax.vjp(
    lambda score, arrays: tuple(attention.attend(score, **arrays, mask=mask, **options)), score, arrays
  )
  return results, pull(cotangents)


@pytest.mark.parametrize("argument", ["queries", "keys", "values", "bias"])
@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_broken_and_empty_rows(kind, argument, implementation):
  run = functools.partial(results_and_gradients, SCORES[kind])
  position = BAD_KEY if argument in ("keys", "values") else BAD_QUERY
  is_broken = ALLOWED[:, position] if position == BAD_KEY else np.arange(T) == position
  of_others = tuple(
    np.where(is_broken.reshape(-1, *[1] * (array.ndim - 1)), np.float32(0), array) for array in COTANGENTS
  )
  desired, gradients = run(ARRAYS, implementation, of_others)
  assert not np.any(desired[0][EMPTY]) and desired[2][EMPTY] == -np.inf
  for bad in (np.nan, np.inf):
    array = ARRAYS[argument].copy()
    array[position, 3] = bad
    results, slopes = run(ARRAYS | {argument: array}, implementation, COTANGENTS)
    for result, wanted in zip(results, desired, strict=True):
      chex.assert_trees_all_close(result[~is_broken], wanted[~is_broken], rtol=4e-6, atol=4e-6)
    context, weights, logsumexp = results
    assert np.all(np.isnan(context[is_broken])) and np.all(np.isnan(logsumexp[is_broken]))
    np.testing.assert_array_equal(np.isnan(weights), is_broken[:, None] & ALLOWED)
    chex.assert_trees_all_close(slopes, gradients, rtol=4e-5, atol=4e-5)
