"""Which device holds what: one mesh, for one device, for many, and for several processes.

Each device works on some rows of a batch. Parameters, and what the optimiser keeps of them, are whole on
every device, or cut along the mesh's second axis; then a step puts them together while it uses them. XLA
sends what has to be sent.
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

# Both axes share the rows of a batch; the second shares the parameters too.
AXES = ("data", "parameters")

# Smaller arrays are whole on every device: sending their parts would cost more than it saves.
_LEAST_TO_CUT = 2**12


class DeviceError(UserError):
  """A number of devices that cannot be used as asked, told in one line."""


def set_cpu_device_count(count: int) -> None:
  """Makes JAX take a CPU for several devices; to be called before it has done anything.

  Raises:
    DeviceError: if it is too late.
  """
  # XLA's threads: with one for each device, two collectives at once can take all of them and wait for ever.
  os.environ["NPROC"] = str(4 * count)
  try:
    jax.config.update("jax_num_cpu_devices", count)
  except RuntimeError as error:  # a person's config file has used JAX
    raise DeviceError(f"--cpu_devices={count} comes too late: the config has used JAX's devices") from error


def check_shares() -> None:
  """Raises DeviceError, in all processes alike, if some have more devices than others."""
  shares = collections.Counter(device.process_index for device in jax.devices())
  if len(set(shares.values())) > 1:
    if jax.process_index() == 0:
      time.sleep(2)  # at its end JAX ends the others, which are to say why first
    raise DeviceError(f"all processes must have as many devices, got {[shares[i] for i in sorted(shares)]}")


def make_mesh(fsdp_size: int = 1) -> Mesh:
  """Returns the mesh of all devices of all processes.

  Args:
    fsdp_size: into how many parts parameters are cut, a divisor of the number of devices.

  Raises:
    DeviceError: if it is none.
  """
  count = jax.device_count()
  if fsdp_size < 1 or count % fsdp_size:
    raise DeviceError(f"--fsdp_size must be a divisor of the number of devices, {count}, got {fsdp_size}")
  # A process's devices stand side by side, so that it makes one run of rows of each batch.
  devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
  grid = np.array(devices).reshape(-1, fsdp_size)
  return Mesh(grid, AXES, axis_types=(AxisType.Auto, AxisType.Auto))


def local_rows(batch: Tree, multiple: int) -> Tree:
  """Returns the rows of a batch, a pytree of arrays, that this process's devices work on.

  Args:
    batch: the same in all processes.
    multiple: rows of zeros are added until their number is a multiple of this, itself one of the number of
      processes.
  """

  def own(array: np.ndarray) -> np.ndarray:
    padding = [(0, -len(array) % multiple), *[(0, 0)] * (array.ndim - 1)]
    return np.split(np.pad(array, padding), jax.process_count())[jax.process_index()]

  return jax.tree.map(own, batch)


def state_shardings(state: Any, mesh: Mesh) -> Any:
  """Returns where each array of a training state is: cut along its longest axis that can be, or whole."""
  shards = mesh.shape["parameters"]

  def sharding(leaf: Any) -> NamedSharding:
    spec: list[str | None] = [None] * len(leaf.shape)
    fitting = [axis for axis, length in enumerate(leaf.shape) if length % shards == 0]
    if shards > 1 and fitting and math.prod(leaf.shape) >= _LEAST_TO_CUT:
      spec[max(fitting, key=lambda axis: leaf.shape[axis])] = "parameters"
    return NamedSharding(mesh, PartitionSpec(*spec))

  return jax.tree.map(sharding, state)


def replicated(mesh: Mesh) -> NamedSharding:
  """Returns where an array is that every device has whole."""
  return NamedSharding(mesh, PartitionSpec())


def place_batch(batch: Tree, mesh: Mesh) -> Tree:
  """Returns this process's rows of a batch, a pytree of arrays, as part of the whole on all devices."""
  sharding = NamedSharding(mesh, PartitionSpec(AXES))
  return jax.tree.map(lambda rows: jax.make_array_from_process_local_data(sharding, rows), batch)


def fetch_local(tree: Any, mesh: Mesh) -> Any:
  """Returns arrays, whole, on the first device of this process."""
  whole = jax.jit(_same, out_shardings=replicated(mesh))(tree)
  return jax.tree.map(lambda leaf: leaf.addressable_data(0), whole)


def _same(tree: Any) -> Any:
  return tree
