"""Two small runs of the toy task for the tests of scripts."""

import subprocess
import sys

import pytest
from helpers import scripts

SMALL = (
  "--config.data.num_buckets=1",
  *("--config.model.embed_dim=5", "--config.model.features=8"),
  *("--config.train.num_train_steps=6", "--config.train.batch_size=4", "--config.train.learning_rate=0.02"),
  *("--config.train.log_every_steps=2", "--config.train.eval_every_steps=3"),
  *("--config.evaluation.num_eval_examples=5", "--config.evaluation.num_validation_examples=3"),
  *("--config.evaluation.batch_size=5", "--config.evaluation.max_decode_length=7"),
)


@pytest.fixture(scope="package")
def small():
  """Returns the flags of a small run."""
  return SMALL


@pytest.fixture(scope="package")
def run():
  return scripts.succeed


@pytest.fixture(scope="package")
def error_of():
  return scripts.error_of


@pytest.fixture(scope="package")
def trained(tmp_path_factory):
  """The folder of a run, and its output. The script runs in a new process, as users run it."""
  folder = tmp_path_factory.mktemp("runs") / "toy"
  finished = subprocess.run(
    [sys.executable, "-m", "experiments.train", f"--workdir={folder}", "--profile=2:3", *SMALL],
    cwd=scripts.ROOT,
    capture_output=True,
    encoding="utf-8",
    check=False,
  )
  assert finished.returncode == 0, finished.stderr
  return folder, finished.stdout


@pytest.fixture(scope="package")
def transformer(run, tmp_path_factory):
  """The folder of a run with another encoder."""
  folder = tmp_path_factory.mktemp("runs") / "transformer"
  run(
    "train", f"--workdir={folder}", *SMALL, "--config.model.encoder=transformer", "--config.model.num_heads=2"
  )
  return folder


@pytest.fixture(scope="package")
def pairs(run, tmp_path_factory):
  """A file with the sentences of the test split."""
  path = tmp_path_factory.mktemp("data") / "pairs.tsv"
  run("export_data", "--split=test", "--num_examples=5", f"--output={path}")
  return path
