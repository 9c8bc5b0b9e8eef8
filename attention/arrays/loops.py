"""Loops over the leading axes of arrays, and branches that stay branches under `jax.vmap`."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention.arrays import devices
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
  if together == count and not devices.runs_sequentially():
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
  function: Callable[[Any], Any], arrays: Any, leading: tuple[int, ...], kept: int, at_once: int = 1
) -> Any:
  """Returns `function` of the arrays at each index of their leading axes but the last `kept`, stacked.

  An array that broadcasts along an axis is not copied.

  Args:
    function: takes the arrays without the leading axes, returns a pytree of arrays.
    arrays: a pytree of arrays, all with as many leading axes.
    leading: the leading axes, of the sizes that the results have.
    kept: how many of the last of them the function takes whole.
    at_once: at how many indices it is good to call the function together.
  """
  leaves, structure = jax.tree.flatten(arrays)

  def varying(axis: int) -> list[bool]:
    return [array.shape[axis] != 1 for array in leaves]

  if len(leading) <= kept:
    return function(arrays)
  varies, count = varying(0), 1
  while count < len(leading) - kept and (leading[count] == 1 or varying(count) == varies):
    count += 1  # a loop over these axes is one
  size = math.prod(leading[:count])
  inner = functools.partial(over_leading, function, leading=leading[count:], kept=kept, at_once=at_once)
  moving = [
    array.reshape(size, *array.shape[count:]) for array, moves in zip(leaves, varies, strict=True) if moves
  ]
  still = [
    array.reshape(array.shape[count:]) for array, moves in zip(leaves, varies, strict=True) if not moves
  ]

  def at_index(moving: list[jax.Array]) -> Any:
    each, others = iter(moving), iter(still)
    return inner(jax.tree.unflatten(structure, [next(each if moves else others) for moves in varies]))

  if not moving:
    results = at_index([])
    return jax.tree.map(lambda result: jnp.broadcast_to(result, (*leading[:count], *result.shape)), results)
  together = max(1, at_once // assumed_product(leading[count : len(leading) - kept]))
  results = over(at_index, moving, together)
  return jax.tree.map(lambda result: result.reshape(*leading[:count], *result.shape[1:]), results)
