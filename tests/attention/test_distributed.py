"""Attention over sharded sequences equals attention on one device."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import replaced
from jax.sharding import AxisType, PartitionSpec

import attention
from attention import masks, positions
from attention.arrays.shapes import same_rank

pytestmark = pytest.mark.eight_devices

CLOSE = {"rtol": 4e-6, "atol": 4e-6}

# Each device compiles a part of the program, so most tests use few devices.
DEVICES = 3
B, N, T, S = 2, 3, 5, 7  # T and S per device
SAME, RING, SPREAD = PartitionSpec(), PartitionSpec("ring"), PartitionSpec(None, None, "ring")


def shard(function, devices=DEVICES, in_specs=RING, out_specs=RING):
  mesh = jax.make_mesh((devices,), ("ring",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
  return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs)


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class Decaying(attention.ScaledDotProduct):
  """A user-defined score of the distance of positions."""

  def score_mod(self, scores, t, s):
    return jnp.multiply(*same_rank(scores, 2.0 ** -abs(t - s).astype(scores.dtype)))


DOT = attention.ScaledDotProduct(np.float32(0.3))
ADDITIVE = attention.Additive(np.float32(0.4 + 0.1 * np.sin(np.arange(11))))


def inputs_for(score=DOT, seed=0, targets=DEVICES * T, sources=DEVICES * S):
  """Returns a score, and queries, keys and values of whole sequences, with heads."""
  rng = np.random.default_rng(seed)
  shapes = (B, N, targets, 11), (B, 1, sources, 11), (B, 1, sources, 13)
  return score, *(rng.normal(size=shape).astype(np.float32) for shape in shapes)


def whole(inputs, **options):
  """Returns context and logsumexp computed on one device."""
  result = attention.attend(*inputs, return_logsumexp=True, implementation="dense", **options)
  return result.context, result.logsumexp


def in_ring(inputs, parts=(), specs=(), rules=lambda: {}, devices=DEVICES, **options):
  """Returns the same from a ring; `rules(*parts)` returns options, from parts sharded by the specs."""
  options = {"axis_name": "ring", "return_logsumexp": True, "block_sizes": (2, 3)} | options

  def run(score, queries, keys, values, *parts):
    result = attention.ring_attention(score, queries, keys, values, **options, **rules(*parts))
    return result.context, result.logsumexp

  return shard(run, devices, (SAME, SPREAD, SPREAD, SPREAD, *specs), (SPREAD, SPREAD))(*inputs, *parts)


TARGET_SEGMENTS = np.sort(np.random.default_rng(1).integers(0, 4, size=(B, 1, DEVICES * T)), axis=-1)
SOURCE_SEGMENTS = np.sort(np.random.default_rng(2).integers(0, 4, size=(B, 1, DEVICES * S)), axis=-1)
PADDING = np.random.default_rng(3).random((B, 1, 1, DEVICES * S)) < 0.5
LENGTHS = np.array([3, 16])[:, None]
SLOPES = np.array([0.1, 0.2, 0.3], np.float32)

OF_QUERIES = np.random.default_rng(5).normal(size=(B, 1, DEVICES * T, 1)).astype(np.float32)
DROPOUT = {"dropout_rate": 0.5, "dropout_rng": jax.random.key(0)}
CAUSAL = (), (), lambda: {"mask": masks.causal(4)}

# Sharded arrays, their specs, and the options that are made of them. Arrays with gradients are the first.
RULES = {
  "window_and_lengths": (
    (LENGTHS,),
    (SAME,),
    lambda lengths: {"mask": masks.sliding_window(6, 2) & masks.lengths(source=lengths), **DROPOUT},
  ),
  # A narrow window: on one device, keys would be cut to it.
  "window": ((), (), lambda: {"mask": masks.sliding_window(1, 0)}),
  "segments": (
    (TARGET_SEGMENTS, SOURCE_SEGMENTS),
    (SPREAD, SPREAD),
    lambda target, source: {"mask": masks.causal(9) & masks.segments(target, source)},
  ),
  "arrays": (
    (OF_QUERIES, PADDING),
    (SPREAD, PartitionSpec(None, None, None, "ring")),
    lambda array, keys: {
      "bias": jnp.where(array < 0, -jnp.inf, array),
      "mask": keys & masks.as_mask(array < 1),
    },
  ),
  "bias_function": (
    (SLOPES,),
    (SAME,),
    lambda slopes: {"bias": positions.ALiBi(slopes), "mask": masks.causal()},
  ),
}


@pytest.mark.parametrize("name", RULES)
def test_ring_matches_one_device(name):
  compare_rules(DOT, RULES[name])


def test_user_defined_scores_agree():
  compare_rules(Decaying(np.float32(0.3)), CAUSAL)


def test_eight_devices_agree():
  compare_rules(DOT, CAUSAL, devices=8)


def compare_rules(score, rules, devices=DEVICES):
  parts, specs, rules = rules
  compare(
    lambda inputs, parts: in_ring(inputs, parts, specs, rules, devices),
    lambda inputs, parts: whole(inputs, **rules(*parts)),
    inputs_for(score, targets=devices * T, sources=devices * S),
    parts,
  )


def compare(ring, one_device, inputs, parts=()):
  """Asserts that context, logsumexp and gradients agree, also gradients of float arrays."""
  trained = tuple(part for part in parts if part.dtype == np.float32)
  _, queries, _, values = inputs
  rng = np.random.default_rng(4)
  of_context = rng.normal(size=(*queries.shape[:-1], values.shape[-1])).astype(np.float32)
  of_logsumexp = rng.normal(size=queries.shape[:-1]).astype(np.float32)

  def results(function):
    def loss(inputs, trained):
      context, logsumexp = outputs = function(inputs, (*trained, *parts[len(trained) :]))
      logsumexp = jnp.where(jnp.isfinite(logsumexp), logsumexp, 0)
      return jnp.sum(of_context * context) + jnp.sum(of_logsumexp * logsumexp), outputs

    return jax.jit(jax.grad(loss, (0, 1), has_aux=True))(inputs, trained)

  slopes, outputs = results(ring)
  desired_slopes, desired = results(one_device)
  chex.assert_trees_all_close(outputs, desired, **CLOSE)
  chex.assert_trees_all_close(slopes, desired_slopes, rtol=3e-05, atol=3e-05)


def test_zigzag_ring_matches_one_device():
  # Six positions per device, in halves whose blocks extend beyond the end.
  inputs, documents = inputs_for(ADDITIVE, targets=18, sources=18), np.arange(18) // 8
  order = attention.zigzag_layout(18, DEVICES)
  back = np.argsort(order)

  def rules(documents):
    return {
      "mask": masks.causal(1) & ~masks.segments(documents, 1 - documents),
      "bias": positions.ALiBi(SLOPES),
    }

  def in_zigzag(inputs, parts):
    inputs = inputs[0], *(array[..., order, :] for array in inputs[1:])
    options = {"zigzag": True, "block_sizes": (2, 2), **DROPOUT}
    context, logsumexp = in_ring(inputs, (documents[order],), (RING,), rules, **options)
    return context[..., back, :], logsumexp[..., back]

  compare(in_zigzag, lambda inputs, parts: whole(inputs, **rules(documents), **DROPOUT), inputs)


def test_ring_second_derivatives():
  inputs, directions = inputs_for(), inputs_for(seed=5)
  mask = masks.causal()

  def along(function):
    def loss(inputs):
      return jnp.sum(function(inputs, mask=mask)[0] ** 2)

    return jax.jit(lambda *both: jax.jvp(jax.grad(loss), *both))((inputs,), (directions,))

  chex.assert_trees_all_close(along(in_ring), along(whole), rtol=0.0001, atol=0.0001)


def test_remote_nan_affects_only_attending_rows():
  score, queries, keys, values = inputs_for()
  bad = DEVICES * S - 2
  mask = masks.causal(bad - DEVICES * T + 2)  # only the last two queries attend to it

  @jax.jit
  def run(*inputs):
    def loss(inputs):
      outputs = in_ring(inputs, mask=mask)
      return sum(jnp.sum(jnp.where(jnp.isnan(output), 0, output) ** 2) for output in outputs), outputs

    return jax.grad(loss, has_aux=True)(inputs)

  slopes, outputs = jax.device_get(run(score, queries, replaced(keys, (0, 0, bad), np.nan), values))
  chex.assert_tree_all_finite(slopes)
  for actual, desired in zip(outputs, whole((score, queries, keys, values), mask=mask), strict=True):
    assert np.all(np.isnan(actual[0, :, -2:]))
    desired = replaced(desired, np.s_[0, :, -2:], np.nan)
    np.testing.assert_allclose(actual, desired, **CLOSE)
  for actual in run(score, queries, keys, replaced(values, (0, 0, bad), np.inf))[1]:
    assert np.all(np.isnan(actual[0, :, -2:])) and np.all(np.isfinite(actual[0, :, :-2]))


def test_ring_derivatives_store_no_remote_keys():
  def gradient_memory(devices, length):
    def attend(vectors):
      options = {"axis_name": "ring", "block_sizes": (64, 64)}
      return attention.ring_attention(attention.ScaledDotProduct(), *[vectors] * 3, **options)

    def loss(vectors):
      return jnp.sum(shard(attend, devices)(vectors) ** 2)

    vectors = jnp.ones((devices * length, 8))
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
    options = {"axis_name": "ring", "mask": masks.causal(), "block_sizes": (2, 2), "zigzag": zigzag}
    return attention.ring_attention(Counting(calculated), *[vectors] * 3, **options)

  jax.block_until_ready(jax.jit(shard(run, 4))(jnp.ones((16, 3))))
  jax.effects_barrier()
  assert [calculated.count(device) for device in range(4)] == tiles


def test_odd_zigzag_shards_raise():
  with pytest.raises(
    ValueError, match="even number of queries and keys per device, got 3 queries and 3 keys"
  ):
    in_ring(inputs_for(targets=3 * DEVICES, sources=3 * DEVICES), zigzag=True)
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
  array = np.ones((T, S), bool if name == "mask" else np.float32)
  with pytest.raises(ValueError, match=rf"{name} must be a function of positions, .*\({T}, {S}\)"):
    in_ring(inputs_for(), **{name: array})


def test_single_query_per_device():
  rng = np.random.default_rng(0)
  queries, keys = (rng.normal(size=(DEVICES * length, 2)).astype(np.float32) for length in (1, S))
  allowed = np.array([True, False, True])[:, None]

  def run(queries, keys, allowed):
    options = {"axis_name": "ring", "mask": allowed}
    return attention.ring_attention(attention.ScaledDotProduct(), queries, keys, keys, **options)

  desired = attention.scaled_dot_product_attention(queries, keys, keys, mask=allowed)
  np.testing.assert_allclose(jax.jit(shard(run))(queries, keys, allowed), desired, **CLOSE)
  with pytest.raises(
    ValueError, match=r"one query and one key per device, an array \[... 1 1\] is ambiguous"
  ):
    shard(run)(queries, keys[:DEVICES], allowed)
