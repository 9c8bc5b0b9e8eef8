"""Tests of experiments/data/scan/scan.py."""

import collections
import functools

import numpy as np
import pytest

from configs import base
from experiments.data.scan import scan_grammar
from experiments.data.tasks import Scan
from experiments.data.vocabularies import PAD_ID


@functools.cache
def _task(split="simple", seed=0):
  data = base.Data(task="scan", split=split, num_buckets=3)
  return Scan(base.Config(seed=seed, data=data, train=base.Train(batch_size=509)))


def _epoch(task):
  """Returns the commands of slightly more than one epoch."""
  pairs = []
  for step in range(len(scan_grammar.commands()) // 509 + 3):
    batch = task.training_batch(step)
    for source, target in zip(batch.sources, batch.targets, strict=True):
      if source[0] != PAD_ID:
        pairs.append((task.source.vocabulary.decode(source), task.target.vocabulary.decode(target)))
  return pairs


@pytest.mark.parametrize("split", ["simple", "add_jump"])
def test_batches_are_training_commands(split):
  training, _ = scan_grammar.split(split, 0)
  pairs = _epoch(_task(split))[: len(training)]
  assert collections.Counter(pairs) == collections.Counter(map(tuple, training))


def test_vocabularies_match_the_paper():
  task = _task()
  assert sorted(task.target.vocabulary.words) == [
    "I_JUMP",
    "I_LOOK",
    "I_RUN",
    "I_TURN_LEFT",
    "I_TURN_RIGHT",
    "I_WALK",
  ]
  assert len(task.source.vocabulary.words) == 13


@pytest.mark.parametrize("split", ["simple", "length"])
def test_examples_are_test_commands(split):
  _, test = scan_grammar.split(split, 0)
  examples = _task(split).examples("test", 0)
  assert [(example.source, example.target) for example in examples] == list(map(tuple, test))
  assert _task(split).examples("test", 7) == examples[:7]


@pytest.mark.parametrize("split", list(scan_grammar.SPLITS))
def test_train_subset_has_training_commands(split):
  training, _ = scan_grammar.split(split, 0)
  subset = _task(split).examples("train_subset", 0)
  assert len(subset) == 1000
  positions = collections.defaultdict(list)
  for position, command in enumerate(training):
    positions[command.words].append(position)
  first = [positions[example.source][0] for example in subset[:200] if len(positions[example.source]) == 1]
  quarters = np.histogram(first, bins=4, range=(0, len(training)))[0]
  assert min(quarters) > 20
  assert _task(split).examples("train_subset", 200) == subset[:200]


def test_seed_changes_split_and_order():
  first_seed, second_seed = _task("simple", 0), _task("simple", 1)
  assert set(first_seed.examples("test", 0)) != set(second_seed.examples("test", 0))
  same_commands = _task("length", 0), _task("length", 1)
  assert same_commands[0].examples("train", 0) == same_commands[1].examples("train", 0)
  first, second = (task.training_batch(0) for task in same_commands)
  assert not np.array_equal(first.sources, second.sources)
