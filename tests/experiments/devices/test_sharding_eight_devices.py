"""Training on meshes of eight devices."""

import functools
import re
from typing import NamedTuple

import chex
import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

from configs import base
from experiments.data.batches import Batch, make_batch
from experiments.devices import sharding
from experiments.devices.sharding import fetch_local, local_rows, make_mesh, place_batch
from experiments.learning.model import make_model
from experiments.learning.step import init_state, make_rngs, make_step, make_train_spec

pytestmark = pytest.mark.eight_devices

S, T, V = 7, 5, 211
MODEL = base.Model(
  embed_dim=24, features=32, dropout_rate=0.3, recurrent_dropout_rate=0.2, word_dropout_rate=0.1
)
# The learning rate is low, so that rounding differences stay small.
TRAIN = base.Train(
  num_train_steps=10, warmup_fraction=0.0, learning_rate=1e-3, ema_decay=0.9, grad_accumulation_steps=2
)


@pytest.fixture(scope="module", autouse=True)
def standard_promotion():
  with jax.numpy_dtype_promotion("standard"):
    yield


def batch_of(step, mesh, num_rows=11):
  """Returns the batch of a step, with the padding rows that the mesh needs."""
  rng = np.random.default_rng(step)
  sides = ([rng.integers(4, V, rng.integers(1, size)).tolist() for _ in range(num_rows)] for size in (S, T))
  batch = make_batch(*sides, source_length=S, target_length=T)
  return local_rows(batch, mesh.size * TRAIN.grad_accumulation_steps)


def spec_on(mesh):
  model = make_model(MODEL, source_vocabulary_size=V, target_vocabulary_size=V)
  return make_train_spec(base.Config(model=MODEL, train=TRAIN), model, mesh)


class Trained(NamedTuple):
  losses: list[float]
  start: object
  state: object
  compiled: object


def train_on(mesh):
  """Trains for three steps."""
  spec, rngs = spec_on(mesh), make_rngs(3)
  state, losses, compiled = init_state(spec, rngs.params), [], None
  start = jax.tree.map(lambda leaf: leaf.copy(), state)
  for step in range(3):
    batch = place_batch(batch_of(step, mesh), mesh)
    compiled = compiled or make_step(spec).lower(state, batch, rngs.dropout).compile()
    state, _ = compiled(state, batch, rngs.dropout)
    losses.append(float(state.sums.loss))
  return Trained(losses, start, state, compiled)


def one_device_mesh():
  return Mesh(np.array(jax.devices()[:1]).reshape(1, 1), sharding.AXES, axis_types=(AxisType.Auto,) * 2)


@pytest.fixture(scope="module")
def one_device():
  return train_on(one_device_mesh())


@pytest.fixture(scope="module", params=[1, 4])
def sharded(request):
  """The number of shards of parameters, and a run on eight devices."""
  return request.param, train_on(make_mesh(request.param))


def test_training_equals_one_device(one_device, sharded):
  _, run = sharded
  np.testing.assert_allclose(run.losses, one_device.losses, rtol=1e-5)
  expected = fetch_local(one_device.state, one_device_mesh())
  chex.assert_trees_all_close(fetch_local(run.state, make_mesh()), expected, rtol=1e-4, atol=1e-5)


def test_large_arrays_are_sharded(sharded):
  num_shards, run = sharded
  embeddings = [leaf for leaf in jax.tree.leaves(run.state) if leaf.shape == (V, 24)]
  assert len(embeddings) == 2 * 4  # parameter, average and two moments, of source and target
  for embedding in embeddings:
    assert {shard.data.shape for shard in embedding.addressable_shards} == {(V, 24 // num_shards)}
  assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(run.state) if leaf.size < 2**12)
  for before, after in zip(jax.tree.leaves(run.start), jax.tree.leaves(run.state), strict=True):
    assert before.sharding.is_equivalent_to(after.sharding, after.ndim)


def test_devices_compute_their_rows(sharded):
  _, run = sharded
  spec, mesh = spec_on(one_device_mesh()), one_device_mesh()
  state = jax.eval_shape(functools.partial(init_state, spec), jax.random.key(0))
  two_rows = make_step(spec).lower(state, batch_of(0, mesh, num_rows=2), jax.random.key(1)).compile()
  assert run.compiled.cost_analysis()["flops"] < 1.15 * two_rows.cost_analysis()["flops"]


def gathered_shapes(compiled):
  """Returns the shapes of all-gathered arrays."""
  return {
    tuple(map(int, filter(None, shape.split(","))))
    for line in compiled.as_text().splitlines()
    if re.search(r" = .* all-gather(-start)?\(", line)
    for shape in re.findall(r"\w+\[([\d,]*)\]", line.split(" all-gather")[0])
  }


def test_activations_are_not_gathered(sharded):
  num_shards, run = sharded
  param_shapes = {leaf.shape for leaf in jax.tree.leaves(run.state.params)}
  gathered = gathered_shapes(run.compiled)
  assert ((V, 24) in gathered) == (num_shards > 1)
  if num_shards > 1:
    assert {tuple(sorted(shape)) for shape in gathered} <= {tuple(sorted(shape)) for shape in param_shapes}


@pytest.mark.parametrize("num_shards", [1, 4])
def test_batches_use_both_axes(num_shards):
  rows, lengths = np.arange(16 * 5, dtype=np.int32).reshape(16, 5), np.arange(16, dtype=np.int32)
  placed = place_batch(Batch(rows, lengths, rows, rows), make_mesh(num_shards))
  assert {shard.data.shape for shard in placed.sources.addressable_shards} == {(2, 5)}
  assert len({shard.index[0].start for shard in placed.source_lengths.addressable_shards}) == 8
  np.testing.assert_array_equal(placed.sources, rows)
  np.testing.assert_array_equal(placed.source_lengths, lengths)


def test_longest_divisible_axis_is_sharded():
  for shape, expected in {
    (64, 113): ("parameters", None),
    (113, 64): (None, "parameters"),
    (32, 64, 3): (None, "parameters", None),
    (65, 113): (None, None),
    (64, 63): (None, None),  # it is small
    (64, 64): ("parameters", None),
  }.items():
    array = jax.ShapeDtypeStruct(shape, np.float32)
    assert sharding.state_shardings(array, make_mesh(4)).spec == PartitionSpec(*expected)
