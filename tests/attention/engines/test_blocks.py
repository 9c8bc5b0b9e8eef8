"""Cutting arrays into tiles, and putting them together again."""

import jax.numpy as jnp
import numpy as np
import pytest
from cases import assert_trees_equal

from attention.engines.blockwise import blocks as blocks_module


@pytest.mark.parametrize(
  ("length", "largest", "count", "size"),
  [(7, 7, 1, 7), (7, 9, 1, 7), (7, 3, 3, 3), (10, 4, 3, 4), (1, 1, 1, 1)],
)
def test_blocks_are_as_few_and_as_even_as_possible(length, largest, count, size):
  blocks = blocks_module.even_blocks(length, largest)
  assert (blocks.length, blocks.count, blocks.size) == (length, count, size)
  assert blocks.beyond_end == count * size - length


@pytest.mark.parametrize("transposed", [False, True])
def test_blocks_that_are_joined_are_the_array(transposed):
  rng = np.random.default_rng(0)
  array = jnp.asarray(rng.normal(size=(2, 7, 5)))
  blocks = blocks_module.even_blocks(7, 3)
  stacked, put = blocks_module.cut([array], ["SX"], "S", blocks, transposed=transposed)
  pieces = [put([block])[0] for block in stacked[0]]
  assert [piece.shape for piece in pieces] == [(2, 3, 5)] * 3
  np.testing.assert_array_equal(blocks_module.join(jnp.stack(pieces), "SX", "S", blocks), array)
  np.testing.assert_array_equal(pieces[-1][:, 1:], np.repeat(array[:, -1:], 2, axis=1))


def test_only_what_has_the_axis_is_cut():
  rng = np.random.default_rng(0)
  # Queries, one for all queries, keys, and what has no named axes but as many positions.
  arrays = [jnp.asarray(rng.normal(size=size)) for size in ((7, 5), (1, 3), (3, 5), (7,))]
  axes = ["TX", "TS", "SX", None]
  blocks, put = blocks_module.cut(arrays, axes, "T", blocks_module.even_blocks(7, 4))
  assert [block.shape for block in blocks] == [(2, 4, 5)]
  here = put([block[1] for block in blocks])
  np.testing.assert_array_equal(here[0][:3], arrays[0][4:])
  assert_trees_equal(here[1:], arrays[1:])
