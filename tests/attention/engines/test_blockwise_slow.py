"""Blockwise at the edge of numbers, and with tiles in parallel."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention
from attention import masks
from attention.arrays import device
from attention.engines import plan
from tests.attention.engines.test_blockwise import assert_equals_dense, draw

pytestmark = pytest.mark.slow

N, T, S, H, D = 7, 3, 5, 11, 13
CLOSE = {"rtol": 3e-5, "atol": 3e-5}


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class OfEachHead(masks.Mask):
  """A mask with a leading axis that neither queries nor keys have."""

  def mask_mod(self, t, s):
    return s[None] <= t[None] + jnp.arange(N)[:, None, None]


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class Distant(attention.Score):
  """Dot products times a number, which may differ by head, minus twice the product of the positions."""

  axes = {"factor": ""}
  factor: jax.Array

  def scores(self, query_features, key_features):
    return self.factor * jnp.einsum("...TH,...SH->...TS", query_features, key_features)

  def score_mod(self, scores, t, s):
    return scores - 2.0 * (t * s).astype(scores.dtype)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Distance(attention.Score):
  """A score without a derivative where query and key are equal."""

  def scores(self, query_features, key_features):
    difference = query_features[..., :, None, :] - key_features[..., None, :, :]
    return -jnp.sqrt(jnp.sum(difference**2, axis=-1))


def test_components_may_differ_by_head():
  slopes, factors = np.linspace(-0.5, 0.5, N, dtype=np.float32), np.linspace(0.1, 0.7, N, dtype=np.float32)

  def run(implementation, slopes, factors, *vectors):
    def bias(t, s):
      return slopes[:, None, None] * jnp.abs(t - s).astype(jnp.float32)[None]

    options = {"mask": OfEachHead(), "bias": bias, "implementation": implementation, "block_sizes": (2, 2)}
    return attention.attend(Distant(factors), *vectors, **options)

  assert_equals_dense(run, slopes, factors, *draw((T, H), (S, H), (N, S, D)))


@pytest.mark.parametrize("zero", [0, 1])
def test_padding_never_meets_zero_vectors(zero):
  vectors = draw((T, H), (S, H), (S, D))
  vectors[zero][0] = 0

  def run(implementation, *vectors):
    return attention.attend(Distance(), *vectors, implementation=implementation, block_sizes=(2, 2))

  assert_equals_dense(run, *vectors)


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_huge_masked_values_and_second_derivatives(implementation):
  queries, keys, values = draw((T, H), (S, H), (S, D))
  options = {"mask": masks.prefix(S - 1), "implementation": implementation, "block_sizes": (2, 2)}

  @jax.jit
  def second(values):
    def loss(queries):
      return 1e6 * jnp.sum(attention.scaled_dot_product_attention(queries, keys, values, **options) ** 2)

    return jax.grad(lambda queries: jnp.sum(jax.grad(loss)(queries) ** 2))(queries)

  huge = values.copy()
  huge[-1] = 3e38
  np.testing.assert_array_equal(second(huge), second(values))


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_huge_masked_keys_under_a_cap(implementation):
  queries, keys, values = draw((5, 16), (5, 16), (5, 3))
  mask = np.arange(5)[None] < 4

  @jax.jit
  def derivatives(last):
    def loss(arrays):
      *arrays, cap = arrays
      score = attention.SoftCap(attention.ScaledDotProduct(), cap)
      return jnp.sum(attention.attend(score, *arrays, mask=mask, implementation=implementation) ** 2)

    arrays = 10 * queries, jnp.where(mask.T, keys, last), values, jnp.float32(5.0)
    return jax.jvp(jax.grad(loss), (arrays,), (arrays,))

  huge, small = derivatives(np.float32(3e38)), derivatives(np.float32(1.0))
  chex.assert_tree_all_finite(huge)
  for actual, desired in zip(huge, small, strict=True):
    chex.assert_trees_all_close(actual[2:], desired[2:], **CLOSE)


@pytest.mark.parametrize(
  ("score", "normalizer", "most_pairs"),
  [
    (attention.ScaledDotProduct(), attention.Softmax(), 2**26),  # all blocks of queries together
    (attention.Additive(np.float32([0.3] * 7)), attention.Softmax(), 60),  # three, and a remainder
    (attention.ScaledDotProduct(), attention.Sigmoid(), 60),
  ],
)
def test_parallel_tiles_equal_dense(score, normalizer, most_pairs, monkeypatch):
  # On a CPU, with so few pairs, no public option computes blocks of queries together.
  monkeypatch.setattr(device, "is_cpu", lambda: False)
  monkeypatch.setattr(plan, "PAIRS_IN_PARALLEL", most_pairs)
  rng = np.random.default_rng(0)
  mask = rng.random((2, 1, 19, 19)) < 0.7

  def run(implementation, bias, *vectors):
    options = {"mask": mask, "bias": bias, "normalizer": normalizer}
    return attention.attend(score, *vectors, **options, implementation=implementation, block_sizes=(4, 5))

  assert_equals_dense(run, *draw((3, 19, 19), *[(2, 3, 19, 7)] * 3))
