"""Tests that killed and resumed runs give bitwise-identical results."""

import os
import random
import signal
import time

import jax
import numpy as np
import pytest
from helpers import scripts

# Each run is killed at a random time, at most some seconds after it prints a text, or (None) after it starts
# to write a checkpoint. More runs are started until all phases were interrupted.
MOMENTS = (
  ("", 3.0),
  (None, 0.05),
  ("compiled the step", 1.0),
  (None, 0.05),
  ("step 100, validation", 1.5),
)
KILLS = 5
SEED = 0

FLAGS = (
  "--config=configs/parallel_text.py",
  "--config.data.tokenization=subword",
  "--config.data.vocabulary_size=275",
  "--config.data.num_buckets=2",
  "--config.train.num_train_steps=100",
  "--config.train.batch_size=60",
  "--config.train.log_every_steps=4",
  "--config.train.eval_every_steps=20",
  "--config.train.warmup_fraction=0.1",
  "--config.train.ema_decay=0.99",
  "--config.model.attention=none",
  "--config.model.features=8",
  "--config.model.embed_dim=5",
  "--config.model.dropout_rate=0.2",
  "--config.model.word_dropout_rate=0.1",
  "--config.evaluation.num_eval_examples=4",
  "--config.evaluation.num_validation_examples=4",
  "--config.evaluation.batch_size=4",
  "--config.evaluation.max_decode_length=5",
)


def _write_data(folder):
  """Writes 700 pairs of random words, so that an epoch ends during the run."""
  rng = random.Random(0)
  for name, count in (("train", 700), ("validation", 7)):
    pairs = [
      "\t".join(" ".join(rng.choices(words, k=rng.randint(1, 7))) for words in ("abcdefg", "hijklmn"))
      for _ in range(count)
    ]
    (folder / f"{name}.tsv").write_text("".join(f"{pair}\n" for pair in pairs), "utf-8")


def _start(folder):
  files = [f"--config.data.{name}_file={folder.parent / name}.tsv" for name in ("train", "validation")]
  return scripts.start("train", f"--workdir={folder}", *FLAGS, *files)


def _finish(folder):
  with _start(folder) as running:
    finished = running.finish()
  assert finished.code == 0, finished
  return finished


def _assert_same_end(folder, expected):
  actual, desired = scripts.newest_checkpoint(folder), scripts.newest_checkpoint(expected)
  assert (actual.step, actual.position) == (desired.step, desired.position)
  jax.tree.map(np.testing.assert_array_equal, actual.state, desired.state)
  subwords = ("subwords.source.model", "subwords.target.model")
  for name in ("run.json", "metrics.jsonl", "results.json", *subwords):
    assert (folder / name).read_bytes() == (expected / name).read_bytes()
  kept = [{path.name for path in (run / "checkpoints").iterdir()} for run in (folder, expected)]
  assert kept[0] == kept[1]
  assert not (folder / "damaged").exists()


def _partial_checkpoints(folder):
  """Returns the inodes of checkpoint folders that are not complete."""
  checkpoints = folder / "checkpoints"
  if not checkpoints.exists():
    return set()
  entries = os.scandir(checkpoints)
  return {entry.inode() for entry in entries if not (checkpoints / entry.name / "sha256").exists()}


def _kill(folder, text, seconds):
  """Starts a run and kills it some seconds after an event. Returns the phase of the run."""
  earlier = _partial_checkpoints(folder)
  with _start(folder) as running:
    while running.process.is_alive():
      if _partial_checkpoints(folder) - earlier if text is None else text in running.output():
        time.sleep(seconds)
        break
      time.sleep(0.001)
    running.process.kill()
    finished = running.finish()
  if finished.code == 0:
    return "nothing"
  assert finished.code == -signal.SIGKILL, finished
  if _partial_checkpoints(folder) - earlier:
    return "checkpoint"
  if "step 100, validation" in finished.output or "resuming after step 100" in finished.output:
    return "evaluation"
  return "training" if "compiled the step" in finished.output else "start"


@pytest.mark.exhaustive
def test_killed_runs_end_bitwise_equal(tmp_path):
  rng, uninterrupted = random.Random(SEED), tmp_path / "whole"
  _write_data(tmp_path)
  _finish(uninterrupted)
  phases = []
  while len(phases) < KILLS or not {"training", "checkpoint"} <= set(phases):
    folder = tmp_path / str(len(phases))
    for text, max_seconds in MOMENTS:
      phases.append(_kill(folder, text, rng.uniform(0, max_seconds)))
    _finish(folder)
    _assert_same_end(folder, uninterrupted)
    assert len(phases) <= 4 * KILLS, phases
  print({phase: phases.count(phase) for phase in sorted(set(phases))})
  assert phases.count("nothing") <= len(phases) // 5
