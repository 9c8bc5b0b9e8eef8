"""Blocks and windows of positions, and arrays cut into them."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from attention.arrays.symbolic import is_known


@dataclasses.dataclass(frozen=True)
class Blocks:
  """A cut of `length` positions into `count` blocks of `size`; the last may reach beyond the end.

  Positions of several equal `parts` that do not follow each other are in no block together.
  """

  length: int
  count: int
  size: int
  parts: int = 1

  @property
  def beyond_end(self) -> int:
    """By how many positions the last block of each part reaches beyond its end."""
    return (self.count * self.size - self.length) // self.parts


@dataclasses.dataclass(frozen=True)
class Windows:
  """A choice of `size` positions for each of some blocks, from its place in `starts` on."""

  size: int
  starts: tuple[int, ...]


def even_blocks(length: int, largest: int, parts: int = 1) -> Blocks:
  """Returns as few blocks as possible of at most `largest` positions, of nearly equal size.

  If the length is symbolic, all blocks have the largest size.

  >>> even_blocks(10, 4)
  Blocks(length=10, count=3, size=4, parts=1)
  """
  if not is_known(length):
    return Blocks(length, -(-length // largest), largest)
  count = math.ceil(length // parts / largest)
  return Blocks(length, parts * count, math.ceil(length // parts / count), parts)


def split(arrays: Any, axis: int, blocks: Blocks) -> Any:
  """Returns the blocks [count ...] of a pytree of arrays along an axis.

  The last is filled up with the last numbers, so that what is calculated of them is as finite as what is
  calculated of the others; or with False.
  """

  def split_one(array: jax.Array) -> jax.Array:
    before, after = array.shape[:axis], array.shape[axis + 1 :]
    # Not by jnp.pad: where leading axes are spread, its derivative sends zeros around.
    if blocks.beyond_end != 0:
      array = array.reshape(*before, blocks.parts, blocks.length // blocks.parts, *after)
      last = jax.lax.slice_in_dim(array, -1, None, axis=axis + 1)
      last = jnp.zeros_like(last) if array.dtype == jnp.bool_ else last
      shape = (*before, blocks.parts, blocks.beyond_end, *after)
      array = jnp.concatenate([array, jnp.broadcast_to(last, shape)], axis=axis + 1)
    return jnp.moveaxis(array.reshape(*before, blocks.count, blocks.size, *after), axis, 0)

  return jax.tree.map(split_one, arrays)


def join(stacked: Any, axis: int, blocks: Blocks) -> Any:
  """Returns a pytree of blocks [count ...] as whole arrays, without what reached beyond the end."""

  def join_one(stacked: jax.Array) -> jax.Array:
    joined = jnp.moveaxis(stacked, 0, axis)
    before, after = joined.shape[:axis], joined.shape[axis + 2 :]
    joined = joined.reshape(*before, blocks.parts, -1, *after)
    joined = jax.lax.slice_in_dim(joined, 0, blocks.length // blocks.parts, axis=axis + 1)
    return joined.reshape(*before, blocks.length, *after)

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
