"""What is translated: built-in languages, or a person's own parallel text. A module for each."""

from collections.abc import Callable

from configs import base
from experiments.tasks.parallel_text import ParallelText
from experiments.tasks.scan import Scan
from experiments.tasks.task import Example, Languages, Task
from experiments.tasks.toy_translation import ToyTranslation

__all__ = ["TASKS", "Example", "Languages", "ParallelText", "Scan", "Task", "ToyTranslation", "make_task"]

TASKS: dict[str, Callable[..., Task]] = {
  "toy_translation": ToyTranslation,
  "scan": Scan,
  "parallel_text": ParallelText,
}


def make_task(config: base.Config, languages: Languages | None = None) -> Task:
  """Returns the task that a config names.

  Args:
    config: `config.data` says which.
    languages: source and target, those of a run; None to learn them from the training sentences.

  Raises:
    DataError: if a file cannot be used, or the languages are not those of the task.
  """
  if config.data.task not in TASKS:
    raise ValueError(f"data.task must be one of {', '.join(TASKS)}, got {config.data.task!r}")
  return TASKS[config.data.task](config, languages)
