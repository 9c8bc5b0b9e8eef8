"""Arrays that are sharded over devices: nothing is gathered, and results are those of one device."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import SCORES, Inputs, attend, attend_fully, draw, random_like
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import attention
from attention import masks

pytestmark = pytest.mark.eight_devices

B, N, T, S, H, D = 8, 4, 23, 31, 6, 10
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def make_mesh(axis_type=AxisType.Auto, count=4):
  return jax.make_mesh((count,), ("shares",), axis_types=(axis_type,), devices=jax.devices()[:count])


def shard_over_devices(array, axis):
  """Returns an array that is sharded along an axis."""
  spec = [None] * array.ndim
  spec[axis] = "shares"
  return jax.device_put(array, NamedSharding(make_mesh(), PartitionSpec(*spec)))


def moved_shapes(compiled):
  """Returns the shapes that devices communicate, except for sums of their results."""
  lines = [
    line
    for line in compiled.as_text().splitlines()
    if re.search(r" = .* (all-gather|all-to-all|collective-permute)(-start)?\(", line)
  ]
  return [re.findall(r"\w+\[[\d,]*\]", re.split(r" (?:all|coll)", line)[0]) for line in lines]


def draw_heads(kind):
  rng = np.random.default_rng(0)
  shape = {"H": H, "K": H}
  parameter = np.float32(0.3 + rng.random([shape[axis] for axis in SCORES[kind].axes]))
  vectors = (np.float32(rng.normal(size=(B, N, *shape))) for shape in ((T, H), (S, H), (S, D)))
  return Inputs(SCORES[kind].score(parameter), *vectors)


def gradients(implementation, block_sizes=None):
  """Returns a function that computes the gradients of all inputs."""

  def loss(inputs):
    context, _, logsumexp = attend(
      inputs,
      mask=masks.causal(offset=2) & masks.lengths(source=jnp.arange(B)[:, None] * 4),
      return_logsumexp=True,
      implementation=implementation,
      block_sizes=block_sizes,
    )
    return jnp.sum(context**2) + jnp.sum(jnp.where(logsumexp > -jnp.inf, logsumexp, 0))

  return jax.jit(jax.grad(loss))


@pytest.mark.parametrize(
  ("kind", "axis", "implementation"),
  [
    ("scaled_dot_product", 0, "blockwise"),
    ("additive", 0, "blockwise"),
    ("cosine", 1, "blockwise"),
    ("user_defined", 1, "blockwise"),
    ("bilinear", 1, "dense"),
    ("additive", 0, "dense"),
  ],
)
def test_sharded_arrays_are_not_gathered(kind, axis, implementation):
  inputs = draw_heads(kind)
  queries, keys, values = (shard_over_devices(array, axis) for array in inputs[1:4])
  given = Inputs(inputs.score, queries, keys, values)
  compiled = gradients(implementation, block_sizes=(7, 9)).lower(given).compile()
  assert moved_shapes(compiled) == []
  result = compiled(given)
  for array in result[1:4]:
    assert array.sharding.is_equivalent_to(queries.sharding, 4)
  chex.assert_trees_all_close(result, gradients("dense")(inputs), **CLOSE)


# Additive scores are excluded, since they choose their formula by the largest number of all devices.
@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_forward_pass_needs_no_communication(implementation):
  # Devices would have to communicate to agree on the tiles to skip.
  @jax.jit
  def contexts(inputs, lengths):
    mask = masks.lengths(source=lengths[:, None])
    return attend(inputs, mask=mask, implementation=implementation, block_sizes=(7, 9))

  inputs = draw_heads("scaled_dot_product")
  given = Inputs(inputs.score, *(shard_over_devices(array, 0) for array in inputs[1:4]))
  compiled = contexts.lower(given, shard_over_devices(np.arange(B) * 4, 0)).compile()
  assert moved_shapes(compiled) == [] and "all-reduce" not in compiled.as_text()


def test_moved_arrays_are_detected():
  array = shard_over_devices(np.ones((B, N, T, H), np.float32), 0)
  compiled = jax.jit(lambda array: jnp.flip(array, 0)).lower(array).compile()
  assert moved_shapes(compiled) != []


@pytest.mark.parametrize(
  "layer",
  [
    attention.MultiHeadAttention(N, 16, num_key_value_heads=2, implementation="blockwise"),
    attention.EncoderLayer(N, 32, dropout_rate=0.1, implementation="dense"),
  ],
  ids=["grouped", "encoder"],
)
def test_layers_gather_no_sharded_batch(layer):
  vectors = np.random.default_rng(0).normal(size=(B, T, 16)).astype(np.float32)
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
  chex.assert_trees_all_close(compiled(*given), function(parameters, vectors, lengths), **CLOSE)


@pytest.mark.parametrize("kind", ["scaled_dot_product", "additive", "user_defined"])
@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_shard_map_equals_one_device(kind, implementation):
  inputs, lengths = draw(kind), np.array([2, 5])

  def results(inputs, lengths):
    mask = masks.causal(1) & masks.lengths(source=lengths)
    return attend_fully(inputs, mask=mask, implementation=implementation)

  split, same = PartitionSpec("shares"), PartitionSpec()
  sharded = jax.shard_map(
    results,
    mesh=make_mesh(count=2),
    in_specs=(Inputs(same, split, split, split, same), split),
    out_specs=split,
  )

  @jax.jit
  def run(inputs):
    def both(function):
      outputs, pull = jax.vjp(lambda inputs: function(inputs, lengths), inputs)
      return outputs, pull(random_like(outputs))[0]

    return both(sharded), both(results)

  chex.assert_trees_all_close(*run(inputs), rtol=3e-5, atol=3e-5)


# Explicit axes: the sharding is part of an array's type.


def sharded_explicitly(array, count=2):
  mesh = make_mesh(AxisType.Explicit, count)
  return jax.device_put(array, NamedSharding(mesh, PartitionSpec("shares")))


@pytest.mark.parametrize("kind", ["scaled_dot_product", "additive"])
def test_explicitly_sharded_arrays_are_dense(kind):
  # Long enough for "auto" to use tiles.
  vectors = np.random.default_rng(0).normal(size=(2, 512, 11)).astype(np.float32)
  score = draw(kind).score

  def attend(vectors, implementation):
    return attention.attend(score, *[vectors] * 3, implementation=implementation)

  actual = attend(sharded_explicitly(vectors), "auto")
  chex.assert_trees_all_close(actual, attend(vectors, "dense"), rtol=4e-6, atol=4e-6)
  with pytest.raises(ValueError, match=r"does not support arrays .* AxisType\.Explicit"):
    attend(sharded_explicitly(vectors), "blockwise")


@pytest.mark.parametrize("count", [1, 2])
def test_explicit_queries_with_replicated_arrays(count):
  vectors = np.random.default_rng(0).normal(size=(2, 7, 11)).astype(np.float32)
  options = {
    "mask": masks.lengths(source=jnp.array([3, 5])),
    "dropout_rate": 0.5,
    "dropout_rng": jax.random.key(0),
  }

  def loss(queries, keys):
    return jnp.sum(attention.scaled_dot_product_attention(queries, keys, keys, **options) ** 2)

  desired = jax.grad(loss, (0, 1))(vectors, vectors)
  with jax.set_mesh(make_mesh(AxisType.Explicit, count)):
    actual = jax.jit(jax.grad(loss, (0, 1)))(sharded_explicitly(vectors, count), jnp.asarray(vectors))
  chex.assert_trees_all_close(actual, desired, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("kind", ["scaled_dot_product", "additive"])
def test_explicit_axes_stay_sharded(kind):
  inputs = draw(kind, bias=None)

  def loss(inputs):
    return jnp.sum(attend(inputs) ** 2)

  desired = jax.grad(loss)(inputs)
  with jax.set_mesh(make_mesh(AxisType.Explicit, 2)):
    here = Inputs(inputs.score, *map(sharded_explicitly, inputs[1:4]))
    assert jax.typeof(attend(here)).sharding.spec[0] == "shares"
    actual = jax.jit(jax.grad(loss))(here)
  chex.assert_trees_all_close(actual, desired, rtol=3e-5, atol=3e-5)
