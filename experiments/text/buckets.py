"""Batches of sentence pairs that are alike in length: a few shapes, each of about as many positions."""

import functools
import itertools
from collections.abc import Sequence

import numpy as np

from experiments.text.alignments import Alignment
from experiments.text.batches import Batch, make_batch
from experiments.text.ragged import RaggedTokens


class Buckets:
  """Sentence pairs in buckets, each padded to a length of its own and cut into batches.

  Of all lengths that the buckets could have, theirs leave the least padding. Batches of all buckets have
  about as many positions: at half the length, twice the rows. In an epoch every pair comes once, in another
  order each time, and the number of batches is always the same. The numbers of sentences of a bucket's
  batches differ by one at most; what they lack is filled with rows of padding.

  Args:
    sources: sentences of ids.
    targets: their translations.
    num_buckets: how many, or fewer where there are fewer lengths.
    batch_size: rows of a batch on average; those of short sentences have more, those of long ones fewer.
    seed: of the order.
    alignments: of the pairs, if batches should have their links.
  """

  def __init__(
    self,
    sources: RaggedTokens,
    targets: RaggedTokens,
    *,
    num_buckets: int,
    batch_size: int,
    seed: int,
    alignments: Sequence[Alignment] | None = None,
  ):
    self._alignments = alignments
    self._sources, self._targets = sources, targets
    self._seed = seed
    sizes = np.maximum(sources.lengths, targets.lengths) + 1  # with the end symbol
    # lengths[b] and num_rows[b] are the shape of a batch of bucket b.
    self.lengths = optimal_bucket_lengths(sizes, num_buckets)
    bucket_of = np.searchsorted(self.lengths, sizes)
    num_positions = batch_size * np.mean(np.take(self.lengths, bucket_of))
    self.num_rows = [max(1, round(num_positions / length)) for length in self.lengths]
    self._members = [np.flatnonzero(bucket_of == i) for i in range(len(self.lengths))]
    counts = zip(self._members, self.num_rows, strict=True)
    self._num_batches = [-(-len(members) // num_rows) for members, num_rows in counts]

  def __len__(self) -> int:
    """Returns the number of pairs."""
    return len(self._sources)

  @property
  def batches_per_epoch(self) -> int:
    """How many batches have every pair once."""
    return sum(self._num_batches)

  def batch(self, step: int) -> Batch:
    """Returns the batch of a training step, counted from 0."""
    epoch, place = divmod(step, self.batches_per_epoch)
    bucket, pairs = self._order(epoch)[place]
    return make_batch(
      [self._sources[i] for i in pairs],
      [self._targets[i] for i in pairs],
      source_length=self.lengths[bucket],
      target_length=self.lengths[bucket],
      num_rows=self.num_rows[bucket],
      alignments=None if self._alignments is None else [self._alignments[i] for i in pairs.tolist()],
    )

  @functools.lru_cache(maxsize=2)  # noqa: B019 (one lives as long as the process)
  def _order(self, epoch: int) -> list[tuple[int, np.ndarray]]:
    """Returns the bucket and the pairs of each batch of an epoch."""
    rng = np.random.default_rng((self._seed, epoch))
    batches = [
      (bucket, pairs)
      for bucket, (members, count) in enumerate(zip(self._members, self._num_batches, strict=True))
      for pairs in np.array_split(rng.permutation(members), count)
    ]
    return [batches[i] for i in rng.permutation(len(batches))]


def optimal_bucket_lengths(sizes: np.ndarray, num_buckets: int) -> list[int]:
  """Returns the lengths of buckets, in order, with which sentences of these sizes need the least padding.

  Each sentence goes to the shortest bucket that it fits in.

  Args:
    sizes: of the sentences, at least one.
    num_buckets: how many buckets there are at most.

  >>> optimal_bucket_lengths(np.array([3, 3, 3, 4, 9, 10]), 2)
  [4, 10]
  """
  lengths, counts = (array.tolist() for array in np.unique(sizes, return_counts=True))
  up_to = [0, *itertools.accumulate(counts)]
  # best[i]: the positions that sentences of the i shortest lengths need, and the lengths of their buckets.
  best: list[tuple[float, list[int]]] = [(0, []), *((np.inf, []) for _ in lengths)]
  for _ in range(min(num_buckets, len(lengths))):
    before, best = best, [best[0]]
    for i, length in enumerate(lengths, start=1):
      # The last bucket has the sentences of the lengths from number j on.
      with_bucket = [
        (before[j][0] + (up_to[i] - up_to[j]) * length, [*before[j][1], length]) for j in range(i)
      ]
      best.append(min([before[i], *with_bucket]))
  return best[-1][1]
