"""Padded batches. The ids of PAD, BOS and EOS are 0, 1 and 2."""

import chex
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from experiments.data.batches import group_by_length, make_batch, padded_length, remove_eos, round_up


def test_batches_match_worked_example():
  alignments = [{(0, 1), (0, 0)}, frozenset({(2, 0)})]
  batch = make_batch(
    [[7, 8], [9]], [[5], [6, 4, 11]], source_length=3, target_length=5, num_rows=3, alignments=alignments
  )
  assert batch.sources.tolist() == [[7, 8, 2], [9, 2, 0], [0, 0, 0]]
  assert batch.source_lengths.tolist() == [3, 2, 0]
  assert batch.inputs.tolist() == [[1, 5, 0, 0, 0], [1, 6, 4, 11, 0], [0] * 5]
  assert batch.targets.tolist() == [[5, 2, 0, 0, 0], [6, 4, 11, 2, 0], [0] * 5]
  assert {array.dtype for array in batch[:4]} == {np.dtype(np.int32)}
  chex.assert_shape(batch.links, (3, 5, 3))
  assert batch.links.dtype == bool
  assert np.argwhere(batch.links).tolist() == [[0, 0, 0], [0, 0, 1], [1, 2, 0]]
  assert remove_eos(batch).targets.tolist() == [[5, 0, 0, 0, 0], [6, 4, 11, 0, 0], [0] * 5]


def test_sentences_may_fill_rows():
  batch = make_batch([[7, 8]], [[5, 6, 4]], source_length=3, target_length=4)
  assert batch.sources.tolist() == [[7, 8, 2]]
  assert batch.inputs.tolist() == [[1, 5, 6, 4]]
  assert batch.targets.tolist() == [[5, 6, 4, 2]]
  assert batch.links is None


INVALID = [
  ([[7], [7, 8, 9]], [[5], [5]], None, "source must have at most 2 tokens for source_length=3, got 3"),
  ([[7]], [[5] * 5], None, "target must have at most 4 tokens for target_length=5, got 5"),
  ([[7], [8], [9]], [[5], [6], [4]], 2, "at most num_rows=2, got 3 and 3"),
  ([[7], [8]], [[5]], None, "must have the same number of sentences, at most num_rows=None, got 2 and 1"),
  ([[7]], [[5], [6]], 3, "at most num_rows=3, got 1 and 2"),
]


@pytest.mark.parametrize(("sources", "targets", "num_rows", "message"), INVALID)
def test_invalid_sentences_are_errors(sources, targets, num_rows, message):
  with pytest.raises(ValueError, match=message):
    make_batch(sources, targets, source_length=3, target_length=5, num_rows=num_rows)


def test_lengths_are_rounded_up():
  assert [round_up(length, 16) for length in (1, 15, 16, 17, 32, 33)] == [16, 16, 16, 32, 32, 48]
  assert round_up(7, 1) == 7
  assert [padded_length(length) for length in (15, 16)] == [16, 32]  # EOS is added


def test_long_sentences_are_grouped_alone():
  assert list(group_by_length([(2, 1), (100_000, 1), (3, 1), (5, 1)], 7)) == [([0, 2, 3], 7), ([1], 1)]
  assert list(group_by_length([(1, 2), (1, 100_000), (1, 3), (1, 5)], 7)) == [([0, 2, 3], 7), ([1], 1)]


@hypothesis.given(st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 2_000))), st.integers(1, 7))
@hypothesis.settings(max_examples=50)
def test_groups_have_bounded_memory(lengths, batch_size):
  groups = list(group_by_length(lengths, batch_size))
  assert sorted(i for indices, _ in groups for i in indices) == list(range(len(lengths)))
  for indices, num_rows in groups:
    longest = padded_length(max(max(lengths[i]) for i in indices))
    assert len(indices) <= num_rows <= batch_size
    assert num_rows == 1 or num_rows * longest**2 <= batch_size * 256**2
    assert num_rows == batch_size or longest > 256


def test_short_sentences_fill_batches():
  lengths = [(i % 5, 255 - i % 3) for i in range(10)]
  assert [len(indices) for indices, _ in group_by_length(lengths, 4)] == [4, 4, 2]
