"""What studies are made of: the numbers of their runs, kept as CSV, and the page that shows them."""

import csv
import hashlib
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from configs import base
from experiments.cli import config_fields
from experiments.cli.io import write_text
from experiments.cli.tables import markdown
from experiments.translation import load, png
from experiments.translation.compare import Groups, Runs, differing, mean, results_of
from experiments.translation.run_config import check_same_config
from experiments.translation.sweep import Run, csv_text, is_done, make_runs
from experiments.translation.translator import Translator

Row = Mapping[str, Any]

SEEDS = [0, 1, 2, 3, 4]
TRANSFORMER: dict[str, list[Any]] = {
  "model.encoder": ["transformer"],
  "model.decoder": ["transformer"],
  "model.num_layers": [2],
  "model.num_decoder_layers": [2],
}
LEVEL = 0.05
NOTE = (
  f"\\* where chance alone would make a mean differ from that of {{}} as much with p < {LEVEL}: exact "
  "permutation test of the runs, two-sided, each comparison for itself: of twenty, chance makes "
  "one star. With five runs each no p is below 0.008."
)


class StudyReport(NamedTuple):
  """The answer of a study.

  Attributes:
    text: Markdown: tables, and what they say.
    figures: by the last part of their names.
  """

  text: str
  figures: Mapping[str, Figure]


def rows_beside(groups: Groups, metrics: Iterable[str], digits: int = 3) -> list[list[str]]:
  """Returns a row of a table for each group: its name, and each metric beside that of the first group.

  >>> rows_beside({"a": Runs([{"test/bleu": 40.0}]), "b": Runs([])}, ["test/bleu"], digits=1)
  [['a', '40.0'], ['b', '-']]
  """
  first, *_ = groups.values()
  return [
    [name, *(beside(group.values(metric), first.values(metric), digits) for metric in metrics)]
    for name, group in groups.items()
  ]


def table(groups: Groups, metrics: Mapping[str, str]) -> str:
  """Returns these rows as a table, with the titles of the metrics above."""
  return markdown(["", *metrics], rows_beside(groups, metrics.values()))


def p_value(first: Sequence[float], second: Sequence[float]) -> float:
  """Returns how often the means of two groups of runs differ as much or more, when runs change groups.

  All ways to part the runs are counted, of more than a million that many at random: the permutation test of
  Fisher (1935, "The Design of Experiments").

  >>> p_value([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])  # 2 of the 20 ways
  0.1
  """

  def difference(first: np.ndarray, second: np.ndarray, axis: int) -> np.ndarray:
    return np.abs(np.mean(first, axis=axis) - np.mean(second, axis=axis))

  test = stats.permutation_test((first, second), difference, n_resamples=1_000_000, alternative="greater")
  return float(test.pvalue)


def beside(values: Sequence[float], base: Sequence[float], digits: int = 3) -> str:
  """Returns mean and standard deviation, with a star where the mean is not that of `base` (see `p_value`).

  >>> beside([0.1, 0.2, 0.3, 0.4], [0.6, 0.7, 0.8, 0.9]), beside([0.1, 0.2], [0.1, 0.2]), beside([], [0.1])
  ('0.250 ± 0.129*', '0.150 ± 0.071', '-')
  """
  differs = min(len(values), len(base)) > 1 and p_value(values, base) < LEVEL
  return mean(values, digits) + "*" * differs


def collect(
  folder: pathlib.Path,
  runs: Sequence[Run],
  stored: Sequence[Row] = (),
  measure: Callable[[Translator], Mapping[str, float]] | None = None,
) -> list[Row]:
  """Returns a row for each finished run of a sweep: its group, the fields in which all differ, its metrics.

  Args:
    folder: of the sweep.
    runs: of the sweep; of those that are not finished there is no row, unless it is stored.
    stored: rows of an earlier call; runs with the same config, whatever their names, are not measured again.
    measure: returns more metrics of a run's translator, if there are any.

  Raises:
    WorkdirError: if the folder holds a run with another config.
  """
  chosen = differing([run.config for run in runs])
  earlier = {row["config"]: row for row in stored if row.get("config") is not None}
  for run in runs:
    check_same_config(folder / run.name, run.config)
  rows: list[Row] = []
  for run in runs:
    config = config_fields.flat(run.config)
    own = {"run": run.name, "config": digest(run.config)}
    own |= {"group": run.group} if run.group else {}
    own |= {name: config[name] for name in chosen}
    before = earlier.get(own["config"])
    if before is not None:
      rows.append({**own, **{name: value for name, value in before.items() if "/" in name}})
    elif is_done(folder / run.name, run.config):
      more = {} if measure is None else measure(load(folder / run.name))
      rows.append({**own, **results_of(folder / run.name), **more})
  return rows


def with_steps(config: base.Config, steps: int) -> base.Config:
  """Returns a config of so many steps, validated at the end."""
  config.train.num_train_steps = config.train.eval_every_steps = steps
  return config


def digest(config: base.Config) -> str:
  """Returns what tells a config from others: of its fields that are not as `base` has them."""
  defaults = config_fields.flat(base.Config())
  changed = {name: value for name, value in config_fields.flat(config).items() if value != defaults[name]}
  return hashlib.sha256(repr(sorted(changed.items())).encode()).hexdigest()[:8]


def read(path: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the rows of a CSV file, numbers as numbers; none if there is no file."""
  if not path.exists():
    return []
  with path.open(encoding="utf-8", newline="") as file:
    return [{name: _value(name, text) for name, text in row.items()} for row in csv.DictReader(file)]


def write(path: pathlib.Path, rows: Sequence[Row]) -> None:
  """Writes what `read` reads."""
  short = [{k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows]
  path.parent.mkdir(parents=True, exist_ok=True)
  write_text(path, csv_text(short))


def write_page(folder: pathlib.Path, name: str, study: Any, rows: Sequence[Row]) -> list[pathlib.Path]:
  """Writes NAME.md and its figures; returns their paths.

  Args:
    folder: of all findings.
    name: of the study.
    study: its module: its text is the question in a line, and how to repeat it.
    rows: of its runs, and of what stands beside them.
  """
  finding = study.write(Runs(rows))
  paths = []
  for part, figure in finding.figures.items():
    paths.append(folder / f"{name}_{part}.png")
    png.save(figure, paths[-1])
  question, _, rest = study.__doc__.strip().partition("\n")
  parts = [f"# {question}", rest.strip("\n").rstrip()]
  wanted = len(make_runs(study.get_config(), study.get_sweep()))
  there = sum(row.get("config") is not None for row in rows)
  if there < wanted:
    parts.append(f"So far {there} of {wanted} runs are finished.")
  shown = [f"![{path.stem}]({path.name})" for path in paths]
  paths.append(folder / f"{name}.md")
  write_text(paths[-1], "\n\n".join([*parts, finding.text.strip(), *shown]) + "\n")
  return paths


def _value(name: str, text: str) -> Any:
  """Returns what a cell of a column says; a name may look like a number."""
  for kind in () if name in ("run", "config") else (int, float):
    try:
      return kind(text)
    except ValueError:
      continue
  return {"True": True, "False": False, "": None}.get(text, text)
