"""Tests of the largest logits."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.decoding.top_k import top_k

# Enough logits for the search in chunks; the last chunk of 32 has padding.
SHAPE = (2, 29, 1301)


def _draw(kind: str) -> jax.Array:
  rng = np.random.default_rng(7)
  if kind == "normal":
    return jnp.asarray(rng.standard_normal(SHAPE), jnp.float32)
  if kind == "equal":  # many equal logits, also within a chunk
    return jnp.asarray(rng.integers(0, 4, SHAPE), jnp.float32)
  logits = np.full(SHAPE, -np.inf, np.float32)  # fewer finite logits than k
  logits[..., [700, 1300]] = rng.standard_normal((*SHAPE[:2], 2))
  return jnp.asarray(logits)


@pytest.mark.parametrize("kind", ["normal", "equal", "infinite"])
@pytest.mark.parametrize("k", [1, 7])
def test_equals_lax(kind, k):
  logits = _draw(kind)
  chex.assert_trees_all_equal(top_k(logits, k), tuple(jax.lax.top_k(logits, k)))


def test_nan_is_largest():
  logits = _draw("normal").at[:, :, 900].set(jnp.nan)
  assert jnp.all(top_k(logits, 3)[1][..., 0] == 900)
