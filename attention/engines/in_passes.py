"""Blockwise attention with any normalizer, in several passes over the keys.

For each block of queries, the normalizer first passes over the tiles to compute its state; a last pass
computes weights and context. Derivatives recompute one block of queries at a time, one tile after another.
JAX differentiates a block inside the loop over blocks, so that it stores no arrays for each block.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from attention.arrays.leading_axes import rematerialized
from attention.arrays.masking import finish_rows, mask_value
from attention.arrays.named_axes import combine
from attention.engines.inputs import Inputs
from attention.engines.loops import Operands, nonzero_tangents, over_tiles, scan_key_blocks
from attention.engines.plan import TilingPlan
from attention.normalizers.base import pair_weights
from attention.normalizers.rows import ScoreRows, ScoreTile, score_tile

Tree = TypeVar("Tree")


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def in_passes(
  function: Callable[[TilingPlan, list[jax.Array]], Any], plan: TilingPlan, arrays: list[jax.Array]
) -> Any:
  """Computes a function of each block of queries and all its keys; returns a pytree of arrays [... T *]."""
  none = [None] * len(arrays)
  operands, axes = Operands(arrays, none, None), Operands(plan.axes, none, None)
  return over_tiles(plan, lambda block: function(plan, block.arrays), operands, axes)


@functools.partial(in_passes.defjvp, symbolic_zeros=True)
def _jvp_rule(
  function: Callable[[TilingPlan, list[jax.Array]], Any], plan: TilingPlan, primals, tangents
) -> tuple[Any, Any]:
  (arrays,), (tangents,) = primals, tangents
  results = in_passes(function, plan, arrays)
  tangents, tangent_axes = nonzero_tangents(plan, tangents)

  def differentiate(block: Operands) -> Any:
    differentiated = [
      None if tangent is None else array for array, tangent in zip(block.arrays, block.tangents, strict=True)
    ]

    def at_block(differentiated: list[Any]) -> Any:
      return function(plan, combine(differentiated, block.arrays))

    return jax.jvp(at_block, (differentiated,), (block.tangents,))[1]

  operands, axes = Operands(arrays, tangents, None), Operands(plan.axes, tangent_axes, None)
  return results, over_tiles(plan, differentiate, operands, axes)


def attend_to_keys(plan: TilingPlan, arrays: list[jax.Array]) -> jax.Array:
  """Computes the context [... T D] of a block of queries over all its keys."""
  inputs = plan.inputs(arrays)
  rows = block_rows(plan, arrays)
  like = rows.like.scores
  normalizer = inputs.normalizer

  def attend_to_tile(carry: Any, tile: ScoreTile, tile_max: jax.Array, inputs: Inputs) -> Any:
    row_max, state, context = carry
    weights = pair_weights(inputs.normalizer, tile, state)
    context = context + jnp.einsum("...TS,...SD->...TD", inputs.drop(weights), inputs.values)
    return jnp.maximum(row_max, tile_max), inputs.normalizer.next_state(tile, state), context

  row_max = jnp.full((*like.shape[:-1], 1), mask_value(like.dtype))
  context = jnp.zeros((*like.shape[:-1], inputs.values.shape[-1]), like.dtype)
  initial = row_max, normalizer.row_state(rows), context
  row_max, _, context = fold_key_blocks(plan, arrays, attend_to_tile, initial, normalizer.reverse)
  return finish_rows(row_max, context)


def block_rows(plan: TilingPlan, arrays: list[jax.Array]) -> ScoreRows:
  """Returns the scores of a block of queries and all its keys."""
  inputs, S = plan.inputs(arrays), plan.keys.size
  pairs: Any = (*plan.leading, inputs.t.shape[0], S)
  dtypes = inputs.values.dtype, bool, inputs.t.dtype, inputs.s.dtype
  shapes = pairs, pairs, inputs.t.shape, (1, S)
  like: Any = ScoreTile._make(map(jax.ShapeDtypeStruct, shapes, dtypes))

  def fold(arrays: list[jax.Array], update: Callable[[Tree, ScoreTile], Tree], initial: Tree) -> Tree:
    return fold_key_blocks(plan, arrays, lambda carry, tile, row_max, inputs: update(carry, tile), initial)

  return ScoreRows(arrays, fold, like)


def fold_key_blocks(
  plan: TilingPlan,
  arrays: list[jax.Array],
  update: Callable[[Tree, ScoreTile, jax.Array, Inputs], Tree],
  initial: Tree,
  reverse: bool = False,
) -> Tree:
  """Passes over the tiles of a block of queries.

  Args:
    plan: the tiling plan.
    arrays: leaves of the Inputs, of a block of queries with all its keys.
    update: takes a carry, a tile, the largest score of its rows after masking, and its inputs; returns the
      next carry.
    initial: the first carry.
    reverse: whether the last block comes first.
  """
  none = [None] * len(arrays)

  def step(carry: Tree, operands: Operands, use_mask: bool) -> Tree:
    @rematerialized
    def at_tile(carry: Tree, arrays: list[jax.Array]) -> Tree:
      inputs = plan.inputs(arrays)
      scores, allowed = inputs.scores_and_allowed(use_mask)
      scores = jnp.broadcast_to(scores, (*plan.leading, inputs.t.shape[0], inputs.s.shape[1]))
      tile, row_max = score_tile(scores, allowed, inputs.nonfinite_pairs(), (inputs.t, inputs.s))
      return update(carry, tile, row_max, inputs)

    return at_tile(carry, operands.arrays)

  operands, axes = Operands(arrays, none, None), Operands(plan.axes, none, None)
  return scan_key_blocks(plan, step, initial, operands, axes, reverse)
