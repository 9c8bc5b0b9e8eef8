"""Tests of experiments/runs/checkpoints.py: kills, full disks, unwritable folders."""

import itertools
import random
import resource
import shutil
import signal
import time
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from absl import logging
from helpers.checkpoint_files import (
  SERVER,
  assert_is_of,
  bits,
  in_child,
  like,
  open_checkpoints,
  save,
  shapes_of,
  state_of,
  stderr_in_a_pipe,
  steps_in,
  write,
)

from experiments.runs.checkpoints import CheckpointError


def _weights_of(step):
  return {"weights": jnp.asarray(np.random.default_rng(step).normal(size=20_000).astype(np.float32))}


def _assert_has_weights_of(checkpoint, step):
  assert (checkpoint.step, checkpoint.position) == (step, {"step": step})
  assert bits(checkpoint.state) == bits(_weights_of(step))


def _train_until_killed(connection, folder):
  """Saves checkpoints until it is killed. Sends the first step once it has saved a checkpoint."""
  checkpoints = open_checkpoints(folder)
  checkpoint = checkpoints.restore(shapes_of(_weights_of(0)))
  start = checkpoint.step if checkpoint else 0
  if checkpoint:
    _assert_has_weights_of(checkpoint, start)
  for step in itertools.count(start + 1):
    checkpoints.save(step, _weights_of(step), {"step": step}, (step * 7 % 5) / 5)
    if step == start + 1:
      connection.send(start)


def test_kills_keep_valid_checkpoints(tmp_path):
  folder, rng, starts = tmp_path / "checkpoints", random.Random(0), []
  for _ in range(8):
    receiver, sender = SERVER.Pipe()
    process = SERVER.Process(target=_train_until_killed, args=(sender, folder))
    process.start()
    sender.close()
    try:
      assert receiver.poll(60)
      starts.append(receiver.recv())
      time.sleep(rng.uniform(0, 0.3))
    finally:
      process.kill()
      process.join()
  assert starts[0] == 0
  assert all(after > before for before, after in itertools.pairwise(starts))
  checkpoints = open_checkpoints(folder)
  last = checkpoints.latest_step()
  assert last > starts[-1]
  _assert_has_weights_of(checkpoints.restore(shapes_of(_weights_of(0))), last)
  checkpoints.save(last + 1, _weights_of(last + 1), {}, None)
  # The newest two, two with a score, and the best. Partial files are removed.
  assert len(steps_in(folder)) <= 5
  assert not (tmp_path / "damaged").exists()


def _save_with_file_limit(limit, folder):
  signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  logging.set_verbosity(logging.FATAL)  # like scripts
  warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
  checkpoints = open_checkpoints(folder)
  with stderr_in_a_pipe():  # threads of orbax may print tracebacks
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    return _error_of_saving(checkpoints)


def _error_of_saving(checkpoints):
  try:
    save(checkpoints, 300)
  except CheckpointError as error:
    return str(error)
  return "it was saved"


@pytest.mark.parametrize("limit", [0, 150, 4000])
def test_full_disks_keep_checkpoints(tmp_path, limit):
  write(tmp_path, {100: 0.5, 200: None})
  assert in_child(_save_with_file_limit, limit, tmp_path) == (
    "cannot write the checkpoint of step 300: File too large; the last one is of step 200"
  )
  checkpoints = open_checkpoints(tmp_path)
  save(checkpoints, 300)
  for step in (100, 200, 300):
    assert_is_of(checkpoints.restore(like(), step), step)


def test_other_errors_are_raised(tmp_path):
  checkpoints = open_checkpoints(tmp_path)
  with pytest.raises(TypeError):
    checkpoints.save(1, state_of(1), {"position": object()}, None)


def test_files_instead_of_folders_are_errors(tmp_path):
  (tmp_path / "run").write_text("")
  checkpoints = open_checkpoints(tmp_path / "run" / "checkpoints")
  with pytest.raises(CheckpointError) as caught:
    save(checkpoints, 100)
  assert "step 100: Not a directory; there is no other" in str(caught.value)


def test_full_disks_are_found_before_writing(tmp_path, monkeypatch):
  write(tmp_path, {100: 0.5})
  usage = shutil.disk_usage(tmp_path)
  monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10_000))
  checkpoints = open_checkpoints(tmp_path)
  with pytest.raises(CheckpointError) as caught:
    save(checkpoints, 200)
  assert str(caught.value) == (
    "cannot write the checkpoint of step 200: No space left on device; the last one is of step 100"
  )
  assert_is_of(open_checkpoints(tmp_path).restore(like()), 100)
