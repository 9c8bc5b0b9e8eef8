"""Checkpoints: damage of any file, full disks, and several processes."""

import itertools
import multiprocessing
import random
import resource
import shutil
import signal
import socket

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import scripts  # noqa: F401 (it tells the server of forks to import JAX once)
from helpers.checkpoint_files import LIKE, assert_is_of, open_checkpoints, save, steps_in, write
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from experiments.runs.checkpoints import CheckpointError

pytestmark = pytest.mark.nightly


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
  original, rng = tmp_path / "whole", random.Random(0)
  write(original / "checkpoints", {100: 0.5, 200: 0.25})
  files = sorted(path for path in (original / "checkpoints" / "200").rglob("*") if path.is_file())
  for file, kind in itertools.product(files, ["deleted", "truncated", "flipped"]):
    run = shutil.copytree(original, tmp_path / "run")
    damage(run / file.relative_to(original), kind, rng)
    checkpoint = open_checkpoints(run / "checkpoints").restore(LIKE)
    assert capfd.readouterr().err.startswith("checkpoint of step 200 is damaged (")
    assert_is_of(checkpoint, 100)
    shutil.rmtree(run)


# Threads of orbax may outlive its event loop after a failed write.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("limit", [0, 150, 4000])
def test_full_disks_keep_checkpoints(tmp_path, limit):
  write(tmp_path, {100: 0.5, 200: None})
  checkpoints, limits = open_checkpoints(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
  before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  try:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    line = "cannot write the checkpoint of step 300: File too large; the last one is of step 200"
    with pytest.raises(CheckpointError, match=f"^{line}$"):
      save(checkpoints, 300)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, before)
  checkpoints = open_checkpoints(tmp_path)
  save(checkpoints, 300)
  for step in (100, 200, 300):
    assert_is_of(checkpoints.restore(LIKE, step), step)


def weights_of(step):
  return np.random.default_rng(step).normal(size=(8, 5000)).astype(np.float32)


def train_with_another(address, index, folder, connection):
  """Saves in two processes, and restores before and after a file of one process was deleted."""
  jax.config.update("jax_num_cpu_devices", 2)
  jax.distributed.initialize(address, 2, index)
  rows = NamedSharding(jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,)), PartitionSpec("d"))

  def sharded(step):
    weights = weights_of(step)
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
  with socket.socket() as free:
    free.bind(("localhost", 0))
    address = f"localhost:{free.getsockname()[1]}"
  server, folder, processes = multiprocessing.get_context("forkserver"), tmp_path / "checkpoints", []
  for index in range(2):
    ours, theirs = server.Pipe()
    process = server.Process(target=train_with_another, args=(address, index, folder, theirs))
    process.start()
    processes.append((process, ours))
  try:
    assert all(connection.poll(120) for _, connection in processes)
    results = [connection.recv() for _, connection in processes]
  finally:
    for process, _ in processes:
      process.kill()
      process.join()
  for index, (before, after, best) in enumerate(results):
    assert (before[0], after[0], best) == (4, 3, 1)
    for step, weights in (before, after):
      np.testing.assert_array_equal(weights, weights_of(step)[4 * index : 4 * index + 4])
  assert (steps_in(folder), steps_in(tmp_path / "damaged")) == ([1, 2, 3], [4])
  # A single process can read it.
  target = {"weights": jax.ShapeDtypeStruct((8, 5000), jnp.float32)}
  np.testing.assert_array_equal(open_checkpoints(folder).restore(target).state["weights"], weights_of(3))
