"""Parallel text as a task, warnings about it, and the choice of a task. test_buckets.py tests the batches."""

import itertools
import re

import chex
import numpy as np
import pytest

from configs import base
from experiments.cli.config_fields import ConfigError
from experiments.cli.errors import DataError
from experiments.data.tasks import make_task
from experiments.data.text_processor import TextProcessor
from experiments.data.tokenizers import WordTokenizer
from experiments.data.vocabularies import EOS_ID, PAD_ID, UNK_ID, Vocabulary

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
# Pairs of one to four words. Sources are distinct, and targets are the uppercased sources.
WORDS = ["".join(letters) for letters in itertools.product(ALPHABET, repeat=2)]
SOURCES = [" ".join([WORDS[i]] + ["zz"] * (i % 4)) for i in range(100)]
PAIRS = [(source, source.upper()) for source in SOURCES]


def write(path, pairs):
  path.write_text("".join("\t".join(fields) + "\n" for fields in pairs), "utf-8")
  return str(path)


@pytest.fixture
def make_text_task(tmp_path):
  """Returns a function that makes a task of pairs, which are the validation pairs, too."""

  def make(pairs, *, seed=0, batch_size=2, alignment_loss_weight=0.0, **data):
    path = write(tmp_path / "pairs.tsv", pairs)
    data = {"train_file": path, "validation_file": path, "min_count": 1} | data
    train = base.Train(batch_size=batch_size, alignment_loss_weight=alignment_loss_weight)
    return make_task(base.Config(seed=seed, data=base.Data(task="parallel_text", **data), train=train))

  return make


def sources_of(task, steps):
  """Returns the source texts of some batches, without padding rows."""
  rows = [row for step in steps for row in task.training_batch(step).sources if row[0] != PAD_ID]
  return [task.source.detokenize(task.source.vocabulary.decode(row)) for row in rows]


@pytest.mark.parametrize("tokenization", ["word", "character", "subword"])
def test_epochs_have_every_pair_once(make_text_task, tokenization):
  task = make_text_task(PAIRS[:40], lowercase=False, tokenization=tokenization, vocabulary_size=288)
  seen = []
  for step in range(30):
    batch = task.training_batch(step)
    for source, target in zip(batch.sources, batch.targets, strict=True):
      text = task.source.detokenize(task.source.vocabulary.decode(source))
      assert task.target.detokenize(task.target.vocabulary.decode(target)) == text.upper()
      seen += [text] if text else []  # not of padding rows
  assert sorted(seen[:40]) == sorted(SOURCES[:40])


def test_batches_have_links(make_text_task):
  pairs = [(*pair, "0-0") for pair in PAIRS[:5]]
  pairs[3] = (*PAIRS[3], "3-2 1-0")  # the only source of four words
  assert make_text_task(pairs).training_batch(0).links is None
  task, links_by_length = make_text_task(pairs, alignment_loss_weight=0.5), {}
  for batch in map(task.training_batch, range(6)):
    for length, links in zip(batch.source_lengths.tolist(), batch.links, strict=True):
      links_by_length[length] = np.argwhere(links).tolist()
  assert links_by_length == {0: [], 2: [[0, 0]], 3: [[0, 0]], 4: [[0, 0]], 5: [[0, 1], [2, 3]]}


def test_long_pairs_are_not_trained(make_text_task):
  pairs = [("a b c", "x y z"), ("a b c d", "x"), ("e", "x y z w"), ("f", "v")]
  assert str(make_text_task(pairs)) == "4 training pairs"
  assert str(make_text_task(pairs[:1])) == "1 training pair"
  task = make_text_task(pairs, batch_size=1, max_train_length=3)
  assert str(task) == "2 training pairs (2 skipped, longer than config.data.max_train_length=3)"
  assert task.max_length == 3
  assert sorted(sources_of(task, range(2))) == sorted(sources_of(task, range(2, 4))) == ["a b c", "f"]
  # They are still evaluated.
  assert len(task.examples("validation", 0)) == 4
  # The sources have 5 and 7 characters, with the space.
  pairs = [("abc d", "x"), ("abc def", "x")]
  task = make_text_task(pairs, tokenization="character", max_train_length=5, batch_size=1)
  assert sources_of(task, range(2)) == ["abc d"] * 2


def test_rare_words_are_unknown(make_text_task):
  pairs = [("the cat", "il gatto"), ("the dog", "il cane"), ("a cat", "un gatto")]
  task = make_text_task(pairs, min_count=2, batch_size=3)
  assert task.source.vocabulary.words == ("cat", "the")
  assert task.target.vocabulary.words == ("gatto", "il")
  rows = {tuple(row.tolist()) for row in task.training_batch(0).sources}
  assert rows == {(5, 4, EOS_ID), (5, UNK_ID, EOS_ID), (UNK_ID, 4, EOS_ID)}


def test_existing_languages_need_no_files():
  # The files may be missing where a translator is loaded.
  languages = tuple(TextProcessor(WordTokenizer(), Vocabulary((word,)), lowercase=True) for word in "ax")
  data = base.Data(task="parallel_text", train_file="gone.tsv", validation_file="gone")
  task = make_task(base.Config(data=data), languages)
  assert (task.source, task.target) == languages


def test_new_words_extend_the_languages(tmp_path):
  path = write(tmp_path / "pairs.tsv", [("a b b", "x"), ("a c", "x")])
  data = base.Data(task="parallel_text", train_file=path, validation_file=path, min_count=1)
  languages = tuple(TextProcessor(WordTokenizer(), Vocabulary((word,)), lowercase=True) for word in "ax")
  task = make_task(base.Config(data=data), languages)
  task.add_new_words()
  assert task.source.vocabulary.words == ("a", "b", "c")
  assert task.target == languages[1]
  task.training_batch(0)
  text = "vocabularies extended by 2 source words and 0 target words with new embeddings"
  assert task.warnings[0] == text


def test_splits_are_the_config_files(make_text_task, tmp_path):
  task = make_text_task([("a", "x")])
  assert (task.splits, task.validation_split) == (("validation",), "validation")
  test = write(tmp_path / "test.tsv", [("b", "y"), ("c", "z")])
  task = make_text_task([("a", "x")], test_file=test)
  assert task.splits == ("validation", "test")
  assert [example.source for example in task.examples("test", 0)] == [("b",), ("c",)]
  write(tmp_path / "test.tsv", [("a", "y")])  # the file changes during training
  assert [example.source for example in task.examples("test", 1)] == [("b",)]
  for split in ("train", "validation"):
    assert [example.source for example in task.examples(split, 0)] == [("a",)]


def test_examples_have_alignments_of_words(make_text_task):
  pairs = [("The cat sleeps.", "Il gatto dorme.", "0-0 2p1"), ("Hi", "Ciao", ""), ("No", "No")]
  first, second, third = make_text_task(pairs).examples("validation", 0)
  assert first == (
    ("the", "cat", "sleeps", "￭."),
    ("il", "gatto", "dorme", "￭."),
    {(0, 0)},
    "the cat sleeps.",
    "il gatto dorme.",
    {(1, 2)},
  )
  assert (second.alignment, third.alignment) == (frozenset(), None)
  # Positions in characters have no meaning, so they are not checked.
  pairs = [("Hi. you", "Ciao. te", "0-0 1p1")]
  (example,) = make_text_task(pairs, tokenization="character").examples("validation", 0)
  assert example.source == ("h", "i", ".", "▁", "y", "o", "u")
  assert (example.alignment, example.possible) == (None, frozenset())


@pytest.mark.parametrize(
  ("pairs", "data", "message"),
  [
    (
      [("a b", "x y")],
      {"max_train_length": 1},
      "pairs.tsv: all pairs are longer than config.data.max_train_length=1 words",
    ),
    (
      [("a b", "x y")],
      {"max_train_length": 1, "tokenization": "character"},
      "pairs.tsv: all pairs are longer than config.data.max_train_length=1 characters",
    ),
    (
      [("a", "xy")],
      {"min_count": 2},
      "source: config.data.min_count must be at most 1, the count of the most frequent word, got 2",
    ),
    (
      [("a", "xy")],
      {"tokenization": "subword", "vocabulary_size": 7},
      "pairs.tsv, source: config.data.source_vocabulary_size must be at least 262 for this text, got 7 "
      "(config.data.vocabulary_size sets both sides)",
    ),
    (
      [("a", "xy")],
      {"tokenization": "subword", "target_vocabulary_size": 9000},
      "pairs.tsv, target: config.data.target_vocabulary_size must be at most ",
    ),
    (
      [("a", "x", "0-0"), ("b", "y")],
      {"alignment_loss_weight": 0.5},
      "pairs.tsv: config.train.alignment_loss_weight needs an alignment on each line, got 1 of 2",
    ),
    (
      [("a", "x", "0-0")],
      {"alignment_loss_weight": 0.5, "tokenization": "character"},
      "config.data.tokenization must be word with config.train.alignment_loss_weight, got 'character'",
    ),
  ],
)
def test_unsuitable_text_is_an_error(make_text_task, pairs, data, message):
  with pytest.raises(DataError, match=re.escape(message)):
    make_text_task(pairs, **data).training_batch(0)


def test_unknown_names_are_errors(make_text_task):
  with pytest.raises(DataError, match=r"^split must be one of train, validation, got 'test'$"):
    make_text_task([("a", "x")]).examples("test", 0)
  with pytest.raises(ConfigError, match=r"^config.data.task must be one of toy_translation, scan, "):
    make_task(base.Config(data=base.Data(task="toy")))


REPEATED = [(f"a{i % 3} b", "c") for i in range(9)]
BROKEN = [*PAIRS[:40], ("a\x1b b", "c\ufffd")]
UNSPACED = [(f"我在学中文{letter}", f"word {letter}") for letter in ALPHABET]


@pytest.mark.parametrize(
  ("pairs", "validation", "data", "warnings"),
  [
    (PAIRS[:40], [("z z", "y")], {}, []),
    (REPEATED, [("z z", "y")], {}, ["training pairs that repeat another: 6 of 9"]),
    (
      PAIRS[:40],
      [PAIRS[3], ("z z", "y")],
      {},
      ["validation pairs that are also training pairs: 1 of 2; validation scores may be too high"],
    ),
    (
      BROKEN,
      [("z", "y")],
      {},
      ["training pairs with control characters, such as U+001B: 1 of 41"],
    ),
    (
      UNSPACED,
      [("z", "y")],
      {},
      ["the source text has no spaces between words; use --config.data.tokenization=subword instead of word"],
    ),
    (UNSPACED, [("z", "y")], {"tokenization": "character"}, []),
    ([(f"我 在 学 中 文 {letter}", "x") for letter in ALPHABET], [("z", "y")], {}, []),
  ],
)
def test_unusual_text_gives_warnings(make_text_task, tmp_path, pairs, validation, data, warnings):
  file = write(tmp_path / "validation.tsv", validation)
  task = make_text_task(pairs, validation_file=file, **data)
  task.training_batch(0)
  assert list(task.warnings) == warnings


def test_default_vocabulary_sizes_are_named(make_text_task, tmp_path):
  options = {"validation_file": write(tmp_path / "validation.tsv", [("z", "y")]), "tokenization": "subword"}
  task = make_text_task(PAIRS[:40], **options)
  task.training_batch(0)
  source, target = len(task.source.vocabulary), len(task.target.vocabulary)
  text = (
    "subwords, chosen from the size of the text; to try other numbers, set config.data.vocabulary_size, and "
    "for short texts try config.data.tokenization=character"
  )
  assert list(task.warnings) == [f"{source} source and {target} target {text}"]
  task = make_text_task(PAIRS[:40], **options, target_vocabulary_size=288)
  task.training_batch(0)
  assert len(task.target.vocabulary) == 288
  assert list(task.warnings) == [f"{source} source {text}"]
  task = make_text_task(PAIRS[:40], **options, vocabulary_size=287)
  task.training_batch(0)
  assert list(task.warnings) == []


def test_batches_depend_on_seed_and_step(make_text_task):
  batch = make_text_task(PAIRS[:40], seed=3).training_batch(47)
  same_seed = make_text_task(PAIRS[:40], seed=3)
  for step in (0, 33, 5):
    same_seed.training_batch(step)
  chex.assert_trees_all_equal(batch, same_seed.training_batch(47))
  assert sources_of(same_seed, range(9)) != sources_of(make_text_task(PAIRS[:40], seed=4), range(9))


def test_number_of_buckets_follows_the_config(make_text_task):
  task = make_text_task(PAIRS, num_buckets=3)
  lengths = {task.training_batch(step).sources.shape[1] for step in range(60)}
  assert len(lengths) == 3 and lengths < {2, 3, 4, 5}  # one to four words and EOS
