"""Converted parameters give the numbers of the original layers, which tests/data/make_references.py wrote."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from helpers.fixtures import FLOAT32, assert_close

import attention
from attention import convert, masks, positions

REFERENCES = np.load(pathlib.Path(__file__).parents[1] / "data" / "references.npz")
TOLERANCE = 64 * FLOAT32
gelu = functools.partial(nn.gelu, approximate=False)


def reference(name):
  """Returns the arrays of one layer."""
  return {key.removeprefix(f"{name}/"): REFERENCES[key] for key in REFERENCES if key.startswith(f"{name}/")}


def encoder_layer(num_heads=3, epsilon=1e-5, activation=nn.relu, **options):
  return attention.EncoderLayer(
    num_heads=num_heads,
    mlp_dim=20,
    norm_cls=functools.partial(attention.LayerNorm, epsilon=epsilon),
    feed_forward_cls=functools.partial(attention.FeedForward, activation=activation),
    **options,
  )


LLAMA = attention.EncoderLayer(
  num_heads=4,
  mlp_dim=20,
  self_attention_cls=functools.partial(
    attention.MultiHeadAttention, num_key_value_heads=2, use_bias=False, position_fn=positions.rotary
  ),
  feed_forward_cls=functools.partial(
    attention.FeedForward, activation=nn.silu, use_gate=True, use_bias=False
  ),
  norm_cls=attention.RMSNorm,
)
LAYERS = {
  "encoder_post": (encoder_layer(norm_position="post"), convert.torch_encoder_layer, (3,), None),
  "encoder_pre": (encoder_layer(activation=gelu), convert.torch_encoder_layer, (3,), None),
  "bert": (
    encoder_layer(norm_position="post", epsilon=1e-12, activation=gelu),
    convert.bert_layer,
    (3,),
    None,
  ),
  "gpt2": (encoder_layer(activation=nn.gelu), convert.gpt2_layer, (3,), masks.causal()),
  "llama": (LLAMA, convert.llama_layer, (4, 2), masks.causal()),
}


@pytest.mark.parametrize("name", LAYERS)
def test_encoder_layers(name):
  layer, function, heads, mask = LAYERS[name]
  given = reference(name)
  state = {f"model.0.{key}": value for key, value in given.items()} | {"other": np.zeros(3)}
  variables = function(state, *heads, prefix="model.0.")
  shapes = jax.eval_shape(layer.init, jax.random.key(0), given["inputs"])
  assert jax.tree.map(jnp.shape, variables) == jax.tree.map(jnp.shape, shapes)
  assert_close(layer.apply(variables, given["inputs"], mask=mask), given["outputs"], TOLERANCE)


def test_torch_multi_head_attention():
  given = reference("mha")
  layer = attention.MultiHeadAttention(num_heads=3)
  variables = convert.torch_multi_head_attention(given, 3)
  assert_close(layer.apply(variables, given["queries"]), given["outputs"], TOLERANCE)
  given = reference("cross")
  layer = attention.MultiHeadAttention(num_heads=3, use_bias=False)
  variables = convert.torch_multi_head_attention(given, 3)
  assert_close(
    layer.apply(variables, given["queries"], given["keys"], given["values"]), given["outputs"], TOLERANCE
  )


def test_t5_attention():
  given = reference("t5")
  layer = attention.MultiHeadAttention(
    num_heads=3, qkv_features=15, use_bias=False, score=attention.ScaledDotProduct(1.0)
  )
  bias = positions.RelativePositionBias(convert.t5_bias_table(given), max_distance=16)
  outputs = layer.apply(convert.t5_attention(given, 3), given["inputs"], bias=bias)
  assert_close(outputs, given["outputs"], TOLERANCE)


def test_torch_gru():
  given = reference("gru")
  inputs = given["inputs"]
  state = jnp.zeros((len(inputs), 5))
  _, forward = attention.gru(convert.torch_gru(given), state, inputs)
  _, backward = attention.gru(convert.torch_gru(given, reverse=True), state, inputs, reverse=True)
  assert_close(jnp.concatenate([forward, backward], axis=-1), given["outputs"], TOLERANCE)


def test_gru_cells_and_gru_without_biases():
  given = reference("gru")
  cell = {name: given[f"{name}_l0"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
  assert_close(convert.torch_gru(cell).bias, convert.torch_gru(given).bias, 0)
  kernels = {name: array for name, array in cell.items() if "weight" in name}
  assert not np.any(convert.torch_gru(kernels).bias) and not np.any(convert.torch_gru(kernels).recurrent_bias)


def test_invalid_states_raise():
  given = reference("mha")
  with pytest.raises(
    ValueError, match=r"state must have the name 'h\.0\.attn\.c_attn\.weight', got in_proj_bias"
  ):
    convert.gpt2_layer(given, 3, prefix="h.0.")
  with pytest.raises(ValueError, match="num_heads must divide the width of all heads, 12, got 5"):
    convert.torch_multi_head_attention(given, 5)
  with pytest.raises(ValueError, match="state must have no 'bias_k'"):
    convert.torch_multi_head_attention(given | {"bias_k": np.zeros(3)}, 3)


@pytest.mark.parametrize("name", ["llama3", "yarn"])
def test_rotary_frequencies_match_transformers(name):
  options = {"base": 5e4, "original_length": 512}
  function = {
    "llama3": lambda: positions.llama3_frequencies(32, factor=8.0, **options),
    "yarn": lambda: positions.yarn_frequencies(32, factor=4.0, **options),
  }[name]
  desired = REFERENCES[f"rope/{name}"]
  np.testing.assert_allclose(function(), desired, rtol=1e-6)
  plain = np.asarray(positions.rotary_frequencies(32, base=5e4))
  assert np.sum(desired != plain) in range(3, 16)  # otherwise the bounds are not tested
