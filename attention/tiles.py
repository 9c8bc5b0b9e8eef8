"""Cutting arrays with named axes: one index of their leading axes, or one block of positions, at a time.

An array's own axes are a string with one letter each, "TH" or "S"; what precedes them are leading axes, which
broadcast. An array whose axes are None is never cut.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

Arrays = list[jax.Array]
Axes = Sequence[str | None]


@dataclasses.dataclass(frozen=True)
class Blocks:
  """A cut of `length` positions into `count` blocks of `size`; the last may reach beyond the end."""

  length: int
  count: int
  size: int

  @property
  def beyond_end(self) -> int:
    """By how many positions the last block reaches beyond the end."""
    return self.count * self.size - self.length


@dataclasses.dataclass(frozen=True)
class Windows:
  """A choice of `size` of `length` positions for each of some blocks, from its place in `starts` on."""

  length: int
  size: int
  starts: tuple[int, ...]


def even_blocks(length: int, largest: int) -> Blocks:
  """Returns as few blocks as possible of at most `largest` positions, of nearly equal size.

  >>> even_blocks(10, 4)
  Blocks(length=10, count=3, size=4)
  """
  count = math.ceil(length / largest)
  return Blocks(length, count, math.ceil(length / count))


def one_by_one() -> bool:
  """Whether to work on one tile after the other, as suits the cache of a CPU, and not on many at once.

  The default device decides when a function is traced. Either way is right on any device.
  """
  return jax.default_backend() == "cpu"


def leading_axes_may_be_spread() -> bool:
  """Whether arrays may be spread over devices along their leading axes, which `jax.jit` does not tell.

  Then tiles have all leading axes: a loop over them would gather the arrays on each device. Inside
  `jax.shard_map` none is spread, for each device sees its own part alone.
  """
  kinds = jax.sharding.get_abstract_mesh().axis_types
  is_own_part = bool(kinds) and all(kind == jax.sharding.AxisType.Manual for kind in kinds)
  return jax.device_count() > 1 and not is_own_part


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
  if together == count and not one_by_one():
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


def cut(
  arrays: Arrays,
  axes: Axes,
  letter: str,
  blocks: Blocks,
  *,
  transposed: bool = False,
  windows: Windows | None = None,
) -> tuple[Arrays, Callable[[Arrays], Arrays]]:
  """Cuts the arrays that have the axis `letter` into blocks.

  Args:
    arrays: [...].
    axes: the own axes of each.
    letter: the axis to cut.
    blocks: how.
    transposed: whether the blocks of matrices [X Y], cut along X, are held as [Y X]. Products with them, and
      those of their derivatives, are then in the order that is fast on a CPU.
    windows: which positions along "S" go with each block; None for all.

  Returns:
    The blocks, [count ...] for each array that has the axis; and a function that takes one block of each and
    returns all arrays, with that block in the place of the whole.
  """

  stacked: Arrays = []
  is_cut, turned = [], []
  for array, own in zip(arrays, axes, strict=True):
    axis = _axis(array, own, letter, blocks.length)
    window_axis = None if windows is None else _axis(array, own, "S", windows.length)
    block = None if axis is None else _stacked(array, axis, blocks)
    if windows is not None and window_axis is not None:
      turn = window_axis == array.ndim - 2 and block is None
      if block is not None:
        block = _windows(block, 0, window_axis, windows)
      elif turn:
        block = _windows(_turned(array), None, window_axis + 1, windows)
      else:
        block = _windows(array, None, window_axis, windows)
    else:
      turn = transposed and axis == array.ndim - 2
      block = _turned(block) if turn and block is not None else block
    turned.append(turn)
    is_cut.append(block is not None)
    stacked += [] if block is None else [block]

  def put(block: Arrays) -> Arrays:
    each = iter(block)
    here = [next(each) if cut else array for cut, array in zip(is_cut, arrays, strict=True)]
    return [jnp.swapaxes(array, -1, -2) if turn else array for turn, array in zip(turned, here, strict=True)]

  return stacked, put


def _turned(array: jax.Array) -> jax.Array:
  """Returns matrices [... X Y] held as [... Y X]; without the barrier the compiler would undo the turn."""
  return jax.lax.optimization_barrier(jnp.swapaxes(array, -1, -2))


def _windows(array: jax.Array, stacked_axis: int | None, axis: int, windows: Windows) -> jax.Array:
  """Returns the windows [count ...] of an array along an axis, or of one array for each of them."""

  def window(array, start):
    return jax.lax.dynamic_slice_in_dim(array, start, windows.size, axis)

  return jax.vmap(window, (stacked_axis, 0))(array, jnp.asarray(windows.starts))


def join(stacked: jax.Array, own: str, letter: str, blocks: Blocks) -> jax.Array:
  """Returns blocks [count ...] as one array again, without what reached beyond the end."""
  axis = stacked.ndim - 1 - len(own) + own.index(letter)
  joined = jnp.moveaxis(stacked, 0, axis)
  shape = (*joined.shape[:axis], blocks.count * blocks.size, *joined.shape[axis + 2 :])
  return jax.lax.slice_in_dim(joined.reshape(shape), 0, blocks.length, axis=axis)


def _axis(array: jax.Array, own: str | None, letter: str, length: int) -> int | None:
  """Returns where an array has an axis of that length; None if it has not, or broadcasts along it."""
  if own is None or letter not in own:
    return None
  axis = array.ndim - len(own) + own.index(letter)
  return axis if array.shape[axis] == length else None


def _stacked(array: jax.Array, axis: int, blocks: Blocks) -> jax.Array:
  """Returns the blocks [count ...] of an array along an axis, filled up with its last numbers or with False.

  Numbers, so that what is calculated of them is as finite as what is calculated of the others.
  """
  if blocks.beyond_end:  # not by jnp.pad: where leading axes are spread, its derivative sends zeros around
    last = jax.lax.slice_in_dim(array, -1, None, axis=axis)
    last = jnp.zeros_like(last) if array.dtype == jnp.bool_ else last
    shape = (*array.shape[:axis], blocks.beyond_end, *array.shape[axis + 1 :])
    array = jnp.concatenate([array, jnp.broadcast_to(last, shape)], axis=axis)
  shape = (*array.shape[:axis], blocks.count, blocks.size, *array.shape[axis + 1 :])
  return jnp.moveaxis(array.reshape(shape), axis, 0)
