"""Tests of experiments/training/loop.py in this process. test_scripts.py runs the script."""

import contextlib
import dataclasses
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.small_runs import CONFIG, ONE_DEVICE, STEPS, config_with, params_of, send

from experiments.cli.config_fields import ConfigError
from experiments.cli.errors import Preempted, TrainingDiverged
from experiments.data.tasks import make_task
from experiments.data.vocabularies import PAD_ID
from experiments.devices.sharding import DeviceError
from experiments.learning.step import abstract_state, make_train_spec
from experiments.runs import load, run_setup, workdir
from experiments.runs.checkpoints import Checkpoints
from experiments.runs.record import Record, read_config, read_record, write_record
from experiments.training import hooks, loop

pytestmark = pytest.mark.usefixtures("fast")


@pytest.fixture
def validate_as(monkeypatch):
  """Returns a function that sets the results of successive validations."""

  def install(values):
    values = iter(values)
    missing = {"sentences": 2.0, "exact_match": 0.0, "bleu": 0.0, "loss": 0.0}
    monkeypatch.setattr(
      hooks, "evaluate", lambda translator, examples, custom_metrics: missing | next(values)
    )

  return install


@contextlib.contextmanager
def checkpoints_of(folder, higher_is_better=False):
  checkpoints = Checkpoints(folder / "checkpoints", higher_is_better=higher_is_better)
  yield checkpoints


# Diverged training.


def _lose_loss(state):
  return state._replace(sums=state.sums._replace(loss=jax.device_put(jnp.inf, state.sums.loss.sharding)))


def _lose_one_parameter(state):
  leaves, structure = jax.tree.flatten(state.params)
  broken = leaves[3].at[(0,) * leaves[3].ndim].set(jnp.nan)
  leaves[3] = jax.device_put(broken, leaves[3].sharding)
  return state._replace(params=jax.tree.unflatten(structure, leaves))


@pytest.mark.parametrize(
  "damage", [_lose_one_parameter, pytest.param(_lose_loss, marks=pytest.mark.exhaustive)]
)
def test_diverged_runs_keep_earlier_states(tmp_path, break_step, damage):
  break_step(3, damage)
  with pytest.raises(TrainingDiverged) as caught:
    loop.train(CONFIG, tmp_path)
  message = (
    "the loss or a parameter is not finite at step 3; the last checkpoint is of step 2; try a smaller "
  )
  assert str(caught.value).startswith(message)
  assert "config.train.learning_rate" in str(caught.value)
  with checkpoints_of(tmp_path) as checkpoints:
    assert checkpoints.latest_step() == 2
  assert workdir.read_metrics(tmp_path)[-1]["step"] == 2
  load(tmp_path)
  assert read_config(tmp_path) == CONFIG


# Stop requests.


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_save_a_checkpoint(tmp_path, break_step, number, code):
  break_step(3, send(number))
  with pytest.raises(Preempted) as caught:
    loop.train(CONFIG, tmp_path)
  assert str(caught.value) == "stopped at step 3; run the same command again to resume"
  assert caught.value.code == code
  with checkpoints_of(tmp_path) as checkpoints:
    assert checkpoints.latest_step() == 3
    assert checkpoints.best_step() == 2


def test_signals_at_the_last_step(tmp_path, break_step, capsys):
  break_step(STEPS, send(signal.SIGTERM))
  with pytest.raises(Preempted, match=f"stopped at step {STEPS}"):
    loop.train(CONFIG, tmp_path)
  before = (tmp_path / "metrics.jsonl").read_bytes()
  capsys.readouterr()
  loop.train(CONFIG, tmp_path)
  assert f"resuming after step {STEPS} of {STEPS}" in capsys.readouterr().out
  assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_resumed_speed_counts_new_tokens(tmp_path, break_step, monkeypatch):
  counted = []

  def record(self, loss, tokens):
    counted.append(tokens - self._earlier_tokens)
    self._earlier_tokens = 0.0
    return {}

  monkeypatch.setattr(loop.Progress, "record", record)
  config = config_with({"log_every_steps": STEPS})
  break_step(4, send(signal.SIGTERM))
  with pytest.raises(Preempted, match="stopped at step 4"):
    loop.train(config, tmp_path / "stopped")
  break_step(0, send(signal.SIGTERM))  # never
  for name in ("whole", "stopped"):
    loop.train(config, tmp_path / name)
  task = make_task(config)
  counts = [int(np.sum(task.training_batch(step).targets != PAD_ID)) for step in range(STEPS)]
  assert counted == [sum(counts), sum(counts[4:])]
  resumed, uninterrupted = (workdir.read_metrics(tmp_path / name) for name in ("stopped", "whole"))
  assert resumed == uninterrupted


def test_signals_wait_for_validations(tmp_path, monkeypatch):
  def evaluate(translator, examples, custom_metrics):
    os.kill(os.getpid(), signal.SIGTERM)
    return {"sentences": 2.0, "exact_match": 0.0, "bleu": 0.0, "loss": 0.5}

  monkeypatch.setattr(hooks, "evaluate", evaluate)
  with pytest.raises(Preempted, match="stopped at step 2"):
    loop.train(CONFIG, tmp_path)
  records = workdir.read_metrics(tmp_path)
  assert [record["validation/loss"] for record in records if "validation/loss" in record] == [0.5]


def test_signals_wait_for_the_last_checkpoint(tmp_path, monkeypatch):
  save = Checkpoints.save

  def send_and_save(self, step, *arguments):
    if step == STEPS:
      os.kill(os.getpid(), signal.SIGTERM)
    save(self, step, *arguments)

  monkeypatch.setattr(Checkpoints, "save", send_and_save)
  with pytest.raises(Preempted, match=f"stopped at step {STEPS}"):
    loop.train(CONFIG, tmp_path)


# Selection of checkpoints, and early stopping.


def _average_of(folder, step, config, translator):
  """Returns the moving average of the parameters in a checkpoint."""
  spec = make_train_spec(config, translator.model, ONE_DEVICE)
  with checkpoints_of(folder) as checkpoints:
    return jax.tree.leaves(checkpoints.restore(abstract_state(spec), step).state.average)


@pytest.mark.parametrize(("checkpoint", "step"), [("best", 4), ("last", 6)])
def test_config_selects_the_checkpoint(tmp_path, validate_as, checkpoint, step):
  config = config_with(evaluation={"checkpoint": checkpoint})
  validate_as([{"loss": 0.7}, {"loss": 0.5}, {"loss": 0.6}])
  translator = loop.train(config, tmp_path)
  expected = _average_of(tmp_path, step, config, translator)
  jax.tree.map(np.testing.assert_array_equal, params_of(translator), expected)
  loaded = load(tmp_path)
  jax.tree.map(np.testing.assert_array_equal, params_of(loaded), expected)
  other_checkpoint = {"best": "last", "last": "best"}[checkpoint]
  loaded = load(tmp_path, checkpoint=other_checkpoint)
  expected = _average_of(tmp_path, {"best": 4, "last": 6}[other_checkpoint], config, translator)
  jax.tree.map(np.testing.assert_array_equal, params_of(loaded), expected)


@pytest.mark.parametrize(
  ("metric", "scores"), [("loss", [0.9, 0.5, 0.7, 0.6]), ("bleu", [1.0, 7.0, 2.0, 7.0])]
)
def test_patience_stops_training(tmp_path, validate_as, capsys, metric, scores):
  config = config_with(
    {"num_train_steps": 50, "eval_every_steps": 1, "early_stopping_patience": 2, "best_metric": metric}
  )
  validate_as([{metric: score} for score in scores])
  loop.train(config, tmp_path)
  message = f"early stopping: validation/{metric} has not improved for 2 validations"
  assert message in capsys.readouterr().out
  with checkpoints_of(tmp_path, higher_is_better=metric == "bleu") as checkpoints:
    assert checkpoints.latest_step() == 4
  before = (tmp_path / "metrics.jsonl").read_bytes()
  loop.train(config, tmp_path)  # another validation would be an error
  output = capsys.readouterr().out
  assert "resuming after step 4 of 50" in output
  assert message in output
  assert (tmp_path / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(("loss", "is_warned"), [(9.0, True), (2.0, False)])
def test_overfitting_is_a_warning(tmp_path, validate_as, capsys, loss, is_warned):
  validate_as([{"loss": 0.5}, {"loss": 0.5}, {"loss": loss}])
  loop.train(CONFIG, tmp_path)
  output = capsys.readouterr().out
  assert (f"the validation loss ({loss:.2f}) is far above the training loss" in output) is is_warned
  assert ("try a larger config.model.dropout_rate, or more data" in output) is is_warned


def test_stopped_runs_continue_with_more_patience(tmp_path, validate_as, capsys):
  train = {"num_train_steps": 50, "eval_every_steps": 1, "schedule": "constant", "warmup_fraction": 0.0}
  validate_as([{"loss": loss} for loss in (0.9, 0.5, 0.7, 0.6, 0.8, 0.8)])
  loop.train(config_with(train | {"early_stopping_patience": 2}), tmp_path)
  (tmp_path / "results.json").write_text("{}", "utf-8")
  metrics = (tmp_path / "metrics.jsonl").read_bytes()
  loop.train(config_with(train | {"num_train_steps": 60, "early_stopping_patience": 2}), tmp_path)
  assert "early stopping: validation/loss has not improved for 2 validations; to" in capsys.readouterr().out
  assert (tmp_path / "metrics.jsonl").read_bytes() == metrics
  loop.train(config_with(train | {"num_train_steps": 60, "early_stopping_patience": 4}), tmp_path)
  assert workdir.read_metrics(tmp_path)[-1]["step"] == 6
  assert [path.name for path in tmp_path.glob("results*")] == ["results.4_steps.json"]


def test_averages_survive_a_stop(trained, tmp_path, break_step):
  config = config_with({"max_to_keep": 4}, {"checkpoint": "average"})
  config = dataclasses.replace(config, init_from=str(trained))
  break_step(5, send(signal.SIGTERM))
  with pytest.raises(Preempted, match="stopped at step 5"):
    loop.train(config, tmp_path / "stopped")
  break_step(0, send(signal.SIGTERM))  # never
  resumed, uninterrupted = (params_of(loop.train(config, tmp_path / name)) for name in ("stopped", "whole"))
  jax.tree.map(np.testing.assert_array_equal, resumed, uninterrupted)
  averages = [_average_of(tmp_path / "whole", step, config, load(trained)) for step in (2, 4, 6)]
  for leaf, *leaves in zip(uninterrupted, *averages, strict=True):
    np.testing.assert_allclose(leaf, np.mean(leaves, axis=0), rtol=1e-6, atol=1e-7)


# Files.


def test_metrics_do_not_depend_on_time(trained, tmp_path):
  loop.train(CONFIG, tmp_path)
  assert (tmp_path / "metrics.jsonl").read_bytes() == (trained / "metrics.jsonl").read_bytes()
  names = {name for record in workdir.read_metrics(tmp_path) for name in record}
  of_training = {"train/loss", "train/gradient_norm", "train/learning_rate"}
  assert {"step", *of_training} <= names


def test_loading_writes_nothing(trained):
  before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
  load(trained)
  assert {path: path.stat().st_mtime_ns for path in trained.rglob("*")} == before


def test_launch_errors_write_nothing(tmp_path, monkeypatch):
  monkeypatch.undo()
  from experiments.devices import sharding

  monkeypatch.setattr(run_setup, "make_mesh", sharding.make_mesh)
  with pytest.raises(DeviceError, match="--fsdp_size must divide the number of devices, 8, got 3"):
    loop.train(CONFIG, tmp_path / "run", fsdp_size=3)
  assert not (tmp_path / "run").exists()


def test_load_overrides_options(trained):
  translator = load(trained, batch_size=1, decode_options={"beam_size": 4, "length_penalty": 0.5})
  assert (translator.decode_options.beam_size, translator.decode_options.length_penalty) == (4, 0.5)
  assert translator.decode_options.max_length == 3


def test_models_must_fit_into_memory(tmp_path):
  model = dataclasses.replace(CONFIG.model, features=2**20, embed_dim=2**20)
  with pytest.raises(ConfigError, match=r"fit into the memory of this machine, [\d,]+ GiB, got [\d,]+ GiB"):
    loop.train(dataclasses.replace(CONFIG, model=model), tmp_path / "run")
  assert not (tmp_path / "run").exists()


def test_runs_that_started_meanwhile_are_not_changed(tmp_path, monkeypatch):
  lock, other = workdir.workdir_lock, Record(dataclasses.replace(CONFIG, seed=9), {}, "")

  @contextlib.contextmanager
  def start_another_run(folder):
    with lock(folder):
      write_record(folder, other)
      yield

  monkeypatch.setattr(workdir, "workdir_lock", start_another_run)
  with pytest.raises(workdir.WorkdirError, match=rf"seed 9 \(now {CONFIG.seed}\)"):
    loop.train(CONFIG, tmp_path)
  assert read_record(tmp_path) == other
