"""Loops, branches that stay branches under `jax.vmap`, and derivatives that recompute instead of storing."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention.arrays.pytrees import combine
from attention.arrays.shapes import assumed_product, is_known, with_rank

# For functions whose derivative computes them again, and stores only their arguments.
rematerialized = functools.partial(
  jax.checkpoint, policy=jax.checkpoint_policies.nothing_saveable, prevent_cse=False
)


def map_chunked(function: Callable[[Any], Any], items: Any, at_once: int = 1) -> Any:
  """Returns the stacked results of the function for each item.

  Args:
    function: takes an item.
    items: a pytree of arrays [count ...].
    at_once: how many items are worth computing together.
  """
  count = jax.tree.leaves(items)[0].shape[0]
  if not is_known(count):
    return jax.lax.map(function, items)
  most = max(1, min(count, at_once))
  divisor = max(size for size in range(1, most + 1) if count % size == 0)
  together = divisor if 2 * divisor > most else most  # a remainder is compiled on its own
  if together == count:
    return jax.vmap(function)(items)
  return jax.lax.map(function, items, batch_size=together if together > 1 else None)


@jax.custom_batching.custom_vmap
def unvmap_any(flags: jax.Array) -> jax.Array:
  """Returns whether any flag is set, in the whole batch of a `jax.vmap` too.

  What depends on it stays a branch, where `vmap` would compute both branches, and could not transpose them.
  """
  return jnp.any(flags)


@unvmap_any.def_vmap
def _any_of_batch(axis_size: int, in_batched: list[bool], flags: jax.Array) -> tuple[jax.Array, bool]:
  return unvmap_any(flags), False


def map_leading_axes(
  function: Callable[[Any], Any], arrays: Any, own_ranks: Any, leading: tuple[int, ...], at_once: int = 1
) -> Any:
  """Returns the stacked results of a function of arrays at each index of their leading axes.

  An array that broadcasts along an axis is not copied.

  Args:
    function: takes the pytree of arrays without their leading axes, returns a pytree of arrays.
    arrays: a pytree of [leading... own...]; an array may have fewer leading axes, or axes of size 1.
    own_ranks: how many axes of each array are its own, a pytree of integers.
    leading: the leading axes, of the sizes that the results have.
    at_once: how many indices are worth computing together.
  """
  if not leading:
    return function(arrays)
  arrays = jax.tree.map(lambda array, own: with_rank(array, len(leading) + own), arrays, own_ranks)

  def moves(axis: int) -> list[bool]:
    return [array.shape[axis] != 1 for array in jax.tree.leaves(arrays)]

  # Axes along which the same arrays change are one loop, which copies less than one within another.
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
    return map_leading_axes(function, combine(moving, fixed), own_ranks, others, at_once)

  if not jax.tree.leaves(moving):
    return jax.tree.map(lambda result: jnp.broadcast_to(result, (*first, *result.shape)), at_index(moving))
  results = map_chunked(at_index, moving, max(1, at_once // assumed_product(others)))
  return jax.tree.map(lambda result: result.reshape(*first, *result.shape[1:]), results)
