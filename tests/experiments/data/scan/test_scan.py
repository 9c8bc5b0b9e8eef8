"""SCAN as a task."""

import collections
import functools

import numpy as np
import pytest

from configs import base
from experiments.cli.errors import DataError
from experiments.data.scan import scan_grammar
from experiments.data.scan.scan import Scan
from experiments.data.vocabularies import PAD_ID


@functools.cache
def make_scan(split="simple", seed=0):
  data = base.Data(task="scan", split=split, num_buckets=3)
  return Scan(base.Config(seed=seed, data=data, train=base.Train(batch_size=509)))


@pytest.mark.parametrize("split", ["simple", "add_jump"])
def test_batches_are_training_commands(split):
  task, (training, _) = make_scan(split), scan_grammar.split(split, 0)
  pairs = []
  for step in range(len(training) // 509 + 3):  # slightly more than an epoch
    batch = task.training_batch(step)
    for source, target in zip(batch.sources, batch.targets, strict=True):
      if source[0] != PAD_ID:
        pairs.append((task.source.vocabulary.decode(source), task.target.vocabulary.decode(target)))
  assert collections.Counter(pairs[: len(training)]) == collections.Counter(map(tuple, training))
  assert (len(task.source.vocabulary.words), len(task.target.vocabulary.words)) == (13, 6)


@pytest.mark.parametrize("split", ["simple", "length"])
def test_examples_are_test_commands(split):
  task, (training, test) = make_scan(split), scan_grammar.split(split, 0)
  examples = task.examples("test", 0)
  assert [(example.source, example.target) for example in examples] == list(map(tuple, test))
  assert all(task.source.tokenize(example.source_text) == example.source for example in examples[::97])
  assert all(task.target.detokenize(example.target) == example.target_text for example in examples[::97])
  assert task.examples("test", 7) == examples[:7]
  assert len(task.examples("train", 0)) == len(training)
  assert str(task) == f"SCAN, split {split}: {len(training):,} training and {len(test):,} test commands"
  with pytest.raises(DataError, match="split must be one of train, train_subset, test, got 'validation'"):
    task.examples("validation", 1)


def test_train_subset_is_spread_over_training():
  training, _ = scan_grammar.split("length", 0)
  subset = make_scan("length").examples("train_subset", 0)
  assert len(subset) == len({example.source for example in subset}) == 1000
  positions = {command.words: position for position, command in enumerate(training)}
  quarters = np.histogram([positions[example.source] for example in subset[:200]], 4, (0, len(training)))[0]
  assert min(quarters) > 20


def test_seed_changes_split_and_order():
  first, second = make_scan("simple", 0), make_scan("simple", 1)
  assert set(first.examples("test", 0)) != set(second.examples("test", 0))
  first, second = make_scan("length", 0), make_scan("length", 1)
  assert first.examples("train", 0) == second.examples("train", 0)
  assert not np.array_equal(first.training_batch(0).sources, second.training_batch(0).sources)
