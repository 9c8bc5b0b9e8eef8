"""The config of a run: which values its fields can have, and what a folder holds of it.

Each part of the laboratory says what it can do with its own section; what it cannot is refused before
anything is written.
"""

import dataclasses
import pathlib
from collections.abc import Iterator

from configs import base
from experiments import tasks
from experiments.commands import fields
from experiments.runs import provenance, workdir
from experiments.runs.workdir import WorkdirError
from experiments.translation import evaluate, model, step


def check_config(config: base.Config) -> None:
  """Raises ConfigError at the first field whose value is impossible; it says what is allowed."""
  fields.check(_rules(config))


def _rules(config: base.Config) -> Iterator[fields.Rule]:
  yield from fields.types(config, base.Config())
  yield "seed", config.seed, 0 <= config.seed < 2**32, "in [0, 2^32)"
  yield from tasks.rules(config.data)
  yield from model.rules(config.model)
  yield from step.rules(config.train)
  is_endless = getattr(tasks.kind_of(config.data), "is_endless", False)
  yield from evaluate.rules(config.evaluation, is_endless=is_endless)


def read_config(folder: pathlib.Path) -> base.Config:
  """Returns the config of a run.

  Raises:
    WorkdirError: if the folder holds no run, or its config is not one of this version.
  """
  values = workdir.read_config(folder)
  try:
    config = fields.from_dict(base.Config, values)
    check_config(config)
    return config
  except (ValueError, OverflowError) as error:
    raise WorkdirError(f"{folder / 'config.json'}: not a config of this version: {error}") from error


def told_defaults(folder: pathlib.Path) -> str:
  """Returns a line about the fields that did not exist when a run began; nothing if there are none."""
  if not workdir.holds_run(folder):
    return ""
  added = fields.missing(base.Config, workdir.read_config(folder))
  listed = ", ".join(f"{name}={value!r}" for name, value in added.items())
  return f"{folder} began before these fields of the config were added: {listed}" if added else ""


def check_same_config(folder: pathlib.Path, config: base.Config) -> None:
  """Raises WorkdirError if the folder holds a run with another config; it names the fields that differ."""
  if not workdir.holds_run(folder):
    workdir.check_nothing_left(folder)
    return
  theirs, ours = fields.flat(read_config(folder)), fields.flat(config)
  differing = [
    name
    for name in ours
    if ours[name] != theirs[name] and not _is_moved(folder, name, theirs[name], ours[name])
  ]
  if differing:
    listed = ", ".join(f"{name} {theirs[name]!r} (here {ours[name]!r})" for name in differing)
    raise WorkdirError(f"{folder} holds a run with another config: {listed}; take another --workdir")


def _is_moved(folder: pathlib.Path, name: str, theirs: str, ours: str) -> bool:
  """Returns whether a field names a file that is, in another place, what it was when the run began."""
  if name not in ("data.train", "data.validation", "data.test") or not (theirs and ours):
    return False
  return provenance.digests([ours])[ours] == provenance.first_digest(folder, theirs)


def write_run(folder: pathlib.Path, config: base.Config, languages: tasks.Languages) -> None:
  """Writes what a run begins with, unless it is there already."""
  if not workdir.holds_run(folder):
    tasks.write_languages(folder, languages)
    workdir.write_config(folder, dataclasses.asdict(config))
