"""Splitting arrays into blocks, and joining them."""

import jax.numpy as jnp
import numpy as np
import pytest

from attention.engines import loops, plan
from attention.engines.choice import choose_implementation


@pytest.mark.parametrize(
  ("length", "max_size", "count", "size"),
  [(7, 7, 1, 7), (7, 9, 1, 7), (7, 3, 3, 3), (10, 4, 3, 4), (1, 1, 1, 1)],
)
def test_blocks_are_few_and_even(length, max_size, count, size):
  blocks = plan.even_blocks(length, max_size)
  assert (blocks.length, blocks.count, blocks.size) == (length, count, size)
  assert blocks.padding == count * size - length


@pytest.mark.parametrize("axis", [-1, -2, -3])
def test_joined_blocks_are_the_array(axis):
  rng = np.random.default_rng(0)
  array = jnp.moveaxis(jnp.asarray(rng.normal(size=(2, 7, 5))), 1, axis)
  blocks = plan.even_blocks(7, 3)
  stacked = loops.split(array, axis, blocks)
  last = jnp.moveaxis(stacked, axis, 1)
  assert last.shape == (3, 3, 2, 5)
  np.testing.assert_array_equal(loops.join(stacked, axis, blocks), array)
  np.testing.assert_array_equal(last[-1, 1:], np.repeat(jnp.moveaxis(array, axis, 0)[-1:], 2, axis=0))


def test_blocks_do_not_cross_parts():
  for length, max_size, size in ((10, 2, 1), (12, 5, 3), (12, 9, 6)):
    blocks = plan.even_blocks(length, max_size, num_parts=2)
    assert (blocks.count * blocks.size, blocks.size, blocks.padding) == (length, size, 0)


def test_positions_beyond_lengths_are_masked():
  stacked = loops.split(jnp.ones(7, bool), -1, plan.even_blocks(7, 4))
  np.testing.assert_array_equal(stacked, [[True] * 4, [True] * 3 + [False]])


@pytest.mark.parametrize("of_blocks", [False, True])
def test_windows_are_slices_from_their_starts(of_blocks):
  rng = np.random.default_rng(0)
  array = jnp.asarray(rng.normal(size=(3, 11, 2) if of_blocks else (11, 2)))
  starts = 0, 5, 7
  actual = loops.windows_of(array, -2, starts, 4, of_blocks=of_blocks)
  for i, start in enumerate(starts):
    np.testing.assert_array_equal(actual[i], (array[i] if of_blocks else array)[start : start + 4])


def test_returned_weights_make_auto_dense():
  array = jnp.ones((1, 512, 2))
  assert choose_implementation(array, array, array, return_weights=True) == "dense"
  assert choose_implementation(array, array, array, return_weights=False) == "blockwise"


def test_many_small_scores_are_computed_in_blocks():
  few, many = (jnp.zeros((leading, 256, 1)) for leading in (256, 257))  # 2^24 scores, and more
  assert choose_implementation(few, few, few, return_weights=True) == "dense"
  assert choose_implementation(many, many, many, return_weights=True) == "blockwise"
