"""Leading axes that are sharded by a `NamedSharding` are not gathered, in either pass."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.fixtures import ENGINES, SCORES, Inputs, always, assert_trees_close, in_turn
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import attention
from attention import masks
from attention.arrays import sharding

pytestmark = pytest.mark.usefixtures("several_devices", "additive_in_loops")

NUM_DEVICES = 4
B, N, T, S, H, D = 8, 4, 23, 31, 6, 10


@functools.cache
def mesh():
  return jax.make_mesh(
    (NUM_DEVICES,), ("shares",), axis_types=(AxisType.Auto,), devices=jax.devices()[:NUM_DEVICES]
  )


def shard_over_devices(array, axis):
  """Returns an array that is sharded along an axis."""
  spec = [None] * array.ndim
  spec[axis] = "shares"
  return jax.device_put(array, NamedSharding(mesh(), PartitionSpec(*spec)))


def moved_shapes(compiled):
  """Returns the shapes that devices communicate, except for sums of their results."""
  lines = [
    line
    for line in compiled.as_text().splitlines()
    if re.search(r" = .* (all-gather|all-to-all|collective-permute)(-start)?\(", line)
  ]
  return [re.findall(r"\w+\[[\d,]*\]", re.split(r" (?:all|coll)", line)[0]) for line in lines]


def draw(kind, dtype=np.float32):
  rng = np.random.default_rng(0)
  widths = {"H": H, "K": H}
  parameters = {
    name: 0.3 + rng.random([widths[axis] for axis in axes]) for name, axes in SCORES[kind].parameters.items()
  }
  vectors = (rng.normal(size=(B, N, *shape)) for shape in ((T, H), (S, H), (S, D)))
  return jax.tree.map(lambda array: np.asarray(array, dtype), Inputs(*vectors, parameters))


def gradients(kind, implementation, block_sizes=None):
  """Returns a function that computes the gradients of all inputs, with default compiler options."""

  def loss(inputs):
    context, _, logsumexp = attention.attend(
      SCORES[kind].score(**inputs.parameters),
      *inputs[:3],
      mask=masks.causal(offset=2) & masks.lengths(source=jnp.arange(B)[:, None] * 4),
      return_logsumexp=True,
      implementation=implementation,
      block_sizes=block_sizes,
    )
    return jnp.sum(context**2) + jnp.sum(jnp.where(logsumexp > -jnp.inf, logsumexp, 0))

  return jax.jit(jax.grad(loss))


@functools.cache
def gradients_on_one_device(kind):
  return jax.device_get(gradients(kind, "dense")(draw(kind)))


@pytest.mark.parametrize(
  ("kind", "axis", "implementation"),
  always(
    *(("scaled_dot_product", 0, "blockwise"), ("bilinear", 1, "dense")),
    of=list(itertools.product(SCORES, (0, 1), ENGINES)),
  ),
)
def test_sharded_arrays_are_not_gathered(kind, axis, implementation):
  inputs = draw(kind)
  function = gradients(kind, implementation, block_sizes=(7, 9))
  queries, keys, values = (shard_over_devices(array, axis) for array in inputs[:3])
  given = Inputs(queries, keys, values, inputs.parameters)
  compiled = function.lower(given).compile()
  assert moved_shapes(compiled) == []
  result = compiled(given)
  for array in result[:3]:
    assert array.sharding.is_equivalent_to(queries.sharding, 4)
  assert_trees_close(result, gradients_on_one_device(kind), 1e-4)


# Additive scores are excluded, since they choose their formula by the largest number of all devices.
@in_turn(kind=["scaled_dot_product", "user_defined"])
def test_forward_pass_needs_no_communication(kind, implementation):
  # Devices would have to communicate to agree on the tiles to skip.
  @jax.jit
  def contexts(inputs, lengths):
    return attention.attend(
      SCORES[kind].score(**inputs.parameters),
      *inputs[:3],
      mask=masks.lengths(source=lengths[:, None]),
      implementation=implementation,
      block_sizes=(7, 9),
    )

  inputs = draw(kind)
  given = Inputs(*(shard_over_devices(array, 0) for array in inputs[:3]), inputs.parameters)
  compiled = contexts.lower(given, shard_over_devices(np.arange(B) * 4, 0)).compile()
  assert moved_shapes(compiled) == [] and "all-reduce" not in compiled.as_text()


def test_moved_arrays_are_detected():
  array = shard_over_devices(np.ones((B, N, T, H), np.float32), 0)
  compiled = jax.jit(lambda array: jnp.flip(array, 0)).lower(array).compile()
  assert moved_shapes(compiled) != []


@pytest.mark.parametrize(
  ("name", "implementation"),
  always(
    ("grouped", "blockwise"),
    of=list(itertools.product(("multi_head", "grouped", "encoder"), ENGINES)),
  ),
)
def test_layers_do_not_gather_sharded_batches(name, implementation):
  width = 16
  layers = {
    "multi_head": attention.MultiHeadAttention(N, width, dropout_rate=0.1, implementation=implementation),
    "grouped": attention.MultiHeadAttention(N, width, num_key_value_heads=2, implementation=implementation),
    "encoder": attention.EncoderLayer(N, 32, dropout_rate=0.1, implementation=implementation),
  }
  layer = layers[name]
  rng = np.random.default_rng(0)
  vectors = rng.normal(size=(B, T, width)).astype(np.float32)
  parameters = layer.init(jax.random.key(0), vectors)

  def loss(parameters, vectors, lengths):
    results = layer.apply(
      parameters,
      vectors,
      mask=masks.lengths(source=lengths[:, None]),
      deterministic=False,
      rngs={"dropout": jax.random.key(1)},
    )
    return jnp.sum(results**2)

  lengths = np.arange(B) * 3
  function = jax.jit(jax.grad(loss, argnums=(0, 1)))
  given = (parameters, shard_over_devices(vectors, 0), shard_over_devices(lengths, 0))
  compiled = function.lower(*given).compile()
  assert moved_shapes(compiled) == []
  assert_trees_close(compiled(*given), jax.device_get(function(parameters, vectors, lengths)), 1e-4)


def test_shard_map_arrays_are_not_sharded():
  result = []

  def remember(array):
    result.append(sharding.leading_axes_may_be_sharded())
    return array

  array = np.ones((B, T), np.float32)
  jax.shard_map(remember, mesh=mesh(), in_specs=PartitionSpec("shares"), out_specs=PartitionSpec("shares"))(
    array
  )
  assert result == [False]
  assert sharding.leading_axes_may_be_sharded()
