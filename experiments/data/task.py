"""The interface of tasks."""

from collections.abc import Sequence
from typing import NamedTuple

from configs import base
from experiments.data.batches import Batch
from experiments.data.parallel_corpus import SentencePair
from experiments.data.text_processor import TextProcessor
from experiments.data.tokenizers import WordTokenizer


class Example(NamedTuple):
  """A sentence and its reference translation.

  Attributes:
    source: source tokens.
    target: target tokens.
    alignment: true links (target position, source position), or None if unknown.
    source_text: source as plain text.
    target_text: target as plain text.
    possible: links that are possible, but not sure.
  """

  source: tuple[str, ...]
  target: tuple[str, ...]
  alignment: frozenset[tuple[int, int]] | None
  source_text: str
  target_text: str
  possible: frozenset[tuple[int, int]] = frozenset()


Languages = tuple[TextProcessor, TextProcessor]  # source, target
SIDES = ("source", "target")


class Task:
  """Training batches and evaluation examples of a translation task. A base class.

  Attributes:
    source: source language.
    target: target language.
    splits: splits that are evaluated after training.
    validation_split: split that is evaluated during training.
    max_length: maximum number of source tokens in training, or None. Longer sentences are reported when
      translating.
    warnings: lines that are printed at the start of training.

  Class attributes, which are read before a task is created:
    config_fields: names of the fields of `config.data` that it reads, except `task`; other fields must have
      their default values. None: all fields are accepted.
    is_infinite: the splits have no last sentence.
    has_alignments: training batches can have links (`make_batch(..., alignments=...)`), which
      `config.train.alignment_loss_weight` needs.
  """

  source: TextProcessor
  target: TextProcessor
  splits: tuple[str, ...]
  validation_split: str
  config_fields: tuple[str, ...] | None = None
  is_infinite = False
  has_alignments = False
  max_length: int | None = None
  warnings: Sequence[str] = ()

  def __init__(self, config: base.Config, languages: Languages | None = None):
    """Creates the task of a config.

    Args:
      config: config of the run.
      languages: languages of an existing run; `source` and `target` must be equal to them. Default: the task
        makes them.
    """

  def training_batch(self, step: int) -> Batch:
    """Returns the batch of a training step. The first step is 0.

    It depends only on the config and the step, so that runs can be resumed. All processes create the same
    batch and use their rows of it.
    """
    raise NotImplementedError

  def __str__(self) -> str:
    """Returns a short description of the training data."""
    return type(self).__name__

  def examples(self, split: str, count: int) -> list[Example]:
    """Returns the first `count` sentences of a split, or all sentences if `count` is 0."""
    raise NotImplementedError


def make_example(pair: SentencePair, source: TextProcessor, target: TextProcessor) -> Example:
  """Returns an example of a sentence pair. It keeps the alignment only if the tokens are words."""
  are_words = isinstance(source.tokenizer, WordTokenizer) and isinstance(target.tokenizer, WordTokenizer)
  return Example(
    source=source.tokenize(pair.source),
    target=target.tokenize(pair.target),
    alignment=pair.alignment if are_words else None,
    source_text=source.normalize(pair.source),
    target_text=target.normalize(pair.target),
    possible=pair.possible if are_words else frozenset(),
  )
