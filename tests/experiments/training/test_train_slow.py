"""Divergence, signals and patience of training."""

import dataclasses
import io
import shutil
import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.small_runs import CONFIG, STEPS, config_with

from experiments.cli.errors import Preempted, TrainingDiverged
from experiments.data.tasks import make_task
from experiments.devices.sharding import make_mesh
from experiments.learning.model import make_task_model
from experiments.learning.step import LossSums, TrainState, abstract_state, make_train_spec
from experiments.runs import load, workdir
from experiments.runs.record import read_record
from experiments.training import hooks, loop
from tests.experiments.training.test_train import checkpoints_of, terminate, validations_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("as_users_run")]


def lose_one_parameter(state):
  leaves, structure = jax.tree.flatten(state.params)
  leaves[3] = leaves[3].at[(0,) * leaves[3].ndim].set(jnp.nan)
  return state._replace(params=jax.tree.unflatten(structure, leaves))


def test_config_selects_the_checkpoint(trained):
  task = make_task(CONFIG)
  target = abstract_state(make_train_spec(CONFIG, make_task_model(CONFIG, task), make_mesh()))
  average = {step: checkpoints_of(trained).restore(target, step).state.average for step in (2, 4, 6)}
  chex.assert_trees_all_equal(load(trained).params, average[2])
  chex.assert_trees_all_equal(load(trained, checkpoint="last").params, average[6])
  mean = jax.tree.map(lambda a, b: (a + b) / 2, average[4], average[6])
  chex.assert_trees_all_close(load(trained, checkpoint="average").params, mean, rtol=1e-6)


def test_diverged_runs_keep_earlier_states(tmp_path, break_step):
  break_step(3, lose_one_parameter)
  message = "^the loss or a parameter is not finite at step 3; the last checkpoint is of step 2; try a "
  with pytest.raises(TrainingDiverged, match=message):
    loop.train(CONFIG, tmp_path)
  assert checkpoints_of(tmp_path).latest_step() == workdir.read_metrics(tmp_path)[-1]["step"] == 2
  params = {"kernel": jnp.ones(3)}
  hooks.check_finite(3, TrainState(3, params, None, None, LossSums(1.0, 1.0)), None)
  with pytest.raises(TrainingDiverged, match="at step 3; the last checkpoint is of step 2"):
    hooks.check_finite(3, TrainState(3, params, None, None, LossSums(np.inf, 1.0)), checkpoints_of(tmp_path))


def test_signals_wait_for_validations(tmp_path, monkeypatch, capsys):
  class Interrupting(io.StringIO):
    def write(self, text):
      if f"step {STEPS}, validation:" in text:
        terminate(None)

  with monkeypatch.context() as patch, pytest.raises(Preempted, match=f"stopped at step {STEPS}"):
    patch.setattr(sys, "stdout", Interrupting())
    loop.train(CONFIG, tmp_path)
  assert list(validations_of(tmp_path)) == [2, 4, STEPS]
  before = (tmp_path / "metrics.jsonl").read_bytes()
  loop.train(CONFIG, tmp_path)  # no step is left
  assert f"resuming after step {STEPS} of {STEPS}" in capsys.readouterr().out
  assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_resumed_runs_have_the_same_dropout(tmp_path, break_step):
  config = config_with(model=dataclasses.replace(CONFIG.model, dropout_rate=0.5))
  loop.train(config, tmp_path / "whole")
  break_step(5, terminate)
  with pytest.raises(Preempted):
    loop.train(config, tmp_path / "resumed")
  loop.train(config, tmp_path / "resumed")
  assert workdir.read_metrics(tmp_path / "resumed") == workdir.read_metrics(tmp_path / "whole")


def test_patience_stops_training(tmp_path, capsys):
  config = config_with({"early_stopping_patience": 1})
  loop.train(config, tmp_path)
  message = "early stopping: validation/loss has not improved for 1 validation; to train longer, set a larger"
  assert message in capsys.readouterr().out
  assert checkpoints_of(tmp_path).latest_step() == 4
  before = (tmp_path / "metrics.jsonl").read_bytes()
  loop.train(config, tmp_path)
  output = capsys.readouterr().out
  assert f"resuming after step 4 of {STEPS}" in output and message in output
  assert (tmp_path / "metrics.jsonl").read_bytes() == before
  # More patience continues the run.
  workdir.write_results(tmp_path, {})
  loop.train(config_with({"early_stopping_patience": 2}), tmp_path)
  assert list(validations_of(tmp_path)) == [2, 4, 6]
  assert [path.name for path in tmp_path.glob("results*")] == ["results.4_steps.json"]


def test_runs_that_started_meanwhile_are_kept(trained, tmp_path, monkeypatch):
  def start_another(*_, **__):
    shutil.copytree(trained, tmp_path / "run", dirs_exist_ok=True)
    raise FileNotFoundError

  # Git runs after the first check of the folder.
  monkeypatch.setattr(subprocess, "run", start_another)
  with pytest.raises(workdir.WorkdirError, match=r"has a run with a different config: seed 0 \(now 9\)"):
    loop.train(config_with(seed=9), tmp_path / "run")
  assert read_record(tmp_path / "run") == read_record(trained)
