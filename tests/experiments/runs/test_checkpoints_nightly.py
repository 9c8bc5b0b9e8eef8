"""Checkpoints: damage of any file, kills, full disks, and several processes."""

import contextlib
import itertools
import multiprocessing
import os
import random
import resource
import shutil
import signal
import socket
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import logging
from helpers import scripts  # noqa: F401 (it tells the server of forks to import JAX once)
from helpers.checkpoint_files import LIKE, assert_is_of, open_checkpoints, save, steps_in, write
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from experiments.runs.checkpoints import CheckpointError

pytestmark = pytest.mark.nightly

SERVER = multiprocessing.get_context("forkserver")


@contextlib.contextmanager
def child(function, *arguments):
  """Runs a function in another process. Its first argument is a connection, whose other end is yielded."""
  ours, theirs = SERVER.Pipe()
  process = SERVER.Process(target=function, args=(theirs, *arguments))
  process.start()
  theirs.close()
  try:
    yield process, ours
  finally:
    process.kill()
    process.join()


def receive(connection, seconds=120):
  assert connection.poll(seconds)
  return connection.recv()


def damage(path, kind, rng):
  data = bytearray(path.read_bytes())
  if kind == "deleted":
    path.unlink()
  elif kind == "truncated":
    path.write_bytes(data[: len(data) // 2])
  else:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def test_any_damage_is_detected(tmp_path, capfd):
  original = tmp_path / "whole"
  write(original / "checkpoints", {100: 0.5, 200: 0.25})
  files = sorted(path for path in (original / "checkpoints" / "200").rglob("*") if path.is_file())
  rng = random.Random(0)
  for file, kind in itertools.product(files, ["deleted", "truncated", "flipped", "flipped", "flipped"]):
    run = shutil.copytree(original, tmp_path / "run")
    damage(run / file.relative_to(original), kind, rng)
    checkpoint = open_checkpoints(run / "checkpoints").restore(LIKE)
    warning = capfd.readouterr().err
    # A flipped bit of the checksums may be that of a file that is not read.
    if warning or kind != "flipped":
      assert warning.startswith("checkpoint of step 200 is damaged (")
      assert_is_of(checkpoint, 100)
      assert steps_in(run / "damaged") == [200]
    else:
      assert_is_of(checkpoint, 200)
    shutil.rmtree(run)


def save_with_file_limit(connection, limit, folder):
  signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  logging.set_verbosity(logging.FATAL)  # like scripts
  warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
  checkpoints = open_checkpoints(folder)
  os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # threads of orbax may print tracebacks
  resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
  try:
    save(checkpoints, 300)
    connection.send("it was saved")
  except CheckpointError as error:
    connection.send(str(error))


@pytest.mark.parametrize("limit", [0, 150, 4000])
def test_full_disks_keep_checkpoints(tmp_path, limit):
  write(tmp_path, {100: 0.5, 200: None})
  with child(save_with_file_limit, limit, tmp_path) as (_, connection):
    message = "cannot write the checkpoint of step 300: File too large; the last one is of step 200"
    assert receive(connection) == message
  checkpoints = open_checkpoints(tmp_path)
  save(checkpoints, 300)
  for step in (100, 200, 300):
    assert_is_of(checkpoints.restore(LIKE, step), step)


def train_with_another(connection, address, index, folder):
  """Saves in two processes, and restores before and after a file of one process was deleted."""
  jax.config.update("jax_num_cpu_devices", 2)
  jax.distributed.initialize(address, 2, index)
  rows = NamedSharding(jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,)), PartitionSpec("d"))

  def sharded(step):
    weights = np.random.default_rng(step).normal(size=(8, 5000)).astype(np.float32)
    return {"weights": jax.make_array_from_callback(weights.shape, rows, lambda part: weights[part])}

  def restore():
    checkpoint = checkpoints.restore(sharded(0))
    parts = [np.asarray(shard.data) for shard in checkpoint.state["weights"].addressable_shards]
    return checkpoint.step, np.concatenate(parts)

  checkpoints = open_checkpoints(folder)
  for step, score in ((1, 0.9), (2, 0.5), (3, None), (4, 0.1)):
    checkpoints.save(step, sharded(step), {"step": step}, score)
  before = restore()
  multihost_utils.sync_global_devices("both have restored")
  if index == 1:
    for path in (folder / "4" / "state" / "ocdbt.process_1" / "d").iterdir():
      path.unlink()
  multihost_utils.sync_global_devices("a file is deleted")
  connection.send((before, restore(), checkpoints.best_step()))


def test_processes_agree_on_damage(tmp_path):
  folder = tmp_path / "checkpoints"
  with socket.socket() as free:
    free.bind(("localhost", 0))
    address = f"localhost:{free.getsockname()[1]}"
  with (
    child(train_with_another, address, 0, folder) as (_, first),
    child(train_with_another, address, 1, folder) as (_, second),
  ):
    results = [receive(first), receive(second)]
  expected = {step: np.random.default_rng(step).normal(size=(8, 5000)).astype(np.float32) for step in (3, 4)}
  for index, (before, after, best) in enumerate(results):
    assert (before[0], after[0], best) == (4, 3, 1)
    for step, weights in (before, after):
      np.testing.assert_array_equal(weights, expected[step][4 * index : 4 * index + 4])
  assert steps_in(folder) == [1, 2, 3]
  assert steps_in(tmp_path / "damaged") == [4]
  # A single process can read it.
  target = {"weights": jax.ShapeDtypeStruct((8, 5000), jnp.float32)}
  np.testing.assert_array_equal(open_checkpoints(folder).restore(target).state["weights"], expected[3])
