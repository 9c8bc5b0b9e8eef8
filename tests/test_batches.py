"""Tests of experiments/translation/batches.py. The ids of PAD, START and END are 0, 1 and 2."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.translation.batches import Batch, make_batch, round_up, stack


def test_sentences_become_these_arrays():
  batch = make_batch([[7, 8], [9]], [[5], [6, 4, 11]], source_length=4, target_length=5)
  assert batch.sources.tolist() == [[7, 8, 2, 0], [9, 2, 0, 0]]
  assert batch.source_lengths.tolist() == [3, 2]
  assert batch.inputs.tolist() == [[1, 5, 0, 0, 0], [1, 6, 4, 11, 0]]
  assert batch.targets.tolist() == [[5, 2, 0, 0, 0], [6, 4, 11, 2, 0]]
  assert {array.dtype for array in batch} == {np.dtype(np.int32)}


def test_an_empty_sentence_is_its_end_alone():
  batch = make_batch([[]], [[]], source_length=2, target_length=1)
  assert batch.sources.tolist() == [[2, 0]]
  assert batch.source_lengths.tolist() == [1]
  assert batch.inputs.tolist() == [[1]]
  assert batch.targets.tolist() == [[2]]


def test_a_sentence_may_fill_its_row():
  batch = make_batch([[7, 8]], [[5, 6, 4]], source_length=3, target_length=4)
  assert batch.sources.tolist() == [[7, 8, 2]]
  assert batch.inputs.tolist() == [[1, 5, 6, 4]]
  assert batch.targets.tolist() == [[5, 6, 4, 2]]


def test_a_source_that_is_too_long_is_an_error():
  with pytest.raises(ValueError, match=r"source must have at most 2 words .*source_length=3, got 3"):
    make_batch([[7], [7, 8, 9]], [[5], [5]], source_length=3, target_length=5)


def test_a_target_that_is_too_long_is_an_error():
  with pytest.raises(ValueError, match=r"target must have at most 1 words .*target_length=2, got 3"):
    make_batch([[7], [7]], [[5], [5, 6, 4]], source_length=3, target_length=2)


def test_stacked_batches_are_padded_to_the_longest():
  first = make_batch([[7, 8]], [[5]], source_length=3, target_length=2)
  second = make_batch([[9]], [[6, 4]], source_length=2, target_length=4)
  both = stack([first, second])
  assert both.sources.tolist() == [[[7, 8, 2]], [[9, 2, 0]]]
  assert both.source_lengths.tolist() == [[3], [2]]
  assert both.inputs.tolist() == [[[1, 5, 0, 0]], [[1, 6, 4, 0]]]
  assert both.targets.tolist() == [[[5, 2, 0, 0]], [[6, 4, 2, 0]]]
  assert isinstance(both, Batch)
  assert {array.dtype for array in both} == {np.dtype(np.int32)}


def test_lengths_are_rounded_up_to_these():
  assert [round_up(length, 16) for length in (1, 15, 16, 17, 32, 33)] == [16, 16, 16, 32, 32, 48]
  assert round_up(7, 1) == 7


@given(st.integers(0, 10**6), st.integers(1, 10**3))
def test_a_rounded_length_is_the_least_multiple_that_fits(length, multiple):
  rounded = round_up(length, multiple)
  assert rounded % multiple == 0
  assert length <= rounded < length + multiple
