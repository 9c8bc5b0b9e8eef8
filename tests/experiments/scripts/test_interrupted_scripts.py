"""Runs and sweeps that are stopped or killed give the same results as others."""

import os
import signal
import time

import chex
import pytest
from helpers import scripts

pytestmark = pytest.mark.nightly

LONG = "--config.train.num_train_steps=60", "--config.model.dropout_rate=0.1"
FILE = """
from configs import base
def get_config():
  config = base.Config()
  config.data.num_buckets = 1
  config.model.attention = "none"
  config.model.features = config.model.embed_dim = 4
  config.train.num_train_steps, config.train.eval_every_steps, config.train.log_every_steps = 60, 20, 10
  config.train.batch_size = 4
  config.evaluation.num_eval_examples = config.evaluation.num_validation_examples = 4
  config.evaluation.batch_size = 4
  config.evaluation.max_decode_length = 5
  return config
def get_sweep():
  return {"train.learning_rate": [0.01, 0.001], "seed": [0]}
"""


def test_resumed_runs_are_bit_identical(run, small, tmp_path):
  whole, folder = tmp_path / "whole", tmp_path / "run"
  run("train", f"--workdir={whole}", *small, *LONG)
  with scripts.start("train", f"--workdir={folder}", *small, *LONG) as running:
    running.wait_for("step 10/60")
    os.kill(running.process.pid, signal.SIGINT)
    stopped = running.finish()
  assert stopped.code == 130 and "run the same command again to resume" in stopped.errors
  step = scripts.newest_checkpoint(folder).step
  assert 0 < step < 60 and not (folder / "results.json").exists()
  # The interrupted run can translate.
  assert len(run("translate", f"--workdir={folder}", "--text=the cat").output.splitlines()) == 1
  resumed = run("train", f"--workdir={folder}", *small, *LONG)
  assert f"resuming after step {step} of 60" in resumed.output
  first, second = scripts.newest_checkpoint(whole), scripts.newest_checkpoint(folder)
  assert first.step == second.step == 60
  chex.assert_trees_all_equal(first.state, second.state)
  for name in ("metrics.jsonl", "results.json"):
    assert (folder / name).read_bytes() == (whole / name).read_bytes()
  assert len((folder / "launches.jsonl").read_text("utf-8").splitlines()) == 2


def test_interrupted_sweeps_give_equal_results(run, tmp_path):
  path = tmp_path / "mine.py"
  path.write_text(FILE, "utf-8")
  results = {}
  for name in ("disturbed", "undisturbed"):
    flags = (f"--config={path}", f"--workdir={tmp_path / name}", "--num_parallel=2")
    folders = [tmp_path / name / f"learning_rate={rate}_seed=0" for rate in (0.01, 0.001)]
    if name == "disturbed":
      with scripts.start("sweep", *flags) as running:
        while not (folders[0] / "checkpoints").exists():
          assert running.process.is_alive()
          time.sleep(0.05)
        running.process.terminate()
        assert running.finish().code == 143
      with scripts.start("sweep", *flags) as running:
        running.wait_for("started")  # then the sweep is killed, but its runs continue
    run("sweep", *flags)
    files = "metrics.jsonl", "results.json"
    results[name] = [(folder / file).read_text("utf-8") for folder in folders for file in files]
  assert results["disturbed"] == results["undisturbed"]
