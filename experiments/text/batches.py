"""Sentence pairs as arrays of fixed shape."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from experiments.text.vocabularies import END, PAD, START


class Batch(NamedTuple):
  """Sentence pairs as token ids; padding is PAD.

  Attributes:
    sources: the source words and END, int32 [B S].
    source_lengths: how many of them are real, END included, int32 [B].
    inputs: what the decoder reads, START and the target words, int32 [B T].
    targets: what it should say, the target words and END, int32 [B T].
    links: which source words each target word translates, booleans [B T S]; None where nobody asks for them.
  """

  sources: np.ndarray
  source_lengths: np.ndarray
  inputs: np.ndarray
  targets: np.ndarray
  links: np.ndarray | None = None


def make_batch(
  sources: Sequence[Sequence[int] | np.ndarray],
  targets: Sequence[Sequence[int] | np.ndarray],
  *,
  source_length: int,
  target_length: int,
  num_rows: int | None = None,
  alignments: Sequence[Iterable[tuple[int, int]]] | None = None,
) -> Batch:
  """Returns sentences, given as ids without START and END, padded to fixed lengths.

  Args:
    sources: sentences of ids.
    targets: as many.
    source_length: S; a source has at most S - 1 words.
    target_length: T; a target has at most T - 1 words.
    num_rows: B; rows after the sentences are padding alone. None for the number of sentences.
    alignments: of each pair, links (target position, source position); None to leave them out.

  Raises:
    ValueError: if a sentence is too long, for none is ever cut, or if there are more than B.

  >>> make_batch([[7, 8]], [[9]], source_length=4, target_length=3)[0].tolist()
  [[7, 8, 2, 0]]
  """
  B = len(sources) if num_rows is None else num_rows
  if not len(sources) == len(targets) <= B:
    given = f"{len(sources)} and {len(targets)}"
    raise ValueError(f"sources and targets must be as many, at most num_rows={num_rows}, got {given}")
  lengths = np.zeros((B,), np.int32)
  lengths[: len(sources)] = [len(words) + 1 for words in sources]
  return Batch(
    sources=_padded([[*words, END] for words in sources], (B, source_length), "source"),
    source_lengths=lengths,
    inputs=_padded([[START, *words] for words in targets], (B, target_length), "target"),
    targets=_padded([[*words, END] for words in targets], (B, target_length), "target"),
    links=None if alignments is None else _links(alignments, (B, target_length, source_length)),
  )


def without_ends(batch: Batch) -> Batch:
  """Returns a batch whose targets do not have the ends of the sentences.

  >>> without_ends(make_batch([[7, 8]], [[9, 5]], source_length=3, target_length=4)).targets.tolist()
  [[9, 5, 0, 0]]
  """
  return batch._replace(targets=np.where(batch.targets == END, PAD, batch.targets))


def round_up(length: int, multiple: int) -> int:
  """Returns the next multiple: few distinct lengths mean few compilations.

  >>> round_up(17, 16)
  32
  """
  return -(-length // multiple) * multiple


def _links(alignments: Sequence[Iterable[tuple[int, int]]], shape: tuple[int, int, int]) -> np.ndarray:
  array = np.zeros(shape, bool)
  for row, links in zip(array[: len(alignments)], alignments, strict=True):
    for target, source in links:
      row[target, source] = True
  return array


def _padded(rows: Sequence[Sequence[int]], shape: tuple[int, int], side: str) -> np.ndarray:
  array = np.full(shape, PAD, np.int32)
  length = shape[1]
  for row, tokens in zip(array[: len(rows)], rows, strict=True):
    if len(tokens) > length:
      raise ValueError(
        f"a {side} must have at most {length - 1} words to fit {side}_length={length}, got {len(tokens) - 1}"
      )
    row[: len(tokens)] = tokens
  return array
