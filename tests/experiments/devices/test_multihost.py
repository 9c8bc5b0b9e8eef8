"""Training with two processes on one machine."""

import contextlib
import json
import os
import shutil
import signal
import socket

import chex
import pytest
from helpers import scripts

from experiments.runs import workdir

pytestmark = pytest.mark.nightly

# The batch has one padding row on two devices. The learning rate is low, so that rounding errors stay small.
FLAGS = [
  *("--config.train.num_train_steps=120", "--config.train.log_every_steps=10"),
  *("--config.train.eval_every_steps=60", "--config.data.num_buckets=2", "--config.train.batch_size=5"),
  *("--config.train.learning_rate=0.001", "--config.train.ema_decay=0.9", "--config.model.attention=none"),
  *("--config.model.features=6", "--config.model.embed_dim=4", "--config.model.dropout_rate=0.2"),
  *("--config.evaluation.num_eval_examples=2", "--config.evaluation.num_validation_examples=2"),
  *("--config.evaluation.batch_size=2", "--config.evaluation.max_decode_length=3"),
]


@contextlib.contextmanager
def two_processes(folder, *second_flags):
  """Yields two processes that train together. The second one has additional flags."""
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{free.getsockname()[1]}"
  flags = [*FLAGS, f"--workdir={folder}", f"--coordinator={address}", "--num_processes=2"]
  with (
    scripts.start("train", *flags, "--process_id=0") as first,
    scripts.start("train", *flags, "--process_id=1", *second_flags) as second,
  ):
    yield first, second


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
  """The folder of a run with one process."""
  folder = tmp_path_factory.mktemp("runs") / "alone"
  scripts.succeed("train", f"--workdir={folder}", *FLAGS)
  return folder


def records_of(folder):
  return [*workdir.read_metrics(folder), *workdir.read_results(folder).values()]


def test_one_process_resumes_two(alone, tmp_path):
  folder = tmp_path / "run"
  with two_processes(folder) as (first, second):
    first.wait_for("step 10/120")
    os.kill(second.process.pid, signal.SIGTERM)  # stops both
    finished = [first.finish(), second.finish()]
  assert [process.code for process in finished] == [128 + signal.SIGTERM] * 2, finished
  (step,) = (int(path.name) for path in (folder / "checkpoints").iterdir())
  message = f"stopped at step {step}; run the same command again to resume"
  assert [process.errors.splitlines()[-1] for process in finished] == [message] * 2
  assert f"resuming after step {step}" in scripts.succeed("train", f"--workdir={folder}", *FLAGS).output
  chex.assert_trees_all_close(records_of(folder), records_of(alone), rtol=1e-4)


def test_two_processes_resume_one(alone, tmp_path):
  folder = shutil.copytree(alone, tmp_path / "run")
  shutil.rmtree(folder / "checkpoints" / "120")
  (folder / "results.json").unlink()
  with two_processes(folder) as processes:
    finished = [process.finish() for process in processes]
  assert [process.code for process in finished] == [0, 0], finished
  chex.assert_trees_all_close(records_of(folder), records_of(alone), rtol=1e-4)
  launches = [json.loads(line) for line in (folder / "launches.jsonl").read_text("utf-8").splitlines()]
  assert [(launch["processes"], launch["devices"]) for launch in launches] == [(1, 1), (2, 2)]
  # Only the first process prints.
  first, second = (process.output for process in finished)
  assert "on 2 x cpu" in first and first.count("resuming after step 60 of 120") == 1
  assert "step" not in second


def test_failed_processes_end_the_others(tmp_path):
  with two_processes(tmp_path / "run") as (first, second):
    first.wait_for("step 10/120")
    second.process.kill()
    finished = first.finish(60)
  assert finished.code == 2, finished
  assert finished.errors.startswith("error: another process has ended; run the same commands again to resume")
  assert finished.errors.count("\n") == 1
  folder = tmp_path / "other"
  folder.mkdir()
  (folder / "tensorboard").touch()  # process 0 cannot create this folder
  with two_processes(folder) as processes:
    first, second = (process.finish(60) for process in processes)
  assert (first.code, first.errors) == (2, f"error: cannot write to {folder}: File exists\n")
  assert second.code != 0, second  # 2, or a signal if JAX ends it first, from a thread of its own


SAME = "all processes must have the same config, workdir, data and version, got different ones"
DEVICES = "all processes must have the same number of devices, got [1, 2]"
OTHER = "another process failed to start; see its error"


DIFFERENCES = [
  ("--config.seed=7", SAME, SAME),
  ("--workdir=elsewhere", SAME, SAME),
  ("--fsdp_size=2", SAME, SAME),
  ("--cpu_devices=2", DEVICES, DEVICES),
  ("--config.init_from=missing", OTHER, "missing: no run here (run.json is missing)"),
  ("--config.train.batch_size=0", OTHER, "config.train.batch_size must be from 1 to 1,048,576, got 0"),
]


@pytest.mark.parametrize(("flag", "first_error", "second_error"), DIFFERENCES)
def test_processes_start_together(tmp_path, flag, first_error, second_error):
  with two_processes(tmp_path / "run", flag) as processes:
    first, second = (process.finish() for process in processes)
  assert (first.code, second.code) == (2, 2), (first, second)
  assert first.errors.startswith(f"error: {first_error}")
  assert second.errors.startswith(f"error: {second_error}")
  assert not (tmp_path / "run" / "run.json").exists()
