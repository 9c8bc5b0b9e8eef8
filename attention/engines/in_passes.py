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

from attention.arrays.batched_loops import rematerialized
from attention.arrays.pytrees import combine
from attention.engines.attention_inputs import Inputs
from attention.engines.masking import finish_rows, mask_value
from attention.engines.rows import ScoreRows, ScoreTile, score_tile
from attention.engines.tiles import Operands, nonzero_tangents, over_tiles, scan_key_blocks
from attention.engines.tiling import TilingPlan

Tree = TypeVar("Tree")


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def attend_in_passes(plan: TilingPlan, arrays: list[jax.Array]) -> jax.Array:
  """Computes the context [... T D] of all queries over all keys."""
  none = [None] * len(arrays)
  operands, axes = Operands(arrays, none, None), Operands(plan.axes, none, None)
  return over_tiles(plan, lambda block: _attend_to_keys(plan, block.arrays), operands, axes)


@functools.partial(attend_in_passes.defjvp, symbolic_zeros=True)
def _jvp_rule(plan: TilingPlan, primals, tangents) -> tuple[jax.Array, jax.Array]:
  (arrays,), (tangents,) = primals, tangents
  context = attend_in_passes(plan, arrays)
  tangents, tangent_axes = nonzero_tangents(plan, tangents)

  def differentiate(block: Operands) -> jax.Array:
    differentiated = [
      None if tangent is None else array for array, tangent in zip(block.arrays, block.tangents, strict=True)
    ]

    def attend(differentiated: list[Any]) -> jax.Array:
      return _attend_to_keys(plan, combine(differentiated, block.arrays))

    return jax.jvp(attend, (differentiated,), (block.tangents,))[1]

  operands, axes = Operands(arrays, tangents, None), Operands(plan.axes, tangent_axes, None)
  return context, over_tiles(plan, differentiate, operands, axes)


def _attend_to_keys(plan: TilingPlan, arrays: list[jax.Array]) -> jax.Array:
  """Computes the context [... T D] of a block of queries over all its keys."""
  none = [None] * len(arrays)
  inputs, axes = plan.inputs(arrays), Operands(plan.axes, none, None)
  shape, dtype = (*plan.leading, inputs.t.shape[0]), inputs.values.dtype

  def fold(
    arrays: list[jax.Array],
    update: Callable[[Tree, ScoreTile, jax.Array, Inputs], Tree],
    initial: Tree,
    reverse: bool = False,
  ) -> Tree:
    def step(carry: Tree, operands: Operands, use_mask: bool) -> Tree:
      @rematerialized
      def at_tile(carry: Tree, arrays: list[jax.Array]) -> Tree:
        inputs = plan.inputs(arrays)
        scores, allowed = inputs.scores_and_allowed(use_mask)
        scores = jnp.broadcast_to(scores, (*shape, inputs.s.shape[1]))
        tile, row_max = score_tile(scores, allowed, inputs.nonfinite_pairs(), (inputs.t, inputs.s))
        return update(carry, tile, row_max, inputs)

      return at_tile(carry, operands.arrays)

    return scan_key_blocks(plan, step, initial, Operands(arrays, none, None), axes, reverse)

  def fold_scores(arrays: list[jax.Array], update: Callable[[Tree, ScoreTile], Tree], initial: Tree) -> Tree:
    return fold(arrays, lambda carry, tile, row_max, inputs: update(carry, tile), initial)

  S = plan.keys.size
  shapes: Any = (*shape, S), (*shape, S), inputs.t.shape, (1, S)
  dtypes = dtype, bool, inputs.t.dtype, inputs.s.dtype
  like: Any = ScoreTile._make(map(jax.ShapeDtypeStruct, shapes, dtypes))
  state = inputs.normalizer.row_state(ScoreRows(arrays, fold_scores, like))

  def attend_to_tile(carry: Any, tile: ScoreTile, tile_max: jax.Array, inputs: Inputs) -> Any:
    row_max, state, context = carry
    # Most masked weights are 0 already. `where` also sets their gradient to 0, which may otherwise overflow.
    weights = jnp.where(tile.valid, inputs.normalizer.weights(tile, state), 0)
    context = context + jnp.einsum("...TS,...SD->...TD", inputs.drop(weights), inputs.values)
    return jnp.maximum(row_max, tile_max), inputs.normalizer.next_state(tile, state), context

  initial = (
    jnp.full((*shape, 1), mask_value(dtype)),
    state,
    jnp.zeros((*shape, inputs.values.shape[-1]), dtype),
  )
  row_max, _, context = fold(arrays, attend_to_tile, initial, inputs.normalizer.reverse)
  return finish_rows(row_max, context)
