"""Batches of sentence pairs, padded to fixed shapes."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from experiments.data.vocabularies import BOS_ID, EOS_ID, PAD_ID

# Padded lengths are multiples of 16, to limit the number of compilations.
_LENGTH_MULTIPLE = 16

# Batches of longer sentences have fewer rows.
_MAX_FULL_LENGTH = 256


class Batch(NamedTuple):
  """Sentence pairs as token ids, padded with PAD_ID.

  Attributes:
    sources: source tokens and EOS_ID, int32 [B S].
    source_lengths: number of source tokens including EOS_ID, int32 [B].
    inputs: decoder inputs, BOS_ID and the target tokens, int32 [B T].
    targets: target tokens and EOS_ID, int32 [B T].
    links: true alignment, bool [B T S], or None.
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
  """Returns a batch of sentence pairs, padded to fixed lengths.

  Args:
    sources: source sentences, token ids without BOS_ID and EOS_ID.
    targets: target sentences, one per source.
    source_length: S. A source has at most S - 1 tokens. Sentences are never truncated.
    target_length: T. A target has at most T - 1 tokens.
    num_rows: B. Rows after the last sentence are padding. Default: the number of sentences.
    alignments: links (target position, source position) of each pair. Default: the batch has no links.

  Raises:
    ValueError: if a sentence is too long, or there are more than B sentences.

  >>> make_batch([[7, 8]], [[9]], source_length=4, target_length=3)[0].tolist()
  [[7, 8, 2, 0]]
  """
  B = len(sources) if num_rows is None else num_rows
  if not len(sources) == len(targets) <= B:
    raise ValueError(
      f"sources and targets must have the same number of sentences, at most num_rows={num_rows}, "
      f"got {len(sources)} and {len(targets)}"
    )
  lengths = np.zeros((B,), np.int32)
  lengths[: len(sources)] = [len(tokens) + 1 for tokens in sources]
  return Batch(
    sources=_pad([[*tokens, EOS_ID] for tokens in sources], (B, source_length), "source"),
    source_lengths=lengths,
    inputs=_pad([[BOS_ID, *tokens] for tokens in targets], (B, target_length), "target"),
    targets=_pad([[*tokens, EOS_ID] for tokens in targets], (B, target_length), "target"),
    links=None if alignments is None else _links(alignments, (B, target_length, source_length)),
  )


def remove_eos(batch: Batch) -> Batch:
  """Returns a batch with EOS_ID replaced by PAD_ID in the targets.

  >>> remove_eos(make_batch([[7, 8]], [[9, 5]], source_length=3, target_length=4)).targets.tolist()
  [[9, 5, 0, 0]]
  """
  return batch._replace(targets=np.where(batch.targets == EOS_ID, PAD_ID, batch.targets))


def group_by_length(lengths: Sequence[tuple[int, int]], batch_size: int) -> Iterator[tuple[list[int], int]]:
  """Yields the indices of the pairs of each batch, sorted by length, and the number of rows.

  A batch has at most `batch_size` rows, and fewer if its longest sentence has more than 256 tokens: the rows
  need memory of at most the square of the length, for the attention weights.

  Args:
    lengths: number of source and target tokens of each pair.
    batch_size: number of rows of a batch of shorter sentences.

  >>> list(group_by_length([(3, 2), (100_000, 1), (4, 4)], batch_size=200))
  [([0, 2], 200), ([1], 1)]
  """
  group: list[int] = []
  num_rows = longest = 0
  for i in sorted(range(len(lengths)), key=lengths.__getitem__):
    longest = max(longest, *lengths[i])
    if group and len(group) >= _num_rows(longest, batch_size):
      yield group, num_rows
      group, longest = [], max(lengths[i])
    group.append(i)
    num_rows = _num_rows(longest, batch_size)
  if group:
    yield group, num_rows


def padded_length(num_tokens: int) -> int:
  """Returns the length of the rows of a batch whose longest sentence has `num_tokens` tokens, without EOS.

  >>> padded_length(15), padded_length(16)
  (16, 32)
  """
  return round_up(num_tokens + 1, _LENGTH_MULTIPLE)


def _num_rows(longest: int, batch_size: int) -> int:
  factor = max(padded_length(longest) / _MAX_FULL_LENGTH, 1)
  return max(1, int(batch_size / factor**2))


def round_up(length: int, multiple: int) -> int:
  """Rounds a length up to a multiple, which limits the number of shapes to compile.

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


def _pad(rows: Sequence[Sequence[int]], shape: tuple[int, int], side: str) -> np.ndarray:
  array = np.full(shape, PAD_ID, np.int32)
  length = shape[1]
  for row, tokens in zip(array[: len(rows)], rows, strict=True):
    if len(tokens) > length:
      raise ValueError(
        f"{side} must have at most {length - 1} tokens for {side}_length={length}, got {len(tokens) - 1}"
      )
    row[: len(tokens)] = tokens
  return array
