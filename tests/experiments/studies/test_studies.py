"""The pages of studies are those of their stored metrics."""

import importlib
import pathlib
import pkgutil

import pytest

from experiments import studies
from experiments.cli.config_fields import flat
from experiments.comparison import sweep
from experiments.studies import analysis

pytestmark = pytest.mark.slow

NAMES = sorted(module.name for module in pkgutil.iter_modules(studies.__path__) if module.name != "analysis")
FOLDER = pathlib.Path(__file__).parents[3] / "docs" / "findings"
each_study = pytest.mark.parametrize("name", NAMES)


def runs_of(name):
  study = importlib.import_module(f"experiments.studies.{name}")
  return study, sweep.make_runs(study.get_config(), study.get_sweep())


@each_study
def test_studies_have_enough_seeds(name):
  study, runs = runs_of(name)
  seeds = {}
  for run in runs:
    values = flat(run.config)
    seeds.setdefault(str({**values, "seed": 0}), set()).add(values["seed"])
  assert min(map(len, seeds.values())) >= getattr(study, "MIN_SEEDS", 5)


@each_study
def test_pages_are_up_to_date(name, tmp_path):
  study, runs = runs_of(name)
  stored = analysis.read_rows(FOLDER / f"{name}.csv")
  paths = analysis.write_page(tmp_path, name, study, stored)
  assert all((FOLDER / path.name).exists() for path in paths)
  assert (FOLDER / f"{name}.md").read_text("utf-8") == paths[-1].read_text("utf-8")
  # The stored rows belong to the current runs of the study, and to the defaults of configs/base.py.
  digests = {run.name: analysis.config_digest(run.config) for run in runs}
  for row in stored:
    assert row["config"] is None or row["config"] == digests[row["run"]], row["run"]
