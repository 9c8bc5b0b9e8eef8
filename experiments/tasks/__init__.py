"""What is translated: built-in languages, or a person's own parallel text. A module for each."""

from configs import base
from experiments.cli import plugins
from experiments.cli.config_fields import ConfigError
from experiments.tasks.parallel_text import ParallelText
from experiments.tasks.scan import Scan
from experiments.tasks.task import (
  Example,
  Languages,
  Task,
  example_of,
  read_languages,
  vocabulary_words,
  write_languages,
)
from experiments.tasks.toy_translation import ToyTranslation

__all__ = [
  "Example",
  "Languages",
  "Task",
  "example_of",
  "read_languages",
  "vocabulary_words",
  "write_languages",
]

TASKS: dict[str, type[Task]] = {
  "toy_translation": ToyTranslation,
  "scan": Scan,
  "parallel_text": ParallelText,
}
_OF_TASKS = ("source", "target", "splits", "validation_split", "training_batch", "examples")


def make_task(config: base.Config, languages: Languages | None = None) -> Task:
  """Returns the task that a config names.

  Args:
    config: `config.data` says which.
    languages: source and target, those of a run; None to learn them from the training sentences.

  Raises:
    DataError: if a file cannot be used, or the languages are not those of the task.
    ConfigError: if a person's own task is none.
  """
  if not plugins.is_plugin(config.data.task):
    return kind_of(config.data)(config, languages)
  task = plugins.make("data.task", config.data.task, config, languages)
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
  if plugins.is_plugin(data.task):
    return plugins.find("data.task", data.task)
  if data.task not in TASKS:
    raise ConfigError(f"config.data.task must be one of {', '.join(TASKS)}, got {data.task!r}")
  return TASKS[data.task]
