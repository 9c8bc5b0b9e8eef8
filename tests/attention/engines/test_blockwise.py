"""Tiles of the blockwise engine: skipped, cut, and padded; tests/contract compares all its results."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention
from attention import masks, positions

B, N, T, S, H, D = 2, 7, 3, 5, 11, 13
CLOSE = {"rtol": 3e-5, "atol": 3e-5}


def draw(*shapes):
  rng = np.random.default_rng(0)
  return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def assert_equals_dense(function, *arrays):
  """Asserts that the results and gradients of function(implementation, *arrays) equal those of "dense"."""

  def both_passes(implementation):
    def loss(arrays):
      context = function(implementation, *arrays)
      return jnp.sum(jnp.sin(context)), context

    return jax.jit(jax.grad(loss, has_aux=True))(arrays)

  chex.assert_trees_all_close(both_passes("blockwise"), both_passes("dense"), **CLOSE)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Counting(attention.Score):
  """A dot product that records each computed tile in `tiles`."""

  tiles: list = dataclasses.field(metadata={"static": True}, hash=False, compare=False)

  def scores(self, query_features, key_features):
    jax.debug.callback(lambda: self.tiles.append(1))
    return query_features @ key_features.swapaxes(-1, -2)


@pytest.mark.parametrize(
  ("mask", "count"),
  [
    (None, 64),
    (masks.causal(), 36),
    (masks.sliding_window(3, 0), 15),
    (masks.sliding_window(np.array(3), 0), 15),
    (masks.lengths(source=8, target=12), 6),
    (masks.segments(np.arange(32) // 8, np.arange(32) // 8), 16),
  ],
)
def test_empty_tiles_are_skipped(mask, count):
  calculated = []
  vectors = np.ones((32, 2), np.float32)
  attention.attend(
    Counting(calculated), vectors, vectors, vectors, mask=mask, implementation="blockwise", block_sizes=(4, 4)
  ).block_until_ready()
  jax.effects_barrier()
  assert len(calculated) == count


@pytest.mark.parametrize("kind", [attention.ScaledDotProduct(), attention.Additive(np.float32(H * [0.3]))])
def test_vmapped_lengths_skip_other_tiles(kind):
  # Each batch element has other empty tiles, and one uses another formula for additive scores.
  queries, keys, values = draw((B, T, H), (B, S, H), (B, S, D))
  queries *= np.float32([1, 50])[:, None, None]

  def run(implementation, *vectors):
    def one(length, *vectors):
      options = {"mask": masks.prefix(length), "implementation": implementation, "block_sizes": (2, 2)}
      return attention.attend(kind, *vectors, **options)

    return jax.vmap(one)(jnp.array([5, 1]), *vectors)

  assert_equals_dense(run, queries, keys, values)


def test_lengths_and_segments_are_not_constants():
  vectors = np.ones((B, T, 2), np.float32)
  traced = []

  @jax.jit
  def run(lengths, segments):
    traced.append(1)
    mask = masks.lengths(source=lengths) & masks.segments(segments, segments)
    return attention.scaled_dot_product_attention(
      vectors, vectors, vectors, mask=mask, implementation="blockwise", block_sizes=(2, 2)
    )

  first = run(jnp.asarray([1, 2]), jnp.asarray([[0, 0, 0]] * 2))
  second = run(jnp.asarray([3, 0]), jnp.asarray([[0, 1, 1]] * 2))
  assert len(traced) == 1
  np.testing.assert_allclose(first, np.ones((B, T, 2)), rtol=1e-6)
  np.testing.assert_allclose(second, np.stack([np.ones((T, 2)), np.zeros((T, 2))]), rtol=1e-6)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OwnMask(masks.Mask):
  """A mask whose arrays have their position axes not first."""

  axes = {"of_queries": "AT", "of_pairs": "SAT", "of_both": "TS"}
  of_queries: jax.Array
  of_pairs: jax.Array
  of_both: jax.Array

  def mask_mod(self, t, s):
    allowed = jnp.all(self.of_queries, axis=-2)[..., :, None]
    return allowed & jnp.swapaxes(jnp.any(self.of_pairs, axis=-2), -1, -2) & self.of_both


@pytest.mark.parametrize(
  ("both", "block_sizes"), [((T, S), (2, 2)), ((1, S), (T, 2)), ((T, 1), (2, S)), ((1, 1), (2, 2))]
)
def test_arrays_are_cut_by_position(both, block_sizes):
  rng = np.random.default_rng(0)
  shapes = (B, 2, T), (B, S, 2, T), (B, *both)
  mask = OwnMask(*(jnp.asarray(rng.random(shape) < 0.9) for shape in shapes))

  def run(implementation, *vectors):
    options = {"mask": mask, "implementation": implementation, "block_sizes": block_sizes}
    return attention.scaled_dot_product_attention(*vectors, **options)

  assert_equals_dense(run, *draw((B, T, H), (B, S, H), (B, S, D)))


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


def test_score_mod_gets_positions():
  queries, keys, values = draw((T, H), (S, H), (S, D))
  for implementation in ("dense", "blockwise"):
    options = {"implementation": implementation, "block_sizes": (2, 4)}
    actual = attention.attend(Distant(np.float32(1)), queries, keys, values, **options)
    scores = queries @ keys.T - 2.0 * np.arange(T)[:, None] * np.arange(S)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(actual, weights @ values / weights.sum(-1, keepdims=True), rtol=1e-4)


@pytest.mark.parametrize("block_sizes", [(0, 2), (2,), 2, (2, -1), (2.0, 2), (True, 2)])
def test_invalid_block_sizes_raise(block_sizes):
  vectors = jnp.ones((T, 2))
  with pytest.raises(ValueError, match=r"block_sizes must be (two positive|an) integer"):
    attention.scaled_dot_product_attention(vectors, vectors, vectors, block_sizes=block_sizes)


# Positions beyond the end of the last block.

TABLE = np.float32([1, -2, 3, -4, 5, -6, 7, -8])  # a bias for each of 8 buckets of distances
BIASES = {
  "number": np.float32(300),
  "large": lambda t, s: 300 * s.astype(jnp.float32) + 0 * t.astype(jnp.float32),
  "infinite": lambda t, s: 1 / (T - t).astype(jnp.float32) + 1 / (S - s).astype(jnp.float32),
  "undefined": lambda t, s: jnp.take(np.ones((T, 1), np.float32), t[:, 0], axis=0),
  "alibi": positions.ALiBi(np.float32(-300)),
  "relative": positions.RelativePositionBias(TABLE, 4),
}


def test_positions_beyond_the_end_are_ignored():
  def run(implementation, *vectors):
    options = {"implementation": implementation, "block_sizes": (2, 2)}
    contexts = [
      attention.scaled_dot_product_attention(*vectors, bias=bias, **options) for bias in BIASES.values()
    ]
    return jnp.stack(contexts)

  assert_equals_dense(run, *draw((T, H), (S, H), (S, D)))


# Numbers at the edge of their range.


def test_huge_masked_values_do_not_overflow():
  queries, keys = draw((2, 5), (8, 5))
  values = jnp.full((8, 3), 3e38).at[jnp.array([0, 5])].set(1.0)  # sums of the others overflow
  allowed = jnp.zeros((2, 8), bool).at[0, 5].set(True).at[1, 0].set(True)
  options = {"mask": allowed, "implementation": "blockwise", "block_sizes": (2, 4)}
  actual = attention.scaled_dot_product_attention(queries, keys, values, **options)
  np.testing.assert_array_equal(actual, np.ones((2, 3), np.float32))


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
@pytest.mark.parametrize("ulps", [0, 1])
def test_scores_near_lowest_finite_number(implementation, ulps):
  lowest = np.finfo(np.float32).min
  for _ in range(ulps):
    lowest = np.nextafter(lowest, np.float32(0))
  queries, keys, values = draw((T, H), (S, H), (S, D))

  @jax.jit
  def loss(queries):
    options = {"implementation": implementation, "block_sizes": (2, 2)}
    bias = np.full((T, S), lowest)
    context = attention.scaled_dot_product_attention(queries, keys, values, bias=bias, **options)
    return jnp.sum(context**2), context

  # This bias absorbs all digits of the scores, so all weights are equal, and gradients those of zero scores.
  def of_equal_weights(queries):
    scores = queries @ keys.T / np.sqrt(np.float32(H))
    scores -= jax.lax.stop_gradient(scores)
    return jnp.sum((jax.nn.softmax(scores) @ values) ** 2)

  gradient, context = jax.grad(loss, has_aux=True)(queries)
  np.testing.assert_allclose(context, np.broadcast_to(np.mean(values, axis=0), (T, D)), rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(gradient, jax.grad(of_equal_weights)(queries), **CLOSE)


# Tiles in parallel, as on accelerators. There is no public option: on a CPU, tiles are computed one by one.
