"""Tests of the largest logits."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.decoding.top_k import top_k

SHAPE = (2, 3, 1301)  # the last chunk of 32 has padding


@pytest.fixture(autouse=True)
def few_logits(monkeypatch):
  """Searches few logits in chunks too."""
  monkeypatch.setattr("attention.decoding.top_k._FEW_LOGITS", 0)


def _draw(kind: str) -> np.ndarray:
  rng = np.random.default_rng(7)
  normal = rng.standard_normal(SHAPE).astype(np.float32)
  if kind == "equal":  # many equal logits, also within a chunk
    return np.asarray(rng.integers(0, 4, SHAPE), np.float32)
  if kind == "infinite":  # fewer finite logits than k
    logits = np.full(SHAPE, -np.inf, np.float32)
    logits[..., [700, 1300]] = normal[..., :2]
    return logits
  if kind == "huge":  # sums overflow
    normal[..., 1280:], normal[..., 5] = 1e38, 2e38
  return normal


@pytest.mark.parametrize("kind", ["normal", "equal", "infinite", "huge"])
@pytest.mark.parametrize("k", [1, 7])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_equals_lax(kind, k, dtype):
  logits = jnp.asarray(_draw(kind), dtype)
  result = jax.jit(top_k, static_argnums=1)(logits, k)
  assert "reduce_max" in str(jax.make_jaxpr(top_k, static_argnums=1)(logits, k))
  chex.assert_trees_all_equal(result, tuple(jax.lax.top_k(logits, k)))
  chex.assert_trees_all_equal(jax.vmap(lambda row: top_k(row, k))(logits), result)
