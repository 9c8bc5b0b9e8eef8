"""Tests of experiments/runs/checkpoints.py with several devices and processes."""

import socket

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.checkpoint_files import (
  assert_is_of,
  bits,
  child,
  in_child,
  like,
  open_checkpoints,
  state_of,
  stderr_in_a_pipe,
  steps_in,
)
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def shard(state, mesh):
  """Returns the state with the columns of the kernel sharded, and all else replicated."""
  columns, replicated = (
    NamedSharding(mesh, PartitionSpec(None, "devices")),
    NamedSharding(mesh, PartitionSpec()),
  )
  return jax.tree.map(lambda leaf: jax.device_put(leaf, columns if leaf.ndim == 2 else replicated), state)


def mesh_of(count):
  return jax.make_mesh((count,), ("devices",), axis_types=(AxisType.Auto,), devices=jax.devices()[:count])


def test_arrays_are_restored_sharded(tmp_path):
  target = shard(state_of(0, (3, 12)), mesh_of(4))
  checkpoints = open_checkpoints(tmp_path)
  checkpoints.save(1, shard(state_of(1, (3, 12)), mesh_of(3)), {}, None)
  state = checkpoints.restore(target).state
  assert bits(state) == bits(state_of(1, (3, 12)))
  has_sharding = jax.tree.map(
    lambda leaf, like: leaf.sharding.is_equivalent_to(like.sharding, leaf.ndim), state, target
  )
  assert jax.tree.all(has_sharding)


def _read_and_write_on(devices, source, destination):
  jax.config.update("jax_num_cpu_devices", devices)
  checkpoints = open_checkpoints(source)
  assert_is_of(checkpoints.restore(like()), 1)
  checkpoints = open_checkpoints(destination)
  state = shard(state_of(2), mesh_of(devices)) if devices > 1 else state_of(2)
  checkpoints.save(2, state, {"epoch": 0, "step": 2}, None)
  return jax.device_count()


@pytest.mark.parametrize("devices", [1, 5])
def test_number_of_devices_may_change(tmp_path, devices):
  checkpoints = open_checkpoints(tmp_path / "here")
  checkpoints.save(1, shard(state_of(1, (7, 500)), mesh_of(4)), {"epoch": 0, "step": 1}, None)
  assert in_child(_read_and_write_on, devices, tmp_path / "here", tmp_path / "there") == devices
  assert jax.device_count() == 8
  checkpoints = open_checkpoints(tmp_path / "there")
  assert_is_of(checkpoints.restore(like()), 2)
  assert_is_of(checkpoints.restore(shard(state_of(0), mesh_of(4))), 2)


def _shard_over_processes(step, mesh):
  """Returns weights that are sharded over the processes."""
  rows = NamedSharding(mesh, PartitionSpec("devices"))
  weights = np.random.default_rng(step).normal(size=(8, 5000)).astype(np.float32)
  return {"weights": jax.make_array_from_callback(weights.shape, rows, lambda part: weights[part])}


def _parts(checkpoint):
  return [np.asarray(shard.data) for shard in checkpoint.state["weights"].addressable_shards]


def _train_with_another(address, index, folder):
  """Saves in two processes, and restores after a file of one process was deleted."""
  jax.config.update("jax_num_cpu_devices", 2)
  jax.distributed.initialize(address, 2, index)
  mesh = mesh_of(4)
  checkpoints = open_checkpoints(folder)
  for step, score in ((1, 0.9), (2, 0.5), (3, None), (4, 0.1)):
    checkpoints.save(step, _shard_over_processes(step, mesh), {"step": step}, score)
  before = checkpoints.restore(_shard_over_processes(0, mesh))
  multihost_utils.sync_global_devices("both have restored")
  if index == 1:
    for path in (folder / "4" / "state" / "ocdbt.process_1" / "d").iterdir():
      path.unlink()
  multihost_utils.sync_global_devices("a file is deleted")
  with stderr_in_a_pipe() as read_stderr:
    after = checkpoints.restore(_shard_over_processes(0, mesh))
    warnings = [line for line in read_stderr().splitlines() if "checkpoint" in line]  # Gloo may print too
  return (before.step, _parts(before)), (after.step, _parts(after)), checkpoints.best_step(), warnings


def test_processes_agree_on_damage(tmp_path):
  folder = tmp_path / "checkpoints"
  with socket.socket() as free:
    free.bind(("localhost", 0))
    address = f"localhost:{free.getsockname()[1]}"
  with (
    child(_train_with_another, address, 0, folder) as (_, first),
    child(_train_with_another, address, 1, folder) as (_, second),
  ):
    assert first.poll(120)
    assert second.poll(120)
    results = [first.recv(), second.recv()]
  expected = {step: np.random.default_rng(step).normal(size=(8, 5000)).astype(np.float32) for step in (3, 4)}
  for index, (before, after, best, _) in enumerate(results):
    assert (before[0], after[0], best) == (4, 3, 1)
    for step, parts in (before, after):
      np.testing.assert_array_equal(np.concatenate(parts), expected[step][4 * index : 4 * index + 4])
  assert steps_in(folder) == [1, 2, 3]
  assert steps_in(tmp_path / "damaged") == [4]
  (line,), no_warnings = (warnings for *_, warnings in results)
  assert line.startswith("checkpoint of step 4 is damaged (state/ocdbt.process_1/d/")
  assert line.endswith(" has changed); using step 3")
  assert not no_warnings
  weights = {"weights": jax.ShapeDtypeStruct((8, 5000), jnp.float32)}
  checkpoints = open_checkpoints(folder)  # a single process
  np.testing.assert_array_equal(checkpoints.restore(weights).state["weights"], expected[3])
