"""Tests of experiments/data/parallel_text.py. test_buckets.py tests the batches."""

import itertools
import re

import numpy as np
import pytest

from configs import base
from experiments.cli.errors import DataError
from experiments.data.tasks import make_task
from experiments.data.text_processor import TextProcessor
from experiments.data.tokenizers import WordTokenizer
from experiments.data.vocabularies import EOS_ID, PAD_ID, UNK_ID, Vocabulary

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def _write(path, pairs):
  path.write_text("".join("\t".join(fields) + "\n" for fields in pairs), "utf-8")
  return str(path)


def _task(tmp_path, pairs, *, seed=0, batch_size=2, languages=None, **data):
  """Returns a task that uses the pairs for training and validation."""
  path = _write(tmp_path / "pairs.tsv", pairs)
  options = {"min_count": 1, "validation_file": path} | data
  config = base.Config(
    seed=seed,
    data=base.Data(task="parallel_text", train_file=path, **options),
    train=base.Train(batch_size=batch_size),
  )
  return make_task(config, languages)


def _pairs(count):
  """Returns pairs of one to four words. Sources are distinct, and targets are the uppercased sources."""
  words = ["".join(letters) for letters in itertools.product(ALPHABET, repeat=2)]
  sources = [" ".join([words[i]] + [words[-1]] * (i % 4)) for i in range(count)]
  return [(source, source.upper()) for source in sources]


def _sources(task, steps):
  """Returns the source texts of some batches, without padding rows."""
  batches = [task.training_batch(step) for step in steps]
  rows = [row for batch in batches for row in batch.sources if row[0] != PAD_ID]
  return [task.source.detokenize(task.source.vocabulary.decode(row)) for row in rows]


def _same(first, second):
  return all(map(np.array_equal, first, second))


@pytest.mark.parametrize("tokenization", ["word", "character", "subword"])
def test_pairs_stay_together(tmp_path, tokenization):
  pairs = _pairs(40)
  task = _task(tmp_path, pairs, lowercase=False, tokenization=tokenization, vocabulary_size=288)
  seen = []
  for step in range(30):
    batch = task.training_batch(step)
    for source, target in zip(batch.sources, batch.targets, strict=True):
      if source[0] == PAD_ID:
        assert not target.any()
        continue
      text = task.source.detokenize(task.source.vocabulary.decode(source))
      assert task.target.detokenize(task.target.vocabulary.decode(target)) == text.upper()
      seen.append(text)
  # The first epoch has every pair once.
  assert sorted(seen[: len(pairs)]) == sorted(source for source, _ in pairs)


def _aligned(tmp_path, pairs, tokenization="word"):
  path = _write(tmp_path / "pairs.tsv", pairs)
  data = base.Data(
    task="parallel_text", train_file=path, validation_file=path, tokenization=tokenization, min_count=1
  )
  return make_task(base.Config(data=data, train=base.Train(batch_size=2, alignment_loss_weight=0.5)))


def test_batches_have_links(tmp_path):
  pairs = [(source, target, "0-0") for source, target in _pairs(5)]
  pairs[3] = (*pairs[3][:2], "3-2 1-0")
  assert _task(tmp_path, pairs).training_batch(0).links is None
  task, seen = _aligned(tmp_path, pairs), 0
  for batch in map(task.training_batch, range(3)):
    for source, length, links in zip(batch.sources, batch.source_lengths, batch.links, strict=True):
      desired = [[0, 1], [2, 3]] if length == 5 else [[0, 0]] if source[0] != PAD_ID else []
      assert np.argwhere(links).tolist() == desired
      seen += length == 5
  assert seen


@pytest.mark.parametrize(
  ("tokenization", "missing", "message"),
  [
    ("word", 2, "needs an alignment on each line, got 4 of 5"),
    ("character", 9, "tokenization must be word with config.train.alignment_loss_weight, got 'character'"),
  ],
)
def test_guided_alignment_needs_alignments(tmp_path, tokenization, missing, message):
  pairs = [(*pair, "0-0") if i != missing else pair for i, pair in enumerate(_pairs(5))]
  with pytest.raises(DataError, match=message):
    _aligned(tmp_path, pairs, tokenization)


def test_long_pairs_are_not_trained(tmp_path):
  pairs = [("a b c", "x y z"), ("a b c d", "x"), ("e", "x y z w"), ("f", "v")]
  task = _task(tmp_path, pairs, batch_size=1, max_train_length=3)
  assert sorted(_sources(task, range(2))) == sorted(_sources(task, range(2, 4))) == ["a b c", "f"]
  # They are still evaluated.
  assert len(task.examples("validation", 0)) == 4


def test_lengths_count_tokens(tmp_path):
  # The first source has 5 characters including the space, the second has 7.
  pairs = [("abc d", "x"), ("abc def", "x")]
  task = _task(tmp_path, pairs, tokenization="character", max_train_length=5, batch_size=1)
  assert _sources(task, range(2)) == ["abc d"] * 2


@pytest.mark.parametrize(("tokenization", "tokens"), [("word", "words"), ("character", "characters")])
def test_short_max_length_is_an_error(tmp_path, tokenization, tokens):
  task = _task(tmp_path, [("a b", "x y")], max_train_length=1, tokenization=tokenization)
  for _ in range(2):  # also the second time
    with pytest.raises(DataError) as caught:
      task.training_batch(0)
    path, message = str(caught.value).split(": ", 1)
    assert path.endswith("pairs.tsv")
    assert message == f"all pairs are longer than config.data.max_train_length=1 {tokens}"


def test_rare_words_are_unknown(tmp_path):
  pairs = [("the cat", "il gatto"), ("the dog", "il cane"), ("a cat", "un gatto")]
  task = _task(tmp_path, pairs, min_count=2, batch_size=3)
  # Words are sorted by frequency, then alphabetically.
  assert task.source.vocabulary.words == ("cat", "the")
  assert task.target.vocabulary.words == ("gatto", "il")
  rows = {tuple(row.tolist()) for row in task.training_batch(0).sources}
  assert rows == {(5, 4, EOS_ID), (5, UNK_ID, EOS_ID), (UNK_ID, 4, EOS_ID)}


def test_existing_languages_need_no_files(tmp_path):
  # The files may be missing where a translator is loaded.
  languages = tuple(TextProcessor(WordTokenizer(), Vocabulary((word,)), lowercase=True) for word in "ax")
  data = base.Data(task="parallel_text", train_file=str(tmp_path / "gone.tsv"), validation_file="gone")
  task = make_task(base.Config(data=data), languages)
  assert task.source.tokenize("A b") == ("a", "b")


def test_splits_are_the_config_files(tmp_path):
  task = _task(tmp_path, [("a", "x")])
  assert (task.splits, task.validation_split) == (("validation",), "validation")
  with pytest.raises(DataError, match=r"^split must be one of train, validation, got 'test'$"):
    task.examples("test", 0)
  test = _write(tmp_path / "test.tsv", [("b", "y"), ("c", "z")])
  task = _task(tmp_path, [("a", "x")], test_file=test)
  assert task.splits == ("validation", "test")
  assert [example.source for example in task.examples("test", 0)] == [("b",), ("c",)]
  _write(tmp_path / "test.tsv", [("a", "y")])  # the file changes during training
  assert [example.source for example in task.examples("test", 1)] == [("b",)]
  for split in ("train", "validation"):
    assert [example.source for example in task.examples(split, 0)] == [("a",)]


def test_third_columns_are_alignments(tmp_path):
  pairs = [("The cat sleeps.", "Il gatto dorme.", "0-0 2-1"), ("Hi", "Ciao", "")]
  first, second = _task(tmp_path, pairs).examples("validation", 0)
  assert first.source == ("the", "cat", "sleeps", "￭.")
  assert first.target == ("il", "gatto", "dorme", "￭.")
  assert first.alignment == {(0, 0), (1, 2)}
  assert first.source_text == "the cat sleeps."
  assert first.target_text == "il gatto dorme."
  assert second.alignment == frozenset()
  (unaligned,) = _task(tmp_path, [("Hi", "Ciao")]).examples("validation", 0)
  assert unaligned.alignment is None


@pytest.mark.parametrize(
  ("data", "message"),
  [
    (
      {"min_count": 2},
      r", source: config\.data\.min_count must be at most 1, the count of the most frequent word, got 2",
    ),
    (
      {"tokenization": "subword", "vocabulary_size": 7},
      r", source: config\.data\.source_vocabulary_size must be at least 262 for this text, got 7 "
      r"\(config\.data\.vocabulary_size sets both sides\)",
    ),
    (
      {"tokenization": "subword", "target_vocabulary_size": 9000},
      r", target: config\.data\.target_vocabulary_size must be at most \d+ for this text, got 9000 .*",
    ),
  ],
)
def test_invalid_options_name_their_field(tmp_path, data, message):
  with pytest.raises(DataError) as caught:
    _task(tmp_path, [("a", "xy")], **data)
  assert re.fullmatch(re.escape(str(tmp_path / "pairs.tsv")) + message, str(caught.value))


def test_unusual_text_gives_warnings(tmp_path):
  pairs = [(f"a{i % 3} b", "c") for i in range(9)]
  task = _task(tmp_path, pairs, max_train_length=7)
  task.training_batch(0)
  assert list(task.warnings) == [
    "training pairs that repeat another: 6 of 9",
    "validation pairs that are also training pairs: 9 of 9; validation scores may be too high",
  ]
  assert task.max_length == 7
  different_text = _write(tmp_path / "validation.tsv", [("z z", "y")])
  clean = _task(tmp_path, _pairs(40), validation_file=different_text)
  clean.training_batch(0)
  assert list(clean.warnings) == []
  broken = _task(tmp_path, [*_pairs(40), ("a\x1b b", "c\ufffd")], validation_file=different_text)
  broken.training_batch(0)
  assert list(broken.warnings) == ["training pairs with control characters, such as U+001B: 1 of 41"]


def test_missing_spaces_give_a_warning(tmp_path):
  pairs = [(f"我在学中文{letter}", f"word {letter}") for letter in ALPHABET]
  validation = _write(tmp_path / "validation.tsv", [("z", "y")])
  warning = (
    "the source text has no spaces between words; use --config.data.tokenization=subword instead of word"
  )
  for tokenization, warnings in {"word": [warning], "character": []}.items():
    task = _task(tmp_path, pairs, validation_file=validation, tokenization=tokenization)
    task.training_batch(0)
    assert list(task.warnings) == warnings


def test_default_vocabulary_sizes_are_named(tmp_path):
  validation = _write(tmp_path / "validation.tsv", [("z", "y")])
  task = _task(tmp_path, _pairs(40), validation_file=validation, tokenization="subword")
  task.training_batch(0)
  source, target = len(task.source.vocabulary), len(task.target.vocabulary)
  advice = "config.data.vocabulary_size, and for short texts try config.data.tokenization=character"
  text = f"subwords, chosen from the size of the text; to try other numbers, set {advice}"
  assert list(task.warnings) == [f"{source} source and {target} target {text}"]
  sized = _task(
    tmp_path, _pairs(40), validation_file=validation, tokenization="subword", target_vocabulary_size=288
  )
  sized.training_batch(0)
  assert len(sized.target.vocabulary) == 288
  assert list(sized.warnings) == [f"{source} source {text}"]


def test_characters_have_no_alignments(tmp_path):
  (example,) = _task(tmp_path, [("Hi cat", "Ciao", "1-0")], tokenization="character").examples(
    "validation", 0
  )
  assert example.source == ("h", "i", "▁", "c", "a", "t")
  assert (example.source_text, example.target_text) == ("hi cat", "ciao")
  assert example.alignment is None


def test_skipped_pairs_are_counted(tmp_path):
  pairs = [("a", "x"), ("a b c", "x"), ("a", "x y z"), ("a b", "x y")]
  assert str(_task(tmp_path, pairs)) == "4 training pairs"
  task = _task(tmp_path, pairs, max_train_length=2)
  assert str(task) == "2 training pairs (2 skipped, longer than config.data.max_train_length=2)"
  assert str(_task(tmp_path, pairs[:1])) == "1 training pair"


def test_batches_depend_on_seed_and_step(tmp_path):
  batch = _task(tmp_path, _pairs(40), seed=3).training_batch(47)
  same_seed = _task(tmp_path, _pairs(40), seed=3)
  for step in (0, 33, 5):
    same_seed.training_batch(step)
  assert _same(batch, same_seed.training_batch(47))
  other_seed = _task(tmp_path, _pairs(40), seed=4)
  assert _sources(same_seed, range(9)) != _sources(other_seed, range(9))


def test_batches_have_bucket_shapes(tmp_path):
  task = _task(tmp_path, _pairs(100), num_buckets=3)
  shapes = {task.training_batch(step).sources.shape for step in range(120)}
  assert len(shapes) == 3
  # One to four words and EOS.
  assert {length for _, length in shapes} < {2, 3, 4, 5}
  task = _task(tmp_path, _pairs(100), num_buckets=7)
  assert {task.training_batch(step).sources.shape[1] for step in range(120)} == {2, 3, 4, 5}
