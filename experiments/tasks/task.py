"""What a task is."""

import pathlib
from typing import NamedTuple, Protocol

from configs import base
from experiments.runs.workdir import WorkdirError, has_run
from experiments.text.batches import Batch
from experiments.text.parallel_corpus import SentencePair
from experiments.text.text_processor import TextProcessor
from experiments.text.tokenizers import WordTokenizer


class Example(NamedTuple):
  """A sentence to translate.

  Attributes:
    source: tokens: words, or what else the text is cut into.
    target: tokens of its translation.
    alignment: true links (target position, source position); None if they are not known.
    source_text: the source as plain text.
    target_text: the translation as plain text.
  """

  source: tuple[str, ...]
  target: tuple[str, ...]
  alignment: frozenset[tuple[int, int]] | None
  source_text: str
  target_text: str


Languages = tuple[TextProcessor, TextProcessor]  # source and target
_SIDES = ("source", "target")


class Task(Protocol):
  """What is translated, and to what.

  A task may also have these attributes:

  * config_fields: names of the fields of `config.data` that it reads, besides `task`. Others must then have
    their defaults. Without `config_fields`, all fields are accepted.
  * is_infinite: whether any number of sentences of a split can be made. Default: False.
  * has_alignments: whether its training batches have links (`make_batch(..., alignments=...)`), which
    `config.train.alignment_loss_weight` needs. Default: False.
  * max_length: no source in training is longer, in tokens; longer ones are reported when translating.
  * warnings: lines about its text that are printed when training begins.

  Attributes:
    source: the language that is translated.
    target: the language that it is translated to.
    splits: those that are scored at the end.
    validation_split: the split that is scored while training.
  """

  source: TextProcessor
  target: TextProcessor
  splits: tuple[str, ...]
  validation_split: str

  def __init__(self, config: base.Config, languages: Languages | None = None): ...

  def training_batch(self, step: int) -> Batch:
    """Returns the batch of a training step, counted from 0.

    It is a function of the config and the step alone, so a run can be continued anywhere. All processes make
    the same batch, and each takes its rows of it.
    """
    ...

  def __str__(self) -> str:
    """Returns what there is to train on, in a few words."""
    ...

  def examples(self, split: str, count: int) -> list[Example]:
    """Returns the first sentences of a split; 0 for all there are."""
    ...


def example_of(pair: SentencePair, source: TextProcessor, target: TextProcessor) -> Example:
  """Returns a pair as a sentence to translate; without its alignment, of words, where tokens are no words."""
  are_words = isinstance(source.tokenizer, WordTokenizer) and isinstance(target.tokenizer, WordTokenizer)
  return Example(
    source=source.tokenize(pair.source),
    target=target.tokenize(pair.target),
    alignment=pair.alignment if are_words else None,
    source_text=source.normalize(pair.source),
    target_text=target.normalize(pair.target),
  )


def vocabulary_words(task: Task) -> list[tuple[str, ...]]:
  """Returns the words of both vocabularies."""
  return [language.vocabulary.words for language in (task.source, task.target)]


def read_languages(folder: pathlib.Path, data: base.Data) -> Languages | None:
  """Returns the languages of source and target of a run, or None if the folder holds none.

  Args:
    folder: the workdir.
    data: the run's.

  Raises:
    WorkdirError: if a file is not there, or is not what it should be.
  """
  if not has_run(folder):
    return None
  try:
    source, target = (
      TextProcessor.load(folder, side, unit=data.tokenization, lowercase=data.lowercase) for side in _SIDES
    )
  except FileNotFoundError as error:
    raise WorkdirError(
      f"{folder} holds a run without its vocabulary: there is no {error.filename}"
    ) from error
  except ValueError as error:
    raise WorkdirError(str(error)) from error
  return source, target


def write_languages(folder: pathlib.Path, languages: Languages) -> None:
  """Writes what `read_languages` reads."""
  for language, side in zip(languages, _SIDES, strict=True):
    language.save(folder, side)
