"""Converted parameters give the numbers of the original models, which tests/data/make_references.py wrote."""

import functools
import json
import pathlib
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import attention
from attention import convert
from examples import bert, language_model, t5

REFERENCES = np.load(pathlib.Path(__file__).parents[1] / "data" / "references.npz")
INPUTS = "inputs", "queries", "keys", "values", "outputs"
NOT_IN_STATE = (
  *INPUTS,
  *(
    "config",
    "greedy",
    "input_ids",
    "decoder_input_ids",
    "attention_mask",
    "token_type_ids",
    "outputs_0",
    "outputs_1",
  ),
)
gelu = functools.partial(nn.gelu, approximate=False)
assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)


def reference(name):
  """Returns the inputs and outputs of a layer, and its state."""
  arrays = {key.removeprefix(f"{name}/"): REFERENCES[key] for key in REFERENCES if key.startswith(f"{name}/")}
  return arrays, {key: array for key, array in arrays.items() if key not in NOT_IN_STATE}


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


MHA = functools.partial(convert.torch_multi_head_attention, num_heads=3)
ENCODER = functools.partial(convert.torch_encoder_layer, num_heads=3)


@pytest.mark.parametrize(
  ("name", "function", "layer"),
  [
    ("encoder_post", ENCODER, encoder_layer(norm_position="post")),
    ("encoder_pre", ENCODER, encoder_layer(activation=gelu)),
    ("mha", MHA, attention.MultiHeadAttention(3)),
    ("zero_attn", MHA, attention.MultiHeadAttention(3, normalizer=attention.Softmax(0.0))),
    ("cross", MHA, attention.MultiHeadAttention(3, use_bias=False)),
  ],
)
def test_layers_give_the_original_outputs(name, function, layer):
  given, state = reference(name)
  arguments = [given[key] for key in INPUTS[:-1] if key in given]
  arguments = arguments[:1] if name in ("mha", "zero_attn") else arguments
  variables = function(
    {f"m.0.{key}": value for key, value in state.items()} | {"other": "any"}, prefix="m.0."
  )
  shapes = jax.eval_shape(layer.init, jax.random.key(0), *arguments)
  chex.assert_trees_all_equal_shapes(variables, shapes)
  outputs = jax.jit(layer.apply)(variables, *arguments)
  assert_close(outputs, given["outputs"])


LLAMAS = ("llama", "llama_biases", "llama_3", "llama_yarn", "llama_linear")
LLAMAS = (*LLAMAS, "mistral", "qwen2", "qwen3", "gemma", "gemma2", "stablelm")


def model_of(name, changes=(), **options):
  """Returns the model of a reference, with changes of its state and its config."""
  functions = {"gpt2": convert.gpt2, "bert": convert.bert, "t5": convert.t5}
  function = functions.get(name.split("_")[0], convert.llama)
  return function(config_of(name) | options, state_of(name, changes))


def config_of(name):
  return json.loads(str(REFERENCES[f"{name}/config"]))


def assert_logits_close(actual, desired):
  np.testing.assert_allclose(actual, desired, rtol=0, atol=1e-5 * np.max(np.abs(desired)))


@pytest.mark.parametrize("name", [*LLAMAS, "gpt2"])
def test_language_models(name):
  given, _ = reference(name)
  model = model_of(name)

  @jax.jit
  def run(params):
    replaced, tokens = model._replace(params=params), given["input_ids"].astype(int)
    return language_model.forward(replaced, tokens, language_model.init_caches(replaced, *tokens.shape))[0]

  assert_logits_close(run(model.params), given["outputs"])


@pytest.mark.parametrize("name", ["gemma2", "gpt2"])
def test_greedy_tokens(name):
  given, _ = reference(name)
  model = model_of(name)

  @jax.jit
  def run(params):
    prompt = given["input_ids"][:, :7].astype(int)
    replaced = model._replace(params=params)
    return language_model.continue_greedily(replaced, prompt, given["greedy"].shape[1])

  np.testing.assert_array_equal(run(model.params), given["greedy"])


def test_gpt_oss_attention():
  given, state = reference("gpt_oss")
  model = convert.gpt_oss_attention(config_of("gpt_oss"), state)

  @jax.jit
  def run(layers, inputs):
    return [
      model.layer.apply(variables, inputs, mask=mask)
      for variables, mask in zip(layers, model.masks, strict=True)
    ]

  outputs = run(model.params["layers"], given["inputs"])
  assert_close(outputs, [given["outputs_0"], given["outputs_1"]])


def test_bert():
  given, _ = reference("bert_masked")
  keep, tokens = given["attention_mask"].astype(bool), given["input_ids"].astype(int)
  types, lengths = given["token_type_ids"].astype(int), keep.sum(axis=1)
  model, base = model_of("bert_masked"), model_of("bert")

  @jax.jit
  def run(params, base_params):
    vectors, _ = bert.encode(model._replace(params=params), tokens, lengths, types)
    logits = bert.masked_token_logits(model._replace(params=params), vectors)
    return logits, bert.encode(base._replace(params=base_params), tokens, lengths, types)[0]

  with jax.numpy_rank_promotion("allow"):
    logits, outputs = run(model.params, base.params)
  assert_close(logits[keep], given["outputs"][keep])
  assert_close(outputs[keep], reference("bert")[0]["outputs"][keep])
  assert base.params["heads"].keys() == {"pooler.dense.weight", "pooler.dense.bias"}


@pytest.mark.parametrize("name", ["t5", "t5_gated"])
def test_t5(name):
  given, _ = reference(name)
  encoder, decoder = model_of(name)
  sources, lengths = given["input_ids"].astype(int), given["attention_mask"].astype(int).sum(axis=1)

  @jax.jit
  def run(encoder_params, decoder_params):
    parts = encoder._replace(params=encoder_params), decoder._replace(params=decoder_params)
    targets = given["decoder_input_ids"].astype(int)
    state = t5.init_state(parts[1], t5.encode(parts[0], sources, lengths), targets.shape[1])
    logits, *_ = t5.decode(parts[1], targets, *state, lengths)
    return logits, t5.translate(*parts, sources, lengths, given["greedy"].shape[1], eos_id=-1)

  logits, (tokens, weights) = run(encoder.params, decoder.params)
  assert_logits_close(logits, given["outputs"])
  np.testing.assert_array_equal(tokens, given["greedy"])
  assert_close(np.sum(weights, axis=-1), 1)


def test_only_t5_scales_its_outputs():
  heads = [model_of("t5", **options)[1].params["head"] for options in ({}, {"model_type": "mt5"})]
  assert_close(heads[1], reference("t5")[1]["shared.weight"])
  assert_close(heads[0], heads[1] / np.sqrt(8))


def test_old_names_of_bert():
  state = state_of("bert")
  old = {
    name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): state[name] for name in state
  }
  assert old.keys() != state.keys()
  chex.assert_trees_all_equal(convert.bert(config_of("bert"), old).params, model_of("bert").params)


def tensor(array):
  """Stands for a tensor of PyTorch with a gradient, of bfloat16."""
  result = types.SimpleNamespace(dtype="torch.bfloat16", float=lambda: array)
  result.detach = result.cpu = lambda: result
  return result


@pytest.mark.parametrize("name", ["gemma", "gpt2"])
def test_bfloat16(name):
  given, state = reference(name)
  state = {key: tensor(array) for key, array in state.items()}
  function = convert.gpt2 if name == "gpt2" else convert.llama
  model = function(config_of(name), state)
  kernel = model.params["layers"][0]["params"]["attention"]["query"]["kernel"]
  assert kernel.dtype == model.layer.dtype == jnp.bfloat16
  if name == "gemma":  # 1 + w is not rounded
    scale = model.params["layers"][0]["params"]["attention_norm"]["scale"]
    weight = reference(name)[1]["model.layers.0.input_layernorm.weight"]
    np.testing.assert_array_equal(scale, 1 + np.float32(weight.astype(jnp.bfloat16)))
  tokens = given["input_ids"].astype(int)

  @jax.jit
  def run(params):
    replaced = model._replace(params=params)
    return language_model.forward(replaced, tokens, language_model.init_caches(replaced, *tokens.shape))[0]

  logits = run(model.params)
  assert logits.dtype == jnp.bfloat16
  assert_close(logits.astype(np.float32), given["outputs"], atol=0.05 * np.max(np.abs(given["outputs"])))


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


LLAMA, QWEN_2, QWEN_3 = (
  functools.partial(convert.llama, config_of(name)) for name in ("llama", "qwen2", "qwen3")
)
BERT = functools.partial(convert.bert, config_of("bert"))
GPT_2 = functools.partial(convert.gpt2, config_of("gpt2"))


@pytest.mark.parametrize(
  ("function", "state", "message"),
  [
    (BERT, nn.Dense(3), "state must be a mapping from names to arrays, .*, got Dense"),
    (BERT, "model.safetensors", "state must be a mapping .*, got str"),
    (BERT, {}, "state must have the name .*, got no names"),
    (BERT, dict.fromkeys("abcdefghi", np.zeros(1)), "state must have .*, got a, b, c, d, e, f, g, h, …$"),
    (functools.partial(MHA, num_heads=5), state_of("mha"), "num_heads must divide qkv_features"),
    # Of an LSTM.
    (
      convert.torch_gru,
      {"weight_ih_l0": np.zeros((8, 3)), "weight_hh_l0": np.zeros((8, 2))},
      r"weight_hh_l0 must have axes \[6 2\], got shape \(8, 2\)",
    ),
  ],
)
def test_invalid_states_raise(function, state, message):
  with pytest.raises(ValueError, match=message):
    function(state)


MISSING, UNEXPECTED = "state must have the name", "unexpected parameters in state, which the layer lacks:"
LAYER = "model.layers.1."


@pytest.mark.parametrize(
  ("function", "layer", "name", "array", "message"),
  [
    (MHA, "mha", "out_proj.bias", None, MISSING),
    (convert.torch_gru, "gru", "bias_ih_l0", None, MISSING),
    (MHA, "mha", "out_proj.weight", "a", "must be a floating-point array, got <U1"),
    (MHA, "mha", "out_proj.bias", np.zeros(36, np.int8), "must be a floating-point array, got int8"),
    (MHA, "mha", "bias_v", np.zeros(3), UNEXPECTED),
    (ENCODER, "encoder_pre", "norm3.weight", np.zeros(3), UNEXPECTED),
    (ENCODER, "encoder_pre", "attn.bias", np.zeros(3), UNEXPECTED),
    (convert.torch_gru, "gru", "weight_hr_l0", np.zeros(3), UNEXPECTED),
    (ENCODER, "encoder_pre", "linear1.bias", np.zeros(3), r"must have axes \[20\], got shape \(3,\)"),
    (ENCODER, "encoder_pre", "linear1.weight", np.zeros(3), r"must have axes \[\? \?\], got shape \(3,\)"),
    (ENCODER, "encoder_pre", "linear2.weight", np.zeros((12, 3)), r"\[12 20\], got shape \(12, 3\)"),
    (ENCODER, "encoder_pre", "norm1.weight", np.zeros(3), r"must have axes \[12\], got shape \(3,\)"),
    (BERT, "bert", "encoder.layer.1.output.dense.bias", None, MISSING),
    (BERT, "bert", "encoder.layer.2.output.dense.bias", np.zeros(8), UNEXPECTED),
    (GPT_2, "gpt2", "transformer.h.1.attn.c_attn.bias", np.zeros(25), r"3 equal parts, got \(25,\)"),
    (GPT_2, "gpt2", "transformer.wpe.weight", np.zeros((31, 8)), r"\[32 8\], got shape \(31, 8\)"),
    (LLAMA, "llama", f"{LAYER}mlp.up_proj.weight", None, MISSING),
    (LLAMA, "llama", f"{LAYER}mlp.up_proj.weight", np.zeros((6, 7)), r"\[6 8\], got shape \(6, 7\)"),
    (LLAMA, "llama", f"{LAYER}self_attn.k_proj.weight", np.zeros((8, 8)), r"\[4 8\], got shape \(8, 8\)"),
    (LLAMA, "llama", f"{LAYER}self_attn.sinks", np.zeros(4), UNEXPECTED),
    (LLAMA, "llama", "model.layers.2.mlp.up_proj.weight", np.zeros((6, 8)), UNEXPECTED),
    (LLAMA, "llama", "score.weight", np.zeros((2, 8)), UNEXPECTED),
    (LLAMA, "llama", f"{LAYER}self_attn.q_proj.bias", np.zeros(8), UNEXPECTED),
    (QWEN_2, "qwen2", f"{LAYER}self_attn.v_proj.bias", None, MISSING),
    (QWEN_3, "qwen3", f"{LAYER}self_attn.q_norm.weight", None, MISSING),
    (LLAMA, "llama", f"{LAYER}self_attn.q_proj_weight", np.zeros((8, 8)), "two names of one array"),
  ],
)
def test_missing_and_invalid_arrays_raise(function, layer, name, array, message):
  with pytest.raises(ValueError, match=message) as caught:
    function(state_of(layer, {name: array}))
  assert name in str(caught.value)


def test_missing_biases_of_outputs_are_zero():
  params = model_of("qwen2").params["layers"][0]["params"]["attention"]
  assert not np.any(params["out"]["bias"]) and np.all(params["key"]["bias"])


def test_buffers_are_ignored():
  buffers = {
    "model.rotary_emb.inv_freq": np.zeros(2),
    "model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(2),
  }
  chex.assert_trees_all_equal(model_of("llama", buffers).params, model_of("llama").params)
  buffers = {
    "transformer.h.0.attn.bias": np.zeros((1, 1, 3, 3)),
    "transformer.h.0.attn.masked_bias": np.zeros(()),
  }
  chex.assert_trees_all_equal(model_of("gpt2", buffers).params, model_of("gpt2").params)


@pytest.mark.parametrize(
  ("name", "options", "message"),
  [
    ("llama", {"model_type": "olmo"}, "model_type in config must be llama or mistral or .*, got 'olmo'"),
    ("llama", {"hidden_act": "tanh"}, "activation in config must be one of relu, .*, got 'tanh'"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor in config must be 1.0, got 0.5"),
    ("llama", {"num_attention_heads": None}, "config must have 'num_attention_heads', got "),
    ("llama", {"rope_parameters": {"rope_type": "dynamic"}}, "rope_type in config must be .*, got 'dynamic'"),
    (
      "llama_3",
      {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}},
      "are missing or not supported: {.*llama3",
    ),
    ("llama_yarn", {"rope_parameters": {"rope_type": "yarn", "mscale": 1}}, "not supported: .*'mscale': 1"),
    ("gemma2", {"layer_types": ["chunked"] * 2}, "layer_types in config must be one of full_attention"),
    ("stablelm", {"use_parallel_residual": True}, "use_parallel_residual in config must be False, got True"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "must be False, got True"),
    ("bert", {"position_embedding_type": "relative_key"}, "must be absolute, got 'relative_key'"),
  ],
)
def test_unsupported_configs_raise(name, options, message):
  with pytest.raises(ValueError, match=message):
    model_of(name, **options)


@pytest.mark.parametrize(
  ("name", "option"),
  [
    ("mistral", "sliding_window"),
    ("gemma2", "attn_logit_softcapping"),
    ("gemma2", "final_logit_softcapping"),
  ],
)
def test_options_with_other_defaults_must_be_given(name, option):
  config = config_of(name)
  del config[option]
  with pytest.raises(ValueError, match=f"config must have '{option}', which may be None"):
    convert.llama(config, state_of(name))


def test_original_files_of_t5():
  config, name = config_of("t5"), "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
  del config["feed_forward_proj"]
  for model, same in zip(
    convert.t5(config, state_of("t5", {name: np.ones((8, 2))})), model_of("t5"), strict=True
  ):
    chex.assert_trees_all_equal(model.params, same.params)


def test_config_must_be_a_mapping():
  with pytest.raises(ValueError, match=r"config must be a mapping, .*, got str"):
    convert.llama("config.json", {})


def without(name, *options):
  return {key: value for key, value in config_of(name).items() if key not in options}


def rotated(model):
  position_fn = model.layer.self_attention_cls.keywords["position_fn"]
  return position_fn(np.random.default_rng(0).normal(size=(37, 8)).astype(np.float32))


def test_defaults_of_missing_options():
  theta = {"rope_theta": 10_000.0}
  for name, given in (
    ("llama_biases", {"rope_parameters": theta}),
    ("stablelm", {"rope_parameters": {**theta, "partial_rotary_factor": 0.25}}),
  ):
    config, state = without(name, "rope_parameters"), state_of(name)
    assert_close(rotated(convert.llama(config, state)), rotated(convert.llama(config | given, state)))
  config = without("llama_yarn", "rope_parameters") | {"max_position_embeddings": 32}
  rope = {"rope_type": "yarn", "rope_theta": 100.0, "original_max_position_embeddings": 8}
  whole = {"rope_parameters": {**rope, "factor": 4.0}}
  state = state_of("llama_yarn")
  assert_close(
    rotated(convert.llama(config | {"rope_parameters": rope}, state)),
    rotated(convert.llama(config | whole, state)),
  )
  for name, has_head in (("llama", False), ("gemma", True)):
    params = convert.llama(
      without(name, "tie_word_embeddings"), state_of(name, {"lm_head.weight": None})
    ).params
    assert ("head" in params) == has_head
  for part in convert.t5(without("t5", "relative_attention_max_distance"), state_of("t5")):
    assert part.params["bias"].max_distance == 128


def test_activations_of_gemma():
  # In the original files, "gelu" is the tanh approximation.
  for given, activation in (("gelu", nn.gelu), ("relu", convert.config.ACTIVATIONS["relu"])):
    assert model_of("gemma", hidden_act=given).layer.feed_forward_cls.keywords["activation"] is activation


def test_configs_of_earlier_versions():
  # Files of Transformers 4 have other names for rotary embeddings, and no types of layers.
  config = config_of("llama_yarn")
  rope = config.pop("rope_parameters")
  old = {"type": "yarn", "factor": rope["factor"], "original_max_position_embeddings": 8}
  model = convert.llama(
    config | {"rope_theta": rope["rope_theta"], "rope_scaling": old}, state_of("llama_yarn")
  )
  assert_close(rotated(model), rotated(model_of("llama_yarn")))
  for name in ("qwen2", "gemma2"):
    assert str(model_of(name, layer_types=None).masks) == str(model_of(name).masks)
