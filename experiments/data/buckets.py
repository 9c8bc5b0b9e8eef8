"""Batches of sentence pairs of similar length."""

import functools
import itertools
from collections.abc import Sequence

import numpy as np

from experiments.data.alignments import Alignment
from experiments.data.batches import Batch, make_batch
from experiments.data.ragged import RaggedTokens


class Buckets:
  """Sentence pairs in length buckets, shuffled and batched.

  The lengths of the buckets minimize padding. Batches have about the same number of positions, so batches of
  short sentences have more rows. Each epoch has every pair once, in a different order, and the same number of
  batches. Batches of a bucket are filled evenly, and missing rows are padding.

  Args:
    sources: source sentences.
    targets: target sentences.
    num_buckets: maximum number of buckets.
    batch_size: mean number of rows per batch.
    seed: random seed for the order.
    alignments: links of each pair. Default: batches have no links.
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
    sizes = np.maximum(sources.lengths, targets.lengths) + 1  # one more for EOS or BOS
    # A batch of bucket b has num_rows[b] rows of length lengths[b].
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
    """Number of batches per epoch."""
    return sum(self._num_batches)

  def batch(self, step: int) -> Batch:
    """Returns the batch of a training step. The first step is 0."""
    epoch, index = divmod(step, self.batches_per_epoch)
    bucket, pairs = self._order(epoch)[index]
    return make_batch(
      [self._sources[i] for i in pairs],
      [self._targets[i] for i in pairs],
      source_length=self.lengths[bucket],
      target_length=self.lengths[bucket],
      num_rows=self.num_rows[bucket],
      alignments=None if self._alignments is None else [self._alignments[i] for i in pairs.tolist()],
    )

  @functools.lru_cache(maxsize=2)  # noqa: B019 (an instance exists until the process ends)
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
  """Returns the sorted bucket lengths that minimize padding, by dynamic programming.

  Each sentence is in the shortest bucket that it fits into.

  Args:
    sizes: lengths of the sentences, not empty.
    num_buckets: maximum number of buckets.

  >>> optimal_bucket_lengths(np.array([3, 3, 3, 4, 9, 10]), 2)
  [4, 10]
  """
  lengths, counts = (array.tolist() for array in np.unique(sizes, return_counts=True))
  cumulative = [0, *itertools.accumulate(counts)]
  # best[i]: the minimum number of positions for the i shortest lengths, and the bucket lengths.
  best: list[tuple[float, list[int]]] = [(0, []), *((np.inf, []) for _ in lengths)]
  for _ in range(min(num_buckets, len(lengths))):
    previous, best = best, [best[0]]
    for i, length in enumerate(lengths, start=1):
      # The last bucket has the lengths from index j on.
      candidates = [
        (previous[j][0] + (cumulative[i] - cumulative[j]) * length, [*previous[j][1], length])
        for j in range(i)
      ]
      best.append(min([previous[i], *candidates]))
  return best[-1][1]
