"""Tasks: built-in data sets, parallel text from files, and custom tasks."""

from configs import base
from experiments.cli import components
from experiments.cli.config_fields import ConfigError
from experiments.data.parallel_text import ParallelText
from experiments.data.scan.scan import Scan
from experiments.data.task import Languages, Task
from experiments.data.text_processor import TextProcessor
from experiments.data.toy.toy_translation import ToyTranslation

TASKS: dict[str, type[Task]] = {
  "toy_translation": ToyTranslation,
  "scan": Scan,
  "parallel_text": ParallelText,
}


def make_task(config: base.Config, languages: Languages | None = None) -> Task:
  """Returns the task of `config.data.task`.

  Args:
    config: config of the run.
    languages: languages of an existing run. Default: the task makes them.

  Raises:
    DataError: if a file cannot be used, or the languages do not fit the task.
    ConfigError: if a custom task is not a `Task`.
  """
  cls, field = task_class(config.data), f"config.data.task={config.data.task}"
  if base.is_custom(config.data.task):
    task = components.build("data.task", config.data.task, config, languages)
    _check_attributes(field, task)
  else:
    task = cls(config, languages)
  return task


def _check_attributes(field: str, task: Task) -> None:
  """Raises ConfigError if an attribute of a custom task is not valid."""
  for name, is_valid, allowed in (
    ("splits", _is_names, "a tuple of at least one name"),
    ("validation_split", lambda value: isinstance(value, str), "a name"),
    ("source", lambda value: isinstance(value, TextProcessor), "a TextProcessor"),
    ("target", lambda value: isinstance(value, TextProcessor), "a TextProcessor"),
  ):
    value = getattr(task, name, None)
    if not is_valid(value):
      raise ConfigError(f"{field}: {name} must be {allowed}, got {value!r:.80}")


def _is_names(value: object) -> bool:
  return isinstance(value, (tuple, list)) and bool(value) and all(isinstance(name, str) for name in value)


def task_class(data: base.Data) -> type[Task]:
  """Returns the class of a task.

  Raises:
    ConfigError: if it does not exist, or a custom task is not a subclass of `Task`.
  """
  if data.task in TASKS:
    return TASKS[data.task]
  if not base.is_custom(data.task):
    raise ConfigError(f"config.data.task must be one of {', '.join(TASKS)}, got {data.task!r}")
  cls = components.resolve("data.task", data.task)
  if not (isinstance(cls, type) and issubclass(cls, Task)):
    raise ConfigError(
      f"config.data.task={data.task} must be a subclass of experiments.data.task.Task, got {cls}"
    )
  return cls
