"""Warm starts, and ensembles of one run and of several."""

import dataclasses
import shutil

import chex
import jax
import numpy as np
import pytest
from helpers.small_runs import CONFIG, STEPS, config_with

from configs import base
from experiments.cli.errors import Preempted, UserError
from experiments.data.tasks import make_task
from experiments.devices.sharding import make_mesh
from experiments.learning.model import make_task_model
from experiments.learning.step import init_state, make_rngs, make_train_spec
from experiments.runs import load, load_ensemble, workdir
from experiments.runs.record import Record, language_digest, read_config, write_run
from experiments.runs.restore import kept_params, warm_start
from experiments.runs.workdir import WorkdirError
from experiments.training import loop
from tests.experiments.training.test_train import terminate

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
    (trained, {"data": scan}, f"config.data.task must be 'toy_translation', {as_in}, whose vocabularies"),
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
  assert same_twice.decode_options.n_best == 1
  (translation,), (expected,) = (item.translate(["the cat sees"]) for item in (same_twice, single))
  assert translation.tokens == expected.tokens
  np.testing.assert_allclose(translation.score, expected.score, rtol=1e-5)
  for call in (same_twice.score, same_twice.heads):
    with pytest.raises(ValueError, match="model must not be an ensemble"):
      call([("the cat", "il gatto")])
  for folders in ([], str(trained)):
    with pytest.raises(WorkdirError, match="folders must be a list of at least one folder, got"):
      load_ensemble(folders)


def test_constant_schedules_can_be_longer(trained, tmp_path):
  longer = config_with({"num_train_steps": STEPS + 3})
  loop.train(longer, tmp_path / "straight")
  shutil.copytree(trained, tmp_path / "longer")
  workdir.write_results(tmp_path / "longer", {})
  loop.train(longer, tmp_path / "longer")
  extended, uninterrupted = (workdir.read_metrics(tmp_path / name) for name in ("longer", "straight"))
  for record, expected in zip(extended, uninterrupted, strict=True):
    assert record == expected or record["step"] == expected["step"] == STEPS
  assert read_config(tmp_path / "longer") == longer
  assert [path.name for path in (tmp_path / "longer").glob("results*")] == [f"results.{STEPS}_steps.json"]
  with pytest.raises(WorkdirError, match=rf"train.num_train_steps {STEPS + 3} \(now {STEPS}\)"):
    loop.train(CONFIG, tmp_path / "longer")


def test_resuming_needs_no_source_run(trained, tmp_path, break_step):
  source = shutil.copytree(trained, tmp_path / "other")
  config = config_with(init_from=str(source), seed=5)
  break_step(1, terminate)
  with pytest.raises(Preempted):
    loop.train(config, tmp_path / "stopped")
  break_step(0, terminate)  # steps start at 1, so this run is not stopped
  loop.train(config, tmp_path / "whole")
  shutil.rmtree(source)
  loop.train(config, tmp_path / "stopped")
  resumed, uninterrupted = (workdir.read_metrics(tmp_path / name) for name in ("stopped", "whole"))
  assert resumed == uninterrupted


def test_new_words_get_new_embeddings(tmp_path, capsys):
  words = {"a": "uno", "b": "due", "c": "tre", "d": "quattro"}
  for name, known in (("first", "abc"), ("second", "abcd")):
    lines = [f"{x} {y}\t{words[x]} {words[y]}\n" for x in known for y in known]
    (tmp_path / f"{name}.tsv").write_text("".join(lines), "utf-8")

  def train(name, **fields):
    file = str(tmp_path / f"{name}.tsv")
    files = {"train_file": file, "validation_file": file}
    data = base.Data(task="parallel_text", num_buckets=1, min_count=1, **files)
    loop.train(config_with({"learning_rate": 1e-9}, data=data, **fields), tmp_path / name)
    return load(tmp_path / name), capsys.readouterr().out

  before, _ = train("first")
  after, output = train("second", init_from=str(tmp_path / "first"))
  assert "vocabularies extended by 1 source word and 1 target word with new embeddings" in output
  for side, word in (("source", "d"), ("target", "quattro")):
    old, new = (getattr(translator.task, side).vocabulary.words for translator in (before, after))
    assert new == (*old, word)
  extended = 0
  for old, new in zip(jax.tree.leaves(before.params), jax.tree.leaves(after.params), strict=True):
    extended += old.shape != new.shape
    np.testing.assert_allclose(new[tuple(map(slice, old.shape))], old, atol=1e-6)
  assert extended >= 3  # two embeddings, and the output projection
  _, output = train("second", init_from=str(tmp_path / "first"))
  assert "extended" not in output
  folders = [tmp_path / "first", tmp_path / "second"]
  message = "must have the same vocabularies, got different ones in {} and {}$".format(*folders)
  with pytest.raises(WorkdirError, match=message):
    load_ensemble(folders)
