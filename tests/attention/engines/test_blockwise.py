"""Tiles of the blockwise engine: skipped, cut, and padded; tests/contract compares all its results."""

import dataclasses
import functools

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
  calculated, vectors = [], np.ones((32, 2), np.float32)
  options = {"mask": mask, "implementation": "blockwise", "block_sizes": (4, 4)}
  attention.attend(Counting(calculated), *[vectors] * 3, **options).block_until_ready()
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
  vectors, traced = np.ones((B, T, 2), np.float32), []

  @jax.jit
  def run(lengths, segments):
    traced.append(1)
    mask = masks.lengths(source=lengths) & masks.segments(segments, segments)
    options = {"mask": mask, "implementation": "blockwise", "block_sizes": (2, 2)}
    return attention.scaled_dot_product_attention(*[vectors] * 3, **options)

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


@pytest.mark.parametrize("both", [(1, S), (T, 1)])
def test_arrays_are_cut_by_position(both):
  rng = np.random.default_rng(0)
  shapes = (B, 2, T), (B, S, 2, T), (B, *both)
  mask = OwnMask(*(jnp.asarray(rng.random(shape) < 0.9) for shape in shapes))

  def run(implementation, *vectors):
    options = {"mask": mask, "implementation": implementation, "block_sizes": (2, 2)}
    return attention.scaled_dot_product_attention(*vectors, **options)

  assert_equals_dense(run, *draw((B, T, H), (B, S, H), (B, S, D)))


@pytest.mark.parametrize("block_sizes", [(0, 2), (2,), 2, (2, -1), (2.0, 2), (True, 2)])
def test_invalid_block_sizes_raise(block_sizes):
  vectors = jnp.ones((T, 2))
  with pytest.raises(ValueError, match=r"block_sizes must be (two positive|an) integer"):
    attention.scaled_dot_product_attention(vectors, vectors, vectors, block_sizes=block_sizes)


# Positions beyond the end of the last block.

TABLE = np.float32([1, -2, 3, -4, 5, -6, 7, -8])  # a bias for each of 8 buckets of distances
BIASES = [
  np.float32(300),
  # NaN at T.
  lambda t, s: 300 * s.astype(jnp.float32) + jnp.take(np.ones((T, 1), np.float32), t[:, 0], axis=0),
  # Infinite at T and S.
  lambda t, s: 1 / (T - t).astype(jnp.float32) + 1 / (S - s).astype(jnp.float32),
  positions.ALiBi(np.float32(-300)),
  positions.RelativePositionBias(TABLE, 4),
]


def test_positions_beyond_the_end_are_ignored():
  def run(implementation, *vectors):
    attend = functools.partial(attention.scaled_dot_product_attention, implementation=implementation)
    return jnp.stack([attend(*vectors, bias=bias, block_sizes=(2, 2)) for bias in BIASES])

  assert_equals_dense(run, *draw((T, H), (S, H), (S, D)))


# Numbers at the edge of their range.


def test_huge_masked_values_do_not_overflow():
  queries, keys = draw((2, 5), (8, 5))
  values = jnp.full((8, 3), 3e38).at[jnp.array([0, 5])].set(1.0)  # sums of the others overflow
  allowed = jnp.zeros((2, 8), bool).at[0, 5].set(True).at[1, 0].set(True)
  options = {"mask": allowed, "implementation": "blockwise", "block_sizes": (2, 4)}
  actual = attention.scaled_dot_product_attention(queries, keys, values, **options)
  np.testing.assert_array_equal(actual, np.ones((2, 3), np.float32))


@pytest.mark.parametrize("ulps", [0, 1])
def test_scores_near_lowest_finite_number(ulps):
  lowest = np.finfo(np.float32).min
  for _ in range(ulps):
    lowest = np.nextafter(lowest, np.float32(0))
  queries, keys, values = draw((T, H), (S, H), (S, D))

  def attend(queries, implementation):
    options = {"bias": np.full((T, S), lowest), "implementation": implementation, "block_sizes": (2, 2)}
    return attention.scaled_dot_product_attention(queries, keys, values, **options)

  # This bias absorbs all digits of the scores, so all weights are equal, and gradients those of zero scores.
  def of_equal_weights(queries):
    scores = queries @ keys.T / np.sqrt(np.float32(H))
    return jax.nn.softmax(scores - jax.lax.stop_gradient(scores)) @ values

  @jax.jit
  def run(queries):
    def result(function):
      def loss(queries):
        context = function(queries)
        return jnp.sum(context**2), context

      return jax.grad(loss, has_aux=True)(queries)

    engines = "dense", "blockwise"
    return result(of_equal_weights), [result(lambda queries, e=e: attend(queries, e)) for e in engines]

  desired, actual = run(queries)
  chex.assert_trees_all_close(actual, [desired] * 2, **CLOSE)
