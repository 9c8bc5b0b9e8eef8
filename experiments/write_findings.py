"""Writes what a study has found, from the numbers of its runs.

    python -m experiments.sweep --config=experiments/studies/score_and_width.py --workdir=runs/score_and_width
    python -m experiments.write_findings --study=score_and_width --workdir=runs/score_and_width

The second command adds the numbers of the finished runs to docs/findings/NAME.csv, and writes NAME.md and
its figures of all that stands there; without --workdir it writes them again. Runs are measured once: a study
that measures something new begins with another CSV.
"""

import importlib
import pathlib
import pkgutil
from typing import Any

from absl import flags

from experiments import studies
from experiments.cli import flags as commands
from experiments.cli.flags import UsageError
from experiments.runs.workdir import has_run
from experiments.studies import analysis
from experiments.translation.sweep import make_runs

_NAMES = sorted(module.name for module in pkgutil.iter_modules(studies.__path__) if module.name != "analysis")
_STUDY = flags.DEFINE_enum("study", None, _NAMES, "which one")
_WORKDIR = commands.define_workdir(None)
_OUTPUT = flags.DEFINE_string(
  "output", "docs/findings", "folder of the findings, and of the numbers they are made of"
)


def main() -> None:
  if not _STUDY.value:
    raise UsageError(f"--study must be one of {', '.join(_NAMES)}, got none")
  name, folder = _STUDY.value, pathlib.Path(_OUTPUT.value)
  study = importlib.import_module(f"experiments.studies.{name}")
  stored = folder / f"{name}.csv"
  if _WORKDIR.value:
    _collect(study, commands.workdir_path(_WORKDIR), stored)
  rows = analysis.read(stored)
  if not rows:
    raise UsageError(f"{stored} holds no numbers yet: --workdir must name the folder of the sweep")
  for path in analysis.write_page(folder, name, study, rows):
    print(f"wrote {path}")


def _collect(study: Any, workdir: pathlib.Path, stored: pathlib.Path) -> None:
  """Adds the numbers of the finished runs of a sweep to those that are stored."""
  runs = make_runs(study.get_config(), study.get_sweep())
  if not any(has_run(workdir / run.name) for run in runs):
    raise UsageError(f"--workdir={workdir} holds no run of this study, such as {runs[0].name}")
  earlier = analysis.read(stored)
  rows = analysis.collect(workdir, runs, earlier, getattr(study, "measure", None))
  # What is no run of ours, such as another program's numbers: kept where they cannot be found again.
  others = {row["run"]: row for row in earlier if row["config"] is None}
  others |= {row["run"]: row for row in getattr(study, "others", tuple)()}
  analysis.write(stored, [*rows, *others.values()])
  print(f"wrote {stored}: {len(rows)} of {len(runs)} runs")


if __name__ == "__main__":
  commands.run(main)
