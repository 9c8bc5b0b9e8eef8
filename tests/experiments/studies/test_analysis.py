"""Rows, digests and statistics of studies."""

import pytest
from helpers.small_runs import write_finished_run

from configs import base
from experiments.comparison import sweep
from experiments.runs import workdir
from experiments.studies import analysis


def test_rows_round_trip(tmp_path):
  same = {"config": "1234e567", "model.attention": "additive", "train.train_eos": True, "seed": 0}
  rows = [
    {"run": "a", **same, "test/bleu": 40.125},
    {"run": "3", **same, "train.train_eos": False, "other/bleu": 1e-7, "size/parameters": 12345678},
  ]
  analysis.write_rows(tmp_path / "new" / "rows.csv", rows)
  names = dict.fromkeys([*rows[0], *rows[1]])
  expected = [{name: row.get(name) for name in names} for row in rows]
  assert analysis.read_rows(tmp_path / "new" / "rows.csv") == expected
  assert analysis.read_rows(tmp_path / "none.csv") == []


def finish(folder, name, config, bleu):
  write_finished_run(folder / name, config, {"test": {"bleu": bleu}})


def test_finished_runs_are_collected_once(tmp_path):
  runs = sweep.make_runs(base.Config(), {"model.attention": ["additive", "none"], "seed": [0, 1]})
  for run in runs[:3]:
    finish(tmp_path, run.name, run.config, 40.0 + run.config.seed)
  digests = [analysis.config_digest(run.config) for run in runs]
  assert len({*digests, analysis.config_digest(base.Config(seed=7))}) == 5
  stored = [
    {"run": runs[0].name, "config": digests[0], "test/bleu": 7.0},
    {"run": runs[1].name, "config": "of another version of the study", "test/bleu": 8.0},
    {"run": "renamed", "config": digests[3], "model.attention": 3, "test/bleu": 9.0},
    {"run": "another program's", "config": None, "test/bleu": 6.0},
  ]
  rows = analysis.collect_rows(tmp_path, runs, stored, measure=None)
  assert [(row["run"], row["model.attention"], row["seed"], row["test/bleu"]) for row in rows] == [
    (runs[0].name, "additive", 0, 7.0),  # stored, so not measured again
    (runs[1].name, "additive", 1, 41.0),
    (runs[2].name, "none", 0, 40.0),
    (runs[3].name, "none", 1, 9.0),  # stored, without a folder
  ]
  assert analysis.collect_rows(tmp_path, runs[:2], rows) == [
    {k: v for k, v in row.items() if k != "model.attention"} for row in rows[:2]
  ]


def test_different_configs_are_errors(tmp_path):
  (run,) = sweep.make_runs(base.Config(), {"seed": [0]})
  finish(tmp_path, run.name, base.Config(model=base.Model(features=16)), 40.0)
  stored = [{"run": run.name, "config": analysis.config_digest(run.config), "test/bleu": 7.0}]
  for rows in ([], stored):
    with pytest.raises(workdir.WorkdirError, match=r"a different config: model.features 16 \(now 128\)"):
      analysis.collect_rows(tmp_path, [run], rows)


def test_p_values_count_permutations():
  # This is the largest difference of means among the 10 splits of 1, 2, 3, 4 and 10 into three and two.
  assert analysis.p_value([1.0, 2.0, 3.0], [4.0, 10.0]) == pytest.approx(0.1)
  assert analysis.p_value([4.0, 10.0], [1.0, 2.0, 3.0]) == pytest.approx(0.1)
  far, near = [0.1, 0.2, 0.3, 0.4], [0.15, 0.25, 0.35, 0.45]
  assert analysis.mean_with_star([value + 9 for value in far], far).endswith("*")
  assert not analysis.mean_with_star(near, far).endswith("*")
  # Three values are too few to be significant.
  assert not analysis.mean_with_star([9.0, 9.1, 9.2], [0.1, 0.2, 0.3]).endswith("*")
