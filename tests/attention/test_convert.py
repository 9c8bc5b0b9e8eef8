"""Converted parameters give the numbers of the original layers, which tests/data/make_references.py wrote."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from helpers.fixtures import FLOAT32, assert_close, assert_trees_close

import attention
from attention import convert, masks, positions

REFERENCES = np.load(pathlib.Path(__file__).parents[1] / "data" / "references.npz")
TOLERANCE = 64 * FLOAT32
gelu = functools.partial(nn.gelu, approximate=False)


INPUTS = "inputs", "queries", "keys", "values", "outputs"


def reference(name):
  """Returns the inputs and outputs of one layer, and its state."""
  arrays = {key.removeprefix(f"{name}/"): REFERENCES[key] for key in REFERENCES if key.startswith(f"{name}/")}
  return arrays, {key: array for key, array in arrays.items() if key not in INPUTS}


def encoder_layer(num_heads=3, epsilon=1e-5, activation=nn.relu, **options):
  return attention.EncoderLayer(
    num_heads=num_heads,
    mlp_dim=20,
    norm_cls=functools.partial(attention.LayerNorm, epsilon=epsilon),
    feed_forward_cls=functools.partial(attention.FeedForward, activation=activation),
    **options,
  )


def llama_layer(num_heads=2, num_key_value_heads=1, activation=nn.silu, mlp_bias=False, **options):
  return attention.EncoderLayer(
    num_heads=num_heads,
    mlp_dim=20,
    self_attention_cls=functools.partial(
      attention.MultiHeadAttention,
      num_key_value_heads=num_key_value_heads,
      position_fn=positions.rotary,
      **({"use_bias": False} | options),
    ),
    feed_forward_cls=functools.partial(
      attention.FeedForward, activation=activation, use_gate=True, use_bias=mlp_bias
    ),
    norm_cls=attention.RMSNorm,
  )


LLAMA = functools.partial(convert.llama_layer, num_heads=2, num_key_value_heads=1)
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
  "llama": (llama_layer(4, 2), convert.llama_layer, (4, 2), masks.causal()),
  "llama_biases": (llama_layer(use_bias=True, mlp_bias=True), LLAMA, (), masks.causal()),
  "qwen2": (llama_layer(use_bias=True), LLAMA, (), masks.causal()),
  "qwen3": (llama_layer(qkv_features=12, qk_norm_cls=attention.RMSNorm), LLAMA, (), masks.causal()),
  "gemma": (
    llama_layer(qkv_features=12, activation=nn.gelu),
    functools.partial(LLAMA, norm_offset=1),
    (),
    masks.causal(),
  ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_encoder_layers(name):
  layer, function, heads, mask = LAYERS[name]
  given, state = reference(name)
  state = {f"model.0.{key}": value for key, value in state.items()} | {"other": np.zeros(3)}
  variables = function(state, *heads, prefix="model.0.")
  shapes = jax.eval_shape(layer.init, jax.random.key(0), given["inputs"])
  assert jax.tree.map(jnp.shape, variables) == jax.tree.map(jnp.shape, shapes)
  assert_close(layer.apply(variables, given["inputs"], mask=mask), given["outputs"], TOLERANCE)


def test_old_names_of_bert():
  _, state = reference("bert")
  old = {
    name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): state[name] for name in state
  }
  assert old.keys() != state.keys()
  assert_trees_close(convert.bert_layer(old, 3), convert.bert_layer(state, 3), 0)


def test_torch_multi_head_attention():
  given, state = reference("mha")
  layer = attention.MultiHeadAttention(num_heads=3)
  variables = convert.torch_multi_head_attention(state, 3)
  assert_close(layer.apply(variables, given["queries"]), given["outputs"], TOLERANCE)
  given, state = reference("zero_attn")
  layer = attention.MultiHeadAttention(num_heads=3, normalizer=attention.Softmax(0.0))
  variables = convert.torch_multi_head_attention(state, 3)
  assert_close(layer.apply(variables, given["queries"]), given["outputs"], TOLERANCE)
  given, state = reference("cross")
  layer = attention.MultiHeadAttention(num_heads=3, use_bias=False)
  variables = convert.torch_multi_head_attention(state, 3)
  assert_close(
    layer.apply(variables, given["queries"], given["keys"], given["values"]), given["outputs"], TOLERANCE
  )


@pytest.mark.parametrize(
  ("name", "layer", "unused"),
  [
    ("llama_biases", llama_layer(mlp_bias=True), "HeadLinear at 'attention/.*' has .*: bias"),
    ("llama_biases", llama_layer(use_bias=True), "Linear at 'feed_forward/.*' has .*: bias"),
    ("qwen2", llama_layer(), "HeadLinear at 'attention/.*' has .*: bias"),
    ("qwen3", llama_layer(qkv_features=12), "at 'attention' .*: query_ln, key_ln"),
  ],
)
def test_layers_refuse_unused_parameters(name, layer, unused):
  given, state = reference(name)
  with pytest.raises(ValueError, match=unused):
    layer.apply(LLAMA(state), given["inputs"])


class WithGate(attention.MultiHeadAttention):
  """A subclass with a parameter whose name an option of its base class has."""

  def setup(self):
    super().setup()
    self.gate = nn.Dense(3)

  def __call__(self, inputs):
    return super().__call__(inputs), self.gate(inputs)


class SharesScope(nn.Module):
  """A module with such a parameter that shares its scope."""

  def setup(self):
    self.layer = attention.MultiHeadAttention(num_heads=2)
    nn.share_scope(self, self.layer)
    self.gate = nn.Dense(3)

  def __call__(self, inputs):
    return self.layer(inputs), self.gate(inputs)


@pytest.mark.parametrize("module", [WithGate(num_heads=2), SharesScope()])
def test_subclasses_have_more_parameters(module):
  inputs = jnp.ones((1, 3, 4))
  variables = module.init(jax.random.key(0), inputs)
  assert "gate" in variables["params"]
  module.apply(variables, inputs)


class Tensor:
  """Stands for a tensor of PyTorch with a gradient, of bfloat16."""

  dtype = "torch.bfloat16"

  def __init__(self, array):
    self.array = array

  def detach(self):
    return self

  def cpu(self):
    return self

  def float(self):
    return self.array


def test_bfloat16_tensors_keep_their_dtype():
  arrays = change("llama")
  converted = convert.llama_layer({name: Tensor(array) for name, array in arrays.items()}, 4, 2)
  assert_trees_close(
    converted, jax.tree.map(lambda a: a.astype(jnp.bfloat16), convert.llama_layer(arrays, 4, 2)), 0
  )
  assert {leaf.dtype for leaf in jax.tree.leaves(converted)} == {jnp.dtype(jnp.bfloat16)}


def test_t5_attention():
  given, state = reference("t5")
  layer = attention.MultiHeadAttention(
    num_heads=3, qkv_features=15, use_bias=False, score=attention.ScaledDotProduct(1.0)
  )
  bias = positions.RelativePositionBias(convert.t5_bias_table(state), max_distance=16)
  outputs = layer.apply(convert.t5_attention(state, 3), given["inputs"], bias=bias)
  assert_close(outputs, given["outputs"], TOLERANCE)


def test_torch_gru():
  given, state = reference("gru")
  inputs = given["inputs"]
  initial = jnp.zeros((len(inputs), 5))
  _, forward = attention.gru(convert.torch_gru(state), initial, inputs)
  _, backward = attention.gru(convert.torch_gru(state, reverse=True), initial, inputs, reverse=True)
  assert_close(jnp.concatenate([forward, backward], axis=-1), given["outputs"], TOLERANCE)


def test_gru_cells_and_gru_without_biases():
  _, state = reference("gru")
  cell = {name: state[f"{name}_l0"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
  assert_close(convert.torch_gru(cell).bias, convert.torch_gru(state).bias, 0)
  kernels = {name: array for name, array in cell.items() if "weight" in name}
  assert not np.any(convert.torch_gru(kernels).bias) and not np.any(convert.torch_gru(kernels).recurrent_bias)


def change(name, **arrays):
  return reference(name)[1] | {key.replace("_of_", "."): array for key, array in arrays.items()}


MHA, ENCODER = convert.torch_multi_head_attention, convert.torch_encoder_layer
INVALID = {
  "missing": (
    lambda: convert.gpt2_layer(reference("mha")[1], 3, prefix="h.0."),
    r"state must have the name 'h\.0\.attn\.c_proj\.weight', got in_proj_weight, .*out_proj\.bias$",
  ),
  "no in_proj": (
    lambda: MHA({"out_proj.weight": np.zeros((2, 2))}, 1),
    "the name 'in_proj_weight', got out_proj",
  ),
  "no bias of GPT-2": (
    lambda: convert.gpt2_layer(
      {key: array for key, array in change("gpt2").items() if key != "attn.c_attn.bias"}, 3
    ),
    r"the name 'attn\.c_attn\.bias'",
  ),
  "heads": (lambda: MHA(change("mha"), 5), "num_heads must divide the width of all heads, 12, got 5"),
  "grouped heads": (
    lambda: convert.llama_layer(change("llama"), 4),
    r"the key weight must have 4 heads of 6 rows, got \(12, 24\)",
  ),
  "bias_v": (
    lambda: MHA(change("mha", bias_v=np.zeros(3)), 3),
    "unexpected parameters in state, which the layer lacks: bias_v",
  ),
  "another layer": (
    lambda: ENCODER(change("encoder_pre", norm3_of_weight=np.zeros(3)), 3),
    r"unexpected parameters in state, which the layer lacks: norm3\.weight",
  ),
  "bias of another size": (
    lambda: ENCODER(change("encoder_pre", linear1_of_bias=np.zeros(3)), 3),
    r"linear1\.bias must have shape \(20,\), got shape \(3,\)",
  ),
  "norm of another size": (
    lambda: ENCODER(change("encoder_pre", norm1_of_weight=np.zeros(3)), 3),
    r"norm1\.weight must have shape \(12,\), got shape \(3,\)",
  ),
  "feed-forward of another size": (
    lambda: ENCODER(change("encoder_pre", linear2_of_weight=np.zeros((12, 3))), 3),
    r"linear2\.weight must have shape \(12, 20\), got shape \(12, 3\)",
  ),
  "a vector for a matrix": (
    lambda: ENCODER(change("encoder_pre", linear1_of_weight=np.zeros(3)), 3),
    r"linear1\.weight must have axes \[\? 12\], got shape \(3,\)",
  ),
  "biases of norms": (
    lambda: llama_layer().apply(
      convert.llama_layer(change("llama", input_layernorm_of_bias=np.zeros(24)), 4, 2), np.zeros((1, 24))
    ),
    "RMSNorm at 'attention_norm' has parameters that its options do not use: bias",
  ),
  "LSTM": (
    lambda: convert.torch_gru({"weight_ih_l0": np.zeros((8, 3)), "weight_hh_l0": np.zeros((8, 2))}),
    r"weight_hh_l0 must have axes \[6 \?\], got shape \(8, 2\)",
  ),
  "module": (lambda: convert.bert_layer(nn.Dense(3), 4), "state must be a mapping .*, got Dense"),
  "path": (lambda: convert.bert_layer("model.safetensors", 4), "state must be a mapping .*, got str"),
  "empty": (lambda: convert.bert_layer({}, 4), "state must have the name .*, got no names"),
  "text": (
    lambda: MHA(change("mha", in_proj_weight="a"), 3),
    "weight must be a floating-point array",
  ),
  "integers": (lambda: MHA(change("mha", in_proj_bias=np.zeros(36, np.int8)), 3), "array, got int8"),
  "keys of another width": (
    lambda: convert.llama_layer(change("llama", self_attn_of_k_proj_of_weight=np.zeros((12, 5))), 4, 2),
    r"must have 24 columns, got shape \(12, 5\)",
  ),
  "truncated": (
    lambda: convert.bert_layer({k: v for k, v in change("bert").items() if k != "output.dense.bias"}, 3),
    r"state must have the name 'output\.dense\.bias'",
  ),
  "buffers of other models": (
    lambda: ENCODER(change("encoder_pre", attn_of_bias=np.zeros(3)), 3),
    r"unexpected parameters in state, which the layer lacks: attn\.bias",
  ),
  "more of a GRU": (
    lambda: convert.torch_gru(change("gru", weight_hr_l0=np.zeros(3))),
    "unexpected parameters in state, which the layer lacks: weight_hr_l0",
  ),
  "one bias of two": (
    lambda: convert.torch_gru({key: array for key, array in change("gru").items() if key != "bias_ih_l0"}),
    "state must have the name 'bias_ih_l0'",
  ),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_states_raise(name):
  function, message = INVALID[name]
  with pytest.raises(ValueError, match=message):
    function()


@pytest.mark.parametrize("name", ["llama3", "yarn", "yarn_without_truncation"])
def test_rotary_frequencies_match_transformers(name):
  options = {"base": 5e4, "original_length": 512}
  function = {
    "llama3": lambda: positions.llama3_frequencies(32, factor=8.0, **options),
    "yarn": lambda: positions.yarn_frequencies(32, factor=4.0, **options),
    "yarn_without_truncation": lambda: positions.yarn_frequencies(32, factor=4.0, truncate=False, **options),
  }[name]
  desired = REFERENCES[f"rope/{name}"]
  np.testing.assert_allclose(function(), desired, rtol=1e-6)
  plain = np.asarray(positions.rotary_frequencies(32, base=5e4))
  assert np.sum(desired != plain) in range(3, 16)  # otherwise the bounds are not tested


@pytest.mark.parametrize("function", [positions.llama3_frequencies, positions.yarn_frequencies])
@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"factor": 0.5}, "factor must be at least 1 and finite, got 0.5"),
    ({"factor": np.inf}, "factor must be at least 1 and finite, got inf"),
    ({"original_length": 0}, "original_length must be an integer"),
    ({"base": np.nan}, "base must be at least 1 and finite, got nan"),
  ],
)
def test_invalid_frequencies_raise(function, options, message):
  with pytest.raises(ValueError, match=message):
    function(8, **({"factor": 2.0, "original_length": 16} | options))


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"beta_slow": 0.0}, "beta_slow must be above 0 and finite, got 0"),
    ({"beta_slow": np.nan}, "beta_slow must be above 0 and finite, got nan"),
    ({"beta_fast": -1.0}, "beta_fast must be above beta_slow=1.0 and finite, got -1"),
    ({"beta_fast": 1.0, "beta_slow": 32.0}, "beta_fast must be above beta_slow=32.0 and finite, got 1"),
  ],
)
def test_invalid_turns_of_yarn_raise(options, message):
  with pytest.raises(ValueError, match=message):
    positions.yarn_frequencies(8, factor=2.0, original_length=16, **options)


def test_scale_of_yarn_matches_transformers():
  assert positions.yarn_scale(4.0) == pytest.approx(float(REFERENCES["rope/yarn_scale"]), rel=1e-6)


def test_offsets_of_norms_are_not_rounded():
  state = {name: array.astype(jnp.bfloat16) for name, array in change("gemma").items()}
  scale = LLAMA(state, norm_offset=1)["params"]["attention_norm"]["scale"]
  np.testing.assert_array_equal(scale, 1 + np.float32(state["input_layernorm.weight"]))


def test_buckets_of_small_integers_are_exact():
  near = jnp.arange(-100, 100)
  actual = positions.relative_position_bucket(near.astype(jnp.int8), 32, 800, True)
  np.testing.assert_array_equal(actual, positions.relative_position_bucket(near, 32, 800, True))


def test_buckets_of_numpy_integers_are_exact():
  distances = jnp.arange(-300, 300)
  actual = positions.relative_position_bucket(distances, np.int64(64), np.int64(10**5), False)
  np.testing.assert_array_equal(actual, positions.relative_position_bucket(distances, 64, 10**5, False))


@pytest.mark.parametrize("name", [name for name in REFERENCES if name.startswith("t5_buckets")])
def test_buckets_of_relative_positions_match_transformers(name):
  buckets, max_distance = map(int, name.split("/")[1].split("_"))
  for bidirectional, desired in enumerate(REFERENCES[name]):
    actual = positions.relative_position_bucket(
      jnp.arange(-1000, 1000), buckets, max_distance, bool(bidirectional)
    )
    np.testing.assert_array_equal(actual, desired)
