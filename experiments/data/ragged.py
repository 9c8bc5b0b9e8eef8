"""Sentences of different lengths as one array."""

from __future__ import annotations

import array
import dataclasses
from collections.abc import Iterable

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class RaggedTokens:
  """Token ids of sentences, concatenated. `sentences[i]` returns the ids of sentence i.

  Attributes:
    ids: ids of all sentences, int32 [offsets[-1]].
    offsets: start of each sentence in `ids`, and the end of the last one, int64 [len(self) + 1].

  >>> sentences = RaggedTokens.join([[7, 8], [], [9]])
  >>> len(sentences), sentences[0].tolist(), sentences.lengths.tolist()
  (3, [7, 8], [2, 0, 1])
  """

  ids: np.ndarray
  offsets: np.ndarray

  def __len__(self) -> int:
    """Returns the number of sentences."""
    return len(self.offsets) - 1

  def __getitem__(self, index: int) -> np.ndarray:
    """Returns the ids of a sentence, int32 [lengths[index]].

    Raises:
      IndexError: if `index` is not in [0, len(self)).
    """
    if not 0 <= index < len(self):
      raise IndexError(f"index must be in [0, {len(self)}), got {index}")
    return self.ids[self.offsets[index] : self.offsets[index + 1]]

  @property
  def lengths(self) -> np.ndarray:
    """Lengths of the sentences, int64 [len(self)]."""
    return np.diff(self.offsets)

  def take(self, indices: np.ndarray) -> RaggedTokens:
    """Returns the sentences at some indices, in that order.

    >>> RaggedTokens.join([[7, 8], [], [9]]).take(np.array([2, 0])).ids.tolist()
    [9, 7, 8]
    """
    lengths = self.lengths[indices]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    positions = np.arange(offsets[-1]) + np.repeat(self.offsets[indices] - offsets[:-1], lengths)
    return RaggedTokens(self.ids[positions], offsets)

  @classmethod
  def join(cls, sentences: Iterable[list[int]]) -> RaggedTokens:
    """Concatenates sentences. An iterator is consumed one sentence at a time."""
    ids, ends = array.array("i"), array.array("q", [0])
    for sentence in sentences:
      ids.fromlist(sentence)
      ends.append(len(ids))
    return cls(np.array(ids, np.int32), np.array(ends, np.int64))
