"""Killed and resumed runs end with the same bits as an uninterrupted run."""

import random
import signal
import time

import chex
import pytest
from helpers import scripts

pytestmark = pytest.mark.nightly

FLAGS = [
  *("--config.train.num_train_steps=100", "--config.train.log_every_steps=4"),
  *("--config.train.eval_every_steps=20", "--config.data.num_buckets=2", "--config.train.batch_size=20"),
  *("--config.train.ema_decay=0.99", "--config.model.attention=none", "--config.model.dropout_rate=0.2"),
  *("--config.model.features=8", "--config.model.embed_dim=5", "--config.evaluation.batch_size=4"),
  *("--config.evaluation.num_eval_examples=4", "--config.evaluation.num_validation_examples=4"),
  "--config.evaluation.max_decode_length=5",
]


def unfinished(folder):
  """Returns when an unfinished checkpoint was changed, or None."""
  try:
    return (folder / "checkpoints" / "unfinished").stat().st_mtime_ns
  except FileNotFoundError:
    return None


def kill(folder, text, seconds):
  """Kills a run some seconds after it prints a text, or begins to write a checkpoint.

  Returns whether it was killed while it wrote a checkpoint.
  """
  before = None, unfinished(folder)
  with scripts.start("train", f"--workdir={folder}", *FLAGS) as running:
    while running.process.is_alive():
      if text in running.output() if text else unfinished(folder) not in before:
        break
      time.sleep(0.001)
    time.sleep(seconds)
    running.process.kill()
    assert running.finish().code == -signal.SIGKILL
  return unfinished(folder) not in before


def test_killed_runs_have_the_same_bits(tmp_path):
  rng, killed, whole = random.Random(0), tmp_path / "killed", tmp_path / "whole"
  moments = [("unlimited toy", 1.0), ("", 0.02), ("compiled the step", 0.5), ("", 0.02), ("step 100, v", 0.1)]
  were_partial = [kill(killed, text, rng.uniform(0, seconds)) for text, seconds in moments]
  assert any(were_partial), "no checkpoint was interrupted"
  for folder in (killed, whole):
    scripts.succeed("train", f"--workdir={folder}", *FLAGS)
  checkpoint, expected = map(scripts.newest_checkpoint, (killed, whole))
  assert (checkpoint.step, checkpoint.position) == (expected.step, expected.position)
  chex.assert_trees_all_equal(checkpoint.state, expected.state)
  for name in ("run.json", "metrics.jsonl", "results.json"):
    assert (killed / name).read_bytes() == (whole / name).read_bytes()
  kept = [{path.name for path in (folder / "checkpoints").iterdir()} for folder in (killed, whole)]
  assert kept[0] == kept[1]
  assert not (killed / "damaged").exists()
