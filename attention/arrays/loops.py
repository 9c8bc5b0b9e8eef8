"""Loops over the leading axes of arrays with named axes, one index at a time.

An array's own axes are a string with one letter each, "TH" or "S"; what precedes them are leading axes, which
broadcast. An array whose axes are None is never cut.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from attention.arrays import devices

Arrays = list[jax.Array]
Axes = Sequence[str | None]


def over(function: Callable[[Any], Any], items: Any, at_once: int = 1) -> Any:
  """Returns the results of the function for each item, stacked.

  Args:
    function: takes an item.
    items: a pytree of arrays [count ...].
    at_once: how many it is good to work on together.
  """
  count = jax.tree.leaves(items)[0].shape[0]
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
  function: Callable[[Arrays], Any],
  arrays: Arrays,
  axes: Axes,
  leading: tuple[int, ...],
  kept: int,
  at_once: int = 1,
) -> Any:
  """Returns `function` of the arrays at each index of their leading axes but the last `kept`, stacked.

  An array that does not have an axis, or broadcasts along it, is not copied.

  Args:
    function: takes the arrays without the leading axes, returns a pytree of arrays.
    arrays: all of the same number of leading axes, but those whose axes are None.
    axes: the own axes of each.
    leading: the leading axes, of the sizes that the results have.
    kept: how many of the last of them the function takes whole.
    at_once: at how many indices it is good to call the function together.
  """

  def varying(axis: int) -> list[bool]:
    return [own is not None and array.shape[axis] != 1 for array, own in zip(arrays, axes, strict=True)]

  if len(leading) <= kept:
    return function(arrays)
  varies, count = varying(0), 1
  while count < len(leading) - kept and (leading[count] == 1 or varying(count) == varies):
    count += 1  # these axes are walked as one
  size = math.prod(leading[:count])

  def rest(own: str | None, array: jax.Array, varies: bool) -> jax.Array:
    return array if own is None else array.reshape((size,) * varies + array.shape[count:])

  arrays = [rest(*each) for each in zip(axes, arrays, varies, strict=True)]
  inner = functools.partial(
    over_leading, function, axes=axes, leading=leading[count:], kept=kept, at_once=at_once
  )
  together = max(1, at_once // math.prod(leading[count : len(leading) - kept]))
  if not any(varies):
    results = inner(arrays)
    return jax.tree.map(lambda result: jnp.broadcast_to(result, (*leading[:count], *result.shape)), results)

  def at_index(moving: Arrays) -> Any:
    each = iter(moving)
    return inner([next(each) if moves else array for array, moves in zip(arrays, varies, strict=True)])

  moving = [array for array, moves in zip(arrays, varies, strict=True) if moves]
  results = over(at_index, moving, together)
  return jax.tree.map(lambda result: result.reshape(*leading[:count], *result.shape[1:]), results)
