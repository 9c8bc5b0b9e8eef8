"""Tests of experiments/translation/tasks: what all of them have, and the built-in toy language."""

import itertools

import numpy as np
import pytest

from configs import base
from experiments.commands.fields import ConfigError
from experiments.commands.mistakes import DataError
from experiments.runs.rows import Rows
from experiments.tasks import TASKS, ParallelText, Scan, ToyTranslation, drawing, grammar, make_task
from experiments.tasks.toy_translation import ROUND
from experiments.text.languages import Language
from experiments.text.tokenizers import Words
from experiments.text.vocabularies import PAD, UNKNOWN, Vocabulary


def _toy(seed=0, batch_size=3, num_buckets=3):
  data, train = base.Data(num_buckets=num_buckets), base.Train(batch_size=batch_size)
  return ToyTranslation(base.Config(seed=seed, data=data, train=train))


def _sources(task, batch):
  """Returns the words of the sources of a batch."""
  return [task.source.vocabulary.decode(row) for row in batch.sources]


def _same(first, second):
  return all(map(np.array_equal, first, second))


def test_toy_batches_have_each_sentence_once():
  task = _toy(seed=5)
  found = []
  for step in range(2 * ROUND):
    batch = task.training_batch(step)
    targets = [task.target.vocabulary.decode(row) for row in batch.targets]
    found += zip(_sources(task, batch), targets, strict=True)
    assert batch.source_lengths.tolist() == [len(source) + 1 for source in _sources(task, batch)]
    assert not (batch.sources == UNKNOWN).any()
    assert not (batch.targets == UNKNOWN).any()
  pairs = [drawing.pair(seed=5, split="train", index=index) for index in range(len(found))]
  assert sorted(found) == sorted((pair.source, pair.target) for pair in pairs)


def test_toy_batches_have_links_where_they_are_asked_for():
  assert _toy().training_batch(1).links is None
  train = base.Train(batch_size=5, alignment_weight=0.5)
  batch = ToyTranslation(base.Config(train=train)).training_batch(1)
  assert batch.links.shape == (5, batch.targets.shape[1], batch.sources.shape[1])
  task = _toy()
  pairs = {
    pair.source: pair for pair in (drawing.pair(seed=0, split="train", index=i) for i in range(5 * ROUND))
  }
  for words, links in zip(_sources(task, batch), batch.links, strict=True):
    assert set(map(tuple, np.argwhere(links).tolist())) == pairs[words].alignment
  own = ToyTranslation(base.Config(train=train)).training_batch(1, Rows(1, 2, 2))
  np.testing.assert_array_equal(own.links[:2], batch.links[3:])


def test_a_toy_batch_is_a_function_of_seed_and_step():
  batch = _toy(seed=5).training_batch(2)
  other = _toy(seed=5)
  other.training_batch(0)
  assert _same(batch, other.training_batch(2))
  assert not np.array_equal(batch.sources, other.training_batch(3).sources)
  assert not np.array_equal(batch.sources, _toy(seed=6).training_batch(2).sources)


@pytest.mark.parametrize("num_buckets", [1, 2, 3])
def test_toy_batches_have_a_few_shapes_in_any_order(num_buckets):
  task = _toy(batch_size=20, num_buckets=num_buckets)
  batches = [task.training_batch(step) for step in range(3 * ROUND)]
  lengths = [batch.sources.shape[1] for batch in batches]
  assert len(set(lengths)) == num_buckets
  assert max(lengths) == drawing.TRAIN_MAX_TARGET_LENGTH + 1
  assert {batch.targets.shape for batch in batches} == {(20, length) for length in lengths}
  assert num_buckets == 1 or len({tuple(lengths[i * ROUND : (i + 1) * ROUND]) for i in range(3)}) == 3


def test_sentences_of_a_toy_batch_are_alike_in_length():
  task = _toy(batch_size=20)
  ranges = []
  for step in range(ROUND):
    batch = task.training_batch(step)
    sizes = np.maximum(batch.source_lengths, np.sum(batch.targets != PAD, axis=1))
    ranges.append((sizes.min(), sizes.max()))
  ranges.sort()
  assert all(before[1] <= after[0] for before, after in itertools.pairwise(ranges))


@pytest.mark.parametrize(("count", "multiple"), [(2, 2), (2, 8), (7, 7)])
def test_the_rows_of_all_processes_are_the_toy_batch_and_padding(count, multiple):
  task = _toy(batch_size=5)
  whole = task.training_batch(3)
  parts = [task.training_batch(3, Rows(index, count, multiple)) for index in range(count)]
  for array, *own in list(zip(whole, *parts, strict=True))[:4]:
    together = np.concatenate(own)
    assert len(together) == {2: 6, 8: 8, 7: 7}[multiple]
    assert together[:5].tolist() == array.tolist()
    assert not together[5:].any()


def test_training_sentences_are_in_no_other_toy_split():
  task = _toy(batch_size=50)
  trained = set(itertools.chain.from_iterable(_sources(task, task.training_batch(i)) for i in range(6)))
  assert len(trained) > 250
  assert set(task.splits) == set(drawing.SPLITS) - {"train"}
  assert task.watched in task.splits
  for split in task.splits:
    assert not trained & {example.source for example in task.examples(split, 60)}


def test_toy_examples_have_words_text_and_alignment():
  for split in drawing.SPLITS:
    for index, example in enumerate(_toy(seed=5).examples(split, 4)):
      # All seeds are scored on the same sentences.
      pair = drawing.pair(seed=5 if split == "train" else 0, split=split, index=index)
      assert example == (*pair, " ".join(pair.source), grammar.join(pair.target))


def test_all_of_the_endless_toy_sentences_is_an_error():
  with pytest.raises(DataError, match="endless sentences: their number must be at least 1, got 0"):
    _toy().examples("test", 0)


def test_a_split_that_toy_sentences_have_not_is_an_error():
  with pytest.raises(DataError, match=r"^split must be one of train, validation, .*, got 'tests'$"):
    _toy().examples("tests", 3)


def test_a_toy_task_cuts_and_joins_text():
  task = _toy()
  assert task.source.tokenize("The Cat sees") == ("the", "cat", "sees")
  assert task.target.detokenize(("l'", "amico", "vede")) == "l'amico vede"
  for example in task.examples("test", 50):
    assert task.source.tokenize(example.source_text) == example.source
    assert task.target.detokenize(example.target) == example.target_text


@pytest.mark.parametrize("name", ["toy_translation", "scan"])
def test_a_built_in_task_takes_the_languages_of_a_run_only_if_they_have_its_own_words(name):
  config = base.Config(data=base.Data(task=name))
  task = make_task(config)
  # As they are read from a workdir, which knows of words alone.
  own = tuple(Language(Words(), side.vocabulary, lowercase=True) for side in (task.source, task.target))
  again = make_task(config, own)
  assert (again.source, again.target) == (task.source, task.target)
  more = Language(Words(), Vocabulary((*own[1].vocabulary.words, "zebra")), lowercase=True)
  for others in (own[::-1], (own[0], more)):
    with pytest.raises(DataError, match="other words"):
      make_task(config, others)


@pytest.mark.parametrize(
  ("name", "kind"), [("toy_translation", ToyTranslation), ("scan", Scan), ("parallel_text", ParallelText)]
)
def test_make_task_gives_what_the_config_names(name, kind, tmp_path):
  path = tmp_path / "pairs.tsv"
  path.write_text("a\tx\n", "utf-8")
  data = base.Data(task=name, train=str(path), validation=str(path), min_count=1)
  assert type(make_task(base.Config(data=data))) is kind
  assert TASKS[name] is kind


def test_a_task_of_another_name_is_an_error():
  with pytest.raises(ConfigError, match=r"^config.data.task must be one of toy_translation, scan, "):
    make_task(base.Config(data=base.Data(task="toy")))
