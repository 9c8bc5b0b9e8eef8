"""Blockwise attention with any normalizer, in several passes over the keys.

For each block of queries, the normalizer first passes over the tiles to compute its state; a last pass
computes weights and context. JAX differentiates these loops; derivatives recompute one block of queries at a
time, one tile after another.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from attention.arrays.masking import finish_rows, levels, mark_rows
from attention.engines.inputs import Inputs
from attention.engines.loops import fold_key_blocks, over_query_blocks
from attention.engines.plan import Plan
from attention.normalizers.base import pair_weights
from attention.normalizers.rows import ScoreRows, ScoreTile, score_tile

Tree = TypeVar("Tree")


def normalized_attention(plan: Plan, leaves: list[jax.Array]) -> jax.Array:
  """Computes the context [... T D] of all queries over all keys."""
  D = plan.inputs(leaves).values.shape[-1]  # in `attend_to_keys`, values are transposed blocks

  def attend_to_keys(leaves: list[jax.Array]) -> jax.Array:
    inputs = plan.inputs(leaves)
    rows, normalizer, dtype = block_rows(plan, inputs), inputs.options.normalizer, inputs.values.dtype

    def attend_to_tile(carry: Any, tile: ScoreTile, tile_max: jax.Array, inputs: Inputs) -> Any:
      row_max, state, context = carry
      normalizer = inputs.options.normalizer  # with the arrays of this tile
      weights = pair_weights(normalizer, tile, state)
      context += jnp.einsum("TS,SD->TD", inputs.drop(weights), inputs.values)
      return jnp.maximum(row_max, tile_max), normalizer.next_state(tile, state), context

    T = plan.queries.size
    row_max = jnp.full((T, 1), levels(dtype).masked)
    initial = row_max, normalizer.row_state(rows), jnp.zeros((T, D), dtype)
    row_max, _, context = fold_rows(plan, inputs, attend_to_tile, initial, normalizer.reverse)
    return finish_rows(mark_rows(row_max, inputs.nonfinite_queries), context)

  return over_query_blocks(plan, attend_to_keys, (leaves,))


def block_rows(plan: Plan, inputs: Inputs) -> ScoreRows:
  """Returns the scores of a block of queries and all its keys."""
  T, S = plan.queries.size, plan.keys.size
  shapes: Any = (T, S), (T, S), (T, 1), (1, S)
  dtypes = inputs.values.dtype, bool, inputs.t.dtype, inputs.s.dtype

  def fold(inputs: Inputs, update: Callable[[Tree, ScoreTile], Tree], initial: Tree) -> Tree:
    return fold_rows(plan, inputs, lambda carry, tile, row_max, inputs: update(carry, tile), initial)

  return ScoreRows(inputs, fold, ScoreTile._make(map(jax.ShapeDtypeStruct, shapes, dtypes)))


def fold_rows(
  plan: Plan,
  inputs: Inputs,
  update: Callable[[Tree, ScoreTile, jax.Array, Inputs], Tree],
  initial: Tree,
  reverse: bool = False,
) -> Tree:
  """Passes over the tiles of a block of queries.

  Args:
    plan: the plan.
    inputs: of a block of queries, with blocks of keys.
    update: takes a carry, a tile, the largest score of its rows after masking, and its inputs; returns the
      next carry.
    initial: the first carry.
    reverse: whether the last block comes first.
  """

  def step(leaves: list[jax.Array], carry: Tree) -> Tree:
    inputs = plan.inputs(leaves)
    scores, allowed = inputs.scores_and_allowed()
    tile, row_max = score_tile(scores, allowed, inputs.nonfinite_keys, (inputs.t, inputs.s))
    return update(carry, tile, row_max, inputs)

  return fold_key_blocks(plan, step, initial, (jax.tree.leaves(inputs),), reverse=reverse)
