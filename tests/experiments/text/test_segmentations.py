"""Tests of experiments/text/segmentations.py."""

import collections

import numpy as np
import pytest

from experiments.text.segmentations import Segmentations
from experiments.text.sentences import Sentences

# Two sentences of 3 and 2 ways, with probabilities in quarters and thirds, and one of a single way.
WAYS = [[7, 8], [5, 4, 8], [9], [3, 3], [6, 6, 6, 6], []]
CUTS = Segmentations(
  Sentences.join(WAYS), np.array([0, 3, 5, 6]), np.log([2 / 4, 1 / 4, 1 / 4, 2 / 3, 1 / 3, 1.0]) + 5.0
)
ALL = np.array([9, 9, 9])


def _shares(cuts, longest, count=20_000):
  """Returns how often each way of each sentence is drawn."""
  rng = np.random.default_rng(3)
  drawn = [cuts.draw(rng, longest) for _ in range(count)]
  counts = [collections.Counter(tuple(each[i].tolist()) for each in drawn) for i in range(len(cuts))]
  return [{way: n / count for way, n in found.items()} for found in counts]


def test_draws_follow_the_probabilities():
  first, second, third = _shares(CUTS, ALL)
  # Four standard deviations of the share of 20,000 draws are at most 0.0142.
  assert first == pytest.approx({(7, 8): 0.5, (5, 4, 8): 0.25, (9,): 0.25}, abs=0.0142)
  assert second == pytest.approx({(3, 3): 2 / 3, (6, 6, 6, 6): 1 / 3}, abs=0.0142)
  assert third == {(): 1.0}


def test_long_segmentations_are_not_drawn():
  first, second, third = _shares(CUTS, np.array([2, 3, 0]))
  assert first == pytest.approx({(7, 8): 2 / 3, (9,): 1 / 3}, abs=0.0142)
  assert (second, third) == ({(3, 3): 1.0}, {(): 1.0})


def test_sentences_are_drawn_independently():
  rng = np.random.default_rng(5)
  cuts = CUTS.take(np.array([0, 0]))
  drawn = [cuts.draw(rng, ALL[:2]) for _ in range(2000)]
  same = np.mean([each[0].tolist() == each[1].tolist() for each in drawn])
  assert same == pytest.approx(1 / 4 + 1 / 16 + 1 / 16, abs=4 * 0.0108)


def test_the_first_segmentations_are_best():
  assert [sentence.tolist() for sentence in CUTS.best] == [[7, 8], [3, 3], []]


def test_some_sentences_can_be_taken():
  taken = CUTS.take(np.array([2, 0]))
  assert len(taken) == 2
  assert [way.tolist() for way in taken.ways] == [[], [7, 8], [5, 4, 8], [9]]
  assert taken.offsets.tolist() == [0, 1, 4]
  assert taken.logits.tolist() == CUTS.logits[[5, 0, 1, 2]].tolist()
