"""Loops over leading axes, blocks of queries, blocks of keys, and devices.

The loops cut a list of arrays, with axis letters for each (see `NamedAxes`): along "T" an array has an entry
for each query, along "S" for each key. An array without these axes is the same for all tiles.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from attention.arrays.leading_axes import (
  ONE_INDEX,
  IndexBatch,
  map_index_batches,
  map_slices,
  unvmap_any,
)
from attention.arrays.sharding import match_vma
from attention.engines.plan import Blocks, Plan, nonempty_keys

Tree = TypeVar("Tree")
Arrays = list[jax.Array]


def fold_tiles(
  plan: Plan,
  step: Callable[[Any, Arrays], Tree],
  initial: Callable[..., Tree],
  finish: Callable[[Tree, Arrays], Any],
  arrays: Arrays,
  letters: list[str],
  clean: Callable[[Arrays], Arrays] | None = None,
) -> Any:
  """Passes over all tiles, and returns the results of each block of queries.

  Args:
    plan: the plan.
    step: takes a carry and the arrays of a tile; returns the next carry, a pytree of arrays [T *]. The carry
      is None at the first tile if there is only one.
    initial: takes the sizes of leading axes and T; returns the first carry.
    finish: takes the last carry, and the arrays; returns the results, a pytree of arrays [... T *].
    arrays: leaves of the Inputs, and possibly more arrays.
    letters: their axis letters.
    clean: see `over_query_blocks`.

  Returns:
    A pytree of arrays [... T *].
  """
  if plan.axis_name is None:

    def from_initial(arrays: Arrays, batch: IndexBatch) -> Tree:
      first = None if plan.keys.count == 1 else initial(*batch.sizes, plan.queries.size)
      carry = fold_key_blocks(plan, batch.vmap(step), first, arrays, letters, batch)
      # Finished here, while the block is in the cache.
      return batch.vmap(finish, [int("S" in axes) for axes in letters])(carry, arrays)

    return over_query_blocks(plan, from_initial, arrays, letters, clean)

  first, structure = jax.tree.flatten(initial(*plan.leading, plan.queries.length))
  count = len(arrays)

  def from_carry(arrays: Arrays, batch: IndexBatch) -> Tree:
    carry = jax.tree.unflatten(structure, arrays[count:])
    batch = batch._replace(is_batched=tuple(is_batched[:count] for is_batched in batch.is_batched))
    return fold_key_blocks(plan, batch.vmap(step), carry, arrays[:count], letters, batch)

  def clean_arrays(arrays: Arrays) -> Arrays:
    return [*(clean or plan.clean)(arrays[:count]), *arrays[count:]]

  def at_device(carry: Any, arrays: Arrays) -> Any:
    all_letters = [*letters, *["TX"] * len(carry)]
    return jax.tree.leaves(over_query_blocks(plan, from_carry, [*arrays, *carry], all_letters, clean_arrays))

  return finish(jax.tree.unflatten(structure, ring_scan(plan, at_device, first, arrays, letters)), arrays)


def over_query_blocks(
  plan: Plan,
  function: Callable[[Arrays, IndexBatch], Tree],
  arrays: Arrays,
  letters: list[str],
  clean: Callable[[Arrays], Arrays] | None = None,
) -> Tree:
  """Applies a function to each block of queries with all its keys, at each index of the leading axes.

  Args:
    plan: the plan.
    function: takes the arrays of one or several blocks of queries and all blocks of keys, as
      `fold_key_blocks`, and their batch: the axis of several blocks, and indices of the leading axes; returns
      a pytree of arrays [... T *].
    arrays: leaves of the Inputs, and possibly more arrays.
    letters: their axis letters.
    clean: replaces arrays that are not finite. Default: vectors become finite.

  Returns:
    A pytree of arrays [... T *].
  """

  has_windows = plan.windows is not None
  is_cut = ["T" in axes or ("S" in axes and has_windows) for axes in letters]

  def with_key_blocks(arrays: Arrays, of_queries: bool) -> Arrays:
    """Returns arrays with an axis S, of each block of queries or shared by all, as blocks of keys."""
    return [
      split_keys(plan, array, axes) if "S" in axes and cut == of_queries else array
      for array, axes, cut in zip(arrays, letters, is_cut, strict=True)
    ]

  def at_batch(arrays: Arrays, batch: IndexBatch) -> Tree:
    @plan.recomputed
    def at_indices(arrays: Arrays) -> Tree:
      arrays = plan.clean(arrays) if clean is None else clean(arrays)
      blocks = []
      for array, axes in zip(arrays, letters, strict=True):
        if "T" in axes:
          array = split(array, axes.find("T") - len(axes), plan.queries)
        if "S" in axes and plan.windows is not None:
          size, axis = plan.keys.length, axes.find("S") - len(axes)
          array = windows_of(array, axis, plan.windows, size, of_blocks="T" in axes)
        blocks.append(array)
      blocks = with_key_blocks(blocks, False)

      def at_blocks(arrays: Arrays, count: int | None) -> Tree:
        several = batch
        if count is not None:
          several = IndexBatch((count, *batch.sizes), (is_cut, *batch.is_batched))
        return plan.recomputed(lambda arrays: function(with_key_blocks(arrays, True), several))(arrays)

      if plan.queries.count == 1:
        first = [array[0] if cut else array for array, cut in zip(blocks, is_cut, strict=True)]
        return at_blocks(first, None)
      stacked = map_slices(at_blocks, blocks, is_cut, plan.query_blocks_per_step)
      return jax.tree.map(lambda array: join(array, -2, plan.queries), stacked)

    return at_indices(arrays)

  # Outside the rule, JAX's derivative of this loop would store a copy of shared arrays for each index.
  with jax.default_matmul_precision(plan.precision):
    return map_index_batches(at_batch, arrays, list(map(len, letters)), plan.leading, plan.per_step)


def split_keys(plan: Plan, array: jax.Array, axes: str) -> jax.Array:
  """Returns an array with an axis "S" as blocks of keys, [J *], transposed by `turn`."""
  array = turn(plan, split(array, axes.find("S") - len(axes), plan.keys), axes)
  # Without a barrier, XLA would transpose the keys again in each tile.
  return jax.lax.optimization_barrier(array) if plan.is_differentiated else array


def turn(plan: Plan, array: jax.Array, axes: str) -> jax.Array:
  """Transposes keys and values, [S X] to [X S] and back, for derivatives."""
  return jnp.swapaxes(array, -1, -2) if plan.is_differentiated and axes in ("SX", "SD") else array


def fold_key_blocks(
  plan: Plan,
  step: Callable[[Any, Arrays], Any],
  initial: Any,
  arrays: Arrays,
  letters: list[str],
  batch: IndexBatch = ONE_INDEX,
  reverse: bool = False,
) -> Any:
  """Passes over the tiles of a block of queries, skipping empty tiles, and returns the last carry.

  Args:
    plan: the plan.
    step: takes a carry and the arrays of a tile; returns the next carry.
    initial: the first carry.
    arrays: of a block of queries, with J blocks of keys: [J *], transposed by `turn`, where the letters have
      an "S".
    letters: their axis letters.
    batch: the indices of the leading axes that the arrays have.
    reverse: whether the last tile comes first.
  """

  def tile_of(cut: list[jax.Array | None]) -> Arrays:
    pairs = zip(cut, letters, strict=True)
    return choose([None if array is None else turn(plan, array, axes) for array, axes in pairs], arrays)

  def at_tile(carry: Any, cut: list[jax.Array | None]) -> Any:
    return step(carry, tile_of(cut))

  # The branch is recomputed too, since an empty tile would otherwise store zeros for it.
  @plan.recomputed
  def at_block(carry: Any, block: tuple[list[jax.Array | None], jax.Array | None]) -> tuple[Any, None]:
    cut, is_nonempty = block
    if is_nonempty is None:
      return at_tile(carry, cut), None
    any_nonempty = unvmap_any(is_nonempty)
    return jax.lax.cond(any_nonempty, plan.recomputed(at_tile), lambda carry, cut: carry, carry, cut), None

  cut = [array if "S" in axes else None for array, axes in zip(arrays, letters, strict=True)]
  if plan.keys.count == 1:
    return step(initial, tile_of([None if array is None else array[0] for array in cut]))
  is_nonempty = None
  if plan.skips_tiles:

    def nonempty(_: None, arrays: Arrays) -> jax.Array:
      turned = [turn(plan, array, axes) for array, axes in zip(arrays, plan.letters, strict=False)]
      return nonempty_keys(plan.inputs(turned), plan)

    is_nonempty = batch.vmap(nonempty, [int("S" in axes) for axes in letters])(None, arrays)
    is_nonempty = jnp.any(is_nonempty, axis=tuple(range(len(batch.sizes))))
  return jax.lax.scan(at_block, match_vma(initial, arrays), (cut, is_nonempty), reverse=reverse)[0]


def ring_scan(
  plan: Plan,
  function: Callable[[Tree, Arrays], Tree],
  initial: Tree,
  arrays: Arrays,
  letters: list[str],
) -> Tree:
  """Passes over the keys of all devices along a mesh axis, and returns the last carry.

  The keys of each device are fetched directly from it, and again for derivatives. If they were passed from
  neighbor to neighbor, derivatives would have to store all of them.

  Args:
    plan: the plan, with the mesh axis.
    function: takes a carry and the arrays, with the keys of one device; returns the next carry.
    initial: the first carry.
    arrays: this device's arrays.
    letters: their axis letters.

  References:
    Liu et al. 2023, arXiv:2310.01889.
  """
  axis_name: Any = plan.axis_name
  count = jax.lax.axis_size(axis_name)
  keys = [array if "S" in axes else None for array, axes in zip(arrays, letters, strict=True)]

  def receive_from(distance: int, keys: Any) -> Any:
    routes = [(source, (source + distance) % count) for source in range(count)]
    return jax.tree.map(lambda array: jax.lax.ppermute(array, axis_name, routes), keys) if distance else keys

  @plan.recomputed
  def at_distance(carry: Tree, distance: jax.Array, arrays: Arrays, keys: Any) -> Tree:
    fetches = [functools.partial(receive_from, distance) for distance in range(count)]
    return function(carry, choose(jax.lax.switch(distance, fetches, keys), arrays))

  def step(carry: Tree, distance: jax.Array) -> tuple[Tree, None]:
    return at_distance(carry, distance, arrays, keys), None

  return jax.lax.scan(step, match_vma(initial, arrays), jnp.arange(count))[0]


def choose(cut: list[jax.Array | None], arrays: Arrays) -> Arrays:
  """Returns the cut arrays, and the whole ones where these are None."""
  return [whole if part is None else part for part, whole in zip(cut, arrays, strict=True)]


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
