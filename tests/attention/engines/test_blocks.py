"""Cutting arrays into tiles, and putting them together again."""

import jax.numpy as jnp
import numpy as np
import pytest

from attention.engines import blocks as blocks_module


@pytest.mark.parametrize(
  ("length", "largest", "count", "size"),
  [(7, 7, 1, 7), (7, 9, 1, 7), (7, 3, 3, 3), (10, 4, 3, 4), (1, 1, 1, 1)],
)
def test_blocks_are_as_few_and_as_even_as_possible(length, largest, count, size):
  blocks = blocks_module.even_blocks(length, largest)
  assert (blocks.length, blocks.count, blocks.size) == (length, count, size)
  assert blocks.beyond_end == count * size - length


def test_blocks_that_are_joined_are_the_array():
  rng = np.random.default_rng(0)
  array = jnp.asarray(rng.normal(size=(2, 7, 5)))
  blocks = blocks_module.even_blocks(7, 3)
  (stacked,) = blocks_module.split([array], 1, blocks)
  assert stacked.shape == (3, 2, 3, 5)
  np.testing.assert_array_equal(blocks_module.join(stacked, 1, blocks), array)
  np.testing.assert_array_equal(stacked[-1, :, 1:], np.repeat(array[:, -1:], 2, axis=1))


def test_no_block_holds_positions_of_two_parts():
  blocks = blocks_module.even_blocks(10, 2, parts=2)
  assert (blocks.count, blocks.size, blocks.beyond_end) == (6, 2, 1)
  (stacked,) = blocks_module.split([jnp.arange(10)], 0, blocks)
  np.testing.assert_array_equal(stacked, [[0, 1], [2, 3], [4, 4], [5, 6], [7, 8], [9, 9]])
  np.testing.assert_array_equal(blocks_module.join(stacked, 0, blocks), np.arange(10))


def test_beyond_the_end_nothing_is_allowed():
  (stacked,) = blocks_module.split([jnp.ones(7, bool)], 0, blocks_module.even_blocks(7, 4))
  np.testing.assert_array_equal(stacked, [[True] * 4, [True] * 3 + [False]])


@pytest.mark.parametrize("of_blocks", [False, True])
def test_windows_are_slices_from_their_starts(of_blocks):
  rng = np.random.default_rng(0)
  array = jnp.asarray(rng.normal(size=(3, 11, 2) if of_blocks else (11, 2)))
  windows = blocks_module.Windows(4, (0, 5, 7))
  (actual,) = blocks_module.windows_of([array], 0, windows, of_blocks=of_blocks)
  for i, start in enumerate(windows.starts):
    np.testing.assert_array_equal(actual[i], (array[i] if of_blocks else array)[start : start + 4])
