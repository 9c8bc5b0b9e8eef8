"""Warm starts, and ensembles of one run. test_restore_slow.py trains more runs."""

import dataclasses

import chex
import jax
import numpy as np
import pytest
from helpers.small_runs import CONFIG, config_with

from configs import base
from experiments.cli.errors import UserError
from experiments.data.tasks import make_task
from experiments.devices.sharding import make_mesh
from experiments.learning.model import make_task_model
from experiments.learning.step import init_state, make_rngs, make_train_spec
from experiments.runs import load, load_ensemble
from experiments.runs.record import Record, language_digest, write_run
from experiments.runs.restore import kept_params, warm_start
from experiments.runs.workdir import WorkdirError
from experiments.training import loop

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("as_users_run")]


def initial_state(config):
  spec = make_train_spec(config, make_task_model(config, make_task(config)), make_mesh())
  return init_state(spec, make_rngs(5).params)


def test_warm_starts_load_equal_arrays(trained):
  # The second layer of the decoder is new.
  state = initial_state(config_with(model=dataclasses.replace(CONFIG.model, num_decoder_layers=2)))
  started, text = warm_start(state, trained)
  loaded, new = load(trained).params, {"cell_1", "initial_1"}
  for params in (started.params, started.average):
    chex.assert_trees_all_equal(params["encoder"], loaded["encoder"])
    for name, array in params["decoder"].items():
      chex.assert_trees_all_equal(array, (state.params if name in new else loaded)["decoder"][name])
  # Both are donated by a training step, so they share no memory.
  pointers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves((started.params, started.average))]
  assert len(set(pointers)) == len(pointers)
  start, missing = text.split("; not loaded: ")
  count = len(jax.tree.leaves(loaded))
  assert start == f"loaded {count} of {count + len(missing.split(', '))} arrays from {trained}"
  assert {name.split("/")[1] for name in missing.split(", ")} == new


def test_other_models_cannot_start_warm(trained, tmp_path):
  begun, folder = tmp_path / "begun", tmp_path / "run"
  begun.mkdir()
  languages = make_task(CONFIG).source, make_task(CONFIG).target
  write_run(begun, Record(CONFIG, {}, language_digest(languages)), languages)
  after, scan = dataclasses.replace(CONFIG.model, attend_order="after"), base.Data(task="scan")
  as_in = f"as in config.init_from={trained}"
  for source, fields, message in (
    (trained, {"model": after}, f"config.model.attend_order must be 'before', {as_in}, got 'after'"),
    (
      trained,
      {"data": scan},
      f"config.data.task must be 'toy_translation', {as_in}, whose vocabularies are ",
    ),
    (begun, {}, f"{begun}: no complete checkpoint yet; train with"),
    (folder, {}, f"{folder}: no run here \\(run.json is missing"),
  ):
    with pytest.raises(UserError, match=message):
      loop.train(config_with(init_from=str(source), **fields), folder)
    assert not folder.exists()


def test_kept_checkpoints_are_restored(trained):
  kept = kept_params(trained)
  assert list(kept.params) == [2, 4, 6] and kept.step == 2
  for step, checkpoint in ((2, "best"), (6, "last")):
    chex.assert_trees_all_equal(kept.params[step], load(trained, checkpoint=checkpoint).params)
  assert list(kept_params(trained, [6]).params) == [6] and kept_params(trained, [4, 6]).step == 6
  with pytest.raises(UserError, match=r"step must be one of the checkpoints \[6, 4, 2\]"):
    kept_params(trained, [3])


def test_ensembles_average_their_members(trained):
  single, same_twice = load(trained), load_ensemble([trained, trained], decode_options={"n_best": 1})
  (translation,), (expected,) = (item.translate(["the cat sees"]) for item in (same_twice, single))
  assert translation.tokens == expected.tokens
  np.testing.assert_allclose(translation.score, expected.score, rtol=1e-5)
  for call in (same_twice.score, same_twice.heads):
    with pytest.raises(ValueError, match="model must not be an ensemble"):
      call([("the cat", "il gatto")])
  for folders in ([], str(trained)):
    with pytest.raises(WorkdirError, match="folders must be a list of at least one folder, got"):
      load_ensemble(folders)
