"""Parallel text as a task, warnings about it, and the choice of a task. test_buckets.py tests the batches."""

import itertools
import re
import string

import numpy as np
import pytest

from configs import base
from experiments.cli.config_fields import ConfigError
from experiments.cli.errors import DataError
from experiments.data.tasks import make_task
from experiments.data.text_processor import TextProcessor
from experiments.data.tokenizers import WordTokenizer
from experiments.data.vocabularies import EOS_ID, UNK_ID, Vocabulary

# Pairs of one to four words. Sources are distinct, and targets are the uppercased sources.
WORDS = ["".join(letters) for letters in itertools.product(string.ascii_lowercase, repeat=2)]
SOURCES = [" ".join([WORDS[i]] + ["zz"] * (i % 4)) for i in range(40)]
PAIRS = [(source, source.upper()) for source in SOURCES]


@pytest.fixture
def write(tmp_path):
  """Returns a function that writes pairs to a file, and returns its path."""

  def write(pairs, name="pairs"):
    path = tmp_path / f"{name}.tsv"
    path.write_text("".join("\t".join(fields) + "\n" for fields in pairs), "utf-8")
    return str(path)

  return write


@pytest.fixture
def text_task(write):
  """Returns a function that makes a task of pairs, which are the validation pairs, too."""

  def make(pairs, *, languages=None, batch_size=2, alignment_loss_weight=0.0, **data):
    path = write(pairs)
    data = base.Data(**{"train_file": path, "validation_file": path, "min_count": 1, **data})
    train = base.Train(batch_size=batch_size, alignment_loss_weight=alignment_loss_weight)
    data.task = "parallel_text"
    return make_task(base.Config(seed=3, data=data, train=train), languages)

  return make


def languages_of(*words):
  return tuple(TextProcessor(WordTokenizer(), Vocabulary((word,)), lowercase=True) for word in words)


def sources_of(task, num_steps):
  """Returns the source texts of the first batches, without padding rows."""
  rows = itertools.chain(*(task.training_batch(step).sources for step in range(num_steps)))
  return [task.source.detokenize(task.source.vocabulary.decode(row)) for row in rows if row[0]]


@pytest.mark.parametrize("tokenization", ["word", "character", "subword"])
def test_epochs_have_every_pair_once(text_task, tokenization):
  task = text_task(PAIRS, lowercase=False, tokenization=tokenization, vocabulary_size=288)
  seen = []
  for batch in map(task.training_batch, range(30)):
    for source, target in zip(batch.sources, batch.targets, strict=True):
      text = task.source.detokenize(task.source.vocabulary.decode(source))
      assert task.target.detokenize(task.target.vocabulary.decode(target)) == text.upper()
      seen += [text] if text else []  # not of padding rows
  assert sorted(seen[:40]) == sorted(SOURCES)


def test_batches_have_links(text_task):
  pairs = [(*pair, "0-0") for pair in PAIRS[:5]]
  pairs[3] = (*PAIRS[3], "3-2 1-0")  # the only source of four words
  assert text_task(pairs).training_batch(0).links is None
  task, links_by_length = text_task(pairs, alignment_loss_weight=0.5), {}
  for batch in map(task.training_batch, range(6)):
    for length, links in zip(batch.source_lengths.tolist(), batch.links, strict=True):
      links_by_length[length] = np.argwhere(links).tolist()
  assert links_by_length == {0: [], 2: [[0, 0]], 3: [[0, 0]], 4: [[0, 0]], 5: [[0, 1], [2, 3]]}


def test_long_pairs_are_not_trained(text_task):
  pairs = [("a b c", "x y z"), ("a b c d", "x"), ("e", "x y z w"), ("f", "v")]
  assert str(text_task(pairs)) == "4 training pairs"
  task = text_task(pairs, batch_size=1, max_train_length=3)
  assert str(task) == "2 training pairs (2 skipped, longer than config.data.max_train_length=3)"
  assert task.max_length == 3
  assert sorted(sources_of(task, 4)) == ["a b c", "a b c", "f", "f"]
  assert len(task.examples("validation", 0)) == 4  # all are evaluated
  # The sources have 5 and 7 characters, with the space.
  task = text_task([("abc d", "x"), ("abc def", "x")], tokenization="character", max_train_length=5)
  assert str(task).startswith("1 training pair (1 skipped")


def test_rare_words_are_unknown(text_task):
  task = text_task(
    [("the cat", "il re"), ("the dog", "il cane"), ("a cat", "un re")], min_count=2, batch_size=3
  )
  assert (task.source.vocabulary.words, task.target.vocabulary.words) == (("cat", "the"), ("il", "re"))
  rows = {tuple(row.tolist()) for row in task.training_batch(0).sources}
  assert rows == {(5, 4, EOS_ID), (5, UNK_ID, EOS_ID), (UNK_ID, 4, EOS_ID)}


def test_existing_languages_can_be_extended(text_task):
  # The files may be missing where a translator is loaded.
  task = text_task([], languages=languages_of("a", "x"), train_file="gone")
  assert (task.source, task.target) == languages_of("a", "x")
  task = text_task([("a b b", "x"), ("a c", "x")], languages=languages_of("a", "x"))
  task.add_new_words()
  assert (task.source.vocabulary.words, task.target) == (("a", "b", "c"), languages_of("x")[0])
  task.training_batch(0)
  text = "vocabularies extended by 2 source words and 0 target words with new embeddings"
  assert task.warnings[0] == text


def test_splits_are_the_config_files(text_task, write):
  assert text_task([("a", "x")]).splits == ("validation",)
  task = text_task([("a", "x")], test_file=write([("b", "y"), ("c", "z")], "test"))
  assert (task.splits, task.validation_split) == (("validation", "test"), "validation")
  assert [example.source for example in task.examples("test", 0)] == [("b",), ("c",)]
  write([("a", "y")], "test")  # the file changes during training
  assert [example.source for example in task.examples("test", 1)] == [("b",)]
  assert [example.source for example in task.examples("train", 0)] == [("a",)]


def test_examples_have_alignments_of_words(text_task):
  pairs = [("The cat sleeps.", "Il gatto dorme.", "0-0 2p1"), ("Hi", "Ciao", ""), ("No", "No")]
  first, second, third = text_task(pairs).examples("validation", 0)
  assert (first.source, first.target) == (("the", "cat", "sleeps", "￭."), ("il", "gatto", "dorme", "￭."))
  assert first[2:] == ({(0, 0)}, "the cat sleeps.", "il gatto dorme.", {(1, 2)})
  assert (second.alignment, third.alignment) == (frozenset(), None)
  # Positions in characters have no meaning, so they are not checked.
  (example,) = text_task([("Hi. you", "Ciao. te", "0-0 1p1")], tokenization="character").examples("train", 1)
  assert example.source == ("h", "i", ".", "▁", "y", "o", "u")
  assert (example.alignment, example.possible) == (None, frozenset())


SUBWORDS = {"tokenization": "subword"}
GUIDED = {"alignment_loss_weight": 0.5}


UNSUITABLE = [
  ({"max_train_length": 1}, "pairs.tsv: all pairs are longer than config.data.max_train_length=1 words"),
  ({"min_count": 3}, "pairs.tsv, source: config.data.min_count must be at most 2, the count of the most"),
  (SUBWORDS | {"vocabulary_size": 7}, "source: config.data.source_vocabulary_size must be at least 264 fo"),
  (SUBWORDS | {"vocabulary_size": 7}, "got 7 (config.data.vocabulary_size sets both sides)"),
  (SUBWORDS | {"target_vocabulary_size": 900}, "target: config.data.target_vocabulary_size must be at mos"),
  (GUIDED, "config.train.alignment_loss_weight needs an alignment on each line, got 1 of 2"),
  (GUIDED | {"tokenization": "character"}, "config.data.tokenization must be word with config.train.align"),
]


@pytest.mark.parametrize(("options", "message"), UNSUITABLE)
def test_unsuitable_text_is_an_error(text_task, options, message):
  with pytest.raises(DataError, match=re.escape(message)):
    text_task([("a b", "x y", "0-0"), ("a c", "x y")], **options).training_batch(0)


def test_unknown_names_are_errors(text_task):
  with pytest.raises(DataError, match=r"^split must be one of train, validation, got 'test'$"):
    text_task([("a", "x")]).examples("test", 0)
  for task, message in (
    ("toy", "must be one of toy_translation, scan, "),
    ("re:Match", "must be a subclass of"),
  ):
    with pytest.raises(ConfigError, match=f"^config.data.task.*{message}"):
      make_task(base.Config(data=base.Data(task=task)))


UNSPACED = [(f"我在学中文{letter}", f"word {letter}") for letter in string.ascii_lowercase]
SPACED = [(" ".join(source), target) for source, target in UNSPACED]
BROKEN = [*PAIRS, ("a\x1b b", "c\ufffd")]


UNUSUAL = [
  (PAIRS, ("0", "0"), "word", None),
  (PAIRS[:3] * 3, ("0", "0"), "word", "training pairs that repeat another: 6 of 9"),
  (PAIRS, PAIRS[3], "word", "validation pairs that are also training pairs: 1 of 1; validation scores may"),
  (BROKEN, ("0", "0"), "word", "training pairs with control characters, such as U+001B: 1 of 41"),
  (UNSPACED, ("0", "0"), "word", "the source text has no spaces between words; use --config.data.tokeniza"),
  (UNSPACED, ("0", "0"), "character", None),
  (SPACED, ("0", "0"), "word", None),
]


@pytest.mark.parametrize(("pairs", "validation", "tokenization", "warning"), UNUSUAL)
def test_unusual_text_gives_warnings(text_task, write, pairs, validation, tokenization, warning):
  task = text_task(pairs, validation_file=write([validation], "validation"), tokenization=tokenization)
  task.training_batch(0)
  assert len(task.warnings) == (warning is not None)
  assert warning is None or task.warnings[0].startswith(warning)


SIZES = [
  ({}, "{0} source and {1} target"),
  ({"target_vocabulary_size": 288}, "{0} source"),
  ({"vocabulary_size": 287}, None),
]


@pytest.mark.parametrize(("sizes", "chosen"), SIZES)
def test_default_vocabulary_sizes_are_named(text_task, write, sizes, chosen):
  task = text_task(PAIRS, validation_file=write([("0", "0")], "other"), tokenization="subword", **sizes)
  task.training_batch(0)
  lengths = [len(language.vocabulary) for language in (task.source, task.target)]
  assert lengths[1] == max(sizes.values(), default=lengths[1])
  assert len(task.warnings) == (chosen is not None)
  if chosen:
    text = f"{chosen.format(*lengths)} subwords, chosen from the size of the text; to try other numbers, set"
    assert task.warnings[0].startswith(text)
