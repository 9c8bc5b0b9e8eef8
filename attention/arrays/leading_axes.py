"""Functions of one index of the leading axes, applied to all of them; and helpers of their loops."""

import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from attention.arrays.shapes import assumed_product, is_known, with_rank
from attention.arrays.sharding import match_sharding

# A function whose derivatives recompute it and store only its arguments.
rematerialized = functools.partial(
  jax.checkpoint, policy=jax.checkpoint_policies.nothing_saveable, prevent_cse=False
)


# Leading axes whose indices are computed together: the size of each, and which arrays have it, a pytree of
# booleans for each argument.
Batch: TypeAlias = tuple[tuple[int, tuple[Any, ...]], ...]


def vmap_batch(
  function: Callable[..., Any], batch: Batch, starts: tuple[Any, ...] | None = None
) -> Callable[..., Any]:
  """Returns a function of the indices of a batch from a function of one index.

  Args:
    function: of one index.
    batch: the batch.
    starts: number of axes before the leading axes of each array. Default: 0.
  """
  for size, is_batched in reversed(batch):
    at = jax.tree.map(lambda batched: 0, is_batched) if starts is None else starts
    in_axes = jax.tree.map(lambda batched, start: start if batched else None, is_batched, at)
    function = jax.vmap(function, in_axes, axis_size=size)
  return function


def map_leading_axes(
  function: Callable[..., Any],
  arrays: tuple[Any, ...],
  letters: tuple[Any, ...],
  leading: tuple[int, ...],
  per_step: int | None = None,
) -> Any:
  """Applies a function of one index to all indices of the leading axes of arrays, and stacks the results.

  Args:
    function: takes its arguments at one index, without leading axes; returns a pytree of arrays.
    arrays, letters, leading, per_step: see `map_index_batches`.
  """

  def at_batch(arrays: tuple[Any, ...], batch: Batch) -> Any:
    return vmap_batch(function, batch)(*arrays)

  return map_index_batches(at_batch, arrays, letters, leading, per_step)


def map_index_batches(
  function: Callable[[tuple[Any, ...], Batch], Any],
  arrays: tuple[Any, ...],
  letters: tuple[Any, ...],
  leading: tuple[int, ...],
  per_step: int | None = None,
  batch: Batch = (),
) -> Any:
  """Applies a function to a few indices of the leading axes of arrays at a time, and stacks the results.

  An array without an axis, or of size 1 along it, is shared by all indices of the axis, and not copied.

  Args:
    function: takes the arrays of some indices, and their batch; returns a pytree of arrays with the leading
      axes of the batch.
    arrays: pytrees of arrays [leading... trailing...].
    letters: a letter for each trailing axis of each array; see `leaf_axes`.
    leading: sizes of the leading axes of the results.
    per_step: number of indices to compute together. None: all, so that leading axes may be sharded over
      devices.
    batch: of the recursion: indices of outer axes that are computed together. Arrays that differ between them
      have these axes first.
  """
  if not leading:
    return function(arrays, batch)
  arrays = jax.tree.map(lambda array, axes: with_rank(array, len(leading) + len(axes)), arrays, letters)
  starts = jax.tree.map(lambda array, axes: array.ndim - len(axes) - len(leading), arrays, letters)

  def moves(axis: int) -> tuple[Any, ...]:
    return jax.tree.map(lambda array, start: array.shape[start + axis] != 1, arrays, starts)

  # Consecutive axes along which the same arrays vary are one axis, which copies less than nested loops.
  count, is_moving = 1, moves(0)
  while per_step is not None and count < len(leading):
    if leading[count] != 1 and jax.tree.leaves(moves(count)) != jax.tree.leaves(is_moving):
      break
    count += 1
  size, others = math.prod(leading[:count]), leading[count:]

  def merge(array: jax.Array, start: int, moving: bool) -> jax.Array:
    return array.reshape(*array.shape[:start], *((size,) if moving else ()), *array.shape[start + count :])

  merged = jax.tree.map(merge, arrays, starts, is_moving)

  def inner(arrays: tuple[Any, ...], together: int | None) -> Any:
    larger = batch if together is None else (*batch, (together, is_moving))
    return map_index_batches(function, arrays, letters, others, per_step, larger)

  def with_axes(result: jax.Array) -> jax.Array:
    before, after = result.shape[: len(batch)], result.shape[len(batch) + 1 :]
    return result.reshape(*before, *leading[:count], *after)

  def repeat(result: jax.Array) -> jax.Array:
    shape = (*result.shape[: len(batch)], size, *result.shape[len(batch) :])
    return jnp.broadcast_to(jnp.expand_dims(result, len(batch)), shape)

  if not any(jax.tree.leaves(is_moving)):
    results = jax.tree.map(repeat, inner(merged, None))
  elif per_step is None or batch:
    axes = jax.tree.map(lambda start, moving: start if moving else None, starts, is_moving)
    results = inner(match_sharding(merged, axes), size)
  else:
    results = map_slices(inner, merged, is_moving, max(1, per_step // max(1, assumed_product(others))))
  return jax.tree.map(with_axes, results)


def map_slices(function: Callable[[Any, int | None], Any], tree: Any, is_moving: Any, most: int) -> Any:
  """Applies a function to a few entries of the first axis of some arrays at a time, and stacks the results.

  Args:
    function: takes the tree, and the number of entries; None: one entry, without its axis.
    tree: a pytree of arrays: [size ...] if they move along the axis.
    is_moving: which arrays do; the others are the same for all entries.
    most: largest number of entries.
  """
  moving = jax.tree.map(lambda array, moves: array if moves else None, tree, is_moving)
  size, together = jax.tree.leaves(moving)[0].shape[0], 1
  if is_known(size):
    most = max(1, min(size, most))
    divisor = max(number for number in range(1, most + 1) if size % number == 0)
    together = divisor if 2 * divisor > most else most  # a remainder is compiled separately

  def at_slice(moving: Any, together: int | None) -> Any:
    return function(with_parts(tree, moving), together)

  if together == 1:
    return jax.lax.map(lambda moving: at_slice(moving, None), moving)
  count = size // together
  whole = count * together
  if count == 1:
    results = at_slice(jax.tree.map(lambda array: array[:together], moving), together)
  else:
    stacked = jax.tree.map(lambda array: array[:whole].reshape(count, together, *array.shape[1:]), moving)
    results = jax.lax.map(lambda moving: at_slice(moving, together), stacked)
    results = jax.tree.map(lambda result: result.reshape(whole, *result.shape[2:]), results)
  if whole == size:
    return results
  rest = at_slice(jax.tree.map(lambda array: array[whole:], moving), size - whole)
  return jax.tree.map(lambda *parts: jnp.concatenate(parts), results, rest)


def with_parts(tree: Any, parts: Any) -> Any:
  """Returns a pytree with the given parts in the place of its arrays; where a part is None, its own array."""
  return jax.tree.map(lambda array, part: array if part is None else part, tree, parts)


def all_indices(leading: tuple[int, ...]) -> tuple[jax.Array, ...]:
  """Returns the position along each leading axis, integers that broadcast to the leading axes."""
  return tuple(jnp.meshgrid(*map(jnp.arange, leading), indexing="ij", sparse=True))


def select_index(array: jax.Array, index: tuple[jax.Array, ...]) -> jax.Array:
  """Returns an array [... T S] at one index of its leading axes, [T S].

  Args:
    array: with leading axes that broadcast, or without.
    index: a position along each leading axis.
  """
  array = with_rank(array, max(array.ndim, 2))
  count = array.ndim - 2
  leading, shape = array.shape[:count], array.shape[count:]
  starts = [index[i - count] if size != 1 else 0 for i, size in enumerate(leading)]
  return jax.lax.dynamic_slice(array, (*starts, 0, 0), (*[1] * count, *shape)).reshape(shape)


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
