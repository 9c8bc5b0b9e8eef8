"""Tests of experiments/data/toy/toy_translation.py and `make_task`."""

import itertools

import numpy as np
import pytest

from configs import base
from experiments.cli.config_fields import ConfigError
from experiments.cli.errors import DataError
from experiments.data.tasks import ToyTranslation, make_task
from experiments.data.toy import grammar, sentence_sampler
from experiments.data.toy.toy_translation import BATCHES_PER_GROUP
from experiments.data.vocabularies import PAD_ID, UNK_ID


def _toy(seed=0, batch_size=3, num_buckets=3):
  data, train = base.Data(num_buckets=num_buckets), base.Train(batch_size=batch_size)
  return ToyTranslation(base.Config(seed=seed, data=data, train=train))


def _sources(task, batch):
  """Returns the words of the sources of a batch."""
  return [task.source.vocabulary.decode(row) for row in batch.sources]


def _same(first, second):
  return all(map(np.array_equal, first, second))


def test_batches_have_each_sentence_once():
  task = _toy(seed=5)
  pairs_of_batches = []
  for step in range(2 * BATCHES_PER_GROUP):
    batch = task.training_batch(step)
    targets = [task.target.vocabulary.decode(row) for row in batch.targets]
    pairs_of_batches += zip(_sources(task, batch), targets, strict=True)
    assert batch.source_lengths.tolist() == [len(source) + 1 for source in _sources(task, batch)]
    assert not (batch.sources == UNK_ID).any()
    assert not (batch.targets == UNK_ID).any()
  pairs = [
    sentence_sampler.pair(seed=5, split="train", index=index) for index in range(len(pairs_of_batches))
  ]
  assert sorted(pairs_of_batches) == sorted((pair.source, pair.target) for pair in pairs)


def test_batches_have_links_if_asked():
  assert _toy().training_batch(1).links is None
  train = base.Train(batch_size=5, alignment_loss_weight=0.5)
  batch = ToyTranslation(base.Config(train=train)).training_batch(1)
  assert batch.links.shape == (5, batch.targets.shape[1], batch.sources.shape[1])
  task = _toy()
  pairs = {
    pair.source: pair
    for pair in (sentence_sampler.pair(seed=0, split="train", index=i) for i in range(5 * BATCHES_PER_GROUP))
  }
  for words, links in zip(_sources(task, batch), batch.links, strict=True):
    assert set(map(tuple, np.argwhere(links).tolist())) == pairs[words].alignment


def test_batches_depend_on_seed_and_step():
  batch = _toy(seed=5).training_batch(2)
  same_seed = _toy(seed=5)
  same_seed.training_batch(0)
  assert _same(batch, same_seed.training_batch(2))
  assert not np.array_equal(batch.sources, same_seed.training_batch(3).sources)
  assert not np.array_equal(batch.sources, _toy(seed=6).training_batch(2).sources)


@pytest.mark.parametrize("num_buckets", [1, 2, 3])
def test_batches_have_few_shapes(num_buckets):
  task = _toy(batch_size=20, num_buckets=num_buckets)
  batches = [task.training_batch(step) for step in range(3 * BATCHES_PER_GROUP)]
  lengths = [batch.sources.shape[1] for batch in batches]
  assert len(set(lengths)) == num_buckets
  assert max(lengths) == sentence_sampler.TRAIN_MAX_TARGET_LENGTH + 1
  assert {batch.targets.shape for batch in batches} == {(20, length) for length in lengths}
  assert (
    num_buckets == 1
    or len({tuple(lengths[i * BATCHES_PER_GROUP : (i + 1) * BATCHES_PER_GROUP]) for i in range(3)}) == 3
  )


def test_batches_have_similar_lengths():
  task = _toy(batch_size=20)
  ranges = []
  for step in range(BATCHES_PER_GROUP):
    batch = task.training_batch(step)
    sizes = np.maximum(batch.source_lengths, np.sum(batch.targets != PAD_ID, axis=1))
    ranges.append((sizes.min(), sizes.max()))
  ranges.sort()
  assert all(before[1] <= after[0] for before, after in itertools.pairwise(ranges))


def test_examples_have_words_and_text():
  for split in sentence_sampler.SPLITS:
    for index, example in enumerate(_toy(seed=5).examples(split, 4)):
      # All seeds are evaluated on the same sentences.
      pair = sentence_sampler.pair(seed=5 if split == "train" else 0, split=split, index=index)
      assert example == (*pair, " ".join(pair.source), grammar.join(pair.target), frozenset())


def test_number_of_examples_is_required():
  with pytest.raises(DataError, match="the number of examples of toy_translation must be at least 1, got 0"):
    _toy().examples("test", 0)


def test_unknown_splits_are_errors():
  with pytest.raises(DataError, match=r"^split must be one of train, validation, .*, got 'tests'$"):
    _toy().examples("tests", 3)


def test_text_round_trips():
  task = _toy()
  assert task.source.tokenize("The Cat sees") == ("the", "cat", "sees")
  assert task.target.detokenize(("l'", "amico", "vede")) == "l'amico vede"
  for example in task.examples("test", 50):
    assert task.source.tokenize(example.source_text) == example.source
    assert task.target.detokenize(example.target) == example.target_text


def test_unknown_tasks_are_errors():
  with pytest.raises(ConfigError, match=r"^config.data.task must be one of toy_translation, scan, "):
    make_task(base.Config(data=base.Data(task="toy")))
