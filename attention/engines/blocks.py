"""Blocks and windows of positions, and arrays cut into them."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from attention.arrays.symbolic import is_known


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
  """A choice of `size` positions for each of some blocks, from its place in `starts` on."""

  size: int
  starts: tuple[int, ...]


def even_blocks(length: int, largest: int, parts: int = 1) -> Blocks:
  """Returns as few blocks as possible of at most `largest` positions, of nearly equal size.

  If the length is symbolic, all blocks have the largest size. Where the positions are those of several equal
  parts that do not follow each other, no block has positions of two.

  >>> even_blocks(10, 4)
  Blocks(length=10, count=3, size=4)
  >>> even_blocks(12, 5, parts=2)
  Blocks(length=12, count=4, size=3)
  """
  if not is_known(length):
    return Blocks(length, -(-length // largest), largest)
  if parts > 1:
    size = max(size for size in range(1, largest + 1) if length // parts % size == 0)
    return Blocks(length, length // size, size)
  count = math.ceil(length / largest)
  return Blocks(length, count, math.ceil(length / count))


def split(array: jax.Array, axis: int, blocks: Blocks) -> jax.Array:
  """Returns the blocks [count ...] of an array along an axis, which counts from the end.

  The last is filled up with the last numbers, so that what is calculated of them is as finite as what is
  calculated of the others; or with False.
  """
  axis += array.ndim
  # Not by jnp.pad: where leading axes are spread, its derivative sends zeros around.
  if blocks.beyond_end != 0:
    last = jax.lax.slice_in_dim(array, -1, None, axis=axis)
    last = jnp.zeros_like(last) if array.dtype == jnp.bool_ else last
    shape = (*array.shape[:axis], blocks.beyond_end, *array.shape[axis + 1 :])
    array = jnp.concatenate([array, jnp.broadcast_to(last, shape)], axis=axis)
  shape = (*array.shape[:axis], blocks.count, blocks.size, *array.shape[axis + 1 :])
  return jnp.moveaxis(array.reshape(shape), axis, 0)


def join(stacked: jax.Array, axis: int, blocks: Blocks) -> jax.Array:
  """Returns blocks [count ...] as a whole array, without what reached beyond the end."""
  joined = jnp.moveaxis(stacked, 0, axis - 1)
  axis += joined.ndim - 1
  *before, count, size = joined.shape[: axis + 2]
  joined = joined.reshape(*before, count * size, *joined.shape[axis + 2 :])
  return jax.lax.slice_in_dim(joined, 0, blocks.length, axis=axis)


def windows_of(array: jax.Array, axis: int, windows: Windows, *, of_blocks: bool = False) -> jax.Array:
  """Returns the windows [count ...] of an array along an axis, which counts from the end.

  Args:
    array: [...], or blocks of it, [count ...].
    axis: of the array, or of one block.
    windows: one for each block.
    of_blocks: whether there is an array for each of the blocks.
  """

  def window(array: jax.Array, start: jax.Array) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(array, start, windows.size, axis)

  return jax.vmap(window, (0 if of_blocks else None, 0))(array, jnp.asarray(windows.starts))
