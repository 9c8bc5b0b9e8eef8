"""Studies: their runs are possible, their pages are made of stored numbers, and these are in the project."""

import dataclasses
import importlib
import pathlib
import pkgutil

import numpy as np
import pytest

from configs import base
from experiments import studies as folder
from experiments.commands.fields import flat
from experiments.runs import workdir
from experiments.studies import alignment, findings
from experiments.translation import sweep

NAMES = sorted(module.name for module in pkgutil.iter_modules(folder.__path__) if module.name != "findings")
FOLDER = pathlib.Path(__file__).parents[2] / "docs" / "findings"
studies = pytest.mark.parametrize("name", NAMES)


def module(name):
  return importlib.import_module(f"experiments.studies.{name}")


@studies
def test_the_runs_of_a_study_are_possible_and_have_five_seeds_at_least(name):
  study = module(name)
  runs = sweep.make_runs(study.get_config(), study.get_choices())
  seeds = {}
  for run in runs:
    values = flat(run.config)
    seeds.setdefault(str({**values, "seed": 0}), set()).add(values["seed"])
  assert min(map(len, seeds.values())) >= getattr(study, "FEWEST_SEEDS", 5)


@studies
def test_the_page_of_a_study_is_that_of_its_stored_numbers(name, tmp_path):
  stored = FOLDER / f"{name}.csv"
  if not stored.exists():
    pytest.skip("nothing is stored yet")
  paths = findings.write_page(tmp_path, name, module(name), findings.read(stored))
  for path in paths:
    assert (FOLDER / path.name).exists()
  assert (FOLDER / f"{name}.md").read_text("utf-8") == paths[-1].read_text("utf-8")


@studies
@pytest.mark.parametrize("step", [0, 3])
def test_a_page_may_be_written_before_all_runs_are_finished(name, step, tmp_path):
  stored = findings.read(FOLDER / f"{name}.csv")
  paths = findings.write_page(tmp_path, name, module(name), stored[::step] if step else [])
  assert "So far" in paths[-1].read_text("utf-8")


def test_rows_are_read_as_they_were_written(tmp_path):
  rows = [
    {
      "run": "a",
      "config": "1234e567",
      "model.attention": "additive",
      "train.learns_end": True,
      "seed": 0,
      "test/bleu": 40.125,
    },
    {
      "run": "b",
      "config": "12345678",
      "model.attention": "none",
      "train.learns_end": False,
      "seed": 1,
      "other/bleu": 1e-7,
    },
  ]
  findings.write(tmp_path / "new" / "rows.csv", rows)
  names = dict.fromkeys([*rows[0], *rows[1]])
  assert findings.read(tmp_path / "new" / "rows.csv") == [
    {name: row.get(name) for name in names} for row in rows
  ]
  assert findings.read(tmp_path / "none.csv") == []


def test_runs_are_chosen_by_fields_and_give_their_values():
  runs = findings.Runs(
    {"run": f"{kind} {seed}", "model.attention": kind, "seed": seed, "test/bleu": 10.0 * seed}
    for kind in ("additive", "none")
    for seed in (1, 2)
  )
  assert runs.of(attention="none", seed=2).values("test/bleu") == [20.0]
  assert runs.by("attention", "test/bleu") == {"additive": [10.0, 20.0], "none": [10.0, 20.0]}
  assert runs.of(attention="local").values("test/bleu") == []
  assert runs.values("test/chrf") == []


def test_finished_runs_are_collected_once(tmp_path):
  runs = sweep.make_runs(base.Config(), {"model.attention": ["additive", "none"], "seed": [0, 1]})
  for run in runs[:3]:
    own = tmp_path / run.name
    own.mkdir()
    workdir.write_config(own, dataclasses.asdict(run.config))
    workdir.write_json(own / "results.json", {"test": {"bleu": 40.0 + run.config.seed}})
  stored = [
    {"run": runs[0].name, "config": findings.digest(runs[0].config), "test/bleu": 7.0},
    {"run": runs[1].name, "config": "of another version of the study", "test/bleu": 8.0},
    {"run": "renamed", "config": findings.digest(runs[3].config), "model.attention": 3, "test/bleu": 9.0},
    {"run": "another program's", "config": None, "test/bleu": 6.0},
  ]
  rows = findings.collect(tmp_path, runs, stored, measure=None)
  assert [(row["run"], row["model.attention"], row["seed"], row["test/bleu"]) for row in rows] == [
    (runs[0].name, "additive", 0, 7.0),  # stored, and not measured again
    (runs[1].name, "additive", 1, 41.0),
    (runs[2].name, "none", 0, 40.0),
    (runs[3].name, "none", 1, 9.0),  # its folder is gone
  ]
  assert findings.collect(tmp_path, runs[:2], rows) == [
    {k: v for k, v in row.items() if k != "model.attention"} for row in rows[:2]
  ]


def test_a_run_with_another_config_is_not_collected(tmp_path):
  (run,) = sweep.make_runs(base.Config(), {"seed": [0]})
  own = tmp_path / run.name
  own.mkdir()
  workdir.write_config(own, dataclasses.asdict(base.Config(model=base.Model(width=16))))
  workdir.write_json(own / "results.json", {"test": {"bleu": 40.0}})
  with pytest.raises(workdir.WorkdirError, match=r"another config: model.width 16 \(here 128\)"):
    findings.collect(tmp_path, [run])


def test_digests_tell_configs_apart():
  configs = [base.Config(), base.Config(seed=1), base.Config(model=base.Model(width=64))]
  assert len({findings.digest(config) for config in configs}) == 3
  assert findings.digest(base.Config()) == findings.digest(base.Config())


def test_stored_numbers_are_of_the_runs_that_a_study_has_now():
  for name in NAMES:
    study = module(name)
    runs = {run.name: run for run in sweep.make_runs(study.get_config(), study.get_choices())}
    for row in findings.read(FOLDER / f"{name}.csv"):
      assert row["config"] is None or row["config"] == findings.digest(runs[row["run"]].config), row["run"]


def test_shifted_weights_are_those_of_the_word_before_or_after():
  weights = np.arange(6.0).reshape(3, 2)
  assert alignment._shifted(weights, 1).tolist() == [[2, 3], [4, 5], [0, 0]]
  assert alignment._shifted(weights, -1).tolist() == [[0, 0], [0, 1], [2, 3]]
  assert alignment._shifted(weights, 0).tolist() == weights.tolist()


def test_links_of_an_aligner_are_turned_round(tmp_path):
  (tmp_path / "links").write_text("0-1 2-0\n\n", "utf-8")
  assert alignment._read_links(tmp_path / "links") == [{(1, 0), (0, 2)}, set()]
