"""Statistics of the scores of each query: the largest score, and the entropy of the softmax weights."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention.arrays.checks import check_vectors
from attention.arrays.dtypes import matmul_precision
from attention.arrays.eager_jit import eager_jit
from attention.arrays.masking import finish_rows, levels, mark_rows
from attention.arrays.shapes import broadcast_leading
from attention.arrays.sharding import mesh_of
from attention.biases.base import BiasLike
from attention.engines.choice import choose_implementation
from attention.engines.inputs import Inputs, Options, Settings, prepare
from attention.engines.loops import over_query_blocks
from attention.engines.normalized import block_rows, fold_rows
from attention.engines.plan import Plan, make_plan
from attention.masks import Array, Mask
from attention.normalizers.rows import ScoreTile
from attention.scores.base import Score
from attention.validation import check_options


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
  queries, keys = check_vectors(queries=queries, keys=keys)
  broadcast_leading(queries, keys, names="queries and keys")
  options, settings = check_options(
    score, mask=mask, bias=bias, implementation=implementation, block_sizes=block_sizes
  )
  return _row_statistics(queries, keys, options, settings=settings)


@functools.partial(eager_jit, static_argnames=("settings",))
def _row_statistics(
  queries: jax.Array, keys: jax.Array, options: Options, *, settings: Settings
) -> RowStatistics:
  implementation = settings.implementation
  if implementation == "auto":
    implementation = choose_implementation(queries, keys, keys, return_weights=False)
  with jax.default_matmul_precision(matmul_precision()), mesh_of(queries, keys):
    # Keys of no width stand for the values, which do not matter.
    inputs, shape = prepare(queries, keys, keys[..., :0], options)
    T, S = shape[-2:]
    if 0 in shape:
      rows = jnp.zeros(shape[:-1], inputs.values.dtype)
      return RowStatistics(rows - jnp.inf, rows)
    sizes = (T, S) if implementation == "dense" else settings.block_sizes
    plan, leaves = make_plan(inputs, shape, sizes)
    statistics = over_query_blocks(plan, functools.partial(_block_statistics, plan), (leaves,))
    return RowStatistics(*(rows[..., 0] for rows in statistics))


def _block_statistics(plan: Plan, leaves: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
  """Returns the largest score and the entropy of a block of queries, [T 1] each."""
  inputs = plan.inputs(leaves)

  def update(maxima: Any, tile: ScoreTile, tile_max: jax.Array, inputs: Inputs) -> Any:
    return jnp.maximum(maxima[0], tile_max), _update_max(maxima[1], tile)

  rows = block_rows(plan, inputs)
  scores = rows.like.scores
  lowest = jnp.full((scores.shape[0], 1), levels(scores.dtype).masked)
  masked_max, max_score = fold_rows(plan, inputs, update, (lowest, lowest))
  masked_max = mark_rows(masked_max, inputs.nonfinite_queries)
  row_max = jax.lax.stop_gradient(max_score)

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
  """Returns the larger of `largest` and the largest score of a tile, [T 1], with its derivatives."""
  scores = jnp.where(tile.valid, tile.scores, levels(tile.scores.dtype).masked)
  index = jnp.argmax(jax.lax.stop_gradient(scores), axis=-1, keepdims=True)
  tile_max = jnp.take_along_axis(scores, index, axis=-1)
  return jnp.where(tile_max > largest, tile_max, largest)
