"""Attention over sharded sequences equals attention on one device."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

import attention
from attention import masks, positions
from attention.arrays.shapes import same_rank

pytestmark = pytest.mark.eight_devices

CLOSE = {"rtol": 4e-6, "atol": 4e-6}

# Each device compiles a part of the program, so most tests use few devices.
DEVICES = 3
B, N, T, S = 2, 3, 5, 7  # T and S per device
SPREAD, SAME = PartitionSpec(None, None, "ring"), PartitionSpec()


def mesh_of(devices):
  return jax.make_mesh((devices,), ("ring",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class Decaying(attention.ScaledDotProduct):
  """A user-defined score of the distance of positions."""

  def score_mod(self, scores, t, s):
    return jnp.multiply(*same_rank(scores, 2.0 ** -abs(t - s).astype(scores.dtype)))


DOT = attention.ScaledDotProduct(np.float32(0.3))
ADDITIVE = attention.Additive(np.float32(0.4 + 0.1 * np.sin(np.arange(11))))


def inputs_for(score=DOT, seed=0, devices=DEVICES):
  """Returns a score, and queries, keys and values of whole sequences, with heads."""
  rng = np.random.default_rng(seed)
  shapes = (B, N, devices * T, 11), (B, 1, devices * S, 11), (B, 1, devices * S, 13)
  return score, *(rng.normal(size=shape).astype(np.float32) for shape in shapes)


def replaced(array, index, value):
  """Returns a copy of the array with `value` at `index`."""
  array = np.array(array)
  array[index] = value
  return array


def whole(inputs, **options):
  """Returns context and logsumexp computed on one device."""
  result = attention.attend(*inputs, return_logsumexp=True, implementation="dense", **options)
  return result.context, result.logsumexp


def in_ring(inputs, parts=(), specs=(), rules=lambda: {}, **options):
  """Returns the same from a ring; `rules(*parts)` returns mask and bias, from parts sharded by the specs."""

  def run(score, queries, keys, values, *parts):
    options_of_ring = {"axis_name": "ring", "return_logsumexp": True, "block_sizes": (2, 3)}
    result = attention.ring_attention(
      score, queries, keys, values, **options_of_ring, **rules(*parts), **options
    )
    return result.context, result.logsumexp

  devices = inputs[1].shape[-2] // T
  sharded = jax.shard_map(
    run, mesh=mesh_of(devices), in_specs=(SAME, SPREAD, SPREAD, SPREAD, *specs), out_specs=(SPREAD, SPREAD)
  )
  return sharded(*inputs, *parts)


TARGET_SEGMENTS = np.sort(np.random.default_rng(1).integers(0, 4, size=(B, 1, DEVICES * T)), axis=-1)
SOURCE_SEGMENTS = np.sort(np.random.default_rng(2).integers(0, 4, size=(B, 1, DEVICES * S)), axis=-1)
PADDING = np.random.default_rng(3).random((B, 1, 1, DEVICES * S)) < 0.5
LENGTHS = np.array([3, 16])[:, None]
SLOPES = np.array([0.1, 0.2, 0.3], np.float32)

# Sharded arrays, their specs, and the mask and bias that are made of them.
RULES = {
  "none": ((), (), lambda: {}),
  "causal": ((), (), lambda: {"mask": masks.causal(4)}),
  "window_and_lengths": (
    (LENGTHS,),
    (SAME,),
    lambda lengths: {"mask": masks.sliding_window(6, 2) & masks.lengths(source=lengths)},
  ),
  # A narrow window: on one device, keys would be cut to it.
  "window": ((), (), lambda: {"mask": masks.sliding_window(1, 0)}),
  "segments": (
    (TARGET_SEGMENTS, SOURCE_SEGMENTS),
    (SPREAD, SPREAD),
    lambda target, source: {"mask": masks.causal(9) & masks.segments(target, source)},
  ),
  "array_of_keys": ((PADDING,), (PartitionSpec(None, None, None, "ring"),), lambda array: {"mask": array}),
  "array_of_queries": (
    (np.random.default_rng(5).normal(size=(B, 1, DEVICES * T, 1)).astype(np.float32),),
    (SPREAD,),
    lambda array: {"bias": jnp.where(array < 0, -jnp.inf, array), "mask": array < 1},
  ),
  "function": ((), (), lambda: {"bias": lambda t, s: 0.1 * jnp.maximum(t - s, 0).astype(jnp.float32)}),
  "bias_function": (
    (SLOPES,),
    (SAME,),
    lambda slopes: {"bias": positions.ALiBi(slopes), "mask": masks.causal()},
  ),
}


@pytest.mark.parametrize("name", RULES)
def test_ring_matches_one_device(name):
  compare(DOT, *RULES[name])


@pytest.mark.parametrize("score", [ADDITIVE, Decaying(np.float32(0.3))], ids=["additive", "user_defined"])
def test_all_scores_agree(score):
  compare(score, *RULES["causal"])


def test_eight_devices_agree():
  compare(DOT, *RULES["causal"], devices=8)


def compare(score, parts, specs, rules, devices=DEVICES):
  """Asserts that context, logsumexp and gradients agree, also gradients of the arrays of a bias."""
  inputs = inputs_for(score, devices=devices)
  rng = np.random.default_rng(4)
  shape = B, N, devices * T
  of_loss = rng.normal(size=(*shape, inputs[3].shape[-1])), rng.normal(size=shape)
  trained = [part for part in parts if part.dtype == np.float32]

  def loss(function):
    def run(inputs, trained):
      item = iter(trained)
      context, logsumexp = function(
        inputs, [next(item) if part.dtype == np.float32 else part for part in parts]
      )
      counted = jnp.where(jnp.isfinite(logsumexp), logsumexp, 0)
      value = jnp.sum(of_loss[0].astype(np.float32) * context) + jnp.sum(
        of_loss[1].astype(np.float32) * counted
      )
      return value, (context, logsumexp)

    return jax.jit(jax.grad(run, (0, 1), has_aux=True))(inputs, trained)

  slopes, outputs = loss(lambda inputs, parts: in_ring(inputs, parts, specs, rules))
  desired_slopes, desired = loss(lambda inputs, parts: whole(inputs, **rules(*parts)))
  chex.assert_trees_all_close(outputs, desired, **CLOSE)
  chex.assert_trees_all_close(slopes, desired_slopes, rtol=3e-05, atol=3e-05)


def test_ring_second_derivatives():
  inputs = inputs_for()
  directions = inputs_for(seed=5)

  def along(function):
    def loss(inputs):
      context, _ = function(inputs)
      return jnp.sum(context**2)

    return jax.jit(lambda *both: jax.jvp(jax.grad(loss), *both))((inputs,), (directions,))

  ring = functools.partial(in_ring, rules=lambda: {"mask": masks.causal()})
  chex.assert_trees_all_close(
    along(ring), along(functools.partial(whole, mask=masks.causal())), rtol=0.0001, atol=0.0001
  )


def test_ring_dropout_matches_one_device():
  inputs = inputs_for()
  options = {"dropout_rate": 0.5, "dropout_rng": jax.random.key(0)}
  actual = jax.jit(lambda inputs: in_ring(inputs, **options))(inputs)
  desired = whole(inputs, **options)
  chex.assert_trees_all_close(actual, desired, **CLOSE)
  undropped = whole(inputs)
  assert np.max(np.abs(desired[0] - undropped[0])) > 0.1


def test_remote_nan_affects_only_attending_rows():
  score, queries, keys, values = inputs_for()
  bad = DEVICES * S - 2
  mask = masks.causal(bad - DEVICES * T + 2)  # only the last two queries attend to it
  clean = whole((score, queries, keys, values), mask=mask)

  def run(inputs):
    return in_ring(inputs, rules=lambda: {"mask": mask})

  spoiled_keys = jax.jit(run)((score, queries, replaced(keys, (0, 0, bad), np.nan), values))
  for actual, desired in zip(spoiled_keys, clean, strict=True):
    actual, desired = np.array(actual), np.array(desired)
    assert np.all(np.isnan(actual[0, :, -2:]))
    actual[0, :, -2:] = desired[0, :, -2:]
    np.testing.assert_allclose(actual, desired, **CLOSE)
  context, logsumexp = jax.jit(run)((score, queries, keys, replaced(values, (0, 0, bad), np.inf)))
  for actual in (context, logsumexp):
    assert np.all(np.isnan(actual[0, :, -2:])) and np.all(np.isfinite(actual[0, :, :-2]))

  def loss(inputs):
    return sum(jnp.sum(jnp.where(jnp.isnan(output), 0, output) ** 2) for output in run(inputs))

  spoiled = score, queries, replaced(keys, (0, 0, bad), np.nan), values
  assert all(np.all(np.isfinite(slopes)) for slopes in jax.tree.leaves(jax.jit(jax.grad(loss))(spoiled)))


def test_ring_empty_rows_are_zero():
  mask = masks.lengths(source=0)
  context, logsumexp = jax.jit(lambda inputs: in_ring(inputs, mask=mask))(inputs_for(ADDITIVE))
  assert not np.any(context) and np.all(logsumexp == -np.inf)


def test_ring_derivatives_store_no_remote_keys():
  def gradient_memory(devices, length):
    ring_spec = PartitionSpec("ring")
    vectors = jnp.ones((devices * length, 8))

    def loss(vectors):
      context = jax.shard_map(
        lambda x: attention.ring_attention(
          attention.ScaledDotProduct(), x, x, x, axis_name="ring", block_sizes=(64, 64)
        ),
        mesh=mesh_of(devices),
        in_specs=ring_spec,
        out_specs=ring_spec,
      )(vectors)
      return jnp.sum(context**2)

    return jax.jit(jax.grad(loss)).lower(vectors).compile().memory_analysis().temp_size_in_bytes

  # The same shard on each device; its index is doubled.
  assert gradient_memory(6, 512) < 1.1 * gradient_memory(3, 512)


def test_bias_closures_may_vary_over_devices():
  inputs, table = inputs_for(), jnp.linspace(0, 1, 64)

  def bias(table):
    return {"bias": lambda t, s: table[t - s + 32]}

  def varying(table):
    return bias(jax.lax.pcast(table, "ring", to="varying"))

  actual = jax.jit(lambda inputs: in_ring(inputs, (table,), (SAME,), varying))(inputs)
  chex.assert_trees_all_close(actual, whole(inputs, **bias(table)), **CLOSE)
  with pytest.raises(ValueError, match="traced arrays that a mask or bias function closes over must vary"):
    jax.jit(lambda inputs: in_ring(inputs, (table,), (SAME,), bias))(inputs)


@pytest.mark.parametrize("score", [DOT, ADDITIVE], ids=["dot_product", "additive"])
def test_zigzag_ring_matches_one_device(score):
  # Six positions per device, in halves whose blocks extend beyond the end.
  _, *vectors = inputs_for(score)
  length = 6 * DEVICES
  vectors = [array[..., :length, :] for array in (*vectors[:1], *vectors[1:])]
  vectors[0] = np.concatenate([vectors[0], vectors[0]], axis=-2)[..., :length, :]
  documents = np.arange(length) // 8
  order = attention.zigzag_layout(length, DEVICES)
  back = np.argsort(order)
  of_loss = np.random.default_rng(5).normal(size=(B, N, length, vectors[2].shape[-1])).astype(np.float32)

  def rules(documents):
    mask = masks.causal(1) & ~masks.segments(documents, 1 - documents)
    return {"mask": mask, "bias": positions.ALiBi(np.float32([0.1, 0.2, 0.3])), "dropout_rate": 0.25}

  def in_zigzag(score, queries, keys, values):
    def run(queries, keys, values, documents):
      return attention.ring_attention(
        score,
        queries,
        keys,
        values,
        axis_name="ring",
        zigzag=True,
        block_sizes=(2, 2),
        dropout_rng=jax.random.key(0),
        **rules(documents),
      )

    specs = (SPREAD, SPREAD, SPREAD, PartitionSpec("ring"))
    sharded = jax.shard_map(run, mesh=mesh_of(DEVICES), in_specs=specs, out_specs=SPREAD)
    permuted = (array[..., order, :] for array in (queries, keys, values))
    return sharded(*permuted, jnp.asarray(documents[order]))[..., back, :]

  def on_one(score, *vectors):
    options = {"dropout_rng": jax.random.key(0), "implementation": "dense", **rules(documents)}
    return attention.attend(score, *vectors, **options)

  def results(function):
    def loss(*inputs):
      context = function(*inputs)
      return jnp.sum(of_loss * context), context

    return jax.jit(jax.grad(loss, (0, 1, 2, 3), has_aux=True))(score, *vectors)

  slopes, context = results(in_zigzag)
  desired_slopes, desired = results(on_one)
  np.testing.assert_allclose(context, desired, **CLOSE)
  chex.assert_trees_all_close(slopes, desired_slopes, rtol=3e-05, atol=3e-05)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Counting(attention.Score):
  """A dot product that records in `tiles` on which device each tile is computed."""

  tiles: list = dataclasses.field(metadata={"static": True}, hash=False, compare=False)

  def scores(self, query_features, key_features):
    jax.debug.callback(lambda device: self.tiles.append(int(device)), jax.lax.axis_index("ring"))
    return query_features @ key_features.swapaxes(-1, -2)


@pytest.mark.parametrize(("zigzag", "tiles"), [(False, [3, 7, 11, 15]), (True, [9, 9, 9, 9])])
def test_zigzag_balances_causal_tiles(zigzag, tiles):
  # Eight blocks of two: 36 tiles are not empty.
  calculated = []

  def run(vectors):
    return attention.ring_attention(
      Counting(calculated),
      *[vectors] * 3,
      axis_name="ring",
      mask=masks.causal(),
      block_sizes=(2, 2),
      zigzag=zigzag,
    )

  ring_spec = PartitionSpec("ring")
  vectors = jnp.ones((16, 3))
  jax.jit(jax.shard_map(run, mesh=mesh_of(4), in_specs=ring_spec, out_specs=ring_spec))(
    vectors
  ).block_until_ready()
  jax.effects_barrier()
  assert [calculated.count(device) for device in range(4)] == tiles


def test_odd_zigzag_shards_raise():
  vectors = jnp.ones((3 * DEVICES, 2))
  sharded = jax.shard_map(
    lambda x: attention.ring_attention(attention.ScaledDotProduct(), x, x, x, axis_name="ring", zigzag=True),
    mesh=mesh_of(DEVICES),
    in_specs=PartitionSpec("ring"),
    out_specs=PartitionSpec("ring"),
  )
  with pytest.raises(
    ValueError, match="even number of queries and keys per device, got 3 queries and 3 keys"
  ):
    sharded(vectors)
  with pytest.raises(ValueError, match=r"length must be a multiple .* got length=9, num_devices=3"):
    attention.zigzag_layout(9, 3)
  np.testing.assert_array_equal(attention.zigzag_layout(6, 1), np.arange(6))


@pytest.mark.parametrize("axis_name", [None, "rings"])
def test_unknown_mesh_axis_raises(axis_name):
  vectors = jnp.ones((T, 2))
  with pytest.raises(ValueError, match=r"axis_name must be an axis of the mesh .* got"):
    attention.ring_attention(attention.ScaledDotProduct(), *[vectors] * 3, axis_name=axis_name)


@pytest.mark.parametrize("name", ["mask", "bias"])
def test_pair_arrays_raise_in_a_ring(name):
  inputs = inputs_for()
  array = np.ones((T, S), bool if name == "mask" else np.float32)
  with pytest.raises(ValueError, match=rf"{name} must be a function of positions, .*\({T}, {S}\)"):
    in_ring(inputs, rules=lambda: {name: array})


@pytest.mark.parametrize("num_keys", [1, S])
def test_single_query_per_device(num_keys):
  rng = np.random.default_rng(0)
  queries, keys = (rng.normal(size=(DEVICES * length, 2)).astype(np.float32) for length in (1, num_keys))
  allowed = np.array([True, False, True])[:, None]

  def run(queries, keys, allowed):
    return attention.ring_attention(
      attention.ScaledDotProduct(), queries, keys, keys, axis_name="ring", mask=allowed
    )

  ring_spec = PartitionSpec("ring")
  sharded = jax.jit(jax.shard_map(run, mesh=mesh_of(DEVICES), in_specs=ring_spec, out_specs=ring_spec))
  if num_keys == 1:
    with pytest.raises(
      ValueError, match=r"one query and one key per device, an array \[... 1 1\] is ambiguous"
    ):
      sharded(queries, keys, allowed)
  else:
    desired = attention.scaled_dot_product_attention(queries, keys, keys, mask=allowed)
    np.testing.assert_allclose(sharded(queries, keys, allowed), desired, **CLOSE)
