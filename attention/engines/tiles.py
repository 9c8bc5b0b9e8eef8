"""Loops over blocks of queries, blocks of keys, and devices.

Arrays are cut along the axes that their owners name (see `HasAxes`): one of "T" has a part for each query,
of "S" for each key. What has neither is the same for all tiles.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp

from attention.arrays import devices
from attention.arrays.devices import varying_like
from attention.arrays.loops import any_at_all, over
from attention.arrays.recomputing import recomputed
from attention.engines.blocks import join, split, windows_of
from attention.engines.plan import Plan
from attention.masks import BlockMask

Tree = TypeVar("Tree")
# Arrays, or None for those that are not there.
Arrays: TypeAlias = list[Any]


def axis_of(array: jax.Array | None, axes: str | None, letter: str, length: int) -> int | None:
  """Returns which axis of an array a letter names, counted from the end; None if it has none to be cut."""
  if array is None or axes is None or letter not in axes:
    return None
  axis = axes.index(letter) - len(axes)
  return axis if array.shape[axis] == length else None  # an axis of size 1 broadcasts


def over_query_blocks(
  plan: Plan, function: Callable[[Arrays], Tree], arrays: Arrays, axes: Sequence[str | None]
) -> Tree:
  """Returns the function's results, arrays [... T *], from each block of queries and the keys it meets."""
  blocks, windows = plan.queries, plan.windows
  if blocks.count == 1 and windows is None:
    return function(arrays)
  moving = {}
  for i, (array, own) in enumerate(zip(arrays, axes, strict=True)):
    t, s = axis_of(array, own, "T", blocks.length), axis_of(array, own, "S", plan.num_keys)
    if t is not None:
      moving[i] = split(array, t, blocks)
    if s is not None and windows is not None:
      moving[i] = windows_of(moving.get(i, array), s, windows, of_blocks=i in moving)

  def at_block(block: dict[int, jax.Array]) -> Tree:
    return function([block.get(i, array) for i, array in enumerate(arrays)])

  return jax.tree.map(
    lambda stacked: join(stacked, -2, blocks), over(at_block, moving, plan.query_blocks_at_once)
  )


def over_key_blocks(
  plan: Plan,
  step: Callable[[Tree, Arrays, bool], Tree],
  carry: Tree,
  arrays: Arrays,
  axes: Sequence[str | None],
  block_mask: Callable[[Arrays], BlockMask],
) -> Tree:
  """Returns the carry after one step for each block of keys whose tile is not empty.

  Args:
    plan: how keys are cut.
    step: takes the carry, the arrays of a tile, and whether some of its pairs may be masked.
    carry: the first.
    arrays: those of a block of queries.
    axes: the own axes of each.
    block_mask: says of a tile whether it is empty or full.
  """
  blocks = plan.keys
  cut = [axis_of(array, own, "S", blocks.length) for array, own in zip(arrays, axes, strict=True)]
  moving = {i: split(arrays[i], axis, blocks) for i, axis in enumerate(cut) if axis is not None}

  def turned(i: int, array: jax.Array) -> jax.Array:
    """Returns keys and values [S X] as [X S], and these as [S X]."""
    return jnp.swapaxes(array, -1, -2) if cut[i] == -2 and len(axes[i] or "") == 2 else array

  # So they are stored, in the order in which a CPU multiplies queries with them.
  moving = {i: jax.lax.optimization_barrier(turned(i, array)) for i, array in moving.items()}

  def tile(block: dict[int, jax.Array]) -> Arrays:
    return [turned(i, block[i]) if i in block else array for i, array in enumerate(arrays)]

  if blocks.count == 1:
    return step(carry, tile({i: array[0] for i, array in moving.items()}), plan.has_mask)

  # A case of the switch hands out what its derivative needs. Recomputed as a whole, a step keeps its block
  # only, which the loop has anyway.
  @recomputed
  def at_block(carry: Tree, block: dict[int, jax.Array]) -> tuple[Tree, None]:
    # Devices that share the leading axes would have to agree on every tile.
    if not plan.has_mask or not devices.runs_sequentially() or devices.leading_axes_may_be_spread():
      return step(carry, tile(block), plan.has_mask), None
    some, every = block_mask(tile(block))
    choice = any_at_all(some).astype(jnp.int32) + (~any_at_all(~every)).astype(jnp.int32)
    # Blocks go in as they are held: turned within a case, they are turned together with its products.
    cases = [
      lambda carry, block: carry,
      lambda carry, block: step(carry, tile(block), True),
      lambda carry, block: step(carry, tile(block), False),
    ]
    return jax.lax.switch(choice, cases, carry, block), None

  return jax.lax.scan(at_block, carry, moving)[0]


def over_devices(
  plan: Plan,
  function: Callable[[Arrays], Tree],
  merge: Callable[[Tree, Tree], Tree],
  nothing: Tree,
  arrays: Arrays,
  axes: Sequence[str | None],
) -> Tree:
  """Returns the function's results for the keys of each device along an axis of the mesh, merged.

  Each device's keys come straight from it, when their turn has come, and again for derivatives. Were they
  handed on from neighbour to neighbour, derivatives would have to keep all of them.

  Source: Liu et al. 2023, arXiv:2310.01889.

  Args:
    plan: which axis of the mesh it is; None if all keys are here.
    function: takes the arrays, with one device's keys.
    merge: merges its results for the keys of two devices.
    nothing: what it would return for no keys.
    arrays: this device's.
    axes: the own axes of each.
  """
  if plan.ring is None:
    return function(arrays)
  count = jax.lax.axis_size(plan.ring)
  keys = {
    i: array
    for i, (array, own) in enumerate(zip(arrays, axes, strict=True))
    if axis_of(array, own, "S", plan.num_keys) is not None
  }

  def from_behind(distance: int, keys: dict[int, jax.Array]) -> dict[int, jax.Array]:
    routes = [(source, (source + distance) % count) for source in range(count)]
    return jax.tree.map(lambda array: jax.lax.ppermute(array, plan.ring, routes), keys) if distance else keys

  @recomputed
  def at_distance(distance: jax.Array, arrays: Arrays, keys: dict[int, jax.Array]) -> Tree:
    fetches = [functools.partial(from_behind, distance) for distance in range(count)]
    there = jax.lax.switch(distance, fetches, keys)
    return function([there.get(i, array) for i, array in enumerate(arrays)])

  def step(results: Tree, distance: jax.Array) -> tuple[Tree, None]:
    return merge(results, at_distance(distance, arrays, keys)), None

  return jax.lax.scan(step, varying_like(nothing, arrays), jnp.arange(count))[0]
