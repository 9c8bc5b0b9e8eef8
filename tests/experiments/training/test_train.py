"""The training loop, in this process. tests/experiments/scripts/test_train_script.py runs the script."""

import dataclasses
import json
import os
import pathlib
import signal

import chex
import numpy as np
import pytest
from helpers.small_runs import CONFIG, STEPS, config_with

from configs import base
from experiments.cli.config_fields import ConfigError
from experiments.cli.errors import DataError, Preempted
from experiments.data.tasks import make_task
from experiments.devices.sharding import DeviceError
from experiments.runs import load, workdir
from experiments.runs.checkpoints import open_checkpoints
from experiments.runs.record import read_config
from experiments.training import hooks, loop

pytestmark = pytest.mark.usefixtures("as_users_run")


def checkpoints_of(folder):
  return open_checkpoints(CONFIG, folder)


def validations_of(folder):
  """Returns the validation losses of a run, by step."""
  records = workdir.read_metrics(folder)
  return {r["step"]: r["validation/loss"] for r in records if "validation/loss" in r}


def terminate(state):
  os.kill(os.getpid(), signal.SIGTERM)
  return state


def test_files_of_a_run(trained):
  assert read_config(trained) == CONFIG
  assert checkpoints_of(trained).latest_step() == STEPS
  first, second, third = validations_of(trained).values()
  assert first < second < third  # other tests need it
  records = workdir.read_metrics(trained)
  assert [record["step"] for record in records] == [2, 3, 4, 6, 6]
  assert records[1].keys() == {"step", "train/loss", "train/gradient_norm", "train/learning_rate"}
  assert records[1]["train/learning_rate"] == pytest.approx(0.3)
  # The mean loss of three steps starts near that of uniform probabilities of 372 target tokens.
  assert records[1]["train/loss"] == pytest.approx(np.log(372), rel=0.05)
  (launch,) = (trained / "launches.jsonl").read_text("utf-8").splitlines()
  assert json.loads(launch)["processes"] == 1


def test_resumed_runs_have_the_same_bits(trained, tmp_path, break_step, capsys):
  # The stop is between records, and between validations.
  break_step(5, terminate)
  with pytest.raises(Preempted, match="stopped at step 5; run the same command again to") as caught:
    loop.train(CONFIG, tmp_path)
  assert caught.value.code == 143
  checkpoints = checkpoints_of(tmp_path)
  assert (checkpoints.latest_step(), checkpoints.newest_steps()) == (5, [2, 4])
  capsys.readouterr()
  loop.train(CONFIG, tmp_path)
  output = capsys.readouterr().out
  assert f"resuming after step 5 of {STEPS}\n" in output
  assert workdir.read_metrics(tmp_path) == workdir.read_metrics(trained)
  # The average does not have the state at the stop.
  chex.assert_trees_all_equal(*(load(run, checkpoint="average").params for run in (tmp_path, trained)))
  # The last loss is far above that in training.
  assert "the model memorizes training text; try a larger config.model.dropout_rate, or more data" in output


def test_loading_writes_nothing(trained):
  before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
  translator = load(trained, batch_size=1, decode_options={"beam_size": 4, "length_penalty": 0.5})
  assert translator.decode_options[:3] == (3, 4, 0.5)
  assert translator.batch_size == 1
  assert {path: path.stat().st_mtime_ns for path in trained.rglob("*")} == before


SCORES = [
  ("loss", [0.9, 0.5, 0.7], False),
  ("loss", [0.9, 0.5, 0.7, 0.6], True),
  ("bleu", [1.0, 7.0, 2.0, 7.0], True),  # equal is not better
  ("bleu", [1.0, 7.0, 2.0, 8.0], False),
  ("bleu", [], False),
]


@pytest.mark.parametrize(("metric", "values", "expected"), SCORES)
def test_patience_counts_validations(tmp_path, metric, values, expected):
  config = config_with({"early_stopping_patience": 2, "best_metric": metric})
  with workdir.MetricsWriter(tmp_path, 0) as writer:
    for step, value in enumerate(values, start=1):
      writer.write(step, {f"validation/{metric}": value})
      writer.write(step, {"train/loss": 1.0})
  run = hooks.Run(config, tmp_path, make_task(config), None, [], None, None)
  assert hooks.should_stop_early(run) == expected
  assert not hooks.should_stop_early(run._replace(config=CONFIG))  # no patience, no limit


ADVICE = [
  ({}, "a larger config.model.dropout_rate, or more data"),
  ({"task": "parallel_text"}, "config.data.tokenization=character, a larger config.model.dropout_rate"),
  ({"task": "parallel_text", "tokenization": "subword"}, "a smaller config.data.vocabulary_size, config.d"),
]


@pytest.mark.parametrize(("data", "advice"), ADVICE)
def test_overfitting_has_advice(tmp_path, data, advice):
  config = dataclasses.replace(CONFIG, data=base.Data(**data))
  run = hooks.Run(config, tmp_path, make_task(CONFIG), None, [], None, None)
  with workdir.MetricsWriter(tmp_path, 0) as writer:
    writer.write(1, {"train/loss": 0.25, "validation/loss": 0.75})
    assert hooks.overfitting_warning(run) == ""
    writer.write(2, {"validation/loss": 0.875})
  start = "the validation loss (0.88) is far above the training loss (0.25): the model memorizes training"
  assert hooks.overfitting_warning(run).startswith(f"{start} text; try {advice}")


def test_launch_errors_write_nothing(tmp_path):
  large = dataclasses.replace(CONFIG.model, features=2**20, embed_dim=2**20)
  good, bad = str(tmp_path / "good.tsv"), str(tmp_path / "bad.tsv")
  for path, line in ((good, "a\tb\n"), (bad, "a\n")):
    pathlib.Path(path).write_text(line, "utf-8")
  text = base.Data(task="parallel_text", min_count=1, train_file=good, validation_file=good, test_file=bad)
  for config, options, error, message in (
    (config_with(data=text), {}, DataError, "bad.tsv:1: expected source TAB target"),
    (CONFIG, {"fsdp_size": 3}, DeviceError, "--fsdp_size must divide the number of devices, 1, got 3"),
    (config_with(model=large), {}, ConfigError, r"fit into the memory of this machine, [\d,]+ GiB, got "),
    (config_with({"batch_size": 0}), {}, ConfigError, "config.train.batch_size must be from 1"),
  ):
    with pytest.raises(error, match=message):
      loop.train(config, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


# The pipeline of batches.

PIPELINE = base.Train(num_train_steps=11, batch_size=5)
TASK = make_task(base.Config(seed=3, train=PIPELINE))


@pytest.mark.parametrize("num_done", [0, 5, 11])
def test_pipelines_resume_at_a_position(num_done):
  first = loop.make_pipeline(TASK, PIPELINE, 1)
  for step in range(num_done):
    chex.assert_trees_all_equal(next(first), TASK.training_batch(step))
  # The state as in a checkpoint. Prefetched batches are not lost.
  position = json.loads(json.dumps(first.get_state()))
  second = loop.make_pipeline(TASK, PIPELINE, 1)
  second.set_state(position)
  chex.assert_trees_all_equal(list(second), [TASK.training_batch(step) for step in range(num_done, 11)])


def test_eos_can_be_removed():
  batch = next(loop.make_pipeline(TASK, dataclasses.replace(PIPELINE, train_eos=False), 1))
  expected = TASK.training_batch(0)
  assert np.sum(expected.targets == 2) == 5
  chex.assert_trees_all_equal(batch.targets, np.where(expected.targets == 2, 0, expected.targets))
  chex.assert_trees_all_equal(batch._replace(targets=expected.targets), expected)


def test_rows_are_padded_for_devices():
  train = dataclasses.replace(PIPELINE, grad_accumulation_steps=2)
  rows = {count: next(loop.make_pipeline(TASK, train, count)).sources for count in (1, 3, 4)}
  assert {count: len(sources) for count, sources in rows.items()} == {1: 6, 3: 6, 4: 8}
  np.testing.assert_array_equal(rows[4][:5], TASK.training_batch(0).sources)
  assert not rows[4][5:].any()
