"""Sharding of batches and parameters over one mesh of devices and processes.

The rows of a batch are sharded over all devices. Parameters and the optimizer state are replicated, or
sharded over the second axis of the mesh and gathered during a step (FSDP). XLA inserts the communication.
"""

import collections
import math
import os
import time
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from experiments.cli.errors import UserError

Tree = TypeVar("Tree")

# Batch rows are sharded over both axes, parameters over the second one.
AXES = ("data", "parameters")

# Smaller arrays are replicated, because communication would cost more than sharding saves.
_MIN_SHARDED_SIZE = 2**12


class DeviceError(UserError):
  """An invalid number of devices."""


def set_cpu_device_count(count: int) -> None:
  """Sets the number of simulated CPU devices. It must be called before JAX is used.

  Raises:
    DeviceError: if JAX has been used.
  """
  # More XLA threads than devices, because concurrent collectives may deadlock otherwise.
  os.environ["NPROC"] = str(4 * count)
  try:
    jax.config.update("jax_num_cpu_devices", count)
  except RuntimeError as error:  # for example by a config file
    raise DeviceError(f"--cpu_devices={count} has no effect, because the config file has used JAX") from error


def check_equal_device_counts() -> None:
  """Raises DeviceError in all processes if they have different numbers of devices."""
  counts = collections.Counter(device.process_index for device in jax.devices())
  if len(set(counts.values())) > 1:
    if jax.process_index() == 0:
      time.sleep(2)  # when process 0 exits, JAX ends the others, so they print their errors first
    raise DeviceError(
      f"all processes must have the same number of devices, got {[counts[i] for i in sorted(counts)]}"
    )


def make_mesh(fsdp_size: int = 1) -> Mesh:
  """Returns the mesh of all devices of all processes.

  Args:
    fsdp_size: number of devices that parameters are sharded over. It must divide the number of devices.

  Raises:
    DeviceError: if `fsdp_size` is invalid.
  """
  count = jax.device_count()
  if fsdp_size < 1 or count % fsdp_size:
    raise DeviceError(f"--fsdp_size must divide the number of devices, {count}, got {fsdp_size}")
  # Devices of a process are adjacent, so that each process has contiguous rows of a batch.
  devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
  grid = np.array(devices).reshape(-1, fsdp_size)
  return Mesh(grid, AXES, axis_types=(AxisType.Auto, AxisType.Auto))


def local_rows(batch: Tree, multiple: int) -> Tree:
  """Returns the rows of this process of a batch.

  Args:
    batch: pytree of arrays, equal in all processes.
    multiple: zero rows are added until the number of rows is a multiple of this. It is a multiple of the
      number of processes.
  """

  def take_rows(array: np.ndarray) -> np.ndarray:
    padding = [(0, -len(array) % multiple), *[(0, 0)] * (array.ndim - 1)]
    return np.split(np.pad(array, padding), jax.process_count())[jax.process_index()]

  return jax.tree.map(take_rows, batch)


def state_shardings(state: Any, mesh: Mesh) -> Any:
  """Returns the sharding of each array of a training state.

  Arrays are sharded along the longest axis that the number of shards divides. Small arrays are replicated.
  """
  num_shards = mesh.shape["parameters"]

  def sharding(leaf: Any) -> NamedSharding:
    spec: list[str | None] = [None] * len(leaf.shape)
    axes = [axis for axis, length in enumerate(leaf.shape) if length % num_shards == 0]
    if num_shards > 1 and axes and math.prod(leaf.shape) >= _MIN_SHARDED_SIZE:
      spec[max(axes, key=lambda axis: leaf.shape[axis])] = "parameters"
    return NamedSharding(mesh, PartitionSpec(*spec))

  return jax.tree.map(sharding, state)


def replicated(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of arrays that are replicated on all devices."""
  return NamedSharding(mesh, PartitionSpec())


def place_batch(batch: Tree, mesh: Mesh) -> Tree:
  """Returns a global batch, sharded over all devices, from the rows of this process."""
  sharding = NamedSharding(mesh, PartitionSpec(AXES))
  return jax.tree.map(lambda rows: jax.make_array_from_process_local_data(sharding, rows), batch)


def fetch_local(tree: Any, mesh: Mesh) -> Any:
  """Returns unsharded arrays on the first device of this process."""
  gathered = jax.jit(_identity, out_shardings=replicated(mesh))(tree)
  return jax.tree.map(lambda leaf: leaf.addressable_data(0), gathered)


def _identity(tree: Any) -> Any:
  return tree
