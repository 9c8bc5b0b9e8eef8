"""Blocks and windows of positions, and cutting arrays with named axes (see arrays/loops.py) into them."""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from attention.arrays.loops import Arrays, Axes


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
