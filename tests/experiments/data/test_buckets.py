"""Tests of experiments/data/buckets.py. The ids of PAD, BOS and EOS are 0, 1 and 2."""

import collections
import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.data.buckets import Buckets, optimal_bucket_lengths
from experiments.data.ragged import RaggedTokens

# (source length, target length) -> number of pairs. Their sizes including EOS are 4, 6 and 12.
LENGTHS = {(3, 2): 17, (1, 5): 13, (11, 7): 5}


def _buckets(lengths, *, num_buckets=3, batch_size=5, seed=0):
  """Returns buckets of pairs of some lengths. The first token of both sides of pair i is i + 10."""
  sides = [[[i + 10] + [7] * (pair[side] - 1) for i, pair in enumerate(lengths)] for side in (0, 1)]
  options = {"num_buckets": num_buckets, "batch_size": batch_size, "seed": seed}
  return Buckets(*map(RaggedTokens.join, sides), **options)


def _many(**options):
  lengths = [pair for pair, count in LENGTHS.items() for _ in range(count)]
  return _buckets(np.random.default_rng(3).permutation(lengths).tolist(), **options)


def _epoch(buckets, epoch):
  first = epoch * buckets.batches_per_epoch
  return [buckets.batch(step) for step in range(first, first + buckets.batches_per_epoch)]


def _numbers(batch):
  """Returns the indices of the pairs of a batch."""
  return [int(number) - 10 for number in batch.sources[:, 0] if number]


def _same(first, second):
  return all(map(np.array_equal, first, second))


def _num_positions(sizes, lengths):
  """Returns the number of padded positions of sentences in buckets."""
  return sum(min(length for length in lengths if length >= size) for size in sizes)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=20), st.integers(1, 5))
@settings(max_examples=50)
def test_bucket_lengths_minimize_padding(sizes, num_buckets):
  lengths = optimal_bucket_lengths(np.array(sizes), num_buckets)
  assert lengths == sorted(set(lengths))
  assert len(lengths) <= num_buckets
  assert lengths[-1] == max(sizes)
  shorter = range(1, max(sizes))
  choices = (
    (*choice, max(sizes)) for count in range(num_buckets) for choice in itertools.combinations(shorter, count)
  )
  assert _num_positions(sizes, lengths) == min(_num_positions(sizes, choice) for choice in choices)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=5))
def test_many_buckets_need_no_padding(sizes):
  assert optimal_bucket_lengths(np.array(sizes), 7) == sorted(set(sizes))


def test_shapes_match_worked_example():
  buckets = _many()
  assert buckets.lengths == [4, 6, 12]
  # The mean padded length is (17 x 4 + 13 x 6 + 5 x 12) / 35 = 206/35, and 5 rows have 29.4 positions.
  assert buckets.num_rows == [7, 5, 2]
  # 17, 13 and 5 pairs in batches of 7, 5 and 2.
  assert buckets.batches_per_epoch == 3 + 3 + 3
  assert len(buckets) == 35
  shapes = {(7, 4), (5, 6), (2, 12)}
  for epoch in range(3):
    batches = _epoch(buckets, epoch)
    assert {batch.sources.shape for batch in batches} == shapes
    assert all(batch.sources.shape == batch.inputs.shape == batch.targets.shape for batch in batches)


def test_batches_have_at_least_one_row():
  buckets = _many(batch_size=1)
  assert min(buckets.num_rows) == 1
  assert sorted(itertools.chain(*map(_numbers, _epoch(buckets, 0)))) == list(range(35))


@given(
  st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=30),
  st.integers(1, 4),
  st.integers(1, 7),
)
@settings(max_examples=30)
def test_epochs_have_every_pair_once(lengths, num_buckets, batch_size):
  buckets = _buckets(lengths, num_buckets=num_buckets, batch_size=batch_size)
  for epoch in range(3):
    batches = _epoch(buckets, epoch)
    assert sorted(itertools.chain(*map(_numbers, batches))) == list(range(len(lengths)))
    assert all(map(_numbers, batches))  # no batch is only padding


def test_batches_of_a_bucket_are_even():
  sizes = collections.defaultdict(list)
  for batch in _epoch(_many(), 0):
    sizes[batch.sources.shape].append(len(_numbers(batch)))
  assert {shape: sorted(counts) for shape, counts in sizes.items()} == {
    (7, 4): [5, 6, 6],
    (5, 6): [4, 4, 5],
    (2, 12): [1, 2, 2],
  }


def test_pairs_stay_together():
  lengths = [(1 + i % 5, 1 + i % 3) for i in range(23)]
  for batch in _epoch(_buckets(lengths), 0):
    B, length = batch.sources.shape
    numbers = _numbers(batch)
    for row, number in enumerate(numbers):
      source, target = ([number + 10] + [7] * (count - 1) for count in lengths[number])
      assert batch.sources[row].tolist() == source + [2] + [0] * (length - len(source) - 1)
      assert batch.source_lengths[row] == len(source) + 1
      assert batch.inputs[row].tolist() == [1, *target] + [0] * (length - len(target) - 1)
      assert batch.targets[row].tolist() == target + [2] + [0] * (length - len(target) - 1)
    empty = B - len(numbers)
    assert batch.source_lengths[len(numbers) :].tolist() == [0] * empty
    assert not any(array[len(numbers) :].any() for array in batch[:4])


def test_alignments_match_their_pairs():
  lengths = [(1 + i % 5, 1 + i % 3) for i in range(23)]
  sides = (
    RaggedTokens.join([i + 10] + [7] * (side[i] - 1) for i in range(23))
    for side in zip(*lengths, strict=True)
  )
  alignments = [frozenset({(i % 3, i % 5)}) for i in range(23)]
  buckets = Buckets(*sides, num_buckets=3, batch_size=4, seed=0, alignments=alignments)
  for batch in _epoch(buckets, 0):
    for row, number in enumerate(_numbers(batch)):
      assert np.argwhere(batch.links[row]).tolist() == [[number % 3, number % 5]]
    assert not batch.links[len(_numbers(batch)) :].any()


def test_epochs_have_different_orders():
  epochs = [[_numbers(batch) for batch in _epoch(_many(), epoch)] for epoch in range(3)]
  for first, second in itertools.combinations(epochs, 2):
    assert first != second
    assert set(map(frozenset, first)) != set(map(frozenset, second))


def test_batches_depend_on_seed_and_step():
  steps = range(30)  # more than three epochs
  expected = {step: _many(seed=3).batch(step) for step in steps}
  same_seed = _many(seed=3)
  for step in np.random.default_rng(0).permutation(steps).tolist():  # any order, as after a restart
    assert _same(same_seed.batch(step), expected[step])
  other_seed = _many(seed=4)
  assert not all(_same(other_seed.batch(step), expected[step]) for step in range(3))


def test_lengths_are_shuffled():
  orders = [[batch.sources.shape[1] for batch in _epoch(_many(), epoch)] for epoch in range(3)]
  assert all(order not in (sorted(order), sorted(order)[::-1]) for order in orders)
  assert orders[0] != orders[1]
