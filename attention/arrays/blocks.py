"""Blocks of positions, and arrays that are cut into them."""

import dataclasses
from typing import Any

import jax
import numpy as np

from attention.arrays.named_axes import leaf_axes
from attention.arrays.shapes import is_known


@dataclasses.dataclass(frozen=True)
class Blocks:
  """`length` positions in `count` blocks of `size`; the last block may extend beyond the end."""

  length: int
  count: int
  size: int

  @property
  def padding(self) -> int:
    """Number of positions by which the last block extends beyond the end."""
    return self.count * self.size - self.length

  @property
  def ends(self) -> np.ndarray:
    """The first and the last position of each block, [count 2]."""
    first = np.arange(self.count) * self.size
    return np.stack([first, np.minimum(first + self.size, self.length) - 1], axis=-1)


def even_blocks(length: int, max_size: int, num_parts: int = 1) -> Blocks:
  """Returns the smallest number of blocks of at most `max_size` positions, with nearly equal sizes.

  If the length is symbolic, all blocks have size `max_size`. If the positions consist of several equally long
  parts, no block contains positions of two parts.

  >>> even_blocks(10, 4)
  Blocks(length=10, count=3, size=4)
  >>> even_blocks(12, 5, num_parts=2)
  Blocks(length=12, count=4, size=3)
  """
  if not is_known(length):
    return Blocks(length, -(-length // max_size), max_size)
  if num_parts > 1:
    size = max(size for size in range(1, max_size + 1) if length // num_parts % size == 0)
    return Blocks(length, length // size, size)
  count = -(-length // max_size)
  return Blocks(length, count, -(-length // count))


def in_blocks(tree: Any, queries: Blocks, keys: Blocks) -> Any:
  """Returns a pytree of NamedAxes in blocks: arrays [... T ... S ...] become [I J ... T ... S ...].

  Arrays must not have leading axes. The last block repeats the last entry.
  """

  def with_blocks(leaf: Any, axes: str) -> np.ndarray:
    array = np.asarray(leaf)
    if not {"T", "S"} & set(axes):
      return array
    for blocks, letter in ((keys, "S"), (queries, "T")):  # the axis I comes before J
      axis = axes.find(letter) - len(axes)
      if letter not in axes or array.shape[axis] == 1:
        array = array[None]
        continue
      axis += array.ndim
      padding = [(0, blocks.padding if i == axis else 0) for i in range(array.ndim)]
      array = np.pad(array, padding, mode="edge")
      array = array.reshape(*array.shape[:axis], blocks.count, blocks.size, *array.shape[axis + 1 :])
      array = np.moveaxis(array, axis, 0)
    return array

  leaves, structure = jax.tree.flatten(tree)
  return jax.tree.unflatten(structure, map(with_blocks, leaves, leaf_axes(tree)))
