"""What a run begins with: all checks, then its folder, locked."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from configs import base
from experiments.commands import own
from experiments.commands.fields import ConfigError
from experiments.runs import provenance, workdir
from experiments.runs.devices import check_shares, make_mesh
from experiments.runs.locks import workdir_lock
from experiments.runs.processes import begin_together, is_main, say
from experiments.tasks import Task, make_task, read_languages, words_of
from experiments.translation.loading import check_beginning
from experiments.translation.model import make_task_model
from experiments.translation.settings import (
  check_config,
  check_same_config,
  inherited_languages,
  told_defaults,
  write_run,
)
from experiments.translation.step import abstract_state, make_recipe


class Launch(NamedTuple):
  """How a run is carried out: what may be another way each time that it goes on.

  Attributes:
    parameter_shards: into how many parts parameters are cut; all other devices share the batch.
    profile: the first and the last step of which a profile is recorded; None for no profile.
  """

  parameter_shards: int = 1
  profile: tuple[int, int] | None = None


ALONE = Launch()


@contextlib.contextmanager
def opened(config: base.Config, folder: pathlib.Path, launch: Launch) -> Iterator[Task]:
  """Gives the task of a run; its folder is made, and locked, once every mistake that can be seen has been.

  If there are several processes, they begin together or not at all.
  """
  check_shares()  # first: where it fails, processes cannot even tell each other
  with contextlib.ExitStack() as exits:
    try:
      task, description = _checked(config, folder, launch)
      if is_main():
        exits.enter_context(workdir_lock(folder))
        check_same_config(folder, config)  # another trainer may have been faster
    except Exception as error:  # to be told here, when the others have been
      begin_together(None, error)
      raise
    begin_together(_shared_settings(config, folder, launch, task, description), None)
    if line := told_defaults(folder):
      say(line)
    if is_main():
      provenance.record_launch(folder, description)
      write_run(folder, config, (task.source, task.target))
      exits.enter_context(workdir.told_if_deleted(folder))
    yield task


def _checked(config: base.Config, folder: pathlib.Path, launch: Launch) -> tuple[Task, dict[str, Any]]:
  """Returns the task and what describes this start, after all checks that need no lock."""
  check_config(config)
  make_mesh(launch.parameter_shards)
  check_same_config(folder, config)
  workdir.check_nothing_lost(folder)
  data = config.data
  files = [data.train, data.validation, data.test, *own.files(own_parts(config))]
  description = provenance.describe_launch(provenance.digests(files))
  provenance.check_same_data(folder, description["data"])
  task = make_task(config, read_languages(folder, config.data) or inherited_languages(config))
  provenance.check_same_words(folder, words_of(task))
  description["vocabularies"] = provenance.digest_of(words_of(task))
  _check_model(config, task)
  if config.init_from and not workdir.holds_run(folder):
    check_beginning(config, task)
  task.training_batch(0)
  for split in (task.watched, *task.splits):
    task.examples(split, 1)
  return task, description


def own_parts(config: base.Config) -> list[str]:
  """Returns the names of what a config may take from a person's own files."""
  metrics = config.evaluation.metrics.split(",")
  return [config.data.task, *_own_of_model(config.model).values(), *metrics]


def _own_of_model(model: base.Model) -> dict[str, str]:
  """Returns the fields of a model that name a person's own part."""
  parts = {name: getattr(model, name) for name in ("encoder", "decoder", "attention")}
  return {name: value for name, value in parts.items() if own.is_own(value)}


def _check_model(config: base.Config, task: Task) -> None:
  """Raises ConfigError if a person's own part makes no model that can be trained."""
  parts = _own_of_model(config.model)
  if not parts:
    return
  model = make_task_model(config, task)
  try:
    hash(model)  # for it is a constant of compiled programs
    abstract_state(make_recipe(config, model, make_mesh()))
  except Exception as error:  # whatever a person's file may raise
    names = ", ".join(f"config.model.{name}={value}" for name, value in parts.items())
    raise ConfigError(f"{names}: {type(error).__name__}: {error}") from error


def _shared_settings(
  config: base.Config, folder: pathlib.Path, launch: Launch, task: Task, description: dict[str, Any]
) -> list[Any]:
  """Returns what must be the same in all processes."""
  versions, digests = (description["versions"], description["commit"]), list(description["data"].values())
  place = str(folder.resolve())
  return [dataclasses.asdict(config), place, digests, words_of(task), versions, launch.parameter_shards]
