"""Blocks and windows of positions, and arrays cut into them."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp


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


def split(arrays: Any, axis: int, blocks: Blocks) -> Any:
  """Returns the blocks [count ...] of a pytree of arrays along an axis.

  The last is filled up with the last numbers, so that what is calculated of them is as finite as what is
  calculated of the others; or with False.
  """

  def split_one(array: jax.Array) -> jax.Array:
    if blocks.beyond_end:  # not by jnp.pad: where leading axes are spread, its derivative sends zeros around
      last = jax.lax.slice_in_dim(array, -1, None, axis=axis)
      last = jnp.zeros_like(last) if array.dtype == jnp.bool_ else last
      shape = (*array.shape[:axis], blocks.beyond_end, *array.shape[axis + 1 :])
      array = jnp.concatenate([array, jnp.broadcast_to(last, shape)], axis=axis)
    shape = (*array.shape[:axis], blocks.count, blocks.size, *array.shape[axis + 1 :])
    return jnp.moveaxis(array.reshape(shape), axis, 0)

  return jax.tree.map(split_one, arrays)


def join(stacked: Any, axis: int, blocks: Blocks) -> Any:
  """Returns a pytree of blocks [count ...] as whole arrays, without what reached beyond the end."""

  def join_one(stacked: jax.Array) -> jax.Array:
    joined = jnp.moveaxis(stacked, 0, axis)
    shape = (*joined.shape[:axis], blocks.count * blocks.size, *joined.shape[axis + 2 :])
    return jax.lax.slice_in_dim(joined.reshape(shape), 0, blocks.length, axis=axis)

  return jax.tree.map(join_one, stacked)


def windows_of(arrays: Any, axis: int, windows: Windows, *, of_blocks: bool = False) -> Any:
  """Returns the windows [count ...] of a pytree of arrays along an axis.

  Args:
    arrays: [...], or blocks of them, [count ...].
    axis: of the array, or of one block.
    windows: one for each block.
    of_blocks: whether there is an array for each of the blocks.
  """

  def window(array, start):
    return jax.lax.dynamic_slice_in_dim(array, start, windows.size, axis)

  starts = jnp.asarray(windows.starts)
  return jax.tree.map(lambda array: jax.vmap(window, (0 if of_blocks else None, 0))(array, starts), arrays)
