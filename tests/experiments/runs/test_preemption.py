"""Killed and resumed runs end with the same bits as an uninterrupted run."""

import os
import random
import signal
import time

import chex
import pytest
from helpers import scripts

pytestmark = pytest.mark.nightly

# A run is killed at a random time, at most some seconds after it prints a text, or (None) after it starts to
# write a checkpoint.
MOMENTS = [
  ("", 3.0),
  (None, 0.05),
  ("compiled the step", 1.0),
  (None, 0.05),
  ("step 100, validation", 1.5),
]
FLAGS = [
  "--config=configs/parallel_text.py",
  "--config.data.tokenization=subword",
  "--config.data.vocabulary_size=275",
  "--config.data.num_buckets=2",
  "--config.train.num_train_steps=100",
  "--config.train.batch_size=60",
  "--config.train.log_every_steps=4",
  "--config.train.eval_every_steps=20",
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
]


def write_data(folder):
  """Writes 700 pairs of random words, so that an epoch ends during the run."""
  rng = random.Random(0)
  for name, count in (("train", 700), ("validation", 7)):
    pairs = [
      "\t".join(" ".join(rng.choices(words, k=rng.randint(1, 7))) for words in ("abcdefg", "hijklmn"))
      for _ in range(count)
    ]
    (folder / f"{name}.tsv").write_text("".join(f"{pair}\n" for pair in pairs), "utf-8")


def start(folder):
  files = [f"--config.data.{name}_file={folder.parent / name}.tsv" for name in ("train", "validation")]
  return scripts.start("train", f"--workdir={folder}", *FLAGS, *files)


def finish(folder):
  with start(folder) as running:
    finished = running.finish()
  assert finished.code == 0, finished


def partial_checkpoints(folder):
  """Returns the inodes of checkpoint folders that are not complete."""
  checkpoints = folder / "checkpoints"
  entries = os.scandir(checkpoints) if checkpoints.exists() else ()
  return {entry.inode() for entry in entries if not (checkpoints / entry.name / "sha256").exists()}


def kill(folder, text, seconds):
  """Starts a run and kills it some seconds after an event. Returns the phase of the run."""
  earlier = partial_checkpoints(folder)
  with start(folder) as running:
    while running.process.is_alive():
      if partial_checkpoints(folder) - earlier if text is None else text in running.output():
        time.sleep(seconds)
        break
      time.sleep(0.001)
    running.process.kill()
    finished = running.finish()
  if finished.code == 0:
    return "none"  # it had ended
  assert finished.code == -signal.SIGKILL, finished
  if partial_checkpoints(folder) - earlier:
    return "checkpoint"
  return "training" if "compiled the step" in finished.output else "start"


def test_killed_runs_have_the_same_bits(tmp_path):
  rng, whole, phases = random.Random(0), tmp_path / "whole", []
  write_data(tmp_path)
  finish(whole)
  expected = scripts.newest_checkpoint(whole)
  while not {"training", "checkpoint"} <= set(phases):
    folder = tmp_path / str(len(phases))
    phases += [kill(folder, text, rng.uniform(0, max_seconds)) for text, max_seconds in MOMENTS]
    finish(folder)
    checkpoint = scripts.newest_checkpoint(folder)
    assert (checkpoint.step, checkpoint.position) == (expected.step, expected.position)
    chex.assert_trees_all_equal(checkpoint.state, expected.state)
    subwords = ("subwords.source.model", "subwords.target.model")
    for name in ("run.json", "metrics.jsonl", "results.json", *subwords):
      assert (folder / name).read_bytes() == (whole / name).read_bytes()
    kept = [{path.name for path in (run / "checkpoints").iterdir()} for run in (folder, whole)]
    assert kept[0] == kept[1]
    assert not (folder / "damaged").exists()
    assert len(phases) <= 20, phases
  assert phases.count("none") <= len(phases) // 5
