"""Functions of one index of the leading axes, applied to all of them; and helpers of their loops."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention.arrays.shapes import assumed_product, is_known, with_rank
from attention.arrays.sharding import match_sharding

# A function whose derivatives recompute it and store only its arguments.
rematerialized = functools.partial(
  jax.checkpoint, policy=jax.checkpoint_policies.nothing_saveable, prevent_cse=False
)


class IndexBatch(NamedTuple):
  """Indices of the leading axes that are computed together, and perhaps several blocks of queries.

  Attributes:
    sizes: the sizes of the leading axes of these indices; the number of blocks comes first.
    is_batched: for each of these axes, which arrays have it.
  """

  sizes: tuple[int, ...] = ()
  is_batched: tuple[list[bool], ...] = ()

  def vmap(self, function: Callable[..., Any], axes: list[int] | None = None) -> Callable[..., Any]:
    """Returns a function of these indices from a function of one.

    Args:
      function: takes a carry and the arrays of one index; returns a pytree of arrays.
      axes: number of axes before the leading axes of each array. Default: 0.
    """
    for size, is_batched in zip(reversed(self.sizes), reversed(self.is_batched), strict=True):
      in_axes = [
        axis if batched else None
        for axis, batched in zip(axes or [0] * len(is_batched), is_batched, strict=True)
      ]
      function = jax.vmap(function, in_axes=(0, in_axes), axis_size=size)
    return function


ONE_INDEX = IndexBatch()


def map_leading_axes(
  function: Callable[[list[jax.Array]], Any],
  arrays: list[jax.Array],
  ranks: list[int],
  leading: tuple[int, ...],
  per_step: int | None = None,
) -> Any:
  """Applies a function of one index to all indices of the leading axes of arrays, and stacks the results.

  Args:
    function: takes the arrays of one index, without leading axes; returns a pytree of arrays.
    arrays, ranks, leading, per_step: see `map_index_batches`.
  """

  def at_batch(arrays: list[jax.Array], batch: IndexBatch) -> Any:
    return batch.vmap(lambda _, arrays: function(arrays))(None, arrays)

  return map_index_batches(at_batch, arrays, ranks, leading, per_step)


def map_index_batches(
  function: Callable[[list[jax.Array], IndexBatch], Any],
  arrays: list[jax.Array],
  ranks: list[int],
  leading: tuple[int, ...],
  per_step: int | None = None,
  batch: IndexBatch = ONE_INDEX,
) -> Any:
  """Applies a function to a few indices of the leading axes of arrays at a time, and stacks the results.

  An array without an axis, or of size 1 along it, is shared by all indices of the axis, and not copied.

  Args:
    function: takes the arrays of some indices, and their batch; returns a pytree of arrays with the leading
      axes of the batch.
    arrays: [leading... trailing...].
    ranks: number of trailing axes of each array.
    leading: sizes of the leading axes of the results.
    per_step: number of indices to compute together. None: all, so that leading axes may be sharded over
      devices.
    batch: indices of outer axes that are computed together. Arrays that differ between them have these axes
      first.
  """
  if not leading:
    return function(arrays, batch)
  if not batch.sizes:
    arrays = [with_rank(array, len(leading) + rank) for array, rank in zip(arrays, ranks, strict=True)]
  starts = [array.ndim - rank - len(leading) for array, rank in zip(arrays, ranks, strict=True)]

  def moves(axis: int) -> list[bool]:
    return [array.shape[start + axis] != 1 for array, start in zip(arrays, starts, strict=True)]

  # Consecutive axes along which the same arrays vary are one axis, which copies less than nested loops.
  count = 1
  while per_step is not None and count < len(leading) and (leading[count] == 1 or moves(count) == moves(0)):
    count += 1
  size, others, is_moving = math.prod(leading[:count]), leading[count:], moves(0)
  merged = [
    array.reshape(*array.shape[:start], *((size,) if moving else ()), *array.shape[start + count :])
    for array, start, moving in zip(arrays, starts, is_moving, strict=True)
  ]

  def inner(arrays: list[jax.Array], together: int | None) -> Any:
    sizes, is_batched = ((), ()) if together is None else ((together,), (is_moving,))
    larger = IndexBatch((*batch.sizes, *sizes), (*batch.is_batched, *is_batched))
    return map_index_batches(function, arrays, ranks, others, per_step, larger)

  def with_axes(result: jax.Array) -> jax.Array:
    before = result.shape[: len(batch.sizes)]
    return result.reshape(*before, *leading[:count], *result.shape[len(before) + 1 :])

  if not any(is_moving):
    axis = len(batch.sizes)
    results = jax.tree.map(lambda result: _repeat(result, axis, size), inner(merged, None))
  elif per_step is None or batch.sizes:
    axes = [start if moving else None for start, moving in zip(starts, is_moving, strict=True)]
    results = inner(match_sharding(merged, axes), size)
  else:
    results = map_slices(inner, merged, is_moving, max(1, per_step // max(1, assumed_product(others))))
  return jax.tree.map(with_axes, results)


def _repeat(array: jax.Array, axis: int, size: int) -> jax.Array:
  """Returns an array repeated along a new axis."""
  shape = (*array.shape[:axis], size, *array.shape[axis:])
  return jnp.broadcast_to(jnp.expand_dims(array, axis), shape)


def map_slices(
  function: Callable[[list[jax.Array], int | None], Any],
  arrays: list[jax.Array],
  is_moving: list[bool],
  most: int,
) -> Any:
  """Applies a function to a few entries of the first axis of some arrays at a time, and stacks the results.

  Args:
    function: takes the arrays, and the number of entries; None: one entry, without its axis.
    arrays: [size ...] if they move along the axis.
    is_moving: which arrays do; the others are the same for all entries.
    most: largest number of entries.
  """
  moving = [array for array, moves in zip(arrays, is_moving, strict=True) if moves]
  size, together = moving[0].shape[0], 1
  if is_known(size):
    most = max(1, min(size, most))
    divisor = max(number for number in range(1, most + 1) if size % number == 0)
    together = divisor if 2 * divisor > most else most  # a remainder is compiled separately

  def at_slice(moving: list[jax.Array], together: int | None) -> Any:
    moved = iter(moving)
    return function(
      [next(moved) if m else array for array, m in zip(arrays, is_moving, strict=True)], together
    )

  if together == 1:
    return jax.lax.map(lambda moving: at_slice(moving, None), moving)
  count = size // together
  if count == 1:
    results = at_slice([array[:together] for array in moving], together)
  else:
    stacked = [array[: count * together].reshape(count, together, *array.shape[1:]) for array in moving]
    results = jax.lax.map(lambda moving: at_slice(moving, together), stacked)
    results = jax.tree.map(lambda result: result.reshape(count * together, *result.shape[2:]), results)
  if count * together == size:
    return results
  rest = at_slice([array[count * together :] for array in moving], size - count * together)
  return jax.tree.map(lambda *parts: jnp.concatenate(parts), results, rest)


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
