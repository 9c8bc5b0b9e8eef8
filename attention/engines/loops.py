"""Loops over blocks of queries, blocks of keys, and devices.

A pytree of arrays comes with a pytree of axis letters (see `NamedAxes`): along "T" an array has an entry for
each query, along "S" for each key. Arrays without these axes are the same for all tiles.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from attention.arrays import device, sharding
from attention.arrays.leading_axes import map_chunked, map_leading_axes, rematerialized, unvmap_any
from attention.arrays.named_axes import combine
from attention.arrays.sharding import match_vma
from attention.engines.plan import Blocks, TilingPlan

Tree = TypeVar("Tree")


class Operands(NamedTuple):
  """The arrays of a loop over tiles, or their axis letters.

  Attributes:
    arrays: leaves of the Inputs.
    tangents: their tangents; None for zero tangents.
    results: results of each query, or None.
  """

  arrays: Any
  tangents: Any
  results: Any


def nonzero_tangents(plan: TilingPlan, tangents: list[Any]) -> tuple[list[Any], list[str | None]]:
  """Returns the tangents and their axis letters, None for zero tangents."""
  symbolic_zero = jax.custom_derivatives.SymbolicZero
  is_zero = [isinstance(tangent, symbolic_zero) or tangent.dtype == jax.dtypes.float0 for tangent in tangents]
  tangents = [None if zero else tangent for zero, tangent in zip(is_zero, tangents, strict=True)]
  return tangents, [None if zero else letters for zero, letters in zip(is_zero, plan.axes, strict=True)]


def axis_of(array: jax.Array, axes: str, letter: str, length: int) -> int | None:
  """Returns the axis with the given letter, counted from the end; None if it is missing or broadcasts."""
  axis = axes.find(letter) - len(axes)
  return axis if letter in axes and array.shape[axis] == length else None


def over_tiles(
  plan: TilingPlan,
  attend_to_keys: Callable[[Operands], Tree],
  operands: Operands,
  axes: Operands,
  merge: Callable[[Tree, Tree], Tree] | None = None,
  initial: Tree | None = None,
) -> Any:
  """Computes the results of all queries.

  Args:
    plan: the tiling plan.
    attend_to_keys: takes the operands of a block of queries, with all its keys; returns its results.
    operands: the arrays, their tangents, and results of each query.
    axes: their axis letters.
    merge: with a mesh axis, merges the results for the keys of two devices.
    initial: with a mesh axis, the results for no keys.
  """
  attend_to_keys = rematerialized(attend_to_keys)

  @rematerialized
  def attend_at_index(operands: Operands) -> Any:
    arrays, tangents, results = operands
    finite = Operands(plan.finite(arrays, arrays), plan.finite(arrays, tangents), results)
    return map_query_blocks(plan, attend_to_keys, finite, axes)

  # The loop over leading axes is inside the custom rule, since JAX's derivative of it would store arrays that
  # broadcast once per index.
  attend_locally = functools.partial(
    map_leading_axes,
    attend_at_index,
    trailing_ranks=jax.tree.map(len, axes),
    leading=plan.looped,
    per_step=plan.indices_per_step,
  )
  with jax.default_matmul_precision(plan.precision):
    if plan.axis_name is None:
      return attend_locally(operands)
    return ring_scan(plan, attend_locally, merge, initial, operands, axes)  # type: ignore[arg-type]


def map_query_blocks(plan: TilingPlan, function: Callable[[Any], Tree], arrays: Any, axes: Any) -> Tree:
  """Applies a function to each block of queries with the keys it may attend to; returns arrays [... T *]."""
  blocks, windows = plan.queries, plan.windows
  if blocks.count == 1 and windows is None:
    return function(arrays)

  def split_block(array: jax.Array, letters: str) -> jax.Array | None:
    t, s = axis_of(array, letters, "T", blocks.length), axis_of(array, letters, "S", plan.num_keys)
    if t is not None:
      array = split(array, t, blocks)
    if s is not None and windows is not None:
      return windows_of(array, s, windows, plan.keys.length, of_blocks=t is not None)
    return None if t is None else array

  per_block = jax.tree.map(split_block, arrays, axes)
  stacked = map_chunked(lambda block: function(combine(block, arrays)), per_block, plan.query_blocks_per_step)
  return jax.tree.map(lambda array: join(array, -2, blocks), stacked)


def merge_key_blocks(
  plan: TilingPlan,
  tile_fn: Callable[..., Tree],
  merge: Callable[[Tree, Tree], Tree],
  initial: Tree,
  operands: Operands,
  axes: Operands,
) -> Tree:
  """Computes each tile alone, and merges the results over the key blocks of a query block.

  Args:
    plan: the tiling plan.
    tile_fn: takes the arrays of a tile, and whether some of its pairs may be masked; returns its results.
    merge: merges the results of two blocks of keys, for the same queries.
    initial: the results for no keys.
    operands: of a block of queries, with all its keys.
    axes: axis letters of the operands.
  """

  def step(carry: Tree | None, tile: Operands, use_mask: bool) -> Tree:
    at_tile = functools.partial(tile_fn, use_mask=use_mask)
    return at_tile(*tile) if carry is None else merge(carry, rematerialized(at_tile)(*tile))

  first: Any = None if plan.keys.count == 1 else initial
  return scan_key_blocks(plan, step, first, operands, axes)


def scan_key_blocks(
  plan: TilingPlan,
  step: Callable[..., Tree],
  initial: Tree,
  operands: Operands,
  axes: Operands,
  reverse: bool = False,
) -> Tree:
  """Passes over the key blocks of a query block, skipping empty tiles, and returns the last carry.

  Args:
    plan: the tiling plan.
    step: takes a carry, the operands of a tile, and whether some of its pairs may be masked; returns the next
      carry.
    initial: the first carry.
    operands: of a block of queries, with all its keys.
    axes: axis letters of the operands.
    reverse: whether the last block comes first.
  """
  blocks = plan.keys

  def split_keys(array: jax.Array, letters: str) -> jax.Array | None:
    axis = axis_of(array, letters, "S", blocks.length)
    # Store blocks transposed, in the order in which a CPU multiplies queries and keys.
    return None if axis is None else jax.lax.optimization_barrier(swap(split(array, axis, blocks), letters))

  def swap(array: jax.Array, letters: str) -> jax.Array:
    """Transposes keys and values, [S X] to [X S] and back."""
    return jnp.swapaxes(array, -1, -2) if letters[0] == "S" and len(letters) == 2 else array

  def tile_of(block: Any) -> Any:
    swapped = jax.tree.map(
      lambda array, letters: None if array is None else swap(array, letters),
      block,
      axes,
      is_leaf=lambda leaf: leaf is None,
    )
    return combine(swapped, operands)

  per_block = jax.tree.map(split_keys, operands, axes)
  if blocks.count == 1:
    return step(initial, tile_of(jax.tree.map(lambda array: array[0], per_block)), plan.has_mask)

  def at_tile(carry: Tree, block: Any, use_mask: bool) -> Tree:
    return step(carry, tile_of(block), use_mask)

  # Under `lax.switch`, JAX would store the residuals of all branches. Rematerializing the step stores only
  # the carry and the block, which the loop keeps anyway.
  @rematerialized
  def at_block(carry: Tree, block: Any) -> tuple[Tree, None]:
    # Tiles are skipped only on CPUs, where blocks are computed one at a time, and not if leading axes may be
    # sharded, since all devices must take the same branch.
    if not plan.has_mask or not device.is_cpu() or sharding.leading_axes_may_be_sharded():
      return at_tile(carry, block, plan.has_mask), None
    tile = plan.inputs(tile_of(block)[0])
    is_nonempty, is_full = tile.mask.block_summary(tile.t, tile.s)  # type: ignore[union-attr]
    is_nonempty, is_full = unvmap_any(is_nonempty), ~unvmap_any(~is_full)
    choice = is_nonempty.astype(jnp.int32) + is_full.astype(jnp.int32)  # 0: empty, 1: partial, 2: full
    # Blocks are transposed back inside each branch, so that XLA fuses this with the products.
    cases = [
      lambda carry, block: carry,
      lambda carry, block: at_tile(carry, block, True),
      lambda carry, block: at_tile(carry, block, False),
    ]
    return jax.lax.switch(choice, cases, carry, block), None

  return jax.lax.scan(at_block, match_vma(initial, operands), per_block, reverse=reverse)[0]


def ring_scan(
  plan: TilingPlan,
  function: Callable[[Any], Tree],
  merge: Callable[[Tree, Tree], Tree],
  initial: Tree,
  arrays: Any,
  axes: Any,
) -> Tree:
  """Merges the results of a function over the keys of all devices along a mesh axis.

  The keys of each device are fetched directly from it, and again for derivatives. If they were passed from
  neighbor to neighbor, derivatives would have to store all of them.

  Args:
    plan: the tiling plan, with the mesh axis.
    function: takes the arrays, with the keys of one device.
    merge: merges the results for the keys of two devices.
    initial: the results for no keys.
    arrays: this device's arrays.
    axes: their axis letters.

  References:
    Liu et al. 2023, arXiv:2310.01889.
  """
  count = jax.lax.axis_size(plan.axis_name)

  def only_keys(array: jax.Array, letters: str) -> jax.Array | None:
    return None if axis_of(array, letters, "S", plan.num_keys) is None else array

  keys = jax.tree.map(only_keys, arrays, axes)

  def receive_from(distance: int, keys: Any) -> Any:
    routes = [(source, (source + distance) % count) for source in range(count)]
    return (
      jax.tree.map(lambda array: jax.lax.ppermute(array, plan.axis_name, routes), keys) if distance else keys
    )

  @rematerialized
  def at_distance(distance: jax.Array, arrays: Any, keys: Any) -> Tree:
    fetches = [functools.partial(receive_from, distance) for distance in range(count)]
    return function(combine(jax.lax.switch(distance, fetches, keys), arrays))

  def step(results: Tree, distance: jax.Array) -> tuple[Tree, None]:
    return merge(results, at_distance(distance, arrays, keys)), None

  return jax.lax.scan(step, match_vma(initial, arrays), jnp.arange(count))[0]


def split(array: jax.Array, axis: int, blocks: Blocks) -> jax.Array:
  """Splits an array along an axis (counted from the end) into blocks, [count ...].

  The last block is padded with copies of the last entry, so that finite arrays stay finite. Boolean arrays
  are padded with False.
  """
  axis += array.ndim
  # jnp.pad is not used: with sharded leading axes, its derivative communicates zeros between devices.
  if blocks.padding != 0:
    last = jax.lax.slice_in_dim(array, -1, None, axis=axis)
    last = jnp.zeros_like(last) if array.dtype == jnp.bool_ else last
    shape = (*array.shape[:axis], blocks.padding, *array.shape[axis + 1 :])
    array = jnp.concatenate([array, jnp.broadcast_to(last, shape)], axis=axis)
  shape = (*array.shape[:axis], blocks.count, blocks.size, *array.shape[axis + 1 :])
  return jnp.moveaxis(array.reshape(shape), axis, 0)


def join(stacked: jax.Array, axis: int, blocks: Blocks) -> jax.Array:
  """Joins blocks [count ...] into one array, without the padding of the last block."""
  joined = jnp.moveaxis(stacked, 0, axis - 1)
  axis += joined.ndim - 1
  *before, count, size = joined.shape[: axis + 2]
  joined = joined.reshape(*before, count * size, *joined.shape[axis + 2 :])
  return jax.lax.slice_in_dim(joined, 0, blocks.length, axis=axis)


def windows_of(
  array: jax.Array, axis: int, starts: tuple[int, ...], size: int, *, of_blocks: bool = False
) -> jax.Array:
  """Returns windows [count ...] of an array along an axis (counted from the end).

  Args:
    array: [...], or blocks of it, [count ...].
    axis: axis of the array, or of one block.
    starts: start of each window.
    size: size of a window.
    of_blocks: whether `array` has a block for each window.
  """

  def window(array: jax.Array, start: jax.Array) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(array, start, size, axis)

  return jax.vmap(window, (0 if of_blocks else None, 0))(array, jnp.asarray(starts))
