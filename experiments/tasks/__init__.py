"""What is translated: built-in languages, or a person's own parallel text. A module for each."""

import dataclasses
from collections.abc import Iterator

from configs import base
from experiments.commands import fields, own
from experiments.commands.fields import ConfigError
from experiments.tasks import scan_grammar
from experiments.tasks.parallel_text import ParallelText
from experiments.tasks.scan import Scan
from experiments.tasks.task import (
  Example,
  Languages,
  Task,
  example_of,
  read_languages,
  words_of,
  write_languages,
)
from experiments.tasks.toy_translation import ToyTranslation
from experiments.text.alignments import ALIGNMENT_TOKENS
from experiments.text.languages import UNITS
from experiments.text.tokenizers import KINDS

__all__ = [
  "TASKS",
  "Example",
  "Languages",
  "ParallelText",
  "Scan",
  "Task",
  "ToyTranslation",
  "example_of",
  "kind_of",
  "make_task",
  "read_languages",
  "rules",
  "rules_of",
  "words_of",
  "write_languages",
]

TASKS: dict[str, type[Task]] = {
  "toy_translation": ToyTranslation,
  "scan": Scan,
  "parallel_text": ParallelText,
}


_OF_TASKS = ("source", "target", "splits", "watched", "training_batch", "examples")


def make_task(config: base.Config, languages: Languages | None = None) -> Task:
  """Returns the task that a config names.

  Args:
    config: `config.data` says which.
    languages: source and target, those of a run; None to learn them from the training sentences.

  Raises:
    DataError: if a file cannot be used, or the languages are not those of the task.
    ConfigError: if a person's own task is none.
  """
  if not own.is_own(config.data.task):
    return kind_of(config.data)(config, languages)
  task = own.make("data.task", config.data.task, config, languages)
  missing = [name for name in _OF_TASKS if not hasattr(task, name)]
  if missing:
    raise ConfigError(
      f"config.data.task={config.data.task} must make a task (see experiments.tasks.Task) with "
      f"{', '.join(_OF_TASKS)}; it has no {', '.join(missing)}"
    )
  return task


def kind_of(data: base.Data) -> type[Task]:
  """Returns the class of the task that a config names, or a person's own.

  Raises:
    ConfigError: if there is none.
  """
  if own.is_own(data.task):
    return own.find("data.task", data.task)
  if data.task not in TASKS:
    raise ConfigError(f"config.data.task must be one of {', '.join(TASKS)}, got {data.task!r}")
  return TASKS[data.task]


def rules(data: base.Data) -> Iterator[fields.Rule]:
  """Returns what a config's data must be."""
  yield fields.one_of("data.task", data.task, TASKS, or_own=True)
  yield fields.one_of("data.split", data.split, scan_grammar.SPLITS)
  yield fields.one_of("data.unit", data.unit, UNITS)
  yield fields.one_of("data.subwords", data.subwords, KINDS)
  yield fields.one_of("data.alignment_tokens", data.alignment_tokens, ALIGNMENT_TOKENS)
  for name in ("vocabulary_size", "source_vocabulary_size", "target_vocabulary_size"):
    yield fields.at_least(f"data.{name}", getattr(data, name), 0)
  for name in ("min_count", "max_length", "num_buckets"):
    yield fields.at_least(f"data.{name}", getattr(data, name), 1)
  sampling, has_ways = data.subword_sampling, data.unit == "subword" and data.subwords == "unigram"
  yield "data.subword_sampling", sampling, 0 <= sampling <= 1, "in [0, 1]"
  yield "data.subword_sampling", sampling, not sampling or has_ways, "0, but for unigram subwords"
  yield "data.scan_cutoff", data.scan_cutoff, 1 <= data.scan_cutoff <= 47, "in [1, 47]"
  is_read = data.split == "length" or data.scan_cutoff == scan_grammar.CUTOFF
  yield "data.scan_cutoff", data.scan_cutoff, is_read, f"{scan_grammar.CUTOFF} for another split than length"
  if data.task == "parallel_text":
    for name in ("train", "validation"):
      path = getattr(data, name)
      yield f"data.{name}", path, bool(path), "the path of a file: source TAB target, one pair a line"


def rules_of(data: base.Data, kind: type[Task]) -> Iterator[fields.Rule]:
  """Returns what the fields must be that a class of tasks does not read."""
  defaults = base.Data()
  every = [field.name for field in dataclasses.fields(data)]
  reads = getattr(kind, "reads", every)
  for field in dataclasses.fields(data):
    if field.name not in ("task", *reads):
      value, default = getattr(data, field.name), getattr(defaults, field.name)
      yield f"data.{field.name}", value, value == default, f"{default!r} for config.data.task={data.task}"
