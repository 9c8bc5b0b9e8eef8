"""Meshes and rows of batches on one device. test_sharding_eight_devices.py trains on eight."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from experiments.data.batches import make_batch
from experiments.devices import sharding
from experiments.devices.sharding import DeviceError, local_rows, make_mesh


@pytest.mark.parametrize(("count", "multiple", "num_rows"), [(1, 1, 5), (2, 2, 6), (2, 8, 8), (7, 7, 7)])
def test_processes_share_rows_and_padding(monkeypatch, count, multiple, num_rows):
  sentences = [[7]] * 5, [[8, 9]] * 5
  batch = make_batch(*sentences, source_length=3, target_length=3, alignments=[{(0, 0)}] * 5)
  monkeypatch.setattr(jax, "process_count", lambda: count)
  parts = []
  for index in range(count):
    monkeypatch.setattr(jax, "process_index", lambda index=index: index)
    parts.append(local_rows(batch, multiple))
  for array, *local in zip(batch, *parts, strict=True):
    gathered = np.concatenate(local)
    assert (len(gathered), gathered.dtype) == (num_rows, array.dtype)
    np.testing.assert_array_equal(gathered[:5], array)
    assert not gathered[5:].any()


@pytest.mark.parametrize("size", [2, 0, -1])
def test_parameter_shards_must_divide_devices(size):
  with pytest.raises(DeviceError, match=f"^--fsdp_size must divide the number of devices, 1, got {size}$"):
    make_mesh(size)


def test_cpu_devices_can_be_simulated(monkeypatch):
  program = """
import jax
from experiments.devices.sharding import set_cpu_device_count
set_cpu_device_count(3)
print(jax.device_count())
"""
  environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
  assert subprocess.check_output([sys.executable, "-c", program], env=environment) == b"3\n"
  # It is too late here.
  jax.devices()
  with pytest.raises(
    DeviceError, match="--cpu_devices=3 has no effect, because the config file has used JAX"
  ):
    sharding.set_cpu_device_count(3)
