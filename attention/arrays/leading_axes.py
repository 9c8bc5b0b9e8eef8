"""Functions of one index of the leading axes, applied to all of them; and helpers of their loops."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention.arrays.shapes import assumed_product, is_known, with_rank

# A function whose derivatives recompute it and store only its arguments.
rematerialized = functools.partial(
  jax.checkpoint, policy=jax.checkpoint_policies.nothing_saveable, prevent_cse=False
)


def map_leading_axes(
  function: Callable[[list[jax.Array]], Any],
  arrays: list[jax.Array],
  ranks: list[int],
  leading: tuple[int, ...],
  per_step: int | None = None,
) -> Any:
  """Applies a function of one index to all indices of the leading axes of arrays, and stacks the results.

  An array without an axis, or of size 1 along it, is shared by all indices of the axis, and not copied.

  Args:
    function: takes the arrays of one index, without leading axes; returns a pytree of arrays.
    arrays: [leading... trailing...].
    ranks: number of trailing axes of each array.
    leading: sizes of the leading axes of the results.
    per_step: number of indices to compute together. None: all, by nested `jax.vmap`, so that leading axes may
      be sharded over devices.
  """
  if not leading:
    return function(arrays)
  arrays = [with_rank(array, len(leading) + rank) for array, rank in zip(arrays, ranks, strict=True)]

  def moves(axis: int) -> list[bool]:
    return [array.shape[axis] != 1 for array in arrays]

  # Consecutive axes along which the same arrays vary are one loop, which copies less than nested loops.
  count = 1
  while per_step is not None and count < len(leading) and (leading[count] == 1 or moves(count) == moves(0)):
    count += 1
  first, others, is_moving = leading[:count], leading[count:], moves(0)
  moving = [
    array.reshape(math.prod(first), *array.shape[count:])
    for array, moves in zip(arrays, is_moving, strict=True)
    if moves
  ]

  def at_index(moving: list[jax.Array]) -> Any:
    moved = iter(moving)
    inner = [
      next(moved) if moves else array.reshape(array.shape[count:])
      for array, moves in zip(arrays, is_moving, strict=True)
    ]
    return map_leading_axes(function, inner, ranks, others, per_step)

  if not moving:
    return jax.tree.map(lambda result: jnp.broadcast_to(result, (*first, *result.shape)), at_index([]))
  if per_step is None:
    results = jax.vmap(at_index)(moving)
  else:
    results = map_chunked(at_index, moving, max(1, per_step // assumed_product(others)))
  return jax.tree.map(lambda result: result.reshape(*first, *result.shape[1:]), results)


def all_indices(leading: tuple[int, ...]) -> jax.Array:
  """Returns the position of each index along the leading axes, integers [... L] for L axes."""
  return jnp.stack(jnp.meshgrid(*map(jnp.arange, leading), indexing="ij"), axis=-1)


def select_index(array: jax.Array, index: jax.Array | None, rank: int = 2) -> jax.Array:
  """Returns an array [... *] at one index of its leading axes, with `rank` axes.

  Args:
    array: with leading axes that broadcast, or without.
    index: a position along each leading axis, integers [L]; unused if the array has no leading axes.
    rank: number of axes after the leading ones.
  """
  array = with_rank(array, max(array.ndim, rank))
  count = array.ndim - rank
  if count == 0:
    return array
  assert index is not None
  leading, shape = array.shape[:count], array.shape[count:]
  starts = [index[i - count] if size != 1 else 0 for i, size in enumerate(leading)]
  return jax.lax.dynamic_slice(array, (*starts, *[0] * rank), (*[1] * count, *shape)).reshape(shape)


def map_chunked(function: Callable[[Any], Any], items: Any, per_step: int = 1) -> Any:
  """Maps a function over the first axis and stacks the results.

  Args:
    function: takes an item.
    items: a pytree of arrays [count ...].
    per_step: number of items to compute together.
  """
  count = jax.tree.leaves(items)[0].shape[0]
  if not is_known(count):
    return jax.lax.map(function, items)
  most = max(1, min(count, per_step))
  divisor = max(size for size in range(1, most + 1) if count % size == 0)
  batch_size = divisor if 2 * divisor > most else most  # a remainder is compiled separately
  if batch_size == count:
    return jax.vmap(function)(items)
  return jax.lax.map(function, items, batch_size=batch_size if batch_size > 1 else None)


@jax.custom_batching.custom_vmap
def unvmap_any(flags: jax.Array) -> jax.Array:
  """Returns whether any flag is set, over the whole batch under `jax.vmap`.

  A condition that depends on it stays a branch. Otherwise `vmap` would compute both branches, and could not
  transpose them.
  """
  return jnp.any(flags)


@unvmap_any.def_vmap
def _any_of_batch(axis_size: int, in_batched: list[bool], flags: jax.Array) -> tuple[jax.Array, bool]:
  return unvmap_any(flags), False
