"""Loops over blocks of queries, blocks of keys, and devices.

A pytree of arrays comes with a pytree of their own axes, one letter each (see `NamedAxes`): along "T" an
array has an entry for each query, along "S" for each key. Arrays without these are the same for all tiles.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from attention.arrays import sharding
from attention.arrays.batched_loops import map_chunked, map_leading_axes, rematerialized, unvmap_any
from attention.arrays.pytrees import combine
from attention.arrays.sharding import match_vma
from attention.engines.tiling import Blocks, TilingPlan

Tree = TypeVar("Tree")


def axis_of(array: jax.Array, axes: str, letter: str, length: int) -> int | None:
  """Returns the axis that a letter names, counted from the end; None if there is none, or it broadcasts."""
  axis = axes.find(letter) - len(axes)
  return axis if letter in axes and array.shape[axis] == length else None


def over_tiles(
  plan: TilingPlan,
  tile_fn: Callable[..., Tree],
  merge: Callable[[Tree, Tree], Tree],
  initial: Callable[[Any, tuple[int, ...]], Tree],
  finish: Callable[[Any, Tree], Any],
  cut: tuple[Any, Any, Any],
  axes: tuple[Any, Any, Any],
) -> Any:
  """Returns the results of all tiles, merged for each query.

  Args:
    plan: how they are cut.
    tile_fn: takes what is cut, and whether some pairs of the tile may be masked.
    merge: merges the results of two blocks of keys, for the same queries.
    initial: takes what is cut and leading axes, returns the results of no keys.
    finish: takes what is cut and the results of a block of queries over all keys.
    cut: the arrays, their tangents, and results of each query; None for those that there are not.
    axes: the own axes of each.
  """

  @rematerialized
  def over_keys(cut: Any) -> Any:
    return finish(cut, scan_key_blocks(plan, tile_fn, merge, initial(cut, plan.leading), cut, axes))

  @rematerialized
  def over_queries(cut: Any) -> Any:
    arrays, tangents, results = cut
    finite = plan.finite(arrays, arrays), plan.finite(arrays, tangents), results
    return map_query_blocks(plan, over_keys, finite, axes)

  # Within the rule: JAX's derivative of this loop would store what is the same at all indices.
  of_keys_here = functools.partial(
    map_leading_axes,
    over_queries,
    own_ranks=jax.tree.map(len, axes),
    leading=plan.looped,
    at_once=plan.at_once,
  )
  with jax.default_matmul_precision(plan.precision):
    if plan.ring is None:
      return of_keys_here(cut)
    return ring_scan(plan, of_keys_here, merge, initial(cut, (*plan.looped, *plan.leading)), cut, axes)


def map_query_blocks(plan: TilingPlan, function: Callable[[Any], Tree], arrays: Any, axes: Any) -> Tree:
  """Returns the function's results, arrays [... T *], from each block of queries and the keys it meets."""
  blocks, windows = plan.queries, plan.windows
  if blocks.count == 1 and windows is None:
    return function(arrays)

  def cut(array: jax.Array, own: str) -> jax.Array | None:
    t, s = axis_of(array, own, "T", blocks.length), axis_of(array, own, "S", plan.num_keys)
    if t is not None:
      array = split(array, t, blocks)
    if s is not None and windows is not None:
      return windows_of(array, s, windows, plan.keys.length, of_blocks=t is not None)
    return None if t is None else array

  moving = jax.tree.map(cut, arrays, axes)
  stacked = map_chunked(lambda block: function(combine(block, arrays)), moving, plan.query_blocks_at_once)
  return jax.tree.map(lambda array: join(array, -2, blocks), stacked)


def scan_key_blocks(
  plan: TilingPlan,
  tile_fn: Callable[..., Tree],
  merge: Callable[[Tree, Tree], Tree],
  initial: Tree,
  cut: Any,
  axes: Any,
) -> Tree:
  """Returns the results of the tiles of a block of queries that are not empty, merged; see `over_tiles`."""
  blocks = plan.keys

  def split_keys(array: jax.Array, own: str) -> jax.Array | None:
    axis = axis_of(array, own, "S", blocks.length)
    # Stored transposed: the order in which a CPU multiplies queries with keys.
    return None if axis is None else jax.lax.optimization_barrier(turned(split(array, axis, blocks), own))

  def turned(array: jax.Array, own: str) -> jax.Array:
    """Returns keys and values [S X] as [X S], and these as [S X]."""
    return jnp.swapaxes(array, -1, -2) if own[0] == "S" and len(own) == 2 else array

  def tile_of(block: Any) -> Any:
    turned_back = jax.tree.map(
      lambda array, own: None if array is None else turned(array, own),
      block,
      axes,
      is_leaf=lambda leaf: leaf is None,
    )
    return combine(turned_back, cut)

  moving = jax.tree.map(split_keys, cut, axes)
  if blocks.count == 1:
    return tile_fn(*tile_of(jax.tree.map(lambda array: array[0], moving)), plan.has_mask)

  def step(carry: Tree, block: Any, use_mask: bool) -> Tree:
    return merge(carry, rematerialized(functools.partial(tile_fn, use_mask=use_mask))(*tile_of(block)))

  # A case of the switch hands out what its derivative needs. Recomputed as a whole, a step stores its block
  # only, which the loop has anyway.
  @rematerialized
  def at_block(carry: Tree, block: Any) -> tuple[Tree, None]:
    # A branch needs one decision for all devices.
    if not plan.has_mask or not sharding.is_cpu() or sharding.leading_axes_may_be_spread():
      return step(carry, block, plan.has_mask), None
    tile = plan.inputs(tile_of(block)[0])
    assert tile.mask is not None
    any_allowed, all_allowed = tile.mask.block_summary(tile.t, tile.s)
    choice = unvmap_any(any_allowed).astype(jnp.int32) + (~unvmap_any(~all_allowed)).astype(jnp.int32)
    # Transposed back inside each case, so that XLA fuses it with the products.
    cases = [
      lambda carry, block: carry,
      lambda carry, block: step(carry, block, True),
      lambda carry, block: step(carry, block, False),
    ]
    return jax.lax.switch(choice, cases, carry, block), None

  return jax.lax.scan(at_block, match_vma(initial, cut), moving)[0]


def ring_scan(
  plan: TilingPlan,
  function: Callable[[Any], Tree],
  merge: Callable[[Tree, Tree], Tree],
  initial: Tree,
  arrays: Any,
  axes: Any,
) -> Tree:
  """Returns the function's results for the keys of each device along an axis of the mesh, merged.

  Each device's keys are fetched straight from it, and again for derivatives. If they were handed on from
  neighbour to neighbour, derivatives would have to store all of them.

  Source: Liu et al. 2023, arXiv:2310.01889.

  Args:
    plan: which axis of the mesh it is.
    function: takes the arrays, with one device's keys.
    merge: merges its results for the keys of two devices.
    initial: the results for no keys.
    arrays: this device's.
    axes: their own axes.
  """
  count = jax.lax.axis_size(plan.ring)
  keys = jax.tree.map(
    lambda array, own: None if axis_of(array, own, "S", plan.num_keys) is None else array, arrays, axes
  )

  def receive_from(distance: int, keys: Any) -> Any:
    routes = [(source, (source + distance) % count) for source in range(count)]
    return jax.tree.map(lambda array: jax.lax.ppermute(array, plan.ring, routes), keys) if distance else keys

  @rematerialized
  def at_distance(distance: jax.Array, arrays: Any, keys: Any) -> Tree:
    fetches = [functools.partial(receive_from, distance) for distance in range(count)]
    return function(combine(jax.lax.switch(distance, fetches, keys), arrays))

  def step(results: Tree, distance: jax.Array) -> tuple[Tree, None]:
    return merge(results, at_distance(distance, arrays, keys)), None

  return jax.lax.scan(step, match_vma(initial, arrays), jnp.arange(count))[0]


def split(array: jax.Array, axis: int, blocks: Blocks) -> jax.Array:
  """Returns the blocks [count ...] of an array along an axis, which counts from the end.

  The last is filled up with the last numbers, so that what is calculated of them is as finite as what is
  calculated of the others; or with False.
  """
  axis += array.ndim
  # Not by jnp.pad: where leading axes are spread, its derivative sends zeros around.
  if blocks.padding != 0:
    last = jax.lax.slice_in_dim(array, -1, None, axis=axis)
    last = jnp.zeros_like(last) if array.dtype == jnp.bool_ else last
    shape = (*array.shape[:axis], blocks.padding, *array.shape[axis + 1 :])
    array = jnp.concatenate([array, jnp.broadcast_to(last, shape)], axis=axis)
  shape = (*array.shape[:axis], blocks.count, blocks.size, *array.shape[axis + 1 :])
  return jnp.moveaxis(array.reshape(shape), axis, 0)


def join(stacked: jax.Array, axis: int, blocks: Blocks) -> jax.Array:
  """Returns blocks [count ...] as a whole array, without what reached beyond the end."""
  joined = jnp.moveaxis(stacked, 0, axis - 1)
  axis += joined.ndim - 1
  *before, count, size = joined.shape[: axis + 2]
  joined = joined.reshape(*before, count * size, *joined.shape[axis + 2 :])
  return jax.lax.slice_in_dim(joined, 0, blocks.length, axis=axis)


def windows_of(
  array: jax.Array, axis: int, starts: tuple[int, ...], size: int, *, of_blocks: bool = False
) -> jax.Array:
  """Returns the windows [count ...] of an array along an axis, which counts from the end.

  Args:
    array: [...], or blocks of it, [count ...].
    axis: of the array, or of one block.
    starts: where each window starts.
    size: of a window.
    of_blocks: whether there is an array for each of the blocks.
  """

  def window(array: jax.Array, start: jax.Array) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(array, start, size, axis)

  return jax.vmap(window, (0 if of_blocks else None, 0))(array, jnp.asarray(starts))
