"""Tests of experiments/devices/sharding.py: training on meshes of 8 simulated devices."""

import functools
import re
import subprocess
import sys
from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

from configs import base
from experiments.cli.errors import UserError
from experiments.data.batches import Batch, make_batch
from experiments.devices import sharding
from experiments.devices.sharding import DeviceError, fetch_local, local_rows, make_mesh, place_batch
from experiments.learning.model import make_model
from experiments.learning.step import init_state, make_rngs, make_step, make_train_spec

NUM_ROWS, S, T, V = 11, 7, 5, 211
STEPS = 3
SHARDS = (1, 4)
shards = pytest.mark.parametrize("shards", [pytest.param(1, marks=pytest.mark.exhaustive), 4])
MODEL = base.Model(
  embed_dim=24, features=32, dropout_rate=0.3, recurrent_dropout_rate=0.2, word_dropout_rate=0.1
)
# The learning rate is low, so that rounding differences stay small.
TRAIN = base.Train(
  num_train_steps=10, warmup_fraction=0.0, learning_rate=1e-3, ema_decay=0.9, grad_accumulation_steps=2
)
ONE_DEVICE = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), sharding.AXES, axis_types=(AxisType.Auto,) * 2)


@pytest.fixture(scope="module", autouse=True)
def conditions():
  """Shards small parameters too, and allows the implicit dtype promotion of optax."""
  with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion("standard"):
    patch.setattr(sharding, "_MIN_SHARDED_SIZE", 2**9)
    yield


def batch_of(step, mesh, num_rows=NUM_ROWS):
  """Returns the batch of a step, with the padding rows that the mesh needs."""
  rng = np.random.default_rng(step)
  sources, targets = (
    [rng.integers(4, V, rng.integers(1, length)).tolist() for _ in range(num_rows)] for length in (S, T)
  )
  batch = make_batch(sources, targets, source_length=S, target_length=T)
  return local_rows(batch, mesh.size * TRAIN.grad_accumulation_steps)


class Trained(NamedTuple):
  losses: list[float]
  start: object
  state: object
  compiled: object


def spec_on(mesh):
  model = make_model(MODEL, source_vocabulary_size=V, target_vocabulary_size=V)
  return make_train_spec(base.Config(model=MODEL, train=TRAIN), model, mesh)


@functools.cache
def trained(mesh):
  """Returns the losses and states of some steps on a mesh."""
  spec, rngs = spec_on(mesh), make_rngs(3)
  state, losses = init_state(spec, rngs.params), []
  start, compiled = jax.tree.map(lambda leaf: leaf.copy(), state), None
  for step in range(STEPS):
    batch = place_batch(batch_of(step, mesh), mesh)
    compiled = compiled or make_step(spec).lower(state, batch, rngs.dropout).compile()
    before = float(state.sums.loss)
    state, _ = compiled(state, batch, rngs.dropout)
    losses.append(float(state.sums.loss) - before)
  return Trained(losses, start, state, compiled)


@shards
def test_mesh_losses_equal_one_device(shards):
  one_device, sharded = trained(ONE_DEVICE), trained(make_mesh(shards))
  np.testing.assert_allclose(sharded.losses, one_device.losses, rtol=1e-5)
  assert len(set(one_device.losses)) == STEPS


@shards
def test_mesh_state_equals_one_device(shards):
  one_device, sharded = trained(ONE_DEVICE).state, trained(make_mesh(shards)).state
  for leaf, expected in zip(jax.tree.leaves(sharded), jax.tree.leaves(one_device), strict=True):
    np.testing.assert_allclose(leaf, expected, rtol=1e-4, atol=1e-5)


@shards
def test_parameters_and_moments_are_sharded(shards):
  state = trained(make_mesh(shards)).state
  kernels = [leaf for leaf in jax.tree.leaves(state) if leaf.shape == (V, 24)]
  assert len(kernels) == 2 * 4  # parameter, average and two moments, of source and target
  for kernel in kernels:
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(V, 24 // shards)}
  biases = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim < 2]
  assert all(leaf.is_fully_replicated for leaf in biases)


def flops(compiled):
  return compiled.cost_analysis()["flops"]


def gathered_shapes(compiled):
  """Returns the shapes of all-gathered arrays."""
  text = compiled.as_text()
  return {
    tuple(map(int, filter(None, shape.split(","))))
    for line in text.splitlines()
    if re.search(r" = .* all-gather(-start)?\(", line)
    for shape in re.findall(r"\w+\[([\d,]*)\]", line.split(" all-gather")[0])
  }


@shards
def test_devices_compute_their_rows(shards):
  compiled = trained(make_mesh(shards)).compiled
  assert flops(compiled) < 1.15 * flops_per_device()


@functools.cache
def flops_per_device():
  """Returns the FLOPs of one device for the rows of one of 8 devices."""
  spec = spec_on(ONE_DEVICE)
  state = jax.eval_shape(functools.partial(init_state, spec), jax.random.key(0))
  batch = batch_of(0, ONE_DEVICE, num_rows=2)
  return flops(make_step(spec).lower(state, batch, jax.random.key(1)).compile())


@pytest.mark.parametrize("shards", SHARDS[1:])
def test_activations_are_not_gathered(shards):
  run = trained(make_mesh(shards))
  param_shapes = {leaf.shape for leaf in jax.tree.leaves(run.state.params)}
  gathered = gathered_shapes(run.compiled)
  assert (V, 24) in gathered
  assert {tuple(sorted(shape)) for shape in gathered} <= {tuple(sorted(shape)) for shape in param_shapes}


@shards
def test_batches_use_both_axes(shards):
  rows = np.arange(16 * 5, dtype=np.int32).reshape(16, 5)
  lengths = np.arange(16, dtype=np.int32)
  placed = place_batch(Batch(rows, lengths, rows, rows), make_mesh(shards))
  assert {shard.data.shape for shard in placed.sources.addressable_shards} == {(2, 5)}
  assert {shard.data.shape for shard in placed.source_lengths.addressable_shards} == {(2,)}
  assert len({shard.index[0].start for shard in placed.sources.addressable_shards}) == 8
  np.testing.assert_array_equal(placed.sources, rows)
  np.testing.assert_array_equal(placed.source_lengths, lengths)


def test_longest_divisible_axis_is_sharded():
  mesh = make_mesh(4)
  shapes = {"first": (64, 13), "second": (13, 64), "longest": (32, 64, 3), "none": (65, 13), "few": (4, 4)}
  arrays = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()}
  specs = {name: leaf.spec for name, leaf in sharding.state_shardings(arrays, mesh).items()}
  assert specs == {
    "first": PartitionSpec("parameters", None),
    "second": PartitionSpec(None, "parameters"),
    "longest": PartitionSpec(None, "parameters", None),
    "none": PartitionSpec(None, None),
    "few": PartitionSpec(None, None),
  }


@shards
def test_local_copies_are_unsharded(shards):
  run = trained(make_mesh(shards))
  copies = fetch_local(run.state.params, make_mesh(shards))
  for copy, leaf in zip(jax.tree.leaves(copies), jax.tree.leaves(run.state.params), strict=True):
    assert copy.devices() == {jax.devices()[0]}
    np.testing.assert_array_equal(copy, leaf)


@pytest.mark.parametrize("shards", [3, 16, 0, -1])
def test_parameter_shards_must_divide_devices(shards):
  with pytest.raises(DeviceError) as caught:
    make_mesh(shards)
  assert isinstance(caught.value, UserError)
  assert str(caught.value) == f"--fsdp_size must divide the number of devices, 8, got {shards}"


@pytest.mark.parametrize(("count", "multiple"), [(1, 1), (2, 2), (2, 8), (7, 7)])
def test_processes_share_rows_and_padding(monkeypatch, count, multiple):
  global_batch = make_batch(
    [[7]] * 5, [[8, 9]] * 5, source_length=3, target_length=3, alignments=[{(0, 0)}] * 5
  )
  monkeypatch.setattr(jax, "process_count", lambda: count)
  local_batches = []
  for index in range(count):
    monkeypatch.setattr(jax, "process_index", lambda index=index: index)
    local_batches.append(local_rows(global_batch, multiple))
  for array, *local in zip(global_batch, *local_batches, strict=True):
    gathered = np.concatenate(local)
    assert gathered.dtype == array.dtype
    assert len(gathered) == {1: 5, 2: 6, 8: 8, 7: 7}[multiple]
    np.testing.assert_array_equal(gathered[:5], array)
    assert not gathered[5:].any()


def test_cpu_devices_can_be_simulated():
  program = """
import jax
from experiments.devices.sharding import set_cpu_device_count
set_cpu_device_count(3)
print(jax.device_count())
"""
  ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
  assert ended.stdout == "3\n"


def test_cpu_devices_must_be_set_first():
  with pytest.raises(
    DeviceError, match=r"^--cpu_devices=3 has no effect, because the config file has used JAX$"
  ):
    sharding.set_cpu_device_count(3)


def test_processes_need_equal_devices(monkeypatch):
  class Device(NamedTuple):
    process_index: int
    id: int

  monkeypatch.setattr(jax, "devices", lambda: [Device(0, 0), Device(1, 1), Device(1, 2)])
  with pytest.raises(
    DeviceError, match=r"^all processes must have the same number of devices, got \[1, 2\]$"
  ):
    sharding.check_equal_device_counts()


@shards
def test_steps_keep_shardings(shards):
  run = trained(make_mesh(shards))
  for before, after in zip(jax.tree.leaves(run.start), jax.tree.leaves(run.state), strict=True):
    assert before.sharding.is_equivalent_to(after.sharding, after.ndim)
