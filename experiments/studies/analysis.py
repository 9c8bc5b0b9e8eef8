"""Statistics, CSV files and pages of studies."""

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
from experiments.cli.messages import markdown
from experiments.comparison.compare import Groups, Runs, differing_fields, format_mean, read_metrics
from experiments.comparison.sweep import Run, csv_text, is_done, make_runs
from experiments.figures import figures
from experiments.inference.translator import Translator
from experiments.runs import load
from experiments.runs.record import check_same

Row = Mapping[str, Any]

SEEDS = [0, 1, 2, 3, 4]
TRANSFORMER: dict[str, list[Any]] = {
  "model.encoder": ["transformer"],
  "model.decoder": ["transformer"],
  "model.num_layers": [2],
  "model.num_decoder_layers": [2],
}
SETUP_HEADING = "**Setup.**"
SIGNIFICANCE_LEVEL = 0.05


class StudyReport(NamedTuple):
  """The tables and figures of a study.

  Attributes:
    text: tables with their captions, in Markdown.
    figures: figures by name. The name is the last part of the file name.
  """

  text: str
  figures: Mapping[str, Figure]


def significance_note(baseline: str, num_seeds: str = "five") -> str:
  """Returns the note under a table that explains its numbers and asterisks."""
  return (
    f"Mean and standard deviation over {num_seeds} seeds. An asterisk marks p < {SIGNIFICANCE_LEVEL} against "
    f"{baseline} (exact two-sided permutation test, not corrected for multiple comparisons)."
  )


def comparison_rows(groups: Groups, metrics: Iterable[str], digits: int = 3) -> list[list[str]]:
  """Returns one table row per group, with each metric tested against the first group.

  >>> comparison_rows({"a": Runs([{"test/bleu": 40.0}]), "b": Runs([])}, ["test/bleu"], digits=1)
  [['a', '40.0'], ['b', '-']]
  """
  baseline, *_ = groups.values()
  return [
    [name, *(mean_with_star(group.values(metric), baseline.values(metric), digits) for metric in metrics)]
    for name, group in groups.items()
  ]


def table(groups: Groups, metrics: Mapping[str, str]) -> str:
  """Returns a Markdown table with one row per group and one column per metric.

  Args:
    groups: runs by name. The first group is the baseline of the tests.
    metrics: column title -> metric.
  """
  return markdown(["", *metrics], comparison_rows(groups, metrics.values()))


def p_value(first: Sequence[float], second: Sequence[float]) -> float:
  """Returns the p-value of the difference between two means, by a permutation test.

  The test is two-sided and exact. If there are more than a million permutations, a million random ones are
  used.

  References:
    Fisher 1935, "The Design of Experiments".

  >>> p_value([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])  # 2 of the 20 permutations
  0.1
  """

  def difference(first: np.ndarray, second: np.ndarray, axis: int) -> np.ndarray:
    return np.abs(np.mean(first, axis=axis) - np.mean(second, axis=axis))

  test = stats.permutation_test((first, second), difference, n_resamples=1_000_000, alternative="greater")
  return float(test.pvalue)


def mean_with_star(values: Sequence[float], baseline: Sequence[float], digits: int = 3) -> str:
  """Returns mean and standard deviation, with an asterisk if the mean differs significantly from `baseline`.

  >>> mean_with_star([0.1, 0.2, 0.3, 0.4], [0.6, 0.7, 0.8, 0.9])
  '0.250 ± 0.129*'
  >>> mean_with_star([0.1, 0.2], [0.1, 0.2]), mean_with_star([], [0.1])
  ('0.150 ± 0.071', '-')
  """
  can_test = min(len(values), len(baseline)) > 1
  is_significant = can_test and p_value(values, baseline) < SIGNIFICANCE_LEVEL
  return format_mean(values, digits) + ("*" if is_significant else "")


def collect_rows(
  folder: pathlib.Path,
  runs: Sequence[Run],
  stored: Sequence[Row] = (),
  measure: Callable[[Translator], Mapping[str, float]] | None = None,
) -> list[Row]:
  """Returns a row for each finished run of a sweep: its group, the fields that vary, and its metrics.

  Args:
    folder: folder of the sweep.
    runs: runs of the sweep. Unfinished runs have no row unless it is stored.
    stored: rows of an earlier call. A run with the config of a stored row is not measured again, even if its
      name has changed.
    measure: returns additional metrics of a run's translator.

  Raises:
    WorkdirError: if the folder has a run with a different config.
  """
  varied_fields = differing_fields([run.config for run in runs])
  stored_rows = {row["config"]: row for row in stored if row.get("config") is not None}
  for run in runs:
    check_same(folder / run.name, run.config)
  rows: list[Row] = []
  for run in runs:
    config = config_fields.flat(run.config)
    identity = {"run": run.name, "config": config_digest(run.config)}
    identity |= {"group": run.group} if run.group else {}
    identity |= {name: config[name] for name in varied_fields}
    stored_row = stored_rows.get(identity["config"])
    if stored_row is not None:
      rows.append({**identity, **{name: value for name, value in stored_row.items() if "/" in name}})
    elif is_done(folder / run.name, run.config):
      measured = {} if measure is None else measure(load(folder / run.name))
      rows.append({**identity, **read_metrics(folder / run.name), **measured})
  return rows


def with_num_steps(config: base.Config, num_steps: int) -> base.Config:
  """Sets the number of training steps, and evaluates once, after the last step."""
  config.train.num_train_steps = config.train.eval_every_steps = num_steps
  return config


def config_digest(config: base.Config) -> str:
  """Returns a short hash of the config fields that differ from the defaults."""
  defaults = config_fields.flat(base.Config())
  changed = {name: value for name, value in config_fields.flat(config).items() if value != defaults[name]}
  return hashlib.sha256(repr(sorted(changed.items())).encode()).hexdigest()[:8]


def read_rows(path: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the rows of a CSV file, with numbers parsed. A missing file has no rows."""
  if not path.exists():
    return []
  with path.open(encoding="utf-8", newline="") as file:
    return [{name: _parse_cell(name, text) for name, text in row.items()} for row in csv.DictReader(file)]


def write_rows(path: pathlib.Path, rows: Sequence[Row]) -> None:
  """Writes rows as a CSV file, floats with six significant digits."""
  rounded = [{k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows]
  path.parent.mkdir(parents=True, exist_ok=True)
  write_text(path, csv_text(rounded))


def write_page(folder: pathlib.Path, name: str, study: Any, rows: Sequence[Row]) -> list[pathlib.Path]:
  """Writes NAME.md and its figures.

  The docstring of the study is the text of the page. Its first line is the title. The figures and tables are
  inserted before "**Setup.**".

  Args:
    folder: folder of all findings.
    name: name of the study.
    study: module of the study.
    rows: rows of its runs, and its extra rows.

  Returns:
    The paths of the figures, then that of the page.
  """
  report = study.write(Runs(rows))
  paths = []
  for figure_name, figure in report.figures.items():
    paths.append(folder / f"{name}_{figure_name}.png")
    figures.save(figure, paths[-1])
  images = [f"![{path.stem}]({path.name})" for path in paths]
  title, _, text = study.__doc__.strip().partition("\n")
  answer, setup_heading, setup = text.partition(SETUP_HEADING)
  parts = [f"# {title}", answer.strip()]
  num_runs = len(make_runs(study.get_config(), study.get_sweep()))
  num_finished = sum(row.get("config") is not None for row in rows)
  if num_finished < num_runs:
    parts.append(f"{num_finished} of {num_runs} runs are finished.")
  parts += [*images, report.text.strip(), (setup_heading + setup).strip()]
  paths.append(folder / f"{name}.md")
  write_text(paths[-1], "\n\n".join(parts) + "\n")
  return paths


def _parse_cell(column: str, text: str) -> Any:
  """Returns the value of a cell. Names of runs and configs stay text, even if they look like numbers."""
  for parse in () if column in ("run", "config") else (int, float):
    try:
      return parse(text)
    except ValueError:
      continue
  return {"True": True, "False": False, "": None}.get(text, text)
