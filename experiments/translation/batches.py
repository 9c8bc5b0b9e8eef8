"""Sentence pairs as arrays of fixed shape."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.translation.vocabularies import END, PAD, START


class Batch(NamedTuple):
  """Sentence pairs as token ids; padding is PAD.

  Attributes:
    sources: the source words and END, int32 [B S].
    source_lengths: how many of them are real, END included, int32 [B].
    inputs: what the decoder reads, START and the target words, int32 [B T].
    targets: what it should say, the target words and END, int32 [B T].
  """

  sources: np.ndarray
  source_lengths: np.ndarray
  inputs: np.ndarray
  targets: np.ndarray


def make_batch(
  sources: Sequence[Sequence[int]],
  targets: Sequence[Sequence[int]],
  *,
  source_length: int,
  target_length: int,
) -> Batch:
  """Returns sentences, given as ids without START and END, padded to fixed lengths.

  Args:
    sources: B sentences of ids.
    targets: B sentences of ids.
    source_length: S; a source has at most S - 1 words.
    target_length: T; a target has at most T - 1 words.

  Raises:
    ValueError: if a sentence is too long; none is ever cut.

  >>> make_batch([[7, 8]], [[9]], source_length=4, target_length=3)[0].tolist()
  [[7, 8, 2, 0]]
  """
  return Batch(
    sources=_padded([[*words, END] for words in sources], source_length, "source"),
    source_lengths=np.array([len(words) + 1 for words in sources], np.int32),
    inputs=_padded([[START, *words] for words in targets], target_length, "target"),
    targets=_padded([[*words, END] for words in targets], target_length, "target"),
  )


def stack(batches: Sequence[Batch]) -> Batch:
  """Returns K batches as one with an axis K in front, padded to the longest."""
  source_length = max(batch.sources.shape[1] for batch in batches)
  target_length = max(batch.targets.shape[1] for batch in batches)
  return Batch(
    sources=np.stack([_widened(batch.sources, source_length) for batch in batches]),
    source_lengths=np.stack([batch.source_lengths for batch in batches]),
    inputs=np.stack([_widened(batch.inputs, target_length) for batch in batches]),
    targets=np.stack([_widened(batch.targets, target_length) for batch in batches]),
  )


def round_up(length: int, multiple: int) -> int:
  """Returns the next multiple: few distinct lengths mean few compilations.

  >>> round_up(17, 16)
  32
  """
  return -(-length // multiple) * multiple


def _padded(rows: Sequence[Sequence[int]], length: int, side: str) -> np.ndarray:
  array = np.full((len(rows), length), PAD, np.int32)
  for row, tokens in zip(array, rows, strict=True):
    if len(tokens) > length:
      raise ValueError(
        f"a {side} must have at most {length - 1} words to fit {side}_length={length}, got {len(tokens) - 1}"
      )
    row[: len(tokens)] = tokens
  return array


def _widened(array: np.ndarray, length: int) -> np.ndarray:
  return np.pad(array, ((0, 0), (0, length - array.shape[1])), constant_values=PAD)
