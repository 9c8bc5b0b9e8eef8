"""Parallel text from files as a task."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from configs import base
from experiments.cli.errors import DataError
from experiments.cli.messages import counted
from experiments.data.alignments import Alignment
from experiments.data.batches import Batch
from experiments.data.buckets import Buckets
from experiments.data.data_checks import find_warnings
from experiments.data.parallel_corpus import SentencePair, read_pairs
from experiments.data.task import SIDES, Example, Languages, Task, make_example
from experiments.data.text_processor import TextProcessor


class ParallelText(Task):
  """Sentence pairs from files, one `source TAB target` per line. See parallel_corpus.py.

  Only the ids of the training text are kept in memory. Alignments are between words, so they are used only
  with word tokenization.
  """

  validation_split = "validation"
  config_fields: tuple[str, ...] = tuple(
    field.name for field in dataclasses.fields(base.Data) if field.name not in ("task", "split")
  )
  has_alignments = True
  _alignments: Sequence[Alignment] | None = None
  _new_words: Sequence[str] = ()

  def __init__(self, config: base.Config, languages: Languages | None = None):
    self._config = config
    self.max_length = config.data.max_train_length
    self._read_once = functools.cache(self._read)  # a file may change while a run trains
    self.splits: tuple[str, ...] = ("validation", "test") if config.data.test_file else ("validation",)
    self.source, self.target = languages or (self._learn("source"), self._learn("target"))

  def __str__(self) -> str:
    num_used, num_skipped = len(self._batches), self._num_pairs - len(self._batches)
    text = counted(num_used, "training pair")
    if num_skipped:
      max_length = self._config.data.max_train_length
      text += f" ({num_skipped:,} skipped, longer than config.data.max_train_length={max_length})"
    return text

  def training_batch(self, step: int) -> Batch:
    return self._batches.batch(step)

  def add_new_words(self) -> None:
    """Extends the vocabularies by the words of the training texts that they lack."""
    old = self.source, self.target
    self.source, self.target = (
      language.extended(texts, min_count=self._config.data.min_count)
      for language, texts in zip(old, self._training_texts, strict=True)
    )
    counts = [
      len(new.vocabulary) - len(language.vocabulary)
      for language, new in zip(old, (self.source, self.target), strict=True)
    ]
    if any(counts):
      self._new_words = [
        f"vocabularies extended by {counted(counts[0], 'source word')} and "
        f"{counted(counts[1], 'target word')} with new embeddings"
      ]

  def examples(self, split: str, count: int) -> list[Example]:
    allowed = ("train", *self.splits)
    if split not in allowed:
      raise DataError(f"split must be one of {', '.join(allowed)}, got {split!r}")
    pairs = self._read(split) if split == "train" else self._read_once(split)
    return [make_example(pair, self.source, self.target) for pair in pairs[: count or None]]

  @functools.cached_property
  def _training_texts(self) -> tuple[list[str], list[str]]:
    """Source and target texts of all training pairs."""
    pairs = self._read("train")
    if self._config.train.alignment_loss_weight:
      self._alignments = self._training_alignments(pairs)
    return [pair.source for pair in pairs], [pair.target for pair in pairs]

  @functools.cached_property
  def _batches(self) -> Buckets:
    """Batches of the training pairs, without those that are too long."""
    data, max_length = self._config.data, self._config.data.max_train_length
    sources = self.source.encode_all(self._training_texts[0])
    targets = self.target.encode_all(self._training_texts[1])
    self.warnings = [
      *self._new_words,
      *self._vocabulary_warnings(),
      *find_warnings(self._training_texts, self._read_once("validation"), tokenization=data.tokenization),
    ]
    del self._training_texts
    self._num_pairs = len(sources)
    used = np.flatnonzero(np.maximum(sources.lengths, targets.lengths) <= max_length)
    if not len(used):
      raise DataError(
        f"{data.train_file}: all pairs are longer than config.data.max_train_length={max_length} "
        f"{data.tokenization}s"
      )
    alignments = None if self._alignments is None else [self._alignments[i] for i in used.tolist()]
    return Buckets(
      sources.take(used),
      targets.take(used),
      num_buckets=data.num_buckets,
      batch_size=self._config.train.batch_size,
      seed=self._config.seed,
      alignments=alignments,
    )

  def _training_alignments(self, pairs: Sequence[SentencePair]) -> list[Alignment]:
    """Returns the alignments of all pairs. Raises DataError if one is missing or tokens are not words."""
    alignments = [pair.alignment for pair in pairs if pair.alignment is not None]
    data = self._config.data
    if data.tokenization != "word":
      raise DataError(
        "config.data.tokenization must be word with config.train.alignment_loss_weight, "
        f"got {data.tokenization!r}"
      )
    if len(alignments) < len(pairs):
      raise DataError(
        f"{data.train_file}: config.train.alignment_loss_weight needs an alignment on each line, "
        f"got {len(alignments):,} of {len(pairs):,}"
      )
    return alignments

  def _read(self, split: str) -> list[SentencePair]:
    data = self._config.data
    # Alignments are only used with words. Otherwise it does not matter what their positions count.
    is_unused = data.tokenization != "word" and data.alignment_tokens == "auto"
    return read_pairs(
      getattr(data, f"{split}_file"), alignment_tokens="words" if is_unused else data.alignment_tokens
    )

  def _learn(self, side: str) -> TextProcessor:
    """Learns the language of one side from the training texts."""
    data, texts = self._config.data, self._training_texts[SIDES.index(side)]
    try:
      return TextProcessor.learn(
        texts,
        tokenization=data.tokenization,
        lowercase=data.lowercase,
        min_count=data.min_count,
        vocabulary_size=self._vocabulary_size(side),
        subword_model=data.subword_model,
      )
    except ValueError as error:
      message = str(error)
      if message.startswith("vocabulary_size"):
        message = f"{side}_{message} (config.data.vocabulary_size sets both sides)"
      raise DataError(f"{data.train_file}, {side}: config.data.{message}") from error

  def _vocabulary_size(self, side: str) -> int:
    """Returns the number of subwords of a side, or 0 for the default."""
    data = self._config.data
    return getattr(data, f"{side}_vocabulary_size") or data.vocabulary_size

  def _vocabulary_warnings(self) -> list[str]:
    """Returns a line with the numbers of subwords that were chosen by default."""
    if self._config.data.tokenization != "subword":
      return []
    chosen = [
      f"{len(language.vocabulary):,} {side}"
      for language, side in zip((self.source, self.target), SIDES, strict=True)
      if not self._vocabulary_size(side)
    ]
    if not chosen:
      return []
    return [
      f"{' and '.join(chosen)} subwords, chosen from the size of the text; to try other numbers, set "
      "config.data.vocabulary_size, and for short texts try config.data.tokenization=character"
    ]
