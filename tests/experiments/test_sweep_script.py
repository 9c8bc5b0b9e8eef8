"""Tests of experiments/sweep.py: a sweep that is stopped and killed."""

import json
import time

import pytest
from helpers import scripts

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


def test_sweeps_need_a_folder_of_runs(tmp_path):
  path = tmp_path / "mine.py"
  path.write_text(FILE, "utf-8")
  (tmp_path / "run.json").write_text("{}", "utf-8")
  finished = scripts.run("sweep", f"--config={path}", f"--workdir={tmp_path}")
  assert finished.code == 2
  line = f"error: --workdir must be a folder of runs, got {tmp_path}, which is a run itself\n"
  assert finished.errors == line and not (tmp_path / "logs").exists()


@pytest.mark.exhaustive
def test_interrupted_sweeps_give_equal_results(tmp_path):
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
    finished = scripts.run("sweep", *flags)
    assert finished.code == 0, finished.errors
    assert (tmp_path / name / "table.txt").read_text("utf-8").strip() in finished.output
    results[name] = [
      [(folder / file).read_text("utf-8") for file in ("metrics.jsonl", "results.json")] for folder in folders
    ]
  assert results["disturbed"] == results["undisturbed"]
  launches = (folders[0] / "launches.jsonl").read_text("utf-8").splitlines()
  assert json.loads(launches[0])["command"][1:3] == ["-m", "experiments.train"]


def test_user_errors_are_one_line(tmp_path):
  path = tmp_path / "mine.py"
  path.write_text(FILE, "utf-8")
  for flags, message in (
    (["--config=configs/toy_translation.py"], "function get_sweep is missing"),
    (["--config.seed=3", f"--config={path}"], "--config.seed must not be set, because the sweep of"),
    (
      [f"--config={path}", "--shard=2/2"],
      "--shard must be INDEX/COUNT with 0 <= INDEX < COUNT, got '2/2'",
    ),
    ([f"--config={path}", "--num_parallel=0"], "--num_parallel must be a positive integer, got '0'"),
  ):
    finished = scripts.run("sweep", f"--workdir={tmp_path / 'run'}", *flags)
    assert finished.code == 2 and message in finished.errors, finished
    assert finished.errors.strip().count("\n") == 0
  assert not (tmp_path / "run").exists()
