"""The toy task: batches and examples of sentence_sampler.py."""

import itertools

import chex
import numpy as np
import pytest

from configs import base
from experiments.cli.errors import DataError
from experiments.data.toy import grammar, sentence_sampler
from experiments.data.toy.toy_translation import BATCHES_PER_GROUP, ToyTranslation
from experiments.data.vocabularies import PAD_ID, UNK_ID


def make_toy(seed=0, batch_size=3, num_buckets=3, alignment_loss_weight=0.0):
  train = base.Train(batch_size=batch_size, alignment_loss_weight=alignment_loss_weight)
  return ToyTranslation(base.Config(seed=seed, data=base.Data(num_buckets=num_buckets), train=train))


def test_batches_have_each_sentence_once():
  task = make_toy(seed=5, alignment_loss_weight=0.5)
  samples = []
  for step in range(2 * BATCHES_PER_GROUP):
    batch = task.training_batch(step)
    assert not (batch.sources == UNK_ID).any() and not (batch.targets == UNK_ID).any()
    chex.assert_shape(batch.links, (3, batch.targets.shape[1], batch.sources.shape[1]))
    for source, length, target, links in zip(
      batch.sources, batch.source_lengths, batch.targets, batch.links, strict=True
    ):
      words = task.source.vocabulary.decode(source)
      assert length == len(words) + 1
      alignment = frozenset(map(tuple, np.argwhere(links).tolist()))
      samples.append(grammar.Pair(words, task.target.vocabulary.decode(target), alignment))
  pairs = [sentence_sampler.pair(seed=5, split="train", index=index) for index in range(len(samples))]
  assert sorted(samples, key=str) == sorted(pairs, key=str)
  assert make_toy().training_batch(1).links is None
  # A batch depends on the seed and the step only.
  chex.assert_trees_all_equal(make_toy(seed=5).training_batch(2)[:4], task.training_batch(2)[:4])


@pytest.mark.parametrize("num_buckets", [1, 2, 3])
def test_batches_have_few_shapes(num_buckets):
  task = make_toy(batch_size=20, num_buckets=num_buckets)
  batches = [task.training_batch(step) for step in range(2 * BATCHES_PER_GROUP)]
  lengths = [batch.sources.shape[1] for batch in batches]
  assert len(set(lengths)) == num_buckets
  assert max(lengths) == sentence_sampler.TRAIN_MAX_TARGET_LENGTH + 1
  assert {batch.targets.shape for batch in batches} == {(20, length) for length in lengths}
  # The order of the batches of each group is random.
  assert num_buckets == 1 or lengths[:BATCHES_PER_GROUP] != lengths[BATCHES_PER_GROUP:]


def test_batches_have_similar_lengths():
  task = make_toy(batch_size=20)
  ranges = []
  for batch in map(task.training_batch, range(BATCHES_PER_GROUP)):
    sizes = np.maximum(batch.source_lengths, np.sum(batch.targets != PAD_ID, axis=1))
    ranges.append((sizes.min(), sizes.max()))
  assert all(before[1] <= after[0] for before, after in itertools.pairwise(sorted(ranges)))


def test_examples_have_words_and_text():
  for split in sentence_sampler.SPLITS:
    for index, example in enumerate(make_toy(seed=5).examples(split, 4)):
      # All seeds are evaluated on the same sentences.
      pair = sentence_sampler.pair(seed=5 if split == "train" else 0, split=split, index=index)
      assert example == (*pair, " ".join(pair.source), grammar.join(pair.target), frozenset())


def test_examples_check_their_arguments():
  for split, count, message in (
    ("test", 0, "the number of examples of toy_translation must be at least 1, got 0"),
    ("tests", 3, "split must be one of train, validation, test, length, composition, got 'tests'"),
  ):
    with pytest.raises(DataError, match=message):
      make_toy().examples(split, count)


def test_text_round_trips():
  task = make_toy()
  assert task.source.tokenize("The Cat sees") == ("the", "cat", "sees")
  assert task.target.detokenize(("l'", "amico", "vede")) == "l'amico vede"
  for example in task.examples("test", 300) + task.examples("length", 100):
    assert task.source.tokenize(example.source_text) == example.source
    assert task.target.tokenize(example.target_text) == example.target
    assert task.target.detokenize(example.target) == example.target_text
