"""A person's own parallel text as a task."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from configs import base
from experiments.cli.errors import DataError
from experiments.tasks.task import Example, Languages, example_of
from experiments.text.alignments import Alignment
from experiments.text.batches import Batch
from experiments.text.buckets import Buckets
from experiments.text.data_checks import find_warnings
from experiments.text.parallel_corpus import SentencePair, read_pairs
from experiments.text.text_processor import TextProcessor
from experiments.text.tokenizers import DEFAULT_SIZE

_SIDES = "source", "target"


class ParallelText:
  """Sentence pairs from files: `source TAB target`, one a line. See ../text/parallel_corpus.py.

  Of the training text only the ids are kept. Alignments count words, so they are used where words are the
  unit.
  """

  validation_split = "validation"
  config_fields: tuple[str, ...] = tuple(
    field.name for field in dataclasses.fields(base.Data) if field.name not in ("task", "split")
  )
  is_infinite = False
  has_alignments = True
  warnings: Sequence[str] = ()
  _alignments: Sequence[Alignment] | None = None

  def __init__(self, config: base.Config, languages: Languages | None = None):
    self._config = config
    self.max_length = config.data.max_train_length
    self._read_once = functools.cache(self._read)  # a file may change while a run trains
    self.splits: tuple[str, ...] = ("validation", "test") if config.data.test_file else ("validation",)
    self.source, self.target = languages or (self._learn("source"), self._learn("target"))

  def __str__(self) -> str:
    used, left_out = len(self._batches), self._num_pairs - len(self._batches)
    text = f"{used:,} training pairs"
    if left_out:
      longest = self._config.data.max_train_length
      text += f" ({left_out:,} more are longer than config.data.max_train_length={longest})"
    return text

  def training_batch(self, step: int) -> Batch:
    return self._batches.batch(step)

  def examples(self, split: str, count: int) -> list[Example]:
    allowed = ("train", *self.splits)
    if split not in allowed:
      raise DataError(f"split must be one of {', '.join(allowed)}, got {split!r}")
    pairs = self._read(split) if split == "train" else self._read_once(split)
    return [example_of(pair, self.source, self.target) for pair in pairs[: count or None]]

  @functools.cached_property
  def _training_texts(self) -> tuple[list[str], list[str]]:
    """Source and target of all training pairs."""
    pairs = self._read("train")
    if self._config.train.alignment_loss_weight:
      self._alignments = self._known_alignments(pairs)
    return [pair.source for pair in pairs], [pair.target for pair in pairs]

  @functools.cached_property
  def _batches(self) -> Buckets:
    """The training pairs as ids, those too long left out."""
    data, longest = self._config.data, self._config.data.max_train_length
    sources = self.source.encode_all(self._training_texts[0])
    targets = self.target.encode_all(self._training_texts[1])
    self.warnings = [
      *self._size_notes(),
      *find_warnings(self._training_texts, self._read_once("validation"), unit=data.tokenization),
    ]
    del self._training_texts
    self._num_pairs = len(sources)
    used = np.flatnonzero(np.maximum(sources.lengths, targets.lengths) <= longest)
    if not len(used):
      raise DataError(
        f"{data.train_file}: expected a pair of at most config.data.max_train_length={longest} "
        f"{data.tokenization}s a side, got none"
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

  def _known_alignments(self, pairs: Sequence[SentencePair]) -> list[Alignment]:
    """Returns the alignments of pairs, all of which must have one, or raises DataError."""
    known = [pair.alignment for pair in pairs if pair.alignment is not None]
    data = self._config.data
    if data.tokenization != "word" or len(known) < len(pairs):
      raise DataError(
        f"{data.train_file}: with config.train.alignment_loss_weight each line must have an alignment, and "
        f"config.data.tokenization be word, got {len(known):,} of {len(pairs):,}, {data.tokenization}"
      )
    return known

  def _read(self, split: str) -> list[SentencePair]:
    data = self._config.data
    # Links are between words: other units have no use for them, and need not know what they count.
    is_unused = data.tokenization != "word" and data.alignment_tokens == "auto"
    return read_pairs(
      getattr(data, f"{split}_file"), alignment_tokens="words" if is_unused else data.alignment_tokens
    )

  def _learn(self, side: str) -> TextProcessor:
    """Returns the language of the training texts of a side."""
    data, texts = self._config.data, self._training_texts[_SIDES.index(side)]
    try:
      return TextProcessor.learn(
        texts,
        unit=data.tokenization,
        lowercase=data.lowercase,
        min_count=data.min_count,
        vocabulary_size=self._vocabulary_size(side),
        subwords=data.subword_model,
      )
    except ValueError as error:
      field = str(error)
      if field.startswith("vocabulary_size"):
        field = f"{side}_{field} (vocabulary_size sets that of both sides)"
      raise DataError(f"{data.train_file}, {side}: config.data.{field}") from error

  def _vocabulary_size(self, side: str) -> int:
    """Returns the number of subwords of a side, 0 for the default."""
    data = self._config.data
    return getattr(data, f"{side}_vocabulary_size") or data.vocabulary_size

  def _size_notes(self) -> list[str]:
    """Returns a line if the text is too small for the default number of subwords."""
    shrunk = [
      f"{len(language.vocabulary):,} {side}"
      for language, side in zip((self.source, self.target), _SIDES, strict=True)
      if not self._vocabulary_size(side) and len(language.vocabulary) < DEFAULT_SIZE
    ]
    is_told = self._config.data.tokenization == "subword" and shrunk
    return [f"{' and '.join(shrunk)} subwords, not {DEFAULT_SIZE:,}: the text is small"] if is_told else []
