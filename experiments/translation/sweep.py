"""Many runs from one config file: which there are, the commands that make them, and what they found."""

import copy
import csv
import functools
import io
import itertools
import pathlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from configs import base
from experiments.cli import config_fields
from experiments.cli.config_fields import ConfigError
from experiments.cli.io import write_text
from experiments.runs.job_runner import Job
from experiments.runs.workdir import has_run, is_locked
from experiments.translation import compare, figures, reporting
from experiments.translation.run_config import check_same_config, read_config
from experiments.translation.validation import validate

Choices = Mapping[str, Sequence[Any]]


class Run(NamedTuple):
  """One run of a sweep.

  Attributes:
    name: that of its folder.
    config: the experiment.
    group: the name of the choices that it is one of, "" if they have none.
  """

  name: str
  config: base.Config
  group: str = ""


def make_runs(config: base.Config, choices: Mapping[str, Any]) -> list[Run]:
  """Returns a run for each combination of the choices, the last of which changes fastest.

  Args:
    config: what is the same for all.
    choices: values of some fields, such as {"model.attention": ["additive", "bilinear"], "seed": [0, 1]}; or
      groups of these by name, whose runs come one after the other.

  Raises:
    ConfigError: if there is no such field, no such config, or no folder for a run.

  >>> [name for name, *_ in make_runs(base.Config(), {"model.features": [64, 128], "seed": [0]})]
  ['features=64_seed=0', 'features=128_seed=0']
  >>> deep = {"model.encoder": ["transformer"], "seed": [0, 1]}
  >>> [name for name, *_ in make_runs(base.Config(), {"shallow": {"seed": [0]}, "deep": deep})]
  ['shallow', 'deep_seed=0', 'deep_seed=1']
  """
  runs = []
  for group, own in by_group(choices).items():
    _check_choices(config, own)
    named = [name for name, values in own.items() if not group or len(values) > 1]
    for values in itertools.product(*own.values()):
      chosen = dict(zip(own, values, strict=True))
      run = Run(_name(group, {name: chosen[name] for name in named}), copy.deepcopy(config), group)
      for name, value in chosen.items():
        config_fields.set_field(run.config, name, value)
      validate(run.config)
      runs.append(run)
  if len({run.name for run in runs}) < len(runs):
    raise ConfigError("choices must differ in letters, digits or one of .=+-, for each run has its folder")
  return runs


def by_group(choices: Mapping[str, Any]) -> Mapping[str, Choices]:
  """Returns choices by the names of their groups; if these have none, all by "".

  Raises:
    ConfigError: if they are neither.
  """
  if isinstance(choices, Mapping) and choices:
    if not any(isinstance(own, Mapping) for own in choices.values()):
      return {"": choices}
    if all(
      isinstance(own, Mapping) and own and name and isinstance(name, str) for name, own in choices.items()
    ):
      return choices
  raise ConfigError(
    f"choices must be a dict of lists by field, or groups of these by name, none empty, got {choices!r}"
  )


def _check_choices(config: base.Config, choices: Choices) -> None:
  """Raises ConfigError for a field that is not there, or values that are no choices."""
  known = config_fields.flat(config)
  for name, values in choices.items():
    if name not in known:
      raise ConfigError(
        f"config has no field {name!r} to choose{config_fields.closest(str(name), list(known))}"
      )
    is_list = isinstance(values, (list, tuple)) and len(values) > 0
    if not is_list or any(value in values[:i] for i, value in enumerate(values)):
      raise ConfigError(f"choices of config.{name} must be a list of values, each once, got {values!r}")


def make_job(run: Run, folder: pathlib.Path) -> Job:
  """Returns what trains a run of a sweep: a command with all fields, for the file may change meanwhile.

  Args:
    run: one of `make_runs`.
    folder: of the sweep.

  Raises:
    WorkdirError: if the run's folder holds another one.
  """
  workdir = folder / run.name
  check_same_config(workdir, run.config)
  return Job(
    run.name,
    [
      *(sys.executable, "-m", "experiments.train", f"--workdir={workdir}"),
      *(f"--config.{name}={value}" for name, value in config_fields.flat(run.config).items()),
    ],
    log=folder / "logs" / f"{run.name}.txt",
    is_done=lambda: is_done(workdir, run.config),
    is_taken=lambda: is_locked(workdir),
  )


def is_done(folder: pathlib.Path, config: base.Config) -> bool:
  """Returns whether a run has ended: with as many steps as asked for."""
  has_ended = has_run(folder) and (folder / "results.json").exists()
  return has_ended and read_config(folder).train.num_train_steps == config.train.num_train_steps


def write_report(folder: pathlib.Path, runs: Sequence[Run]) -> tuple[str, list[pathlib.Path]]:
  """Writes what the finished runs of a sweep found.

  Returns:
    A table for each split, and the files: table.txt, table.csv and a figure for each split.
  """
  done = [run for run in runs if is_done(folder / run.name, run.config)]
  if not done:
    return "no run is finished yet", []
  names = [re.sub(r"_seed=\d+(?=_|$)", "", run.name) for run in done] if done[0].group else None
  found = compare.groups([folder / run.name for run in done], names)
  splits = list(dict.fromkeys(split for own in compare.splits(found) for split in own))
  text = "\n\n".join(f"{split}\n{compare.table(found, split)}" for split in splits)
  tables = [folder / "table.txt", folder / "table.csv"]
  write_text(tables[0], f"{text}\n")
  write_text(tables[1], csv_text([row for split in splits for row in compare.rows(found, split)]))
  drawn: dict[str, Callable[[], Figure]] = {}
  for split in splits:
    panels = compare.panels(found, compare.metrics_of(found, split))
    drawn[split] = functools.partial(figures.spread, panels, title=split)
  return text, [*tables, *reporting.write_figures(folder / "figures", drawn, found)]


def _name(group: str, chosen: Mapping[str, Any]) -> str:
  """Returns the name of a run's folder: of its group, and of each field the last part that no other has."""
  last = [name.rpartition(".")[2] for name in chosen]
  short = [name if last.count(end) > 1 else end for name, end in zip(chosen, last, strict=True)]
  parts = [f"{name}={value}" for name, value in zip(short, chosen.values(), strict=True)]
  return re.sub(r"[^\w.=+-]", "-", "_".join([group, *parts] if group else parts))


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
  """Returns rows as CSV, with a column for each name that one of them has."""
  text = io.StringIO()
  names = dict.fromkeys(name for row in rows for name in row)
  writer = csv.DictWriter(text, list(names), lineterminator="\n")
  writer.writeheader()
  writer.writerows(rows)
  return text.getvalue()
