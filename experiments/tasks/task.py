"""What a task is."""

from typing import NamedTuple, Protocol

from experiments.text.batches import ALL, Batch, Rows
from experiments.text.languages import Language
from experiments.text.pairs import DataError


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


Languages = tuple[Language, Language]  # source and target


class Task(Protocol):
  """What scripts need to know about a task.

  Attributes:
    source: the language that is translated.
    target: the language that it is translated to.
    splits: those that are scored at the end.
    watched: the split that is scored while training.
  """

  source: Language
  target: Language
  splits: tuple[str, ...]
  watched: str

  def training_batch(self, step: int, rows: Rows = ALL) -> Batch:
    """Returns the batch of a training step, counted from 0, or some rows of it.

    It is a function of the config and the step alone, so a run can be continued anywhere.
    """
    ...

  def __str__(self) -> str:
    """Returns what there is to train on, in a few words."""
    ...

  def examples(self, split: str, count: int) -> list[Example]:
    """Returns the first sentences of a split; 0 for all there are."""
    ...


def check_own(languages: Languages | None, own: Languages) -> None:
  """Raises DataError if a run's languages are not those that a built-in task has."""
  if languages is not None and [each.vocabulary for each in languages] != [each.vocabulary for each in own]:
    raise DataError(
      "the task has other words now than when this run began: go on with the version that began it, or take "
      "another --workdir"
    )
