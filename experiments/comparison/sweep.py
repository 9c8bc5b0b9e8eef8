"""Sweeps: the runs of a config file, their training commands, and the report of their results."""

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
from experiments.cli import components, config_fields
from experiments.cli.config_fields import ConfigError
from experiments.cli.io import write_text
from experiments.comparison import compare
from experiments.comparison.job_runner import Job
from experiments.figures import figures, run_figures
from experiments.runs.record import check_same, file_digests, read_config
from experiments.runs.validation import validate
from experiments.runs.workdir import has_run, is_locked

Choices = Mapping[str, Sequence[Any]]


class Run(NamedTuple):
  """One run of a sweep.

  Attributes:
    name: name of its folder.
    config: config of the run.
    group: name of its group of choices, or "" without groups.
  """

  name: str
  config: base.Config
  group: str = ""


def make_runs(config: base.Config, choices: Mapping[str, Any]) -> list[Run]:
  """Returns a run for each combination of choices. The last field varies fastest.

  Args:
    config: base config. The choices replace some of its fields.
    choices: values of some fields, such as {"model.attention": ["additive", "bilinear"], "seed": [0, 1]}, or
      groups of these by name.

  Raises:
    ConfigError: if a field does not exist, a config is invalid, or two runs would have the same folder.

  >>> [name for name, *_ in make_runs(base.Config(), {"model.features": [64, 128], "seed": [0]})]
  ['features=64_seed=0', 'features=128_seed=0']
  >>> deep = {"model.encoder": ["transformer"], "seed": [0, 1]}
  >>> [name for name, *_ in make_runs(base.Config(), {"shallow": {"seed": [0]}, "deep": deep})]
  ['shallow', 'deep_seed=0', 'deep_seed=1']
  """
  runs = []
  for group, group_choices in by_group(choices).items():
    _check_choices(config, group_choices)
    named = [name for name, values in group_choices.items() if not group or len(values) > 1]
    for values in itertools.product(*group_choices.values()):
      overrides = dict(zip(group_choices, values, strict=True))
      run_config = copy.deepcopy(config)
      for name, value in overrides.items():
        config_fields.set_field(run_config, name, value)
      run_config = components.with_names(run_config)
      validate(run_config)
      chosen = config_fields.flat(run_config)
      runs.append(Run(_run_name(group, {name: chosen[name] for name in named}), run_config, group))
  names = [run.name for run in runs]
  if duplicates := sorted({name for name in names if names.count(name) > 1}):
    raise ConfigError(
      "choices must give each run its own folder name, which keeps only letters, digits and _.=+-, got "
      f"{', '.join(duplicates)} more than once"
    )
  return runs


def by_group(choices: Mapping[str, Any]) -> Mapping[str, Choices]:
  """Returns choices by group name. Choices without groups are the group "".

  Raises:
    ConfigError: if `choices` has neither form, or is empty.
  """
  if isinstance(choices, Mapping) and choices:
    if not any(isinstance(group, Mapping) for group in choices.values()):
      return {"": choices}
    if all(
      isinstance(group, Mapping) and group and name and isinstance(name, str)
      for name, group in choices.items()
    ):
      return choices
  raise ConfigError(
    f"choices must be a non-empty dict of lists by field, or a dict of such dicts by group, got {choices!r}"
  )


def _check_choices(config: base.Config, choices: Choices) -> None:
  """Raises ConfigError for an unknown field, or values that are not a list of distinct ones."""
  known = config_fields.flat(config)
  for name, values in choices.items():
    if name not in known:
      raise ConfigError(
        f"choices must name config fields, got {name!r}{config_fields.closest(str(name), list(known))}"
      )
    is_list = isinstance(values, (list, tuple)) and len(values) > 0
    if not is_list or any(value in values[:i] for i, value in enumerate(values)):
      raise ConfigError(f"choices of config.{name} must be a list of distinct values, got {values!r}")


def make_job(run: Run, folder: pathlib.Path) -> Job:
  """Returns the job that trains a run.

  The command sets all config fields, because the config file may change before the job starts.

  Args:
    run: a run of `make_runs`.
    folder: folder of the sweep.

  Raises:
    WorkdirError: if the run's folder has a run with a different config.
  """
  workdir = folder / run.name
  check_same(workdir, run.config, file_digests(run.config))
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
  """Returns whether a run has finished all steps of its config."""
  has_ended = has_run(folder) and (folder / "results.json").exists()
  return has_ended and read_config(folder).train.num_train_steps == config.train.num_train_steps


def write_report(folder: pathlib.Path, runs: Sequence[Run]) -> tuple[str, list[pathlib.Path]]:
  """Writes the results of the finished runs of a sweep.

  Returns:
    The tables of all splits, and the paths of the files: table.txt, table.csv and a figure for each split.
  """
  done = [run for run in runs if is_done(folder / run.name, run.config)]
  if not done:
    return "no run is finished yet", []
  names = [re.sub(r"_seed=\d+(?=_|$)", "", run.name) for run in done] if done[0].group else None
  groups = compare.group_runs([folder / run.name for run in done], names)
  splits = list(dict.fromkeys(split for splits in compare.splits_of_runs(groups) for split in splits))
  text = "\n\n".join(f"{split}\n{compare.table(groups, split)}" for split in splits)
  tables = [folder / "table.txt", folder / "table.csv"]
  write_text(tables[0], f"{text}\n")
  write_text(tables[1], csv_text([row for split in splits for row in compare.csv_rows(groups, split)]))
  draw_functions: dict[str, Callable[[], Figure]] = {}
  for split in splits:
    panels = compare.metric_panels(groups, compare.split_metrics(groups, split))
    draw_functions[split] = functools.partial(figures.dot_plot, panels, title=split)
  return text, [*tables, *run_figures.write_figures(folder / "figures", draw_functions, groups)]


def _run_name(group: str, overrides: Mapping[str, Any]) -> str:
  """Returns the folder name of a run: its group and its fields, shortened to the last part if unambiguous."""
  last_parts = [name.rpartition(".")[2] for name in overrides]
  names = [
    name if last_parts.count(last) > 1 else last for name, last in zip(overrides, last_parts, strict=True)
  ]
  parts = [f"{name}={value}" for name, value in zip(names, overrides.values(), strict=True)]
  return re.sub(r"[^\w.=+-]", "-", "_".join([group, *parts] if group else parts))


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
  """Returns rows as CSV, with a column for each key of any row."""
  text = io.StringIO()
  names = dict.fromkeys(name for row in rows for name in row)
  writer = csv.DictWriter(text, list(names), lineterminator="\n")
  writer.writeheader()
  writer.writerows(rows)
  return text.getvalue()
