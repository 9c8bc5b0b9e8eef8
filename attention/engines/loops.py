"""Loops over leading axes, blocks of queries, blocks of keys, and devices.

The loops cut `arrays`, a tuple of the leaves of the Inputs and possibly more pytrees, with axis letters for
each array (see `NamedAxes`). Along "T" an array has an entry for each query, along "S" for each key. An array
without these axes is the same for all tiles.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from attention.arrays.leading_axes import (
  Batch,
  map_index_batches,
  map_slices,
  unvmap_any,
  vmap_batch,
  with_parts,
)
from attention.arrays.sharding import match_vma
from attention.engines.plan import Blocks, Plan, is_nonempty

Tree = TypeVar("Tree")
Arrays = tuple[Any, ...]


def fold_tiles(
  plan: Plan,
  step: Callable[..., Tree],
  initial: Callable[..., Tree],
  finish: Callable[..., Any],
  arrays: Arrays,
) -> Any:
  """Passes over all tiles, and returns the results of each block of queries.

  Args:
    plan: the plan.
    step: takes the arrays of a tile, and a carry, None if there is only one tile; returns the next carry, a
      pytree of arrays [T *].
    initial: takes T; returns the first carry.
    finish: takes the arrays of a tile, and the last carry; returns the results of its queries, a pytree of
      arrays [T *]. In a ring, with all leading axes, [... T *].
    arrays: leaves of the Inputs, and possibly more, as in `plan.letters`.

  Returns:
    A pytree of arrays [... T *].
  """
  if plan.axis_name is not None:
    return fold_ring(plan, step, initial, finish, arrays)

  def at_block(*arrays: Any) -> Any:
    first = None if plan.keys.count == 1 else initial(plan.queries.size)
    carry = fold_key_blocks(plan, step, first, arrays)
    # Finished here, while the block is in the cache.
    return finish(*first_tile(plan, arrays), carry)

  return over_query_blocks(plan, at_block, arrays)


def over_query_blocks(plan: Plan, function: Callable[..., Tree], arrays: Arrays) -> Tree:
  """Applies a function to each block of queries with all its keys, at each index of the leading axes.

  Args:
    plan: the plan.
    function: takes the arrays of a block of queries with all blocks of keys, like `fold_key_blocks`; returns
      a pytree of arrays [T *].
    arrays: leaves of the Inputs, and possibly their tangents, and more, as in `plan.letters`.

  Returns:
    A pytree of arrays [... T *].
  """
  letters = plan.letters
  # Which arrays have a part for each block of queries.
  is_cut = jax.tree.map(lambda axes: "T" in axes or ("S" in axes and plan.windows is not None), letters)
  # Blocks of keys come before the leading axes, where `jax.lax.scan` needs them.
  starts = jax.tree.map(lambda axes: int("S" in axes), letters)

  def query_blocks(array: jax.Array, axes: str) -> jax.Array:
    """Returns an array as blocks of queries, and windows of their keys."""
    if "T" in axes:
      array = split(array, axes.find("T") - len(axes), plan.queries)
    if "S" in axes and plan.windows is not None:
      window = functools.partial(
        jax.lax.dynamic_slice_in_dim, slice_size=plan.keys.length, axis=axes.find("S") - len(axes)
      )
      array = jax.vmap(window, (0 if "T" in axes else None, 0))(array, jnp.asarray(plan.windows))
    return array

  def key_blocks(arrays: Arrays, *, cut: bool) -> Arrays:
    """Splits keys into blocks: those of one block of queries (`cut`), or those that all share."""

    def split_array(array: jax.Array, axes: str, own: bool) -> jax.Array:
      return split_keys(plan, array, axes) if "S" in axes and own == cut else array

    return jax.tree.map(split_array, arrays, letters, is_cut)

  def at_batch(arrays: Arrays, batch: Batch) -> Tree:
    @plan.recomputed
    def at_indices(arrays: Arrays) -> Tree:
      blocks = jax.tree.map(query_blocks, finite_arrays(plan, *arrays), letters)
      blocks = key_blocks(blocks, cut=False)

      def at_blocks(arrays: Arrays, count: int | None) -> Tree:
        with_blocks = batch if count is None else ((count, is_cut), *batch)

        @plan.recomputed
        def at_all_keys(arrays: Arrays) -> Tree:
          return vmap_batch(function, with_blocks, starts)(*key_blocks(arrays, cut=True))

        return at_all_keys(arrays)

      if plan.queries.count == 1:
        return at_blocks(jax.tree.map(lambda array, cut: array[0] if cut else array, blocks, is_cut), None)
      stacked = map_slices(at_blocks, blocks, is_cut, plan.query_blocks_per_step)
      return jax.tree.map(lambda array: join_rows(array, plan.queries), stacked)

    return at_indices(arrays)

  # Outside the rule, JAX's derivative of this loop would store a copy of shared arrays for each index.
  with jax.default_matmul_precision(plan.precision):
    return map_index_batches(at_batch, arrays, letters, plan.leading, plan.per_step)


def finite_arrays(plan: Plan, leaves: list[jax.Array], *others: Any) -> Arrays:
  """Returns finite vectors, and tangents (a list among the others) of 0 where a vector is not finite."""
  finite = jax.tree.leaves(plan.inputs(leaves).with_finite_vectors())

  def cleaned(array: jax.Array, new: jax.Array, tangent: jax.Array | None) -> Any:
    return tangent if tangent is None or new is array else jnp.where(new == array, tangent, 0)

  return finite, *(
    list(map(cleaned, leaves, finite, other)) if isinstance(other, list) else other for other in others
  )


def split_keys(plan: Plan, array: jax.Array, axes: str) -> jax.Array:
  """Returns an array with an axis "S" as blocks of keys, [J *], transposed by `turn`."""
  array = turn(plan, split(array, axes.find("S") - len(axes), plan.keys), axes)
  # Without a barrier, XLA would transpose the keys again in each tile.
  return jax.lax.optimization_barrier(array) if plan.is_differentiated else array


def turn(plan: Plan, array: jax.Array, axes: str) -> jax.Array:
  """Transposes keys and values, [S X] to [X S] and back, for derivatives."""
  return jnp.swapaxes(array, -1, -2) if plan.is_differentiated and axes in ("SX", "SD") else array


def tile_of(plan: Plan, arrays: Arrays, keys: Arrays) -> Arrays:
  """Returns the arrays of a tile: those of a block of queries, but one block of those with keys."""

  def of_tile(array: jax.Array, axes: str, part: jax.Array | None) -> jax.Array:
    return array if part is None else turn(plan, part, axes)

  return jax.tree.map(of_tile, arrays, plan.letters, keys)


def keys_only(plan: Plan, arrays: Arrays) -> Arrays:
  """Returns the arrays with an axis S, and None for others."""
  return jax.tree.map(lambda array, axes: array if "S" in axes else None, arrays, plan.letters)


def first_tile(plan: Plan, arrays: Arrays) -> Arrays:
  """Returns the arrays of the first tile of a block of queries with blocks of keys."""
  return tile_of(plan, arrays, jax.tree.map(lambda blocks: blocks[0], keys_only(plan, arrays)))


def fold_key_blocks(
  plan: Plan,
  step: Callable[..., Any],
  initial: Any,
  arrays: Arrays,
  reverse: bool = False,
) -> Any:
  """Passes over the tiles of a block of queries, skipping empty tiles, and returns the last carry.

  Args:
    plan: the plan.
    step: takes the arrays of a tile, and a carry; returns the next carry.
    initial: the first carry.
    arrays: of a block of queries, with J blocks of keys: [J *], transposed by `turn`, where the letters have
      an "S".
    reverse: whether the last tile comes first.
  """

  def at_tile(carry: Any, keys: Arrays) -> Any:
    return step(*tile_of(plan, arrays, keys), carry)

  if plan.keys.count == 1:
    return step(*first_tile(plan, arrays), initial)

  # The branch is recomputed too, since an empty tile would otherwise store zeros for it.
  @plan.recomputed
  def at_nonempty_tile(carry: Any, keys: Arrays) -> Any:
    if not plan.skips_tiles:
      return at_tile(carry, keys)
    nonempty = unvmap_any(is_nonempty(plan.inputs(tile_of(plan, arrays, keys)[0])))
    return jax.lax.cond(nonempty, plan.recomputed(at_tile), lambda carry, keys: carry, carry, keys)

  return jax.lax.scan(
    lambda carry, keys: (at_nonempty_tile(carry, keys), None),
    match_vma(initial, arrays),
    keys_only(plan, arrays),
    reverse=reverse,
  )[0]


def fold_ring(
  plan: Plan,
  step: Callable[..., Tree],
  initial: Callable[..., Tree],
  finish: Callable[..., Any],
  arrays: Arrays,
) -> Any:
  """Passes over the tiles of all devices along a mesh axis; see `fold_tiles`.

  The keys of each device are fetched directly from it, and again for derivatives. If they were passed from
  neighbor to neighbor, derivatives would have to store all of them.

  References:
    Liu et al. 2023, arXiv:2310.01889.
  """
  axis_name: Any = plan.axis_name
  count = jax.lax.axis_size(axis_name)
  keys = keys_only(plan, arrays)

  def receive_from(distance: int, keys: Arrays) -> Arrays:
    routes = [(source, (source + distance) % count) for source in range(count)]
    return jax.tree.map(lambda array: jax.lax.ppermute(array, axis_name, routes), keys) if distance else keys

  def at_block(*arrays: Any) -> Tree:
    return fold_key_blocks(plan, step, arrays[-1], arrays[:-1])

  @plan.recomputed
  def at_distance(carry: Tree, distance: jax.Array, arrays: Arrays, keys: Arrays) -> Tree:
    fetches = [functools.partial(receive_from, distance) for distance in range(count)]
    arrays = with_parts(arrays, jax.lax.switch(distance, fetches, keys))
    rows = jax.tree.map(lambda array: "TX", carry)
    return over_query_blocks(plan.with_letters(rows), at_block, (*arrays, carry))

  first = jax.tree.map(
    lambda array: jnp.broadcast_to(array, (*plan.leading, *array.shape)), initial(plan.queries.length)
  )
  carry, _ = jax.lax.scan(
    lambda carry, distance: (at_distance(carry, distance, arrays, keys), None),
    match_vma(first, arrays),
    jnp.arange(count),
  )
  return finish(*arrays, carry)


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


def join_rows(stacked: jax.Array, blocks: Blocks) -> jax.Array:
  """Joins blocks of rows, [count ... size X], into [... T X], without the padding of the last block."""
  joined = jnp.moveaxis(stacked, 0, -3)
  joined = joined.reshape(*joined.shape[:-3], blocks.count * blocks.size, joined.shape[-1])
  return jax.lax.slice_in_dim(joined, 0, blocks.length, axis=-2)
