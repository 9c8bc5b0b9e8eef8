"""Tests of experiments/translation/sweep.py; tests/experiments/test_sweep_script.py has a whole sweep."""

import csv
import dataclasses
import sys

import pytest

from configs import base
from experiments.commands import fields
from experiments.commands.fields import ConfigError
from experiments.runs import workdir
from experiments.runs.workdir import WorkdirError
from experiments.translation import sweep

CHOICES = {"model.attention": ["additive", "bilinear"], "seed": [0, 1, 2]}


def finish(folder, run, results):
  """Makes a folder what it is when a run has ended."""
  folder = folder / run.name
  folder.mkdir()
  workdir.write_config(folder, dataclasses.asdict(run.config))
  workdir.write_json(folder / "results.json", results)


def test_there_is_a_run_for_each_combination():
  config = base.Config(train=base.Train(steps=7))
  runs = sweep.make_runs(config, CHOICES)
  assert [run.name for run in runs] == [
    f"attention={kind}_seed={seed}" for kind in ("additive", "bilinear") for seed in (0, 1, 2)
  ]
  assert [(run.config.model.attention, run.config.seed) for run in runs][4] == ("bilinear", 1)
  assert all(run.config.train.steps == 7 for run in runs)
  assert config.seed == 0 and config.model.attention == "additive"


def test_names_are_of_a_folder_and_tell_fields_apart():
  choices = {
    "train.batch_size": [8],
    "evaluation.batch_size": [4],
    "model.attention": ["docs/own_parts.py:gaussian"],
  }
  (run,) = sweep.make_runs(base.Config(), choices)
  assert run.name == "train.batch_size=8_evaluation.batch_size=4_attention=docs-own_parts.py-gaussian"


def test_runs_of_groups_are_named_by_the_group_and_by_what_differs_in_it():
  runs = sweep.make_runs(
    base.Config(),
    {
      "looks, late": {"model.looks": ["after"], "model.width": [16, 32], "seed": [3]},
      "other": {"seed": [5]},
    },
  )
  assert [(run.name, run.group) for run in runs] == [
    ("looks--late_width=16", "looks, late"),
    ("looks--late_width=32", "looks, late"),
    ("other", "other"),
  ]
  assert [(run.config.model.looks, run.config.model.width, run.config.seed) for run in runs] == [
    ("after", 16, 3),
    ("after", 32, 3),
    (base.Config().model.looks, 128, 5),
  ]


@pytest.mark.parametrize(
  ("choices", "message"),
  [
    (
      {"model.atention": ["additive"]},
      "config has no field 'model.atention' to choose; did you mean 'model.attention'?",
    ),
    ({"seed": []}, "choices of config.seed must be a list of values, each once, got []"),
    ({"seed": 3}, "choices of config.seed must be a list of values, each once, got 3"),
    ({"train.learning_rate": [1, 1.0]}, "must be a list of values, each once, got [1, 1.0]"),
    ({3: [1]}, "config has no field 3 to choose"),
    (
      ["seed"],
      "choices must be a dict of lists by field, or groups of these by name, none empty, got ['seed']",
    ),
    ({}, "none empty, got {}"),
    ({"a": {}}, "none empty, got {'a': {}}"),
    ({"a": {"seed": [0]}, "seed": [0]}, "none empty, got {'a': {'seed': [0]}, 'seed': [0]}"),
    ({"": {"seed": [0]}}, "none empty, got {'': {'seed': [0]}}"),
    ({"a b": {"seed": [0]}, "a/b": {"seed": [1]}}, "choices must differ in letters, digits or one of .=+-"),
    ({"seed": [1, 1]}, "choices of config.seed must be a list of values, each once, got [1, 1]"),
    (
      {"data.train": ["x" * 200]},
      f"choices must name a run's folder in at most 200 letters, got train={'x' * 200}; what all runs share",
    ),
    ({"model.attention": "additive"}, "must be a list of values, each once, got 'additive'"),
    ({"seed": [0, -1]}, "config.seed must be from 0 to 4,294,967,295, got -1"),
    ({"data.split": ["a b", "a/b"]}, "config.data.split must be one of"),
  ],
)
def test_wrong_choices_are_told_before_anything_begins(choices, message):
  with pytest.raises(ConfigError) as caught:
    sweep.make_runs(base.Config(), choices)
  assert message in str(caught.value)


def test_a_run_is_a_command_that_needs_no_file(tmp_path):
  config = base.Config(train=base.Train(steps=7))
  runs = sweep.make_runs(config, CHOICES)
  job = sweep.make_job(runs[4], tmp_path)
  script, folder, values = job.command[:3], job.command[3], job.command[4:]
  assert script == [sys.executable, "-m", "experiments.train"]
  assert folder == f"--workdir={tmp_path}/attention=bilinear_seed=1"
  assert len(values) == len(fields.flat(config))
  assert {"--config.seed=1", "--config.model.attention=bilinear", "--config.train.steps=7"} <= set(values)
  assert not job.is_done() and not job.is_taken()
  finish(tmp_path, runs[4], {"test": {"bleu": 1.0}})
  assert job.is_done()
  # One whose steps are fewer than asked for now is not.
  longer = dataclasses.replace(runs[4].config, train=dataclasses.replace(config.train, steps=8))
  assert not sweep.is_done(tmp_path / runs[4].name, longer)
  other = sweep.Run(runs[4].name, base.Config(seed=9))
  with pytest.raises(WorkdirError, match=r"holds a run with another config: seed 1 \(here 9\)"):
    sweep.make_job(other, tmp_path)


def test_the_report_has_mean_and_deviation_of_what_is_done(tmp_path):
  runs = sweep.make_runs(base.Config(), CHOICES)
  assert sweep.write_report(tmp_path, runs) == ("no run is finished yet", [])
  for run, bleu in zip(runs[:4], (40.0, 42.0, 47.0, 30.0), strict=True):
    finish(
      tmp_path,
      run,
      {split: {"sentences": 9.0, "bleu": bleu + place} for place, split in enumerate(("test", "hard"))},
    )
  text, paths = sweep.write_report(tmp_path, runs)
  assert [str(path.relative_to(tmp_path)) for path in paths] == [
    "table.txt",
    "table.csv",
    "figures/test.png",
    "figures/hard.png",
  ]
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
  assert float(rows[2]["bleu"]) == 44.0
  assert float(rows[2]["bleu deviation"]) == pytest.approx(3.6056, abs=1e-4)
  assert rows[3]["bleu deviation"] == ""
  assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths[2:])


def test_the_report_calls_groups_by_their_names(tmp_path):
  transformer = {"model.encoder": ["transformer"], "model.decoder": ["transformer"], "seed": [0, 1]}
  choices = {"recurrent": {"seed": [0, 1], "model.attention": ["additive", "cosine"]}, "other": transformer}
  runs = sweep.make_runs(base.Config(), choices)
  for run in runs:
    finish(tmp_path, run, {"test": {"bleu": 10.0 + run.config.seed}})
  text, _ = sweep.write_report(tmp_path, runs)
  assert [line.split()[:3] for line in text.splitlines()[2:]] == [
    ["recurrent_attention=additive", "2", "10.500"],
    ["recurrent_attention=cosine", "2", "10.500"],
    ["other", "2", "10.500"],
  ]
