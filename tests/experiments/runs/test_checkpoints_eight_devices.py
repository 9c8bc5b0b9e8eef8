"""Checkpoints of sharded arrays."""

import jax
import numpy as np
import pytest
from helpers.checkpoint_files import open_checkpoints
from jax.sharding import AxisType, NamedSharding, PartitionSpec

pytestmark = pytest.mark.eight_devices


def shard(kernel, num_devices):
  """Returns an array whose columns are sharded over the first devices."""
  devices = jax.devices()[:num_devices]
  mesh = jax.make_mesh((num_devices,), ("devices",), axis_types=(AxisType.Auto,), devices=devices)
  return jax.device_put(kernel, NamedSharding(mesh, PartitionSpec(None, "devices")))


def test_number_of_devices_may_change(tmp_path):
  kernel = np.random.default_rng(0).normal(size=(3, 24)).astype(np.float32)
  open_checkpoints(tmp_path).save(1, {"kernel": shard(kernel, 3)}, {}, None)
  for num_devices in (8, 1):
    target = shard(np.zeros_like(kernel), num_devices)
    restored = open_checkpoints(tmp_path).restore({"kernel": target}).state["kernel"]
    np.testing.assert_array_equal(restored, kernel)
    assert restored.sharding.is_equivalent_to(target.sharding, 2)
  # Without a sharding, it is on the first device.
  restored = open_checkpoints(tmp_path).restore({"kernel": jax.eval_shape(lambda: kernel)}).state["kernel"]
  assert restored.devices() == {jax.devices()[0]}
