"""Sinks and gates of MultiHeadAttention, gated feed-forward networks, RMSNorm, and rotary options."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from helpers.fixtures import FLOAT32, assert_close, assert_trees_close

import attention
from attention import masks, positions

RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(2, 5, 12)).astype(np.float32)


def random_params(layer, *inputs):
  """Returns random parameters, since sinks and biases are zero at first."""
  shapes = jax.eval_shape(layer.init, jax.random.key(0), *inputs)
  return jax.tree.map(lambda leaf: jnp.asarray(RNG.normal(size=leaf.shape), jnp.float32) / 2, shapes)


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_sinks_and_gate(implementation):
  options = {"num_heads": 3, "num_key_value_heads": 1, "implementation": implementation}
  layer = attention.MultiHeadAttention(use_sinks=True, use_gate=True, **options)
  variables = random_params(layer, INPUTS)
  params = jax.tree.map(np.asarray, variables["params"])
  assert params["sinks"].shape == (3,) and params["gate"]["kernel"].shape == (12, 3, 4)
  plain = attention.MultiHeadAttention(out_features=12, **options)
  without = {"params": {name: params[name] for name in ("query", "key", "value", "out")}}
  _, weights = plain.apply(without, INPUTS, mask=masks.causal(), return_weights=True)
  # Each weight is multiplied by the share of the sum of exponentials that is not the sink's.
  queries, keys, values = (
    np.einsum("bsd,dnh->bnsh", INPUTS, params[name]["kernel"]) + params[name]["bias"][:, None]
    for name in ("query", "key", "value")
  )
  scores = np.where(np.tri(5, dtype=bool), np.einsum("bnth,bmsh->bnts", queries, keys) / 2, -np.inf)
  total = np.sum(np.exp(scores), axis=-1, keepdims=True)
  weights = weights * (total / (total + np.exp(params["sinks"])[:, None, None]))
  context = np.einsum("bnts,bmsh->bnth", weights, values)
  gate = np.einsum("btd,dnh->bnth", INPUTS, params["gate"]["kernel"]) + params["gate"]["bias"][:, None]
  context = context / (1 + np.exp(-gate))
  desired = np.einsum("bnth,nhd->btd", context, params["out"]["kernel"]) + params["out"]["bias"]
  actual, actual_weights = layer.apply(variables, INPUTS, mask=masks.causal(), return_weights=True)
  assert_close(actual, desired, 4 * FLOAT32)
  assert_close(actual_weights, weights, 4 * FLOAT32)
  gradient = jax.grad(lambda variables: jnp.sum(layer.apply(variables, INPUTS) ** 2))(variables)["params"]
  assert np.all(gradient["sinks"] != 0) and np.all(gradient["gate"]["kernel"] != 0)


def test_gate_of_masked_nan_queries():
  layer = attention.MultiHeadAttention(num_heads=3, use_gate=True)
  variables = random_params(layer, INPUTS)
  spoilt = INPUTS.copy()
  spoilt[:, 3:] = np.nan
  mask = masks.lengths(source=3, target=3)

  def outputs(variables, inputs):
    return layer.apply(variables, inputs, mask=mask)

  actual = outputs(variables, spoilt)
  assert_close(actual, outputs(variables, INPUTS), 0)
  gradients = jax.grad(lambda variables, inputs: jnp.sum(outputs(variables, inputs) ** 2))
  assert_trees_close(gradients(variables, spoilt), gradients(variables, INPUTS), FLOAT32)


def test_sinks_with_cache_match_whole_sequence():
  layer = attention.MultiHeadAttention(num_heads=3, use_sinks=True, use_gate=True)
  variables = random_params(layer, INPUTS)
  whole = layer.apply(variables, INPUTS, mask=masks.causal())
  cache = layer.apply(variables, INPUTS, 5, method="init_cache")
  first, cache = layer.apply(variables, INPUTS[:, :3], mask=masks.causal(), cache=cache)
  second, _ = layer.apply(variables, INPUTS[:, 3:], mask=masks.causal(), cache=cache)
  assert_close(jnp.concatenate([first, second], axis=1), whole, 4 * FLOAT32)


def test_sinks_and_a_normalizer_raise():
  layer = attention.MultiHeadAttention(num_heads=3, use_sinks=True, normalizer=attention.Sparsemax())
  with pytest.raises(ValueError, match=r"normalizer must be None with use_sinks, got Sparsemax\(\)"):
    layer.init(jax.random.key(0), INPUTS)


@pytest.mark.parametrize("use_gate", [False, True])
@pytest.mark.parametrize("use_bias", [False, True])
def test_feed_forward_options(use_gate, use_bias):
  layer = attention.FeedForward(7, activation=nn.silu, use_gate=use_gate, use_bias=use_bias)
  variables = random_params(layer, INPUTS)
  params = jax.tree.map(np.asarray, variables["params"])
  assert set(params) == {"hidden", "out"} | ({"gate"} if use_gate else set())
  assert all(("bias" in linear) == use_bias for linear in params.values())

  def linear(name, inputs):
    return inputs @ params[name]["kernel"] + params[name].get("bias", 0)

  def silu(numbers):
    return numbers / (1 + np.exp(-numbers))

  hidden = linear("hidden", INPUTS)
  hidden = hidden * silu(linear("gate", INPUTS)) if use_gate else silu(hidden)
  assert_close(layer.apply(variables, INPUTS), linear("out", hidden), 4 * FLOAT32)


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_rms_norm_matches_flax(dtype):
  variables = random_params(attention.RMSNorm(), INPUTS)
  actual = attention.RMSNorm(dtype=dtype).apply(variables, 3 * INPUTS)
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    desired = nn.RMSNorm(dtype=dtype).apply(variables, 3 * INPUTS)
  assert actual.dtype == desired.dtype
  assert_close(actual.astype(np.float32), desired.astype(np.float32), FLOAT32 if dtype is None else 2**-7)
  halves = attention.RMSNorm().apply(
    jax.tree.map(jnp.bfloat16, variables), jnp.asarray(INPUTS[:1], jnp.bfloat16)
  )
  assert halves.dtype == jnp.bfloat16


def test_layers_accept_any_norm_and_network():
  options = {
    "norm_cls": attention.RMSNorm,
    "feed_forward_cls": functools.partial(attention.FeedForward, use_gate=True, activation=nn.gelu),
  }
  layer = attention.DecoderLayer(num_heads=3, mlp_dim=7, **options)
  params = layer.init(jax.random.key(0), INPUTS, INPUTS)["params"]
  norms = {name: set(params[name]) for name in params if name.endswith("norm")}
  assert norms.keys() == {"attention_norm", "cross_attention_norm", "feed_forward_norm"}
  assert all(names == {"scale"} for names in norms.values())
  assert "gate" in params["feed_forward"]


def test_interleaved_and_partial_rotary():
  vectors = RNG.normal(size=(3, 10)).astype(np.float32)
  frequencies = positions.rotary_frequencies(6, base=50.0)
  turned = positions.rotary(vectors, frequencies=frequencies, interleaved=True)
  angles = np.arange(3)[:, None] * 50.0 ** (-np.arange(0, 6, 2) / 6)
  pairs = vectors[:, :6:2] + 1j * vectors[:, 1:6:2]
  pairs = pairs * np.exp(1j * angles)
  assert_close(turned[:, :6:2], pairs.real, FLOAT32)
  assert_close(turned[:, 1:6:2], pairs.imag, FLOAT32)
  np.testing.assert_array_equal(turned[:, 6:], vectors[:, 6:])
  halves = positions.rotary(vectors[:, [0, 2, 4, 1, 3, 5]], base=50.0)
  assert_close(halves, np.concatenate([pairs.real, pairs.imag], axis=-1), FLOAT32)
  with pytest.raises(ValueError, match=r"frequencies must have at most half as many entries .* H=4"):
    positions.rotary(vectors[:, :4], frequencies=frequencies)


def test_rotary_2d_depends_on_differences_of_rows_and_columns():
  queries, keys = RNG.normal(size=(2, 1, 8)).astype(np.float32)

  def score(query_position, key_position):
    turned = (
      positions.rotary_2d(vectors, np.array([position]))
      for vectors, position in ((queries, query_position), (keys, key_position))
    )
    return float(jnp.sum(jnp.prod(jnp.stack([*turned]), axis=0)))

  assert abs(score((5, 2), (3, 7)) - score((2, 0), (0, 5))) < 1e-5
  assert abs(score((5, 2), (3, 7)) - score((5, 2), (2, 7))) > 1e-3
  assert abs(score((5, 2), (3, 7)) - score((5, 2), (3, 6))) > 1e-3
  rows = positions.rotary_2d(queries, np.array([[3, 0]]))
  assert_close(rows[:, :4], positions.rotary(queries[:, :4], np.array([3])), 0)
  np.testing.assert_array_equal(rows[:, 4:], queries[:, 4:])
  for vectors, where, message in (
    (queries[:, :6], [[1, 2]], "multiple of 4"),
    (queries, [[1, 2, 3]], r"positions must have axes \[... T 2\]"),
  ):
    with pytest.raises(ValueError, match=message):
      positions.rotary_2d(vectors, np.array(where))


def test_packed_documents_match_separate_documents():
  lengths = np.array([[3, 2, 4], [1, 5, 0]])
  queries = RNG.normal(size=(2, 10, 4)).astype(np.float32)
  actual = attention.scaled_dot_product_attention(
    positions.rotary(queries, positions.packed(lengths, 10)),
    positions.rotary(queries, positions.packed(lengths, 10)),
    queries,
    mask=masks.packed(lengths, 10) & masks.causal(),
  )
  for row, row_lengths in enumerate(lengths):
    start = 0
    for length in row_lengths:
      document = queries[row, start : start + length]
      turned = positions.rotary(document)
      alone = attention.scaled_dot_product_attention(turned, turned, document, mask=masks.causal())
      assert_close(actual[row, start : start + length], alone, FLOAT32)
      start += length
    np.testing.assert_array_equal(actual[row, start:], 0)
  small = np.array([100, 100, 60], np.uint8)
  np.testing.assert_array_equal(positions.packed(small, 270), positions.packed(small.astype(int), 270))
  mask = masks.packed(small, 270).materialize(270, 270)
  np.testing.assert_array_equal(mask, masks.packed(small.astype(int), 270).materialize(270, 270))
  with pytest.raises(ValueError, match="lengths must be an integer or an array of integers, got float64"):
    masks.packed(np.ones(2), 3)
  for function in (masks.packed, positions.packed):
    with pytest.raises(ValueError, match=r"lengths must be at least 0, got"):
      function(np.array([3, -1]), 3)
  huge = masks.packed(np.array([2, 2**31 - 1]), 5).materialize(5, 5)
  np.testing.assert_array_equal(huge, masks.packed(np.array([2, 3]), 5).materialize(5, 5))
  assert positions.packed(lengths, 0).shape == (2, 0)


def test_packed_documents_with_heads_in_linear_memory():
  T = 2048
  lengths = np.ones((2, T // 2), int)
  vectors = RNG.normal(size=(2, 3, T, 2)).astype(np.float32)

  @jax.jit
  def attend(vectors):
    return attention.scaled_dot_product_attention(
      vectors, vectors, vectors, mask=masks.packed(lengths[:, None], T), implementation="blockwise"
    )

  # A document of one token attends to itself.
  assert_close(attend(vectors)[..., : T // 2, :], vectors[..., : T // 2, :], FLOAT32)
  assert attend.lower(vectors).compile().memory_analysis().temp_size_in_bytes < 2 * T * T


def test_norm_of_queries_and_keys():
  layer = attention.MultiHeadAttention(num_heads=3, qk_norm_cls=attention.RMSNorm)
  variables = random_params(layer, INPUTS)
  params = jax.tree.map(np.asarray, variables["params"])
  queries, keys, values = (
    np.einsum("BTD,DNH->BNTH", INPUTS, params[name]["kernel"]) + params[name]["bias"][:, None]
    for name in ("query", "key", "value")
  )
  queries, keys = (
    vectors / np.sqrt(np.mean(vectors**2, axis=-1, keepdims=True) + 1e-6) * params[name]["scale"]
    for name, vectors in (("query_ln", queries), ("key_ln", keys))
  )
  context = attention.scaled_dot_product_attention(queries, keys, values)
  desired = np.einsum("BNTH,NHD->BTD", context, params["out"]["kernel"]) + params["out"]["bias"]
  assert_close(layer.apply(variables, INPUTS), desired, 4 * FLOAT32)
