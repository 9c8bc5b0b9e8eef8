"""The runs, commands and reports of sweeps."""

import csv
import dataclasses
import sys

import pytest
from helpers.small_runs import write_finished_run

from configs import base
from examples.custom_components import gaussian
from experiments.cli import config_fields
from experiments.cli.config_fields import ConfigError
from experiments.comparison import sweep
from experiments.runs import workdir
from experiments.runs.workdir import WorkdirError

CHOICES = {"model.attention": ["additive", "bilinear"], "seed": [0, 1, 2]}
SEVEN_STEPS = base.Config(train=base.Train(num_train_steps=7))


def finish(folder, run, results):
  write_finished_run(folder / run.name, run.config, results)


def test_each_combination_is_a_run():
  runs = sweep.make_runs(SEVEN_STEPS, CHOICES)
  assert [(run.name, run.config.model.attention, run.config.seed) for run in runs] == [
    (f"attention={kind}_seed={seed}", kind, seed) for kind in ("additive", "bilinear") for seed in (0, 1, 2)
  ]
  assert all(run.config.train.num_train_steps == 7 for run in runs)
  assert SEVEN_STEPS.seed == 0 and SEVEN_STEPS.model.attention == "additive"


def test_run_names_include_the_group():
  late = {"model.attention": [gaussian], "model.features": [16, 32], "seed": [3]}
  sizes = {"train.batch_size": [8, 9], "evaluation.batch_size": [4, 5]}
  runs = sweep.make_runs(base.Config(), {"order, late": late, "sizes": sizes})
  assert [(run.name, run.group) for run in runs[:3]] == [
    ("order--late_features=16", "order, late"),
    ("order--late_features=32", "order, late"),
    ("sizes_train.batch_size=8_evaluation.batch_size=4", "sizes"),
  ]
  assert [(run.config.model.features, run.config.seed) for run in runs[:3]] == [(16, 3), (32, 3), (128, 0)]
  assert runs[0].config.model.attention == "examples.custom_components:gaussian"


INVALID = [
  ({"model.atention": ["a"]}, "name config fields, got 'model.atention'; did you mean 'model.attention'?"),
  ({3: [1]}, "choices must name config fields, got 3"),
  ({"seed": []}, "choices of config.seed must be a list of distinct values, got []"),
  ({"seed": 3}, "choices of config.seed must be a list of distinct values, got 3"),
  ({"train.learning_rate": [1, 1.0]}, "must be a list of distinct values, got [1, 1.0]"),
  ({"model.attention": "additive"}, "must be a list of distinct values, got 'additive'"),
  (["seed"], "must be a non-empty dict of lists by field, or a dict of such dicts by group, got ['seed']"),
  ({}, "dicts by group, got {}"),
  ({"a": {}}, "dicts by group, got {'a': {}}"),
  ({"a": {"seed": [0]}, "seed": [0]}, "dicts by group, got {'a': {'seed': [0]}, 'seed': [0]}"),
  ({"": {"seed": [0]}}, "dicts by group, got {'': {'seed': [0]}}"),
  ({"a b": {"seed": [0]}, "a/b": {"seed": [1]}}, "choices must give each run its own folder name"),
  ({"seed": [0, -1]}, "config.seed must be from 0 to 4,294,967,295, got -1"),
]


@pytest.mark.parametrize(("choices", "message"), INVALID)
def test_invalid_choices_are_errors(choices, message):
  with pytest.raises(ConfigError) as caught:
    sweep.make_runs(base.Config(), choices)
  assert message in str(caught.value)


def test_job_commands_set_all_fields(tmp_path):
  run = sweep.make_runs(SEVEN_STEPS, CHOICES)[4]
  job = sweep.make_job(run, tmp_path)
  folder = f"--workdir={tmp_path}/attention=bilinear_seed=1"
  assert job.command[:4] == [sys.executable, "-m", "experiments.train", folder]
  assert job.command[4:] == [
    f"--config.{name}={value}" for name, value in config_fields.flat(run.config).items()
  ]
  assert job.log == tmp_path / "logs" / "attention=bilinear_seed=1.txt"
  assert not job.is_done() and not job.is_taken()
  finish(tmp_path, run, {"test": {"bleu": 1.0}})
  with workdir.workdir_lock(tmp_path / run.name):
    assert job.is_taken()
  assert job.is_done() and not job.is_taken()
  # A run with fewer steps than the config now asks for is not done.
  longer = dataclasses.replace(run.config, train=base.Train(num_train_steps=8))
  assert not sweep.is_done(tmp_path / run.name, longer)
  with pytest.raises(WorkdirError, match=r"has a run with a different config: seed 1 \(now 9\)"):
    sweep.make_job(sweep.Run(run.name, dataclasses.replace(run.config, seed=9)), tmp_path)


def test_reports_have_means_and_deviations(tmp_path):
  runs = sweep.make_runs(base.Config(), CHOICES)
  assert sweep.write_report(tmp_path, runs) == ("no run is finished yet", [])
  for run, bleu in zip(runs[:4], (40.0, 42.0, 47.0, 30.0), strict=True):
    scores = {"sentences": 9.0, "bleu": bleu}
    finish(tmp_path, run, {"test": scores, "hard": {**scores, "bleu": bleu + 1}})
  text, paths = sweep.write_report(tmp_path, runs)
  names = "table.txt", "table.csv", "figures/test.png", "figures/hard.png"
  assert paths == [tmp_path / name for name in names]
  assert paths[0].read_text("utf-8") == f"{text}\n"
  lines = text.splitlines()
  assert lines[0] == "test" and lines[2].split()[-3:] == ["43.000", "±", "3.606"]
  assert lines[3].split() == ["model.attention=bilinear", "1", "30.000"]
  with paths[1].open(newline="") as file:
    rows = list(csv.DictReader(file))
  assert [(row["split"], row["group"], row["runs"]) for row in rows] == [
    (split, f"model.attention={kind}", runs)
    for split in ("test", "hard")
    for kind, runs in (("additive", "3"), ("bilinear", "1"))
  ]
  assert float(rows[2]["bleu"]) == 44.0 and rows[3]["bleu deviation"] == ""
  assert float(rows[2]["bleu deviation"]) == pytest.approx(3.6056, abs=1e-4)
  assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths[2:])


def test_reports_name_groups(tmp_path):
  transformer = {"model.encoder": ["transformer"], "model.decoder": ["transformer"], "seed": [0, 1]}
  choices = {"recurrent": CHOICES, "other": transformer}
  runs = sweep.make_runs(base.Config(), choices)
  for run in runs:
    finish(tmp_path, run, {"test": {"bleu": 10.0 + run.config.seed % 2}})
  text, _ = sweep.write_report(tmp_path, runs)
  names = "recurrent_attention=additive", "recurrent_attention=bilinear", "other"
  assert [line.split()[0] for line in text.splitlines()[2:]] == [*names]
