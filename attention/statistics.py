"""Statistics of the scores of each query: the largest score, and the entropy of the softmax weights."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention.arrays.dtypes import matmul_precision
from attention.arrays.eager_jit import eager_jit
from attention.arrays.masking import finish_rows, mask_value, softmax_shift
from attention.biases.base import BiasLike
from attention.engines.choice import choose_implementation
from attention.engines.in_passes import block_rows, fold_key_blocks, in_passes
from attention.engines.inputs import Inputs, Options, prepare
from attention.engines.plan import TilingPlan, make_tiling_plan
from attention.masks import Array, Mask
from attention.normalizers.rows import ScoreRows, ScoreTile, one_tile
from attention.scores.base import Score
from attention.validation import check_options, check_queries_and_keys


class RowStatistics(NamedTuple):
  """Statistics of the scores of each query; at least float32.

  Attributes:
    max_score: the largest score, [... T]; -inf if the query may attend to nothing.
    entropy: entropy of the softmax weights in nats, [... T]; 0 if the query may attend to nothing.
  """

  max_score: jax.Array
  entropy: jax.Array


def row_statistics(
  score: Score,
  queries: jax.Array,
  keys: jax.Array,
  *,
  mask: Mask | Array | None = None,
  bias: BiasLike | None = None,
  implementation: str = "auto",
  block_sizes: tuple[int, int] | None = None,
) -> RowStatistics:
  """Computes the largest score of each query, and the entropy of its softmax weights.

  Use them to watch attention during training, or to limit scores, as QK-clip does (Kimi Team 2025,
  arXiv:2507.20534). Both have all derivatives; of equal scores, the first is the largest. A query that
  attends to NaN or infinity has NaN statistics.

  Args:
    score: a score function.
    queries: [... T H].
    keys: [... S H]. For grouped heads, repeat the keys.
    mask, bias, implementation, block_sizes: see `attend`.

  Raises:
    ValueError: see `attend`.

  >>> import attention
  >>> statistics = row_statistics(attention.ScaledDotProduct(1.0), jnp.ones((1, 2)), jnp.ones((4, 2)))
  >>> statistics.max_score.tolist(), statistics.entropy.round(3).tolist()
  ([2.0], [1.3860000371932983])
  """
  queries, keys = check_queries_and_keys(queries, keys)
  options = check_options(
    score,
    mask=mask,
    bias=bias,
    dropout_rate=0.0,
    dropout_rng=None,
    implementation=implementation,
    block_sizes=block_sizes,
  )
  return _row_statistics(queries, keys, options)


@eager_jit
def _row_statistics(queries: jax.Array, keys: jax.Array, options: Options) -> RowStatistics:
  implementation = options.implementation
  if implementation == "auto":
    implementation = choose_implementation(queries, keys, keys, return_weights=False)
  with jax.default_matmul_precision(matmul_precision()):
    # Keys of no width stand for the values, which do not matter.
    inputs, shape = prepare(queries, keys, keys[..., :0], options)
    if implementation == "dense" or 0 in shape:
      return RowStatistics(*(rows[..., 0] for rows in _dense_statistics(inputs, shape)))
    plan, arrays = make_tiling_plan(inputs, shape, options.block_sizes, axis_name=None)
    return RowStatistics(*(rows[..., 0] for rows in in_passes(_block_statistics, plan, arrays)))


def _dense_statistics(inputs: Inputs, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
  scores, allowed = inputs.with_finite_vectors().scores_and_allowed()
  scores = jnp.broadcast_to(scores, shape)
  tile, rows, row_max = one_tile(scores, allowed, inputs.nonfinite_pairs(), (inputs.t, inputs.s))
  return _statistics(rows, row_max, _update_max(jnp.full_like(row_max, mask_value(row_max.dtype)), tile))


def _block_statistics(plan: TilingPlan, arrays: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
  rows = block_rows(plan, arrays)

  def update(maxima: Any, tile: ScoreTile, tile_max: jax.Array, inputs: Inputs) -> Any:
    return jnp.maximum(maxima[0], tile_max), _update_max(maxima[1], tile)

  scores = rows.like.scores
  lowest = jnp.full((*scores.shape[:-1], 1), mask_value(scores.dtype))
  return _statistics(rows, *fold_key_blocks(plan, arrays, update, (lowest, lowest)))


def _statistics(rows: ScoreRows, masked_max: jax.Array, max_score: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns the largest score and the entropy, [... T 1] each.

  Args:
    rows: the scores.
    masked_max: the largest score of each row after masking, [... T 1].
    max_score: the largest valid score of each row, with its derivatives, [... T 1].
  """
  row_max = jax.lax.stop_gradient(softmax_shift(max_score))

  def sums(tile: ScoreTile) -> tuple[jax.Array, ...]:
    shifted = tile.shifted(row_max)
    exponentials = jnp.exp(shifted)
    return exponentials, exponentials * shifted  # the terms of the maximum are 0, and have its derivatives

  denominator, weighted = rows.sum(sums)
  denominator = jnp.where(denominator == 0, 1, denominator)
  return (
    finish_rows(masked_max, max_score, "-inf"),
    finish_rows(masked_max, jnp.log(denominator) - weighted / denominator),
  )


def _update_max(largest: jax.Array, tile: ScoreTile) -> jax.Array:
  """Returns the larger of `largest` and the largest score of a tile, [... T 1], with its derivatives."""
  scores = jnp.where(tile.valid, tile.scores, mask_value(tile.scores.dtype))
  if 0 in scores.shape:
    return largest
  index = jnp.argmax(jax.lax.stop_gradient(scores), axis=-1, keepdims=True)
  tile_max = jnp.take_along_axis(scores, index, axis=-1)
  return jnp.where(tile_max > largest, tile_max, largest)
