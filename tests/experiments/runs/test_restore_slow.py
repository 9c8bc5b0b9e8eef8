"""Longer runs, warm starts with new words, and ensembles of several runs."""

import shutil
import signal

import jax
import numpy as np
import pytest
from helpers.small_runs import CONFIG, STEPS, config_with

from configs import base
from experiments.cli.errors import Preempted
from experiments.runs import load, load_ensemble, workdir
from experiments.runs.record import read_config
from experiments.runs.workdir import WorkdirError
from experiments.training import loop

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("as_users_run")]


def test_constant_schedules_can_be_longer(trained, tmp_path):
  longer = config_with({"num_train_steps": STEPS + 3})
  loop.train(longer, tmp_path / "straight")
  shutil.copytree(trained, tmp_path / "longer")
  workdir.write_results(tmp_path / "longer", {})
  loop.train(longer, tmp_path / "longer")
  extended, uninterrupted = (workdir.read_metrics(tmp_path / name) for name in ("longer", "straight"))
  assert [record for record in extended if record["step"] != STEPS] == [
    record for record in uninterrupted if record["step"] != STEPS
  ]
  assert read_config(tmp_path / "longer") == longer
  assert [path.name for path in (tmp_path / "longer").glob("results*")] == [f"results.{STEPS}_steps.json"]
  with pytest.raises(WorkdirError, match=rf"train.num_train_steps {STEPS + 3} \(now {STEPS}\)"):
    loop.train(CONFIG, tmp_path / "longer")


def test_resuming_needs_no_source_run(trained, tmp_path, break_step):
  def terminate(state):
    signal.raise_signal(signal.SIGTERM)
    return state

  source = shutil.copytree(trained, tmp_path / "other")
  config = config_with(init_from=str(source), seed=5)
  break_step(1, terminate)
  with pytest.raises(Preempted):
    loop.train(config, tmp_path / "stopped")
  break_step(0, terminate)  # never
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


def test_ensembles_need_same_vocabularies(trained, tmp_path):
  for name, fields in (("seed", {"seed": 1}), ("scan", {"data": base.Data(task="scan", num_buckets=1)})):
    config = config_with({"num_train_steps": 1}, **fields)
    loop.train(config, tmp_path / name)
  both = load_ensemble([trained, tmp_path / "seed"], decode_options={"beam_size": 2})
  assert both.decode_options.beam_size == 2
  (translation,) = both.translate(["the cat"])
  assert np.isfinite(translation.score)
  message = f"must have the same vocabularies, got different ones in {trained} and {tmp_path / 'scan'}$"
  with pytest.raises(WorkdirError, match=message):
    load_ensemble([trained, tmp_path / "scan"])
