"""Tests of experiments/data/ragged.py."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.data.ragged import RaggedTokens


def test_sentences_are_concatenated():
  sentences = RaggedTokens.join([[7, 8], [], [9, 4, 5]])
  assert sentences.ids.tolist() == [7, 8, 9, 4, 5]
  assert sentences.offsets.tolist() == [0, 2, 2, 5]
  assert sentences.lengths.tolist() == [2, 0, 3]
  assert len(sentences) == 3
  assert [sentences[i].tolist() for i in range(3)] == [[7, 8], [], [9, 4, 5]]


@given(st.lists(st.lists(st.integers(0, 2**31 - 1))))
@settings(max_examples=50)
def test_lists_round_trip(lists):
  sentences = RaggedTokens.join(iter(lists))
  # Iteration uses __getitem__, and ends at IndexError.
  assert [sentence.tolist() for sentence in sentences] == lists
  assert sentences.lengths.tolist() == [len(sentence) for sentence in lists]


@pytest.mark.parametrize("index", [-1, 2, np.int64(2)])
def test_indices_must_be_in_range(index):
  with pytest.raises(IndexError, match=rf"^index must be in \[0, 2\), got {index}$"):
    RaggedTokens.join([[7], [8]])[index]
