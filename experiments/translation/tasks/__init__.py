"""What is translated: the built-in toy language, or a person's own parallel text.

A task knows its words, its sentences, and the batch for each training step. The batch is a function of
the config and the step alone, so a run can be continued anywhere.
"""

import functools
import itertools
import unicodedata
from typing import NamedTuple, Protocol

import numpy as np

from configs import base
from experiments.translation import grammar, parallel_text
from experiments.translation.batches import Batch, make_batch, round_up
from experiments.translation.parallel_text import DataError
from experiments.translation.vocabularies import Vocabulary

SPLITS = grammar.SPLITS

# Padded lengths are multiples of this: few shapes, few compilations.
LENGTH_MULTIPLE = 16

# Real text is batched by length within pools of this many batches.
_POOL_BATCHES = 50


class Example(NamedTuple):
  """A sentence to translate.

  Attributes:
    source: words.
    target: words of its translation.
    alignment: true links (target position, source position); None if they are not known.
    source_text: the source as plain text.
    target_text: the translation as plain text.
  """

  source: tuple[str, ...]
  target: tuple[str, ...]
  alignment: frozenset[tuple[int, int]] | None
  source_text: str
  target_text: str


class Task(Protocol):
  """What scripts need to know about a task.

  Attributes:
    source_vocabulary: of the source language.
    target_vocabulary: of the target language.
    splits: those that are scored.
  """

  source_vocabulary: Vocabulary
  target_vocabulary: Vocabulary
  splits: tuple[str, ...]

  def training_batch(self, step: int) -> Batch:
    """Returns the batch of a training step, counted from 0."""
    ...

  def __str__(self) -> str:
    """Returns what there is to train on, in a few words."""
    ...

  def examples(self, split: str, count: int) -> list[Example]:
    """Returns the first sentences of a split; 0 for all there are."""
    ...

  def tokenize(self, text: str) -> tuple[str, ...]:
    """Returns the words of a source text."""
    ...

  def detokenize(self, words: tuple[str, ...]) -> str:
    """Returns target words as plain text."""
    ...


Vocabularies = tuple[Vocabulary, Vocabulary]


def make_task(config: base.Config, vocabularies: Vocabularies | None = None) -> Task:
  """Returns the task that a config names.

  Args:
    config: `config.data` says which.
    vocabularies: of source and target, those of a run; None to take them from the training sentences.

  Raises:
    DataError: if a file cannot be used, or the vocabularies are not those of the toy language.
  """
  if config.data.task == "toy_translation":
    return ToyTranslation(config, vocabularies)
  if config.data.task == "parallel_text":
    return ParallelText(config, vocabularies)
  raise ValueError(f"data.task must be toy_translation or parallel_text, got {config.data.task!r}")


class ToyTranslation:
  """English to Italian by a small grammar, with true alignments. See grammar.py."""

  splits = tuple(split for split in grammar.SPLITS if split != "train")

  def __init__(self, config: base.Config, vocabularies: Vocabularies | None = None):
    self._seed = config.seed
    self._batch_size = config.train.batch_size
    self.source_vocabulary = Vocabulary(grammar.source_words())
    self.target_vocabulary = Vocabulary(grammar.target_words())
    if vocabularies not in (None, (self.source_vocabulary, self.target_vocabulary)):
      raise DataError(
        "the toy language has other words now than when this run began: go on with the version that began "
        "it, or take another --workdir"
      )

  def __str__(self) -> str:
    return "toy sentences, as many as are wanted"

  def training_batch(self, step: int) -> Batch:
    first = step * self._batch_size
    pairs = [self._pair("train", first + i) for i in range(self._batch_size)]
    return make_batch(
      [self.source_vocabulary.encode(pair.source) for pair in pairs],
      [self.target_vocabulary.encode(pair.target) for pair in pairs],
      source_length=grammar.TRAIN_MAX_SOURCE_LENGTH + 1,
      target_length=grammar.TRAIN_MAX_TARGET_LENGTH + 1,
    )

  def examples(self, split: str, count: int) -> list[Example]:
    if not count:
      raise DataError("toy_translation has endless sentences: their number must be at least 1, got 0")
    pairs = (self._pair(split, i) for i in range(count))
    return [Example(*pair, " ".join(pair.source), self.detokenize(pair.target)) for pair in pairs]

  def tokenize(self, text: str) -> tuple[str, ...]:
    return parallel_text.tokenize(text)

  def detokenize(self, words: tuple[str, ...]) -> str:
    return grammar.join(words)

  def _pair(self, split: str, index: int) -> grammar.Pair:
    # Every seed is scored on the same sentences, so that runs can be compared.
    seed = self._seed if split == "train" else 0
    return grammar.pair(seed=seed, split=split, index=index)


class ParallelText:
  """Sentence pairs from files: `source TAB target`, one a line. See parallel_text.py."""

  def __init__(self, config: base.Config, vocabularies: Vocabularies | None = None):
    self._config = config
    self.splits: tuple[str, ...] = ("validation", "test") if config.data.test else ("validation",)
    if vocabularies is None:
      vocabularies = self._vocabulary("source"), self._vocabulary("target")
    self.source_vocabulary, self.target_vocabulary = vocabularies

  def __str__(self) -> str:
    used, left_out = len(self._training_ids), len(self._examples("train")) - len(self._training_ids)
    text = f"{used:,} training pairs"
    if left_out:
      text += f" ({left_out:,} more are longer than config.data.max_length={self._config.data.max_length})"
    return text

  def training_batch(self, step: int) -> Batch:
    order = self._order(step // self.batches_per_epoch)
    chosen = order[step % self.batches_per_epoch]
    sources = [self._training_ids[i][0] for i in chosen]
    targets = [self._training_ids[i][1] for i in chosen]
    longest = max(map(len, itertools.chain(sources, targets))) + 1
    length = round_up(longest, LENGTH_MULTIPLE)
    return make_batch(sources, targets, source_length=length, target_length=length)

  def examples(self, split: str, count: int) -> list[Example]:
    allowed = ("train", *self.splits)
    if split not in allowed:
      raise DataError(f"split must be one of {', '.join(allowed)}, got {split!r}")
    examples = self._examples(split)
    return examples[:count] if count else examples

  def tokenize(self, text: str) -> tuple[str, ...]:
    return parallel_text.tokenize(text, lowercase=self._config.data.lowercase)

  def detokenize(self, words: tuple[str, ...]) -> str:
    return parallel_text.detokenize(words)

  @property
  def batches_per_epoch(self) -> int:
    """How many whole batches the training pairs make; at least one."""
    return max(1, len(self._training_ids) // self._config.train.batch_size)

  @functools.cache  # noqa: B019 (one task lives as long as the process)
  def _examples(self, split: str) -> list[Example]:
    """Returns the sentences of a file, in its order."""
    examples = []
    for source, target, alignment in parallel_text.read_pairs(getattr(self._config.data, split)):
      words = self.tokenize(source), self.tokenize(target)
      examples.append(Example(*words, alignment, self._normalize(source), self._normalize(target)))
    return examples

  def _normalize(self, text: str) -> str:
    """Returns a text in the Unicode form and the case of its words."""
    text = unicodedata.normalize("NFC", text)
    return text.lower() if self._config.data.lowercase else text

  def _vocabulary(self, side: str) -> Vocabulary:
    sentences = [getattr(example, side) for example in self._examples("train")]
    try:
      return Vocabulary.build(sentences, min_count=self._config.data.min_count)
    except ValueError as error:
      raise DataError(f"{self._config.data.train}: {error}") from error

  @functools.cached_property
  def _training_ids(self) -> list[tuple[list[int], list[int]]]:
    """Returns the training pairs as ids, those too long left out."""
    longest = self._config.data.max_length
    pairs = [
      (self.source_vocabulary.encode(example.source), self.target_vocabulary.encode(example.target))
      for example in self._examples("train")
      if max(len(example.source), len(example.target)) <= longest
    ]
    if not pairs:
      path = self._config.data.train
      raise DataError(f"{path}: expected a pair of at most {longest} words a side, got none")
    return pairs

  @functools.lru_cache(maxsize=1)  # noqa: B019
  def _order(self, epoch: int) -> list[np.ndarray]:
    """Returns which pairs make up each batch of an epoch: shuffled, but alike in length.

    The pairs are shuffled, cut into pools, sorted by length within each, cut into batches, and the
    batches shuffled: little padding, and another order in every epoch.
    """
    size = self._config.train.batch_size
    rng = np.random.default_rng((self._config.seed, epoch))
    lengths = np.array([max(len(source), len(target)) for source, target in self._training_ids])
    shuffled = rng.permutation(len(lengths))[: self.batches_per_epoch * size]
    pools = [shuffled[i : i + _POOL_BATCHES * size] for i in range(0, len(shuffled), _POOL_BATCHES * size)]
    by_length = np.concatenate([pool[np.argsort(lengths[pool], kind="stable")] for pool in pools])
    batches = [by_length[i : i + size] for i in range(0, len(by_length), size)]
    rng.shuffle(batches)
    return batches
