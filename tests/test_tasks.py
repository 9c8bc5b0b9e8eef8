"""Tests of experiments/translation/tasks.py."""

import collections
import itertools

import numpy as np
import pytest

from configs import base
from experiments.translation import grammar
from experiments.translation.parallel_text import DataError
from experiments.translation.tasks import SPLITS, ParallelText, ToyTranslation, make_task
from experiments.translation.vocabularies import END, PAD, START, UNKNOWN, Vocabulary

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def _toy(seed=0, batch_size=3):
  return ToyTranslation(base.Config(seed=seed, train=base.Train(batch_size=batch_size)))


def _sources(task, batch):
  """Returns the words of the sources of a batch."""
  return [task.source_vocabulary.decode(row) for row in batch.sources]


def _same(first, second):
  return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_toy_batch_is_the_sentences_of_its_step():
  task = _toy(seed=5)
  batch = task.training_batch(2)
  pairs = [grammar.pair(seed=5, split="train", index=index) for index in (6, 7, 8)]
  assert _sources(task, batch) == [pair.source for pair in pairs]
  assert [task.target_vocabulary.decode(row) for row in batch.targets] == [pair.target for pair in pairs]
  assert batch.source_lengths.tolist() == [len(pair.source) + 1 for pair in pairs]
  assert not (batch.sources == UNKNOWN).any()
  assert not (batch.targets == UNKNOWN).any()


def test_a_toy_batch_is_a_function_of_seed_and_step():
  batch = _toy(seed=5).training_batch(2)
  other = _toy(seed=5)
  other.training_batch(0)
  assert _same(batch, other.training_batch(2))
  assert not np.array_equal(batch.sources, other.training_batch(3).sources)
  assert not np.array_equal(batch.sources, _toy(seed=6).training_batch(2).sources)


def test_all_toy_batches_have_one_shape():
  task = _toy()
  shapes = {tuple(array.shape for array in task.training_batch(step)) for step in range(20)}
  assert len(shapes) == 1


def test_training_sentences_are_in_no_other_toy_split():
  task = _toy(batch_size=50)
  trained = set(itertools.chain.from_iterable(_sources(task, task.training_batch(i)) for i in range(6)))
  assert len(trained) > 250
  assert set(task.splits) == set(SPLITS) - {"train"}
  for split in task.splits:
    assert not trained & {example.source for example in task.examples(split, 60)}


def test_toy_examples_have_words_text_and_alignment():
  for split in SPLITS:
    for index, example in enumerate(_toy(seed=5).examples(split, 4)):
      # All seeds are scored on the same sentences.
      pair = grammar.pair(seed=5 if split == "train" else 0, split=split, index=index)
      assert example == (*pair, " ".join(pair.source), grammar.join(pair.target))


def test_all_of_the_endless_toy_sentences_is_an_error():
  with pytest.raises(ValueError, match="got 0"):
    _toy().examples("test", 0)


def test_a_toy_task_takes_the_vocabularies_of_a_run_only_if_they_are_its_own():
  task = _toy()
  own = task.source_vocabulary, task.target_vocabulary
  assert make_task(base.Config(), own).source_vocabulary == own[0]
  for others in (own[::-1], (own[0], Vocabulary((*own[1].words, "zebra")))):
    with pytest.raises(DataError, match="other words"):
      make_task(base.Config(), others)


def test_a_toy_task_cuts_and_joins_text():
  task = _toy()
  assert task.tokenize("The Cat sees") == ("the", "cat", "sees")
  assert task.detokenize(("l'", "amico", "vede")) == "l'amico vede"


def _write(path, pairs):
  path.write_text("".join("\t".join(fields) + "\n" for fields in pairs), "utf-8")
  return str(path)


def _parallel_text(tmp_path, pairs, *, seed=0, batch_size=2, vocabularies=None, **data):
  """Returns the task of these pairs, which are its validation text as well."""
  path = _write(tmp_path / "pairs.tsv", pairs)
  options = {"min_count": 1, "validation": path} | data
  config = base.Config(
    seed=seed,
    data=base.Data(task="parallel_text", train=path, **options),
    train=base.Train(batch_size=batch_size),
  )
  return make_task(config, vocabularies)


def _distinct_pairs(count, length=lambda i: 1 + i % 4):
  """Returns pairs whose sources are different runs of letters, and targets the same in capitals."""
  words = ["".join(word) for word in itertools.product(ALPHABET, repeat=2)]
  sources = [" ".join([words[i]] + [words[-1]] * (length(i) - 1)) for i in range(count)]
  return [(source, source.upper()) for source in sources]


def _epoch(task, epoch):
  """Returns the sources of the batches of an epoch, as text."""
  first = epoch * task.batches_per_epoch
  steps = range(first, first + task.batches_per_epoch)
  return [[" ".join(words) for words in _sources(task, task.training_batch(step))] for step in steps]


def _flat(batches):
  return list(itertools.chain.from_iterable(batches))


@pytest.mark.parametrize("count", [12, 300])  # one pool of batches, and several
def test_every_pair_is_trained_on_once_in_each_epoch(tmp_path, count):
  pairs = _distinct_pairs(count)
  task = _parallel_text(tmp_path, pairs)
  assert task.batches_per_epoch == count // 2
  for epoch in range(3):
    assert sorted(_flat(_epoch(task, epoch))) == sorted(source for source, _ in pairs)


def test_a_source_comes_with_its_own_target(tmp_path):
  task = _parallel_text(tmp_path, _distinct_pairs(12), lowercase=False)
  for step in range(6):
    batch = task.training_batch(step)
    for source, row in zip(_sources(task, batch), batch.targets, strict=True):
      assert task.target_vocabulary.decode(row) == tuple(word.upper() for word in source)


def test_pairs_that_fill_no_batch_change_from_epoch_to_epoch(tmp_path):
  pairs = _distinct_pairs(11)
  task = _parallel_text(tmp_path, pairs, batch_size=4)
  seen = [_flat(_epoch(task, epoch)) for epoch in range(8)]
  assert [len(set(sources)) for sources in seen] == [8] * 8
  assert set(_flat(seen)) == {source for source, _ in pairs}


def test_fewer_pairs_than_a_batch_make_one_small_batch(tmp_path):
  task = _parallel_text(tmp_path, _distinct_pairs(3), batch_size=8)
  assert task.batches_per_epoch == 1
  assert len(_epoch(task, 0)[0]) == 3


def test_each_epoch_has_its_own_order(tmp_path):
  task = _parallel_text(tmp_path, _distinct_pairs(40))
  epochs = [_epoch(task, epoch) for epoch in range(3)]
  for first, second in itertools.combinations(epochs, 2):
    assert first != second
    # Not only the batches are in another order, but other pairs are together.
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in second}


def test_the_order_is_a_function_of_seed_and_step(tmp_path):
  pairs = _distinct_pairs(40)
  batch = _parallel_text(tmp_path, pairs, seed=3).training_batch(47)
  other = _parallel_text(tmp_path, pairs, seed=3)
  for step in (0, 33, 5):  # in any order, as after a restart
    other.training_batch(step)
  assert _same(batch, other.training_batch(47))
  assert _epoch(other, 0) != _epoch(_parallel_text(tmp_path, pairs, seed=4), 0)


def test_a_batch_is_alike_in_length_and_lengths_come_in_no_order(tmp_path):
  pairs = _distinct_pairs(100, length=lambda i: 1 + i % 10)
  task = _parallel_text(tmp_path, pairs, batch_size=5)
  lengths = [{len(words.split()) for words in batch} for batch in _epoch(task, 0)]
  # Ten pairs of each length are two whole batches.
  assert all(len(batch) == 1 for batch in lengths)
  order = [min(batch) for batch in lengths]
  assert order != sorted(order)
  assert collections.Counter(order) == dict.fromkeys(range(1, 11), 2)


def test_lengths_are_those_of_the_longer_side(tmp_path):
  pairs = [(word, " ".join(["x"] * (1 + i % 2 * 8))) for i, word in enumerate(ALPHABET[:8])]
  task = _parallel_text(tmp_path, pairs, batch_size=4)
  for step in range(2):
    lengths = (task.training_batch(step).targets != PAD).sum(axis=1)
    assert len(set(lengths.tolist())) == 1


def test_a_batch_is_padded_to_a_multiple_of_16_with_room_for_the_end(tmp_path):
  for words, padded in ((1, 16), (15, 16), (16, 32), (31, 32)):
    task = _parallel_text(tmp_path, [(" ".join("a" * words), "x y z")] * 2)
    batch = task.training_batch(0)
    assert batch.sources.shape == batch.inputs.shape == batch.targets.shape == (2, padded)
    assert batch.sources[0, : words + 1].tolist() == [4] * words + [END]
    assert batch.inputs[0, :5].tolist() == [START, 4, 5, 6, PAD]


def test_pairs_with_a_side_that_is_too_long_are_left_out_of_training(tmp_path):
  pairs = [("a b c", "x y z"), ("a b c d", "x"), ("e", "x y z w"), ("f", "v")]
  task = _parallel_text(tmp_path, pairs, batch_size=1, max_length=3)
  assert sorted(_flat(_epoch(task, 0))) == ["a b c", "f"]
  # They are scored all the same.
  assert len(task.examples("validation", 0)) == 4


def test_only_pairs_that_are_too_long_is_an_error(tmp_path):
  task = _parallel_text(tmp_path, [("a b", "x y")], max_length=1)
  with pytest.raises(DataError, match=r"pairs\.tsv: expected a pair of at most 1 words a side, got none"):
    task.training_batch(0)


def test_rare_words_of_the_training_text_are_unknown(tmp_path):
  pairs = [("the cat", "il gatto"), ("the dog", "il cane"), ("a cat", "un gatto")]
  task = _parallel_text(tmp_path, pairs, min_count=2, batch_size=3)
  # The frequent ones first, equally frequent ones by alphabet.
  assert task.source_vocabulary.words == ("cat", "the")
  assert task.target_vocabulary.words == ("gatto", "il")
  rows = {tuple(row[:3].tolist()) for row in task.training_batch(0).sources}
  assert rows == {(5, 4, END), (5, UNKNOWN, END), (UNKNOWN, 4, END)}


def test_a_run_that_goes_on_keeps_its_vocabularies(tmp_path):
  vocabularies = Vocabulary(("b", "a")), Vocabulary(("y", "x"))
  task = _parallel_text(tmp_path, [("a b", "x y")], vocabularies=vocabularies)
  assert (task.source_vocabulary, task.target_vocabulary) == vocabularies
  assert task.training_batch(0).sources[0, :3].tolist() == [5, 4, END]


def test_the_splits_are_the_files_that_are_given(tmp_path):
  assert _parallel_text(tmp_path, [("a", "x")]).splits == ("validation",)
  test = _write(tmp_path / "test.tsv", [("b", "y"), ("c", "z")])
  task = _parallel_text(tmp_path, [("a", "x")], test=test)
  assert task.splits == ("validation", "test")
  assert [example.source for example in task.examples("test", 0)] == [("b",), ("c",)]
  assert [example.source for example in task.examples("test", 1)] == [("b",)]
  assert [example.source for example in task.examples("validation", 0)] == [("a",)]


def test_alignments_of_a_third_column_are_kept(tmp_path):
  pairs = [("The cat sleeps.", "Il gatto dorme.", "0-0 2-1"), ("Hi", "Ciao", "")]
  first, second = _parallel_text(tmp_path, pairs).examples("validation", 0)
  assert first.source == ("the", "cat", "sleeps", ".")
  assert first.target == ("il", "gatto", "dorme", ".")
  assert first.alignment == {(0, 0), (1, 2)}
  assert first.source_text == "the cat sleeps."
  assert first.target_text == "il gatto dorme."
  assert second.alignment == frozenset()
  (unaligned,) = _parallel_text(tmp_path, [("Hi", "Ciao")]).examples("validation", 0)
  assert unaligned.alignment is None


def test_capitals_are_kept_if_asked(tmp_path):
  task = _parallel_text(tmp_path, [("The cat", "Il gatto")], lowercase=False)
  (example,) = task.examples("validation", 0)
  assert (example.source, example.target, example.target_text) == (
    ("The", "cat"),
    ("Il", "gatto"),
    "Il gatto",
  )
  assert task.tokenize("The CAT") == ("The", "CAT")
  assert task.source_vocabulary.words == ("The", "cat")


def test_pairs_that_are_left_out_are_counted(tmp_path):
  pairs = [("a", "x"), ("a b c", "x"), ("a", "x y z"), ("a b", "x y")]
  assert str(_parallel_text(tmp_path, pairs)) == "4 training pairs"
  task = _parallel_text(tmp_path, pairs, max_length=2)
  assert str(task) == "2 training pairs (2 more are longer than config.data.max_length=2)"


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
  missing = str(tmp_path / "nothing.tsv")
  config = base.Config(data=base.Data(task="parallel_text", train=missing, validation=missing))
  with pytest.raises(DataError, match=r"nothing\.tsv: .*No such file"):
    make_task(config).training_batch(0)


def test_a_malformed_line_is_an_error_that_names_file_and_line(tmp_path):
  with pytest.raises(DataError, match=r"pairs\.tsv:2: .*got 0 tabs"):
    _parallel_text(tmp_path, [("a", "x"), ("b",)]).training_batch(0)


def test_a_minimum_count_that_leaves_no_word_is_an_error_of_the_data(tmp_path):
  with pytest.raises(DataError, match="min_count"):
    _parallel_text(tmp_path, [("a", "x")], min_count=2).training_batch(0)


def test_make_task_gives_what_the_config_names(tmp_path):
  assert isinstance(make_task(base.Config()), ToyTranslation)
  assert isinstance(_parallel_text(tmp_path, [("a", "x")]), ParallelText)
