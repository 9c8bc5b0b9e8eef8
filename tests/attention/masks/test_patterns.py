"""Masks and positions of documents that follow each other in a row, from their lengths."""

import functools

import chex
import jax
import numpy as np
import pytest

import attention
from attention import masks, positions

LENGTHS = np.array([[3, 2, 4], [1, 5, 0]])


@functools.partial(jax.jit, static_argnames="total")
def packed(lengths, total):
  """Returns the mask [T T] and the positions [T]."""
  return masks.packed(lengths, total).materialize(total, total), positions.packed(lengths, total)


@pytest.mark.parametrize("total", [10, 7, 0])
def test_documents_are_separate(total):
  allowed, within = np.zeros((2, total, total), bool), np.zeros((2, total), int)
  for row, lengths in enumerate(LENGTHS):
    for start, length in zip(np.cumsum(lengths) - lengths, lengths, strict=True):
      stop = min(start + length, total)
      allowed[row, start:stop, start:stop] = True
      within[row, start:stop] = np.arange(stop - start) if stop > start else 0
    within[row, sum(lengths) :] = np.arange(max(total - sum(lengths), 0))  # the row's end is not a document
  mask, position = packed(LENGTHS, total)
  np.testing.assert_array_equal(mask, allowed)
  np.testing.assert_array_equal(position, within)


def test_small_integers_do_not_overflow():
  small = np.array([100, 100, 60], np.uint8)
  chex.assert_trees_all_equal(packed(small, 270), packed(small.astype(int), 270))
  chex.assert_trees_all_equal(packed(np.array([2, 2**31 - 1]), 5), packed(np.array([2, 3]), 5))


def test_heads_need_linear_memory():
  T, lengths = 2048, np.ones((2, 1024), int)
  vectors = np.random.default_rng(0).normal(size=(2, 3, T, 2)).astype(np.float32)

  @jax.jit
  def attend(vectors):
    mask = masks.packed(lengths[:, None], T)
    return attention.scaled_dot_product_attention(*3 * [vectors], mask=mask, implementation="blockwise")

  # A document of one token attends to itself.
  program = attend.lower(vectors).compile()
  np.testing.assert_allclose(program(vectors)[..., : T // 2, :], vectors[..., : T // 2, :], rtol=1e-5)
  assert program.memory_analysis().temp_size_in_bytes < 2 * T * T


@pytest.mark.parametrize("function", [masks.packed, positions.packed])
@pytest.mark.parametrize(
  ("lengths", "message"),
  [
    (np.array([3, -1]), "lengths must be at least 0, got"),
    (np.ones(2), "lengths must be an integer or an array of integers, got float64"),
  ],
)
def test_invalid_lengths_raise(function, lengths, message):
  with pytest.raises(ValueError, match=message):
    function(lengths, 3)
