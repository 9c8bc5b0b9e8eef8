"""Tasks: built-in data sets, parallel text from files, and custom tasks."""

from configs import base
from experiments.cli import components
from experiments.cli.config_fields import ConfigError
from experiments.data.parallel_text import ParallelText
from experiments.data.scan.scan import Scan
from experiments.data.task import Languages, Task, vocabulary_words
from experiments.data.text_processor import TextProcessor
from experiments.data.toy.toy_translation import ToyTranslation

TASKS: dict[str, type[Task]] = {
  "toy_translation": ToyTranslation,
  "scan": Scan,
  "parallel_text": ParallelText,
}
_TASK_ATTRIBUTES = ("source", "target", "splits", "validation_split", "training_batch", "examples")


def make_task(config: base.Config, languages: Languages | None = None) -> Task:
  """Returns the task of `config.data.task`.

  Args:
    config: config of the run.
    languages: source and target languages of an existing run. Default: learned from the training sentences.

  Raises:
    DataError: if a file cannot be used, or the languages do not fit the task.
    ConfigError: if a custom task is not a `Task`.
  """
  if not base.is_custom(config.data.task):
    return task_class(config.data)(config, languages)
  task = components.build("data.task", config.data.task, config, languages)
  missing = [name for name in _TASK_ATTRIBUTES if not hasattr(task, name)]
  if missing:
    raise ConfigError(
      f"config.data.task={config.data.task} must return a task (see experiments.data.task.Task) with "
      f"{', '.join(_TASK_ATTRIBUTES)}, got one without {', '.join(missing)}"
    )
  for name, is_valid, allowed in (
    ("splits", _is_names(task.splits), "a tuple of at least one name"),
    ("validation_split", isinstance(task.validation_split, str), "a name"),
    ("source", isinstance(task.source, TextProcessor), "a TextProcessor"),
    ("target", isinstance(task.target, TextProcessor), "a TextProcessor"),
  ):
    if not is_valid:
      value = getattr(task, name)
      raise ConfigError(f"config.data.task={config.data.task}: {name} must be {allowed}, got {value!r:.80}")
  if languages and vocabulary_words(task.source, task.target) != vocabulary_words(*languages):
    raise ConfigError(
      f"config.data.task={config.data.task}: source and target must be the languages of the run, got others"
    )
  return task


def _is_names(value: object) -> bool:
  return isinstance(value, (tuple, list)) and bool(value) and all(isinstance(name, str) for name in value)


def task_class(data: base.Data) -> type[Task]:
  """Returns the class of a task, or the function that a custom task names.

  Raises:
    ConfigError: if it does not exist.
  """
  if base.is_custom(data.task):
    return components.resolve("data.task", data.task)
  if data.task not in TASKS:
    raise ConfigError(f"config.data.task must be one of {', '.join(TASKS)}, got {data.task!r}")
  return TASKS[data.task]
