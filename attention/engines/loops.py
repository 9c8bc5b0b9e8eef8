"""Loops over the indices of leading axes, blocks of queries, blocks of keys, and devices.

Each takes a function of Operands, cuts these by their fields, and knows nothing of what the function does.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from attention.arrays import devices
from attention.arrays.devices import varying_like
from attention.arrays.loops import any_at_all, over, over_leading
from attention.arrays.recomputing import recomputed
from attention.engines.blocks import join, split, windows_of
from attention.engines.operands import Operands
from attention.engines.plan import Plan
from attention.masks import BlockMask

Tree = TypeVar("Tree")


def over_leading_axes(plan: Plan, function: Callable[[Operands], Tree], operands: Operands) -> Tree:
  """Returns the function's results at each index of those leading axes that a tile does not have."""
  return over_leading(function, operands, plan.leading, plan.num_tile_axes, plan.at_once)


def over_query_blocks(plan: Plan, function: Callable[[Operands], Tree], operands: Operands) -> Tree:
  """Returns the function's results, arrays [... T *], from each block of queries and the keys it meets."""
  axis = plan.num_tile_axes
  blocks = Operands(
    queries=split(operands.queries, axis, plan.queries), pairs=split(operands.pairs, axis, plan.queries)
  )
  if plan.windows is not None:
    blocks = blocks._replace(
      keys=windows_of(operands.keys, axis, plan.windows),
      pairs=windows_of(blocks.pairs, axis + 1, plan.windows, of_blocks=True),
    )

  def at_block(block: Operands) -> Tree:
    keys = operands.keys if plan.windows is None else block.keys
    return function(Operands(block.queries, keys, block.pairs, operands.shared))

  if plan.queries.count == 1:
    return at_block(jax.tree.map(lambda array: array[0], blocks))
  return join(over(at_block, blocks, plan.query_blocks_at_once), axis, plan.queries)


def over_key_blocks(
  plan: Plan,
  step: Callable[[Tree, Operands, bool], Tree],
  carry: Tree,
  operands: Operands,
  block_mask: Callable[[Operands], BlockMask] | None,
) -> Tree:
  """Returns the carry after one step for each block of keys whose tile is not empty.

  Args:
    plan: how keys are cut.
    step: takes the carry, the operands of a tile, and whether some of its pairs may be masked.
    carry: the first.
    operands: those of a block of queries.
    block_mask: says of a tile whether it is empty or full; None if no pair is masked.
  """
  axis = plan.num_tile_axes
  keys, pairs = split(operands.keys, axis, plan.keys), split(operands.pairs, axis + 1, plan.keys)
  keys = jax.tree.map(jax.lax.optimization_barrier, _turned(keys, axis + 3))

  def tile(block) -> Operands:
    keys, pairs = block
    return Operands(operands.queries, _turned(keys, axis + 2), pairs, operands.shared)

  if plan.keys.count == 1:
    return step(carry, tile(jax.tree.map(lambda array: array[0], (keys, pairs))), block_mask is not None)

  # A case of the switch hands out what its derivative needs. Recomputed as a whole, a step keeps its block
  # only, which the loop has anyway.
  @recomputed
  def at_block(carry: Tree, block) -> tuple[Tree, None]:
    # Devices that share the leading axes would have to agree on every tile.
    if block_mask is None or not devices.runs_sequentially() or devices.leading_axes_may_be_spread():
      return step(carry, tile(block), block_mask is not None), None
    some, every = block_mask(tile(block))
    choice = any_at_all(some).astype(jnp.int32) + (~any_at_all(~every)).astype(jnp.int32)
    # Blocks go in as they are held: turned within a case, they are turned together with its products.
    cases = [
      lambda carry, block: carry,
      lambda carry, block: step(carry, tile(block), True),
      lambda carry, block: step(carry, tile(block), False),
    ]
    return jax.lax.switch(choice, cases, carry, block), None

  return jax.lax.scan(at_block, carry, (keys, pairs))[0]


def _turned(arrays: Any, rank: int) -> Any:
  """Returns arrays of that rank with their last two axes exchanged.

  With a barrier around it, keys [S X] are stored as [X S], the order in which a CPU multiplies queries with
  them.
  """
  return jax.tree.map(lambda array: jnp.swapaxes(array, -1, -2) if array.ndim == rank else array, arrays)


def over_devices(
  axis_name: str | None,
  function: Callable[[Operands], Tree],
  join: Callable[[Tree, Tree], Tree],
  nothing: Tree,
  operands: Operands,
) -> Tree:
  """Returns the function's results for the keys of each device along an axis of the mesh, joined.

  Each device's keys come straight from it, when their turn has come, and again for derivatives. Were they
  handed on from neighbour to neighbour, derivatives would have to keep all of them.

  Source: Liu et al. 2023, arXiv:2310.01889.

  Args:
    axis_name: of the mesh; None if all keys are here.
    function: takes the operands, with one device's keys.
    join: joins its results for the keys of two devices.
    nothing: what it would return for no keys.
    operands: this device's.
  """
  if axis_name is None:
    return function(operands)
  count = jax.lax.axis_size(axis_name)

  def from_behind(distance: int, keys: Any) -> Any:
    routes = [(source, (source + distance) % count) for source in range(count)]
    return jax.tree.map(lambda array: jax.lax.ppermute(array, axis_name, routes), keys) if distance else keys

  @recomputed
  def at_distance(distance: jax.Array, operands: Operands) -> Tree:
    fetches = [functools.partial(from_behind, distance) for distance in range(count)]
    return function(operands._replace(keys=jax.lax.switch(distance, fetches, operands.keys)))

  def step(results: Tree, distance: jax.Array) -> tuple[Tree, None]:
    return join(results, at_distance(distance, operands)), None

  return jax.lax.scan(step, varying_like(nothing, operands), jnp.arange(count))[0]
