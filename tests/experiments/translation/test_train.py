"""Tests of experiments/translation/train.py in this process; test_scripts.py has whole runs."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from configs import base
from experiments.commands.fields import ConfigError
from experiments.commands.mistakes import Diverged, Interrupted, Mistake
from experiments.runs import workdir
from experiments.runs.checkpoints import Checkpoints
from experiments.runs.devices import AXES, DeviceError
from experiments.runs.workdir import WorkdirError
from experiments.tasks import make_task
from experiments.text.vocabularies import PAD
from experiments.translation import load, load_ensemble, loading, run_setup
from experiments.translation import train as loop
from experiments.translation.loading import warm_start
from experiments.translation.model import make_task_model
from experiments.translation.optimizer import make_schedule
from experiments.translation.settings import read_config, write_run
from experiments.translation.step import abstract_state, init_state, make_recipe, make_rngs, make_step

STEPS = 6
CONFIG = base.Config(
  data=base.Data(num_buckets=1),  # one program for all
  model=base.Model(attention="none", embedding_width=2, width=3),
  train=base.Train(steps=STEPS, batch_size=2, averaging=0.9, log_every=1, validate_every=2),
  evaluation=base.Evaluation(validation_sentences=2, batch_size=2, max_target_length=3),
)
ONE_DEVICE = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), AXES, axis_types=(AxisType.Auto,) * 2)


class Steps:
  """A stand-in for `make_step` that is compiled once for all runs; `damage` changes what a step returns."""

  step = None

  def __init__(self, damage):
    self.damage = damage

  def __call__(self, recipe):
    Steps.step = Steps.step or make_step(recipe)

    def damaged_step(*arguments):
      state, gradient_norm = Steps.step(*arguments)
      return self.damage(state), gradient_norm

    return damaged_step


@pytest.fixture(scope="module", autouse=True)
def fast():
  """Trains on one device, by steps that are compiled once."""
  with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion("standard"):
    for module in (run_setup, loading):
      patch.setattr(module, "make_mesh", lambda shards=1: ONE_DEVICE)
    patch.setattr(loop, "make_step", Steps(lambda state: state))
    yield


@pytest.fixture
def break_step(monkeypatch):
  """Gives a function that breaks what a step returns."""

  def install(broken_step, damage):
    steps = Steps(lambda state: damage(state) if int(state.step) == broken_step else state)
    monkeypatch.setattr(loop, "make_step", steps)

  return install


@pytest.fixture
def validate_as(monkeypatch):
  """Gives a function that says what the validations find, one after the other."""

  def install(values):
    values = iter(values)
    missing = {"sentences": 2.0, "exact_match": 0.0, "bleu": 0.0, "loss": 0.0}
    monkeypatch.setattr(loop, "evaluate", lambda translator, examples, others: missing | next(values))

  return install


@contextlib.contextmanager
def checkpoints_of(folder, higher_is_better=False):
  with Checkpoints(folder / "checkpoints", higher_is_better=higher_is_better) as checkpoints:
    yield checkpoints


def config_with(train=None, evaluation=None):
  return dataclasses.replace(
    CONFIG,
    train=dataclasses.replace(CONFIG.train, **(train or {})),
    evaluation=dataclasses.replace(CONFIG.evaluation, **(evaluation or {})),
  )


# Numbers that are not finite


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
  with pytest.raises(Diverged) as caught:
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


def test_early_divergence_is_reported(tmp_path, break_step):
  break_step(1, _lose_loss)
  with pytest.raises(Diverged, match="not finite at step 1; there is no checkpoint yet; try"):
    loop.train(CONFIG, tmp_path)


# Requests to stop


def _send(number):
  def send(state):
    os.kill(os.getpid(), number)
    return state

  return send


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_save_a_checkpoint(tmp_path, break_step, number, code):
  break_step(3, _send(number))
  with pytest.raises(Interrupted) as caught:
    loop.train(CONFIG, tmp_path)
  assert str(caught.value) == "stopped at step 3; the same command continues from there"
  assert caught.value.code == code
  with checkpoints_of(tmp_path) as checkpoints:
    assert checkpoints.latest_step() == 3
    assert checkpoints.best_step() == 2


def test_signals_at_the_last_step(tmp_path, break_step, capsys):
  break_step(STEPS, _send(signal.SIGTERM))
  with pytest.raises(Interrupted, match=f"stopped at step {STEPS}"):
    loop.train(CONFIG, tmp_path)
  before = (tmp_path / "metrics.jsonl").read_bytes()
  capsys.readouterr()
  loop.train(CONFIG, tmp_path)
  assert f"continuing after step {STEPS} of {STEPS}" in capsys.readouterr().out
  assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_resumed_speed_counts_new_tokens(tmp_path, break_step, monkeypatch):
  found = []

  def record(self, loss, tokens):
    found.append(tokens - self._earlier_tokens)
    self._earlier_tokens = 0.0
    return {}

  monkeypatch.setattr(loop.Progress, "record", record)
  config = config_with({"log_every": STEPS})
  break_step(4, _send(signal.SIGTERM))
  with pytest.raises(Interrupted, match="stopped at step 4"):
    loop.train(config, tmp_path / "stopped")
  break_step(0, _send(signal.SIGTERM))  # never
  for name in ("whole", "stopped"):
    loop.train(config, tmp_path / name)
  task = make_task(config)
  counts = [int(np.sum(task.training_batch(step).targets != PAD)) for step in range(STEPS)]
  assert found == [sum(counts), sum(counts[4:])]
  ours, theirs = (workdir.read_metrics(tmp_path / name) for name in ("stopped", "whole"))
  assert ours == theirs


def test_signals_wait_for_validations(tmp_path, monkeypatch):
  def evaluate(translator, examples, others):
    os.kill(os.getpid(), signal.SIGTERM)
    return {"sentences": 2.0, "exact_match": 0.0, "bleu": 0.0, "loss": 0.5}

  monkeypatch.setattr(loop, "evaluate", evaluate)
  with pytest.raises(Interrupted, match="stopped at step 2"):
    loop.train(CONFIG, tmp_path)
  assert [record["validation/loss"] for record in workdir.read_metrics(tmp_path)[2:]] == [0.5]


# Which checkpoint translates, and when training ends


def _params(translator):
  return jax.tree.leaves(translator.params)


def _average_of(folder, step, config, translator):
  """Returns the average of the parameters in a checkpoint."""
  recipe = make_recipe(config, translator.model, ONE_DEVICE)
  with checkpoints_of(folder) as checkpoints:
    return jax.tree.leaves(checkpoints.restore(abstract_state(recipe), step).state.average)


@pytest.mark.parametrize(("checkpoint", "step"), [("best", 4), ("last", 6)])
def test_the_named_checkpoint_translates(tmp_path, validate_as, checkpoint, step):
  config = config_with(evaluation={"checkpoint": checkpoint})
  validate_as([{"loss": 0.7}, {"loss": 0.5}, {"loss": 0.6}])
  translator = loop.train(config, tmp_path)
  expected = _average_of(tmp_path, step, config, translator)
  jax.tree.map(np.testing.assert_array_equal, _params(translator), expected)
  loaded = load(tmp_path)
  jax.tree.map(np.testing.assert_array_equal, _params(loaded), expected)
  other = {"best": "last", "last": "best"}[checkpoint]
  loaded = load(tmp_path, checkpoint=other)
  expected = _average_of(tmp_path, {"best": 4, "last": 6}[other], config, translator)
  jax.tree.map(np.testing.assert_array_equal, _params(loaded), expected)


@pytest.mark.parametrize(
  ("metric", "scores"), [("loss", [0.9, 0.5, 0.7, 0.6]), ("bleu", [1.0, 7.0, 2.0, 7.0])]
)
def test_patience_ends_training(tmp_path, validate_as, capsys, metric, scores):
  config = config_with({"steps": 50, "validate_every": 1, "patience": 2, "metric": metric})
  validate_as([{metric: score} for score in scores])
  loop.train(config, tmp_path)
  message = f"validation/{metric} has not improved for 2 validations: training ends here"
  assert message in capsys.readouterr().out
  with checkpoints_of(tmp_path, higher_is_better=metric == "bleu") as checkpoints:
    assert checkpoints.latest_step() == 4
  before = (tmp_path / "metrics.jsonl").read_bytes()
  loop.train(config, tmp_path)  # no validation is left, so one more would be an error
  output = capsys.readouterr().out
  assert "continuing after step 4 of 50" in output
  assert message in output
  assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_averages_survive_a_stop(trained, tmp_path, break_step):
  config = config_with({"keep": 4}, {"checkpoint": "average"})
  config = dataclasses.replace(config, init_from=str(trained))
  break_step(5, _send(signal.SIGTERM))
  with pytest.raises(Interrupted, match="stopped at step 5"):
    loop.train(config, tmp_path / "stopped")
  break_step(0, _send(signal.SIGTERM))  # never
  ours, theirs = (_params(loop.train(config, tmp_path / name)) for name in ("stopped", "whole"))
  jax.tree.map(np.testing.assert_array_equal, ours, theirs)
  averages = [_average_of(tmp_path / "whole", step, config, load(trained)) for step in (2, 4, 6)]
  for found, *each in zip(theirs, *averages, strict=True):
    np.testing.assert_allclose(found, np.mean(each, axis=0), rtol=1e-6, atol=1e-7)


@pytest.mark.exhaustive
def test_ensembles_need_the_same_words(tmp_path, monkeypatch):
  for seed in (0, 1):
    loop.train(dataclasses.replace(CONFIG, seed=seed), tmp_path / str(seed))
  both = load_ensemble([tmp_path / "0", tmp_path / "1"], search={"beam_size": 2})
  assert both.search.beam_size == 2
  (found,) = both.translate(["the cat"])
  assert np.isfinite(found.score)
  (alone,) = load_ensemble([tmp_path / "0", tmp_path / "0"]).translate(["the cat sees"])
  (expected,) = load(tmp_path / "0").translate(["the cat sees"])
  assert alone.tokens == expected.tokens
  np.testing.assert_allclose(alone.score, expected.score, rtol=1e-5)
  with pytest.raises(ValueError, match="by one model, not by an ensemble"):
    both.score([("the cat", "il gatto")])
  with pytest.raises(ValueError, match="by one model, not by an ensemble"):
    both.heads([("the cat", "il gatto")])
  with pytest.raises(WorkdirError, match="folders must be a list of workdirs, at least one, got"):
    load_ensemble([])
  loaded = {name: load(tmp_path / name) for name in "01"}
  scan = make_task(base.Config(data=base.Data(task="scan")))
  loaded["1"] = dataclasses.replace(loaded["1"], task=scan)
  monkeypatch.setattr(loading, "load", lambda folder, **_: loaded[folder])
  with pytest.raises(WorkdirError, match=r"^1 has other vocabularies than 0: they cannot translate as one$"):
    load_ensemble(["0", "1"])


# Longer, and from another run


@pytest.mark.exhaustive
def test_constant_schedules_can_be_longer(tmp_path):
  constant = {"schedule": "constant", "warmup": 0.0}
  short, long = config_with(constant), config_with({**constant, "steps": STEPS + 4})
  loop.train(long, tmp_path / "straight")
  loop.train(short, tmp_path / "longer")
  (tmp_path / "longer" / "results.json").write_text("{}", "utf-8")
  loop.train(long, tmp_path / "longer")
  ours, theirs = (workdir.read_metrics(tmp_path / name) for name in ("longer", "straight"))
  assert ours == theirs
  assert read_config(tmp_path / "longer").train.steps == STEPS + 4
  assert (tmp_path / "longer" / f"results.{STEPS}_steps.json").read_text("utf-8") == "{}"
  assert not (tmp_path / "longer" / "results.json").exists()
  with pytest.raises(WorkdirError, match=rf"train.steps {STEPS + 4} \(here {STEPS}\)"):
    loop.train(short, tmp_path / "longer")


@pytest.mark.exhaustive
def test_longer_runs_keep_their_warm_up(tmp_path):
  constant = {"schedule": "constant", "warmup": 0.5}  # 3 of 6 steps
  loop.train(config_with(constant), tmp_path)
  with pytest.raises(WorkdirError) as caught:
    loop.train(config_with({**constant, "steps": 20}), tmp_path)
  assert str(caught.value).endswith(
    f"train.steps {STEPS} (here 20); take another --workdir, or keep its warm-up of 3 steps: "
    "--config.train.warmup=0.175"
  )
  loop.train(config_with({**constant, "steps": 20, "warmup": 0.175}), tmp_path)
  assert (read_config(tmp_path).train.steps, read_config(tmp_path).train.warmup) == (20, 0.175)
  rates = [
    record["train/learning_rate"] for record in workdir.read_metrics(tmp_path) if "train/loss" in record
  ]
  highest = CONFIG.train.learning_rate
  np.testing.assert_allclose(rates, [0, highest / 3, highest * 2 / 3] + 17 * [highest], rtol=1e-6)


@pytest.mark.parametrize("changes", [{}, {"schedule": "constant", "warmup": 0.9}])
def test_other_schedules_cannot_be_longer(tmp_path, changes):
  write_run(tmp_path, config_with(changes), [make_task(CONFIG).source, make_task(CONFIG).target])
  with pytest.raises(WorkdirError, match=rf"train.steps {STEPS} \(here 20\)"):
    loop.train(config_with({**changes, "steps": 20}), tmp_path)


def test_warm_starts_take_all_parameters(trained, tmp_path, capsys):
  config = dataclasses.replace(CONFIG, init_from=str(trained), seed=5)
  loop.train(config, tmp_path / "run")
  said = capsys.readouterr().out
  count = len(_params(load(trained)))
  assert f"{count} of {count} arrays are those of {trained}\n" in said
  recipe = make_recipe(config, load(trained).model, ONE_DEVICE)
  state, _ = warm_start(init_state(recipe, make_rngs(5).params), trained)
  jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(state.params), _params(load(trained)))
  jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(state.average), _params(load(trained)))


@pytest.mark.exhaustive
def test_warm_starts_need_no_source_later(trained, tmp_path, break_step):
  other = shutil.copytree(trained, tmp_path / "other")
  config = dataclasses.replace(CONFIG, init_from=str(other))
  break_step(1, _send(signal.SIGTERM))
  with pytest.raises(Interrupted):
    loop.train(config, tmp_path / "stopped")
  break_step(0, _send(signal.SIGTERM))  # never
  loop.train(config, tmp_path / "whole")
  shutil.rmtree(other)
  loop.train(config, tmp_path / "stopped")
  ours, theirs = (workdir.read_metrics(tmp_path / name) for name in ("stopped", "whole"))
  assert ours == theirs


def test_new_arrays_are_named(trained):
  config = dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, num_decoder_layers=2))
  recipe = make_recipe(config, make_task_model(config, make_task(config)), ONE_DEVICE)
  state = init_state(recipe, make_rngs(0).params)
  before = jax.tree.map(np.asarray, state.params)
  state, line = warm_start(state, trained)
  theirs = load(trained).params
  ours = state.params["decoder"]
  jax.tree.map(np.testing.assert_array_equal, ours["initial"], theirs["decoder"]["initial"])
  jax.tree.map(np.testing.assert_array_equal, ours["cell_1"], before["decoder"]["cell_1"])
  assert "; new are " in line and "decoder/cell_1/" in line and "decoder/initial/kernel" not in line


def test_arrays_must_mean_the_same(trained, tmp_path):
  model = dataclasses.replace(CONFIG.model, looks="after")
  with pytest.raises(ConfigError) as caught:
    loop.train(dataclasses.replace(CONFIG, init_from=str(trained), model=model), tmp_path / "run")
  assert str(caught.value) == (
    f"config.model.looks must be 'before', as in config.init_from={trained}, whose arrays mean something "
    "else otherwise, got 'after'"
  )
  assert not (tmp_path / "run").exists()


def test_warm_starts_need_the_same_words(trained, tmp_path):
  config = dataclasses.replace(CONFIG, init_from=str(trained), data=base.Data(task="scan"))
  with pytest.raises(ConfigError) as caught:
    loop.train(config, tmp_path / "run")
  assert str(caught.value) == (
    f"config.data.task must be 'toy_translation', as in config.init_from={trained}, whose vocabularies are "
    "taken, got 'scan'"
  )
  assert not (tmp_path / "run").exists()
  begun = tmp_path / "begun"
  begun.mkdir()
  write_run(begun, CONFIG, [make_task(CONFIG).source, make_task(CONFIG).target])
  for config, words in (
    (dataclasses.replace(CONFIG, init_from=str(tmp_path / "none")), "holds no run"),
    (dataclasses.replace(CONFIG, init_from=str(begun)), "holds no checkpoint yet"),
    (dataclasses.replace(CONFIG, init_from=str(tmp_path / "run")), "must be another run, got the run's own"),
  ):
    with pytest.raises(Mistake, match=words):
      loop.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# What is written


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  folder = tmp_path_factory.mktemp("run")
  loop.train(CONFIG, folder)
  return folder


def test_metrics_do_not_depend_on_time(trained, tmp_path):
  loop.train(CONFIG, tmp_path)
  assert (tmp_path / "metrics.jsonl").read_bytes() == (trained / "metrics.jsonl").read_bytes()
  names = {name for record in workdir.read_metrics(tmp_path) for name in record}
  of_training = {"train/loss", "train/gradient_norm", "train/learning_rate"}
  assert {name for name in names if not name.startswith("validation/")} == {"step", *of_training}


def test_rates_and_norms_are_recorded(trained):
  records = [record for record in workdir.read_metrics(trained) if "train/loss" in record]
  schedule = make_schedule(CONFIG.train)
  assert [record["train/learning_rate"] for record in records] == [float(schedule(i)) for i in range(STEPS)]
  assert all(record["train/gradient_norm"] > 0 for record in records)


def test_load_takes_other_options(trained):
  translator = load(trained, batch_size=1, search={"beam_size": 4, "length_penalty": 0.5})
  assert (translator.search.beam_size, translator.search.length_penalty) == (4, 0.5)
  assert translator.search.max_length == 3


def test_missing_fields_have_defaults(trained, tmp_path, capsys):
  folder = shutil.copytree(trained, tmp_path / "run")
  values = json.loads((folder / "config.json").read_text("utf-8"))
  del values["train"]["patience"]
  (folder / "config.json").write_text(json.dumps(values), "utf-8")
  assert read_config(folder) == CONFIG
  loop.train(CONFIG, folder)
  assert f"continuing after step {STEPS} of {STEPS}" in capsys.readouterr().out


def test_loading_writes_nothing(trained):
  before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
  load(trained)
  assert {path: path.stat().st_mtime_ns for path in trained.rglob("*")} == before


def test_launch_errors_write_nothing(tmp_path, monkeypatch):
  monkeypatch.undo()
  from experiments.runs import devices

  monkeypatch.setattr(run_setup, "make_mesh", devices.make_mesh)
  with pytest.raises(
    DeviceError, match="--parameter_shards must be a divisor of the number of devices, 8, got 3"
  ):
    loop.train(CONFIG, tmp_path / "run", parameter_shards=3)
  assert not (tmp_path / "run").exists()
