"""sweep.py: flags, and a small sweep."""

import json

import pytest

pytestmark = pytest.mark.slow

FILE = """
from configs import base
def get_config():
  config = base.Config()
  config.data.num_buckets = 1
  config.model.attention = "none"
  config.model.features = config.model.embed_dim = 4
  config.train.num_train_steps = config.train.eval_every_steps = 2
  config.train.batch_size = 4
  config.evaluation.num_eval_examples = config.evaluation.num_validation_examples = 4
  config.evaluation.batch_size = 4
  config.evaluation.max_decode_length = 5
  return config
def get_sweep():
  return {"train.learning_rate": [0.01, 0.001], "seed": [0]}
"""


@pytest.fixture
def config(tmp_path):
  path = tmp_path / "mine.py"
  path.write_text(FILE, "utf-8")
  return f"--config={path}"


def test_sweeps_train_their_shard(config, run, tmp_path):
  folder = tmp_path / "sweep"
  output = run("sweep", config, f"--workdir={folder}", "--shard=1/2").output
  assert "learning_rate=0.001_seed=0 is done; 0 left" in output
  assert [path.name for path in folder.glob("*=*")] == ["learning_rate=0.001_seed=0"]
  table = (folder / "table.txt").read_text("utf-8")
  assert table.strip() in output and "test\ngroup" in table
  assert f"wrote {folder / 'figures' / 'test.png'}" in output
  launches = (folder / "learning_rate=0.001_seed=0" / "launches.jsonl").read_text("utf-8").splitlines()
  assert json.loads(launches[0])["command"][1:3] == ["-m", "experiments.train"]


def test_user_errors_are_one_line(config, error_of, tmp_path):
  for flags, message in (
    (["--config=configs/toy_translation.py"], "function get_sweep is missing"),
    (["--config.seed=3", config], "--config.seed must not be set, because the sweep of"),
    ([config, "--shard=2/2"], "--shard must be INDEX/COUNT with 0 <= INDEX < COUNT, got '2/2'"),
    ([config, "--num_parallel=0"], "--num_parallel must be a positive integer, got '0'"),
  ):
    assert message in error_of("sweep", f"--workdir={tmp_path / 'run'}", *flags)
  (tmp_path / "run.json").write_text("{}", "utf-8")
  line = f"--workdir must be a folder of runs, got {tmp_path}, which is a run itself"
  assert error_of("sweep", f"--workdir={tmp_path}", config) == line
  assert {path.name for path in tmp_path.iterdir()} == {"mine.py", "run.json"}
