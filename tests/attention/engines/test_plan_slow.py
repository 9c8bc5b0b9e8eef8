"""Attention in windows equals the whole sequence."""

import functools

import jax
import numpy as np
import pytest

import attention
from attention import masks

pytestmark = pytest.mark.slow


WINDOWS = {
  "behind": masks.sliding_window(5, -2),
  "lengths": masks.sliding_window(2, 1) & masks.lengths(source=np.array([11, 30])[:, None]),
  "array": masks.sliding_window(3, 2) & (np.random.default_rng(1).random((31, 37)) < 0.6),
  "before_only": masks.Band(2, None),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_match_the_whole_sequence(name):
  rng = np.random.default_rng(0)
  queries, keys, values = (rng.normal(size=(2, 3, n, 5)).astype(np.float32) for n in (31, 37, 37))
  keys[..., 17, :] = np.nan  # it reaches only the rows that may attend to it
  bias = rng.normal(size=(3, 31, 37)).astype(np.float32)
  of_context = rng.normal(size=(2, 3, 31, 5)).astype(np.float32)
  dropout = {"dropout_rate": 0.5, "dropout_rng": jax.random.key(0)}

  @functools.partial(jax.jit, static_argnums=0)
  def both_passes(implementation):
    def run(queries, values, bias):
      options = {"mask": WINDOWS[name], "bias": bias, "implementation": implementation, "block_sizes": (5, 3)}
      return attention.scaled_dot_product_attention(queries, keys[:, :1], values, **options, **dropout)

    context, pull = jax.vjp(run, queries, values, bias)
    return context, pull(of_context)

  actual, desired = both_passes("blockwise"), both_passes("dense")
  for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
    np.testing.assert_allclose(one, other, rtol=3e-5, atol=3e-5)
