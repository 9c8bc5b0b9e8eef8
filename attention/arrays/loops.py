"""Loops over the leading axes of arrays, and branches that stay branches under `jax.vmap`."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from attention.arrays.broadcasting import with_rank
from attention.arrays.symbolic import assumed_product, is_known


def over(function: Callable[[Any], Any], items: Any, at_once: int = 1) -> Any:
  """Returns the results of the function for each item, stacked.

  Args:
    function: takes an item.
    items: a pytree of arrays [count ...].
    at_once: how many it is good to work on together.
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
def any_at_all(flags: jax.Array) -> jax.Array:
  """Returns whether any flag is set, in all of the batch of a `jax.vmap` too.

  The answer is then one for the whole batch. So what depends on it stays a branch, where `vmap` would take
  both sides of it, and could not transpose them.
  """
  return jnp.any(flags)


@any_at_all.def_vmap
def _any_of_batch(axis_size: int, in_batched: list[bool], flags: jax.Array) -> tuple[jax.Array, bool]:
  return any_at_all(flags), False


def over_leading(
  function: Callable[[list[Any]], Any],
  arrays: Sequence[Any],
  own_ranks: Sequence[int],
  leading: tuple[int, ...],
  at_once: int = 1,
) -> Any:
  """Returns the results of a function of arrays at each index of their leading axes, stacked.

  An array that broadcasts along an axis is not copied.

  Args:
    function: takes a list of arrays without the leading axes, returns a pytree of arrays.
    arrays: [leading... own...]; an array may have fewer leading axes, or axes of size 1.
    own_ranks: how many axes of each array are its own.
    leading: the leading axes, of the sizes that the results have.
    at_once: at how many indices it is good to call the function together.
  """
  if not leading:
    return function(list(arrays))
  arrays = [with_rank(array, len(leading) + own) for array, own in zip(arrays, own_ranks, strict=True)]

  def move(axis: int) -> list[bool]:
    return [array.shape[axis] != 1 for array in arrays]

  moves, count = move(0), 1
  while count < len(leading) and (leading[count] == 1 or move(count) == moves):
    count += 1  # a loop over these axes is one, which copies less than one within another
  size, others = math.prod(leading[:count]), leading[count:]
  shapes = [
    ((size,) if here else ()) + array.shape[count:] for here, array in zip(moves, arrays, strict=True)
  ]
  arrays = [array.reshape(shape) for array, shape in zip(arrays, shapes, strict=True)]
  moving = {i: array for i, array in enumerate(arrays) if moves[i]}

  def at_index(moving: dict[int, Any]) -> Any:
    here = [moving.get(i, array) for i, array in enumerate(arrays)]
    return over_leading(function, here, own_ranks, others, at_once)

  if not moving:
    return jax.tree.map(
      lambda result: jnp.broadcast_to(result, (*leading[:count], *result.shape)), at_index({})
    )
  results = over(at_index, moving, max(1, at_once // assumed_product(others)))
  return jax.tree.map(lambda result: result.reshape(*leading[:count], *result.shape[1:]), results)
