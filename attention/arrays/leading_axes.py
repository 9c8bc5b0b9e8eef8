"""Loops over leading axes, branches under `jax.vmap`, and rematerialization."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention.arrays.named_axes import combine
from attention.arrays.shapes import assumed_product, is_known, with_rank

# A function whose derivatives recompute it and store only its arguments.
rematerialized = functools.partial(
  jax.checkpoint, policy=jax.checkpoint_policies.nothing_saveable, prevent_cse=False
)


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


def map_leading_axes(
  function: Callable[[Any], Any],
  arrays: Any,
  trailing_ranks: Any,
  leading: tuple[int, ...],
  per_step: int = 1,
) -> Any:
  """Applies a function at each index of the leading axes of arrays, and stacks the results.

  Arrays that broadcast along an axis are not copied.

  Args:
    function: takes the pytree of arrays without their leading axes, returns a pytree of arrays.
    arrays: a pytree of arrays [leading... trailing...], with fewer leading axes or axes of size 1 allowed.
    trailing_ranks: number of trailing axes of each array, a pytree of integers.
    leading: sizes of the leading axes of the results.
    per_step: number of indices to compute together.
  """
  if not leading:
    return function(arrays)
  arrays = jax.tree.map(lambda array, rank: with_rank(array, len(leading) + rank), arrays, trailing_ranks)

  def moves(axis: int) -> list[bool]:
    return [array.shape[axis] != 1 for array in jax.tree.leaves(arrays)]

  # Consecutive axes along which the same arrays vary are one loop, which copies less than nested loops.
  count = 1
  while count < len(leading) and (leading[count] == 1 or moves(count) == moves(0)):
    count += 1
  first, others = leading[:count], leading[count:]

  def merge(array: jax.Array) -> jax.Array | None:
    return array.reshape(math.prod(first), *array.shape[count:]) if array.shape[0] != 1 else None

  moving = jax.tree.map(merge, arrays)
  fixed = jax.tree.map(
    lambda array: array.reshape(array.shape[count:]) if array.shape[0] == 1 else None, arrays
  )

  def at_index(moving: Any) -> Any:
    return map_leading_axes(function, combine(moving, fixed), trailing_ranks, others, per_step)

  if not jax.tree.leaves(moving):
    return jax.tree.map(lambda result: jnp.broadcast_to(result, (*first, *result.shape)), at_index(moving))
  results = map_chunked(at_index, moving, max(1, per_step // assumed_product(others)))
  return jax.tree.map(lambda result: result.reshape(*first, *result.shape[1:]), results)
