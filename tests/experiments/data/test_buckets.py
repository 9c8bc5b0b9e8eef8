"""Buckets of sentence pairs, and the array of their tokens. The ids of PAD, BOS and EOS are 0, 1 and 2."""

import collections
import itertools

import chex
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.data.buckets import Buckets, optimal_bucket_lengths
from experiments.data.ragged import RaggedTokens

# 17, 13 and 5 pairs of sizes 4, 6 and 12, with EOS.
LENGTHS = np.random.default_rng(3).permutation([(3, 2)] * 17 + [(1, 5)] * 13 + [(11, 7)] * 5).tolist()


def make_buckets(lengths=LENGTHS, *, num_buckets=3, batch_size=5, seed=0, alignments=None):
  """Returns buckets of pairs of some lengths. The first token of both sides of pair i is i + 10."""
  sides = [[[i + 10] + [7] * (pair[side] - 1) for i, pair in enumerate(lengths)] for side in (0, 1)]
  options = {"num_buckets": num_buckets, "batch_size": batch_size, "seed": seed, "alignments": alignments}
  return Buckets(*map(RaggedTokens.join, sides), **options)


def epoch_of(buckets, epoch):
  first = epoch * buckets.batches_per_epoch
  return [buckets.batch(step) for step in range(first, first + buckets.batches_per_epoch)]


def numbers_of(batch):
  """Returns the indices of the pairs of a batch."""
  return [int(number) - 10 for number in batch.sources[:, 0] if number]


def num_positions(sizes, lengths):
  """Returns the number of padded positions of sentences in buckets."""
  return sum(min(length for length in lengths if length >= size) for size in sizes)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=20), st.integers(1, 5))
@settings(max_examples=50)
def test_bucket_lengths_minimize_padding(sizes, num_buckets):
  lengths = optimal_bucket_lengths(np.array(sizes), num_buckets)
  assert lengths == sorted(set(lengths))
  assert len(lengths) <= num_buckets
  longest = max(sizes)
  assert lengths[-1] == longest
  choices = itertools.chain(*(itertools.combinations(range(1, longest), i) for i in range(num_buckets)))
  least = min(num_positions(sizes, (*choice, longest)) for choice in choices)
  assert num_positions(sizes, lengths) == least


def test_shapes_match_worked_example():
  buckets = make_buckets()
  assert buckets.lengths == [4, 6, 12]
  # The mean padded length is (17 x 4 + 13 x 6 + 5 x 12) / 35 = 206/35, and 5 rows have 29.4 positions.
  assert buckets.num_rows == [7, 5, 2]
  assert buckets.batches_per_epoch == 3 + 3 + 3
  assert len(buckets) == 35
  for epoch in range(3):
    counts = collections.defaultdict(list)
    for batch in epoch_of(buckets, epoch):
      assert batch.sources.shape == batch.inputs.shape == batch.targets.shape
      counts[batch.sources.shape].append(len(numbers_of(batch)))
    # Batches of a bucket are filled evenly.
    expected = {(7, 4): [5, 6, 6], (5, 6): [4, 4, 5], (2, 12): [1, 2, 2]}
    assert {shape: sorted(sizes) for shape, sizes in counts.items()} == expected


@given(
  st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=30),
  st.integers(1, 4),
  st.integers(1, 7),
)
@settings(max_examples=30)
def test_epochs_have_every_pair_once(lengths, num_buckets, batch_size):
  buckets = make_buckets(lengths, num_buckets=num_buckets, batch_size=batch_size)
  assert min(buckets.num_rows) >= 1
  for epoch in range(3):
    batches = epoch_of(buckets, epoch)
    assert sorted(itertools.chain(*map(numbers_of, batches))) == list(range(len(lengths)))
    assert all(map(numbers_of, batches))  # no batch is only padding


def test_pairs_stay_with_their_links():
  lengths = [(1 + i % 5, 1 + i % 3) for i in range(23)]
  alignments = [frozenset({(i % 3, i % 5)}) for i in range(23)]
  for batch in epoch_of(make_buckets(lengths, alignments=alignments), 0):
    length = batch.sources.shape[1]
    numbers = numbers_of(batch)
    for row, number in enumerate(numbers):
      source, target = ([number + 10] + [7] * (count - 1) for count in lengths[number])
      assert batch.sources[row].tolist() == source + [2] + [0] * (length - len(source) - 1)
      assert batch.source_lengths[row] == len(source) + 1
      assert batch.inputs[row].tolist() == [1, *target] + [0] * (length - len(target) - 1)
      assert batch.targets[row].tolist() == target + [2] + [0] * (length - len(target) - 1)
      assert np.argwhere(batch.links[row]).tolist() == [[number % 3, number % 5]]
    assert not any(array[len(numbers) :].any() for array in batch)  # padding


def test_epochs_have_different_orders():
  epochs = [epoch_of(make_buckets(), epoch) for epoch in range(3)]
  numbers = [[numbers_of(batch) for batch in batches] for batches in epochs]
  lengths = [[batch.sources.shape[1] for batch in batches] for batches in epochs]
  for first, second in itertools.combinations(numbers, 2):
    assert set(map(frozenset, first)) != set(map(frozenset, second))
  assert all(order not in (sorted(order), sorted(order)[::-1]) for order in lengths)
  assert lengths[0] != lengths[1]


def test_batches_depend_on_seed_and_step():
  steps = range(30)  # more than three epochs
  buckets, same_seed, other_seed = (make_buckets(seed=seed) for seed in (3, 3, 4))
  expected = {step: buckets.batch(step) for step in steps}
  for step in np.random.default_rng(0).permutation(steps).tolist():  # any order, as after a restart
    chex.assert_trees_all_equal(same_seed.batch(step), expected[step])
  assert any(not np.array_equal(other_seed.batch(step).sources, expected[step].sources) for step in range(3))


@given(st.lists(st.lists(st.integers(0, 2**31 - 1))))
@settings(max_examples=50)
def test_ragged_lists_round_trip(lists):
  sentences = RaggedTokens.join(iter(lists))
  # Iteration uses __getitem__, and ends at IndexError.
  assert [sentence.tolist() for sentence in sentences] == lists
  assert sentences.lengths.tolist() == [len(sentence) for sentence in lists]
  assert [s.tolist() for s in sentences.take(np.arange(len(lists))[::-1])] == lists[::-1]


@pytest.mark.parametrize("index", [-1, 2])
def test_ragged_indices_must_be_in_range(index):
  with pytest.raises(IndexError, match=rf"^index must be in \[0, 2\), got {index}$"):
    RaggedTokens.join([[7], [8]])[index]
