"""Converted parameters give the numbers of the original layers, which tests/data/make_references.py wrote."""

import functools
import pathlib
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import attention
from attention import convert, masks, positions

REFERENCES = np.load(pathlib.Path(__file__).parents[1] / "data" / "references.npz")
INPUTS = "inputs", "queries", "keys", "values", "outputs"
gelu = functools.partial(nn.gelu, approximate=False)
assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)


def reference(name):
  """Returns the inputs and outputs of a layer, and its state."""
  arrays = {key.removeprefix(f"{name}/"): REFERENCES[key] for key in REFERENCES if key.startswith(f"{name}/")}
  return arrays, {key: array for key, array in arrays.items() if key not in INPUTS}


def state_of(name, changes=()):
  """Returns the state of a layer with other arrays; None removes one."""
  return {key: array for key, array in (reference(name)[1] | dict(changes)).items() if array is not None}


def encoder_layer(epsilon=1e-5, activation=nn.relu, norm_position="pre"):
  return attention.EncoderLayer(
    num_heads=3,
    mlp_dim=20,
    norm_position=norm_position,
    norm_cls=functools.partial(attention.LayerNorm, epsilon=epsilon),
    feed_forward_cls=functools.partial(attention.FeedForward, activation=activation),
  )


def llama_layer(num_heads=2, num_key_value_heads=1, activation=nn.silu, mlp_bias=False, **options):
  self_attention = functools.partial(
    attention.MultiHeadAttention,
    num_key_value_heads=num_key_value_heads,
    position_fn=positions.rotary,
    **{"use_bias": False, **options},
  )
  return attention.EncoderLayer(
    num_heads=num_heads,
    mlp_dim=20,
    self_attention_cls=self_attention,
    feed_forward_cls=functools.partial(
      attention.FeedForward, activation=activation, use_gate=True, use_bias=mlp_bias
    ),
    norm_cls=attention.RMSNorm,
  )


MHA = functools.partial(convert.torch_multi_head_attention, num_heads=3)
ENCODER = functools.partial(convert.torch_encoder_layer, num_heads=3)
BERT, GPT2 = (
  functools.partial(function, num_heads=3) for function in (convert.bert_layer, convert.gpt2_layer)
)
LLAMA = functools.partial(convert.llama_layer, num_heads=2, num_key_value_heads=1)
LLAMA_OF_FOUR = functools.partial(convert.llama_layer, num_heads=4, num_key_value_heads=2)
causal = {"mask": masks.causal()}


@pytest.mark.parametrize(
  ("name", "function", "layer", "options"),
  [
    ("encoder_post", ENCODER, encoder_layer(norm_position="post"), {}),
    ("encoder_pre", ENCODER, encoder_layer(activation=gelu), {}),
    ("bert", BERT, encoder_layer(1e-12, gelu, "post"), {}),
    ("gpt2", GPT2, encoder_layer(activation=nn.gelu), causal),
    ("llama", LLAMA_OF_FOUR, llama_layer(4, 2), causal),
    ("llama_biases", LLAMA, llama_layer(use_bias=True, mlp_bias=True), causal),
    ("qwen2", LLAMA, llama_layer(use_bias=True), causal),
    ("qwen3", LLAMA, llama_layer(qkv_features=12, qk_norm_cls=attention.RMSNorm), causal),
    (
      "gemma",
      functools.partial(LLAMA, norm_offset=1),
      llama_layer(qkv_features=12, activation=nn.gelu),
      causal,
    ),
    ("mha", MHA, attention.MultiHeadAttention(3), {}),
    ("zero_attn", MHA, attention.MultiHeadAttention(3, normalizer=attention.Softmax(0.0)), {}),
    ("cross", MHA, attention.MultiHeadAttention(3, use_bias=False), {}),
    (
      "t5",
      functools.partial(convert.t5_attention, num_heads=3),
      attention.MultiHeadAttention(3, qkv_features=15, use_bias=False, score=attention.ScaledDotProduct(1.0)),
      {"bias": positions.RelativePositionBias(convert.t5_bias_table(reference("t5")[1]), max_distance=16)},
    ),
  ],
)
def test_layers_give_the_original_outputs(name, function, layer, options):
  given, state = reference(name)
  arguments = [given[key] for key in INPUTS[:-1] if key in given]
  arguments = arguments[:1] if name in ("mha", "zero_attn") else arguments
  variables = function(
    {f"m.0.{key}": value for key, value in state.items()} | {"other": "any"}, prefix="m.0."
  )
  shapes = jax.eval_shape(layer.init, jax.random.key(0), *arguments)
  chex.assert_trees_all_equal_shapes(variables, shapes)
  outputs = jax.jit(functools.partial(layer.apply, **options))(variables, *arguments)
  assert_close(outputs, given["outputs"])


def test_old_names_of_bert():
  state = state_of("bert")
  old = {
    name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): state[name] for name in state
  }
  assert old.keys() != state.keys()
  chex.assert_trees_all_equal(BERT(old), BERT(state))


def tensor(array):
  """Stands for a tensor of PyTorch with a gradient, of bfloat16."""
  result = types.SimpleNamespace(dtype="torch.bfloat16", float=lambda: array)
  result.detach = result.cpu = lambda: result
  return result


def test_bfloat16_tensors_keep_their_dtype():
  converted = LLAMA_OF_FOUR({name: tensor(array) for name, array in state_of("llama").items()})
  desired = jax.tree.map(lambda array: array.astype(jnp.bfloat16), LLAMA_OF_FOUR(state_of("llama")))
  chex.assert_trees_all_equal(converted, desired)
  chex.assert_trees_all_equal_dtypes(converted, desired)


def test_offsets_of_norms_are_not_rounded():
  state = {name: array.astype(jnp.bfloat16) for name, array in state_of("gemma").items()}
  scale = LLAMA(state, norm_offset=1)["params"]["attention_norm"]["scale"]
  np.testing.assert_array_equal(scale, 1 + np.float32(state["input_layernorm.weight"]))


def test_torch_gru():
  given, state = reference("gru")
  start = jnp.zeros((len(given["inputs"]), 5))
  _, forward = attention.gru(convert.torch_gru(state), start, given["inputs"])
  weights = convert.torch_gru(state, reverse=True)
  _, backward = attention.gru(weights, start, given["inputs"], reverse=True)
  assert_close(np.concatenate([forward, backward], axis=-1), given["outputs"])


def test_gru_cells_and_gru_without_biases():
  state = state_of("gru")
  cell = {name: state[f"{name}_l0"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
  chex.assert_trees_all_equal(convert.torch_gru(cell), convert.torch_gru(state))
  weights = convert.torch_gru({name: array for name, array in cell.items() if "weight" in name})
  assert not np.any(weights.bias) and not np.any(weights.recurrent_bias)


def test_gru_layers_are_numbered():
  cell = {name: array for name, array in state_of("gru").items() if name.endswith("_l0")}
  second = {name.replace("_l0", "_l1"): 2 * array for name, array in cell.items()}
  weights = convert.torch_gru(cell | second, layer=1)
  chex.assert_trees_all_close(weights, jax.tree.map(lambda array: 2 * array, convert.torch_gru(cell)))
  with pytest.raises(ValueError, match="layer must be an integer of at least 0, got -1"):
    convert.torch_gru(cell, layer=-1)


@pytest.mark.parametrize(
  ("function", "state", "message"),
  [
    (BERT, nn.Dense(3), "state must be a mapping from names to arrays, .*, got Dense"),
    (BERT, "model.safetensors", "state must be a mapping .*, got str"),
    (BERT, {}, "state must have the name .*, got no names"),
    (BERT, dict.fromkeys("abcdefghi", np.zeros(1)), "state must have .*, got a, b, c, d, e, f, g, h, …$"),
    (
      functools.partial(GPT2, prefix="h."),
      state_of("mha"),
      r"the name 'h\.attn\.c_proj\.weight', got in_proj_weight, ",
    ),
    (
      functools.partial(MHA, num_heads=5),
      state_of("mha"),
      "num_heads must divide .* of all heads, 12, got 5",
    ),
    (
      functools.partial(convert.llama_layer, num_heads=4),
      state_of("llama"),
      r"the key weight must have 4 heads of 6 rows, got \(12, 24\)",
    ),
    (
      LLAMA_OF_FOUR,
      state_of("llama", {"self_attn.k_proj.weight": np.zeros((12, 5))}),
      r"must have 24 columns, got shape \(12, 5\)",
    ),
    (
      functools.partial(LLAMA, norm_offset=np.inf),
      state_of("llama"),
      "norm_offset must be a finite number, got inf",
    ),
    # Of an LSTM.
    (
      convert.torch_gru,
      {"weight_ih_l0": np.zeros((8, 3)), "weight_hh_l0": np.zeros((8, 2))},
      r"weight_hh_l0 must have axes \[6 \?\], got shape \(8, 2\)",
    ),
  ],
)
def test_invalid_states_raise(function, state, message):
  with pytest.raises(ValueError, match=message):
    function(state)


MISSING, UNEXPECTED = "state must have the name", "unexpected parameters in state, which the layer lacks:"


@pytest.mark.parametrize(
  ("function", "layer", "name", "array", "message"),
  [
    (BERT, "bert", "output.dense.bias", None, MISSING),
    (GPT2, "gpt2", "attn.c_attn.bias", None, MISSING),
    (MHA, "mha", "in_proj_weight", None, MISSING),
    (convert.torch_gru, "gru", "bias_ih_l0", None, MISSING),
    (MHA, "mha", "in_proj_weight", "a", "must be a floating-point array, got <U1"),
    (MHA, "mha", "in_proj_bias", np.zeros(36, np.int8), "must be a floating-point array, got int8"),
    (MHA, "mha", "bias_v", np.zeros(3), UNEXPECTED),
    (ENCODER, "encoder_pre", "norm3.weight", np.zeros(3), UNEXPECTED),
    (ENCODER, "encoder_pre", "attn.bias", np.zeros(3), UNEXPECTED),
    (convert.torch_gru, "gru", "weight_hr_l0", np.zeros(3), UNEXPECTED),
    (ENCODER, "encoder_pre", "linear1.bias", np.zeros(3), r"must have shape \(20,\), got shape \(3,\)"),
    (ENCODER, "encoder_pre", "linear1.weight", np.zeros(3), r"must have axes \[\? 12\], got shape \(3,\)"),
    (ENCODER, "encoder_pre", "linear2.weight", np.zeros((12, 3)), r"shape \(12, 20\), got shape \(12, 3\)"),
    (ENCODER, "encoder_pre", "norm1.weight", np.zeros(3), r"must have shape \(12,\), got shape \(3,\)"),
  ],
)
def test_missing_and_invalid_arrays_raise(function, layer, name, array, message):
  with pytest.raises(ValueError, match=message) as caught:
    function(state_of(layer, {name: array}))
  assert name in str(caught.value)
