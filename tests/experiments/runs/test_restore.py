"""Tests of experiments/runs/restore.py, extended runs and ensembles."""

import dataclasses
import shutil
import signal

import jax
import numpy as np
import pytest
from helpers.small_runs import CONFIG, ONE_DEVICE, STEPS, config_with, params_of, send

from configs import base
from experiments.cli.config_fields import ConfigError
from experiments.cli.errors import Preempted, UserError
from experiments.data.tasks import make_task
from experiments.learning.model import make_task_model
from experiments.learning.step import init_state, make_rngs, make_train_spec
from experiments.runs import load, load_ensemble, restore, workdir
from experiments.runs.record import Record, language_digest, read_config, write_run
from experiments.runs.restore import warm_start
from experiments.runs.workdir import WorkdirError
from experiments.training import loop

pytestmark = pytest.mark.usefixtures("fast")


@pytest.mark.exhaustive
def test_constant_schedules_can_be_longer(tmp_path):
  constant = {"schedule": "constant", "warmup_fraction": 0.0}
  short, long = config_with(constant), config_with({**constant, "num_train_steps": STEPS + 4})
  loop.train(long, tmp_path / "straight")
  loop.train(short, tmp_path / "longer")
  (tmp_path / "longer" / "results.json").write_text("{}", "utf-8")
  loop.train(long, tmp_path / "longer")
  extended, uninterrupted = (workdir.read_metrics(tmp_path / name) for name in ("longer", "straight"))
  assert extended == uninterrupted
  assert read_config(tmp_path / "longer").train.num_train_steps == STEPS + 4
  assert (tmp_path / "longer" / f"results.{STEPS}_steps.json").read_text("utf-8") == "{}"
  assert not (tmp_path / "longer" / "results.json").exists()
  with pytest.raises(WorkdirError, match=rf"train.num_train_steps {STEPS + 4} \(now {STEPS}\)"):
    loop.train(short, tmp_path / "longer")


@pytest.mark.exhaustive
def test_longer_runs_keep_their_warm_up(tmp_path):
  constant = {"schedule": "constant", "warmup_fraction": 0.5}  # 3 of 6 steps
  loop.train(config_with(constant), tmp_path)
  with pytest.raises(WorkdirError) as caught:
    loop.train(config_with({**constant, "num_train_steps": 20}), tmp_path)
  assert str(caught.value).endswith(
    f"train.num_train_steps {STEPS} (now 20); pass another --workdir, or keep the warm-up of 3 steps with "
    "--config.train.warmup_fraction=0.175"
  )
  loop.train(config_with({**constant, "num_train_steps": 20, "warmup_fraction": 0.175}), tmp_path)
  assert (read_config(tmp_path).train.num_train_steps, read_config(tmp_path).train.warmup_fraction) == (
    20,
    0.175,
  )
  rates = [
    record["train/learning_rate"] for record in workdir.read_metrics(tmp_path) if "train/loss" in record
  ]
  peak = CONFIG.train.learning_rate
  np.testing.assert_allclose(rates, [0, peak / 3, peak * 2 / 3] + 17 * [peak], rtol=1e-6)


def test_warm_starts_load_all_parameters(trained, tmp_path, capsys):
  config = dataclasses.replace(CONFIG, init_from=str(trained), seed=5)
  loop.train(config, tmp_path / "run")
  output = capsys.readouterr().out
  count = len(params_of(load(trained)))
  assert f"loaded {count} of {count} arrays from {trained}\n" in output
  spec = make_train_spec(config, load(trained).model, ONE_DEVICE)
  state, _ = warm_start(init_state(spec, make_rngs(5).params), trained)
  jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(state.params), params_of(load(trained)))
  jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(state.average), params_of(load(trained)))


@pytest.mark.exhaustive
def test_resuming_needs_no_source_run(trained, tmp_path, break_step):
  source = shutil.copytree(trained, tmp_path / "other")
  config = dataclasses.replace(CONFIG, init_from=str(source))
  break_step(1, send(signal.SIGTERM))
  with pytest.raises(Preempted):
    loop.train(config, tmp_path / "stopped")
  break_step(0, send(signal.SIGTERM))  # never
  loop.train(config, tmp_path / "whole")
  shutil.rmtree(source)
  loop.train(config, tmp_path / "stopped")
  resumed, uninterrupted = (workdir.read_metrics(tmp_path / name) for name in ("stopped", "whole"))
  assert resumed == uninterrupted


def test_missing_arrays_are_listed(trained):
  config = dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, num_decoder_layers=2))
  spec = make_train_spec(config, make_task_model(config, make_task(config)), ONE_DEVICE)
  state = init_state(spec, make_rngs(0).params)
  before = jax.tree.map(np.asarray, state.params)
  state, line = warm_start(state, trained)
  loaded = load(trained).params
  decoder = state.params["decoder"]
  jax.tree.map(np.testing.assert_array_equal, decoder["initial"], loaded["decoder"]["initial"])
  jax.tree.map(np.testing.assert_array_equal, decoder["cell_1"], before["decoder"]["cell_1"])
  assert "; not loaded: " in line and "decoder/cell_1/" in line and "decoder/initial/kernel" not in line


def test_incompatible_models_are_errors(trained, tmp_path):
  model = dataclasses.replace(CONFIG.model, attend_order="after")
  with pytest.raises(ConfigError) as caught:
    loop.train(dataclasses.replace(CONFIG, init_from=str(trained), model=model), tmp_path / "run")
  assert str(caught.value) == (
    f"config.model.attend_order must be 'before', as in config.init_from={trained}, got 'after'"
  )
  assert not (tmp_path / "run").exists()


def test_warm_starts_need_same_vocabularies(trained, tmp_path):
  config = dataclasses.replace(CONFIG, init_from=str(trained), data=base.Data(task="scan"))
  with pytest.raises(ConfigError) as caught:
    loop.train(config, tmp_path / "run")
  assert str(caught.value) == (
    f"config.data.task must be 'toy_translation', as in config.init_from={trained}, whose vocabularies "
    "are used, got 'scan'"
  )
  assert not (tmp_path / "run").exists()
  begun = tmp_path / "begun"
  begun.mkdir()
  languages = make_task(CONFIG).source, make_task(CONFIG).target
  write_run(begun, Record(CONFIG, {}, language_digest(languages)), languages)
  for config, message in (
    (dataclasses.replace(CONFIG, init_from=str(tmp_path / "none")), "no run here"),
    (dataclasses.replace(CONFIG, init_from=str(begun)), "no complete checkpoint yet"),
    (dataclasses.replace(CONFIG, init_from=str(tmp_path / "run")), "no run here"),
  ):
    with pytest.raises(UserError, match=message):
      loop.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.exhaustive
def test_ensembles_need_same_vocabularies(tmp_path, monkeypatch):
  for seed in (0, 1):
    loop.train(dataclasses.replace(CONFIG, seed=seed), tmp_path / str(seed))
  both = load_ensemble([tmp_path / "0", tmp_path / "1"], decode_options={"beam_size": 2})
  assert both.decode_options.beam_size == 2
  (translation,) = both.translate(["the cat"])
  assert np.isfinite(translation.score)
  (same_twice,) = load_ensemble([tmp_path / "0", tmp_path / "0"]).translate(["the cat sees"])
  (expected,) = load(tmp_path / "0").translate(["the cat sees"])
  assert same_twice.tokens == expected.tokens
  np.testing.assert_allclose(same_twice.score, expected.score, rtol=1e-5)
  with pytest.raises(ValueError, match="model must not be an ensemble"):
    both.score([("the cat", "il gatto")])
  with pytest.raises(ValueError, match="model must not be an ensemble"):
    both.heads([("the cat", "il gatto")])
  with pytest.raises(WorkdirError, match="folders must be a list of at least one folder, got"):
    load_ensemble([])
  loaded = {name: load(tmp_path / name) for name in "01"}
  scan = make_task(base.Config(data=base.Data(task="scan")))
  loaded["1"] = dataclasses.replace(loaded["1"], task=scan)
  monkeypatch.setattr(restore, "load", lambda folder, **_: loaded[folder])
  with pytest.raises(WorkdirError, match=r"must have the same vocabularies, got different ones in 0 and 1$"):
    load_ensemble(["0", "1"])
