"""Writes the page and figures of a study.

    python -m experiments.sweep --config=experiments/studies/score_and_width.py --workdir=runs/score_and_width
    python -m experiments.write_findings --study=score_and_width --workdir=runs/score_and_width

The second command adds the metrics of finished runs to docs/findings/NAME.csv, and writes NAME.md and its
figures from that file. Without --workdir, it rewrites them from the stored metrics. Each run is measured
once. If a study changes what it measures, delete its CSV file first.
"""

import importlib
import pathlib
import pkgutil
from typing import Any

from absl import flags

from experiments import studies
from experiments.cli import flags as cli
from experiments.cli.flags import UsageError
from experiments.cli.io import output_folder
from experiments.comparison.sweep import make_runs
from experiments.runs.workdir import has_run
from experiments.studies import analysis

_NAMES = sorted(module.name for module in pkgutil.iter_modules(studies.__path__) if module.name != "analysis")
_STUDY = flags.DEFINE_enum("study", None, _NAMES, "name of the study (required)")
_WORKDIR = cli.define_workdir(None, "folder of the sweep; without it, the stored metrics are used")
_OUTPUT = flags.DEFINE_string("output", "docs/findings", "folder of the pages, figures and CSV files")


def main() -> None:
  if not _STUDY.value:
    raise UsageError(f"--study must be one of {', '.join(_NAMES)}, got none")
  name, folder = _STUDY.value, output_folder(_OUTPUT)
  study = importlib.import_module(f"experiments.studies.{name}")
  csv_path = folder / f"{name}.csv"
  if _WORKDIR.value:
    _update_csv(study, cli.workdir_path(_WORKDIR), csv_path)
  rows = analysis.read_rows(csv_path)
  if not rows:
    raise UsageError(f"{csv_path}: no metrics are stored; pass --workdir with the folder of the sweep")
  for path in analysis.write_page(folder, name, study, rows):
    print(f"wrote {path}")


def _update_csv(study: Any, workdir: pathlib.Path, csv_path: pathlib.Path) -> None:
  """Adds the metrics of the finished runs of a sweep to a CSV file."""
  runs = make_runs(study.get_config(), study.get_sweep())
  if not any(has_run(workdir / run.name) for run in runs):
    raise UsageError(f"--workdir must contain runs of this study, such as {runs[0].name}, got {workdir}")
  stored_rows = analysis.read_rows(csv_path)
  rows = analysis.collect_rows(workdir, runs, stored_rows, getattr(study, "measure", None))
  # Extra rows, such as those of another program, stay if the program is not installed here.
  extra_rows = {row["run"]: row for row in stored_rows if row["config"] is None}
  extra_rows |= {row["run"]: row for row in getattr(study, "extra_rows", tuple)()}
  analysis.write_rows(csv_path, [*rows, *extra_rows.values()])
  print(f"wrote {csv_path}: {len(rows)} of {len(runs)} runs")


if __name__ == "__main__":
  cli.run(main)
