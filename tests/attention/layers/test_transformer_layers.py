"""Encoder and decoder layers, and feed-forward networks: formulas, options, dropout, errors."""

import functools
import pickle

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import model_reference as reference
from helpers.model_reference import compiled, float64, random_parameters

import attention
from attention import masks, positions

# D = N H: width of inputs; E: of sources; F: of the feed-forward network.
DIMS = chex.Dimensions(B=2, T=5, S=7, N=2, D=12, E=11, F=17, V=13)
rng = np.random.default_rng(0)
INPUTS, SOURCES = (rng.normal(size=DIMS[axes]).astype(np.float32) for axes in ("BTD", "BSE"))
TOKENS, LENGTHS = rng.integers(DIMS.V, size=DIMS["BS"]), np.array([7, 3])
ROTATING = functools.partial(
  attention.MultiHeadAttention, position_fn=positions.rotary, num_key_value_heads=1, normalize_qk=True
)
EncoderLayer = functools.partial(attention.EncoderLayer, DIMS.N, DIMS.F)
DecoderLayer = functools.partial(attention.DecoderLayer, DIMS.N, DIMS.F, features=DIMS.D)
# Modules with default options, and their inputs.
MODULES = {
  "multi_head": (functools.partial(attention.MultiHeadAttention, 2), (INPUTS, SOURCES)),
  "feed_forward": (functools.partial(attention.FeedForward, DIMS.F), (INPUTS,)),
  "encoder_layer": (EncoderLayer, (INPUTS,)),
  "decoder_layer": (DecoderLayer, (INPUTS, SOURCES)),
  "recurrent_encoder": (functools.partial(attention.RecurrentEncoder, DIMS.V, 3, 6), (TOKENS, LENGTHS)),
  "transformer_encoder": (
    functools.partial(attention.TransformerEncoder, DIMS.V, 6, num_layers=1, num_heads=1),
    (TOKENS, LENGTHS),
  ),
}
modules = pytest.mark.parametrize("name", MODULES)
assert_close = functools.partial(chex.assert_trees_all_close, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("norm_position", ["pre", "post", "both"])
def test_encoder_layer_matches_formula(norm_position):
  layer = EncoderLayer(norm_position=norm_position, self_attention_cls=ROTATING)
  variables = random_parameters(layer, INPUTS)
  rng = np.random.default_rng(0)
  mask = (rng.random(DIMS["BNTT"]) < 0.6) | np.eye(DIMS.T, dtype=bool)
  options = {"mask": mask, "bias": rng.normal(size=DIMS["NTT"]).astype(np.float32)}
  actual = jax.device_get(compiled(layer)(variables, INPUTS, **options))
  params, inputs = float64((variables["params"], INPUTS))
  assert_close(actual, reference.encoder_layer(params, inputs, norm_position, rotates=True, **options))


@pytest.mark.parametrize("norm_position", ["pre", "post", "both"])
def test_decoder_layer_matches_formula(norm_position):
  layer = DecoderLayer(norm_position=norm_position, self_attention_cls=ROTATING)
  variables = random_parameters(layer, INPUTS, SOURCES)
  rng = np.random.default_rng(0)
  options = {
    "mask": (rng.random(DIMS["BNTT"]) < 0.6) | np.eye(DIMS.T, dtype=bool),
    "source_mask": (rng.random(DIMS["BNTS"]) < 0.6) | (np.arange(DIMS.S) == 2),
    "bias": rng.normal(size=DIMS["NTT"]).astype(np.float32),
  }
  actual = jax.device_get(compiled(layer, return_weights=True)(variables, INPUTS, SOURCES, **options))
  params, *inputs = float64((variables["params"], INPUTS, SOURCES))
  assert_close(actual, reference.decoder_layer(params, *inputs, norm_position, rotates=True, **options))


def test_cached_encoder_layer_matches_the_whole():
  layer = EncoderLayer(self_attention_cls=ROTATING)

  @jax.jit
  def run(variables):
    options = {"mask": masks.causal(), "return_weights": True}
    cache = layer.apply(variables, INPUTS, DIMS.T, method="init_cache")
    first, first_weights, cache = layer.apply(variables, INPUTS[:, :3], cache=cache, **options)
    second, second_weights, cache = layer.apply(variables, INPUTS[:, 3:], cache=cache, **options)
    parts = jnp.concatenate([first, second], axis=1), jnp.concatenate([first_weights, second_weights], axis=2)
    return parts, layer.apply(variables, INPUTS, **options), cache.length

  parts, whole, lengths = jax.device_get(run(random_parameters(layer, INPUTS)))
  assert_close(parts, whole)
  np.testing.assert_array_equal(lengths, [DIMS.T, DIMS.T])


def test_options_reach_the_parts():
  received = {}

  def record(name, layer):
    def make(*arguments, **options):
      received[name] = arguments, options
      return layer(*arguments, **options)

    return make

  layer = attention.DecoderLayer(
    *(2, 7, 0.3, "pre", "blockwise", jnp.bfloat16, jnp.float16),
    self_attention_cls=record("self", attention.MultiHeadAttention),
    cross_attention_cls=record("cross", attention.MultiHeadAttention),
    feed_forward_cls=record("network", attention.FeedForward),
    norm_cls=record("norm", attention.RMSNorm),
    features=12,
  )
  shapes = jax.eval_shape(layer.init, jax.random.key(0), INPUTS, SOURCES)
  dtypes = {"dtype": jnp.bfloat16, "param_dtype": jnp.float16}
  options = {"num_heads": 2, "dropout_rate": 0.3, "implementation": "blockwise", **dtypes}
  assert received == {
    "self": ((), options),
    "cross": ((), {**options, "qkv_features": 12}),
    "network": ((7, 0.3), dtypes),
    "norm": ((), dtypes),
  }
  assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {np.dtype(np.float16)}
  assert set(shapes["params"]["cross_attention_norm"]) == {"scale"}  # that of RMSNorm, without a bias


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize(
  ("dtype", "of_inputs"), [(None, jnp.bfloat16), (jnp.bfloat16, jnp.float32), (jnp.float16, jnp.bfloat16)]
)
def test_outputs_have_the_layers_dtype(dtype, of_inputs, norm_position):
  layer = EncoderLayer(dtype=dtype, norm_position=norm_position)
  outputs, variables = jax.eval_shape(layer.init_with_output, jax.random.key(0), INPUTS.astype(of_inputs))
  assert outputs.dtype == (dtype or jnp.float32)  # the parameters are float32
  assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {np.dtype(np.float32)}


def test_dropout_of_hidden_units():
  # The network is the identity.
  layer = attention.FeedForward(DIMS.D, dropout_rate=0.25)
  params = {name: {"kernel": jnp.eye(DIMS.D), "bias": jnp.zeros(DIMS.D)} for name in ("hidden", "out")}
  inputs = np.abs(np.random.default_rng(0).normal(size=(53, DIMS.D))).astype(np.float32)
  run = compiled(layer, deterministic=False)
  outputs = jax.device_get(run({"params": params}, inputs, rngs={"dropout": jax.random.key(0)}))
  np.testing.assert_allclose(outputs, np.where(outputs == 0, 0, inputs / 0.75), rtol=1e-6)
  assert abs(np.mean(outputs == 0) - 0.25) < 5 * np.sqrt(0.25 * 0.75 / outputs.size)


@pytest.mark.parametrize(
  ("name", "sublayer"),
  [
    *(("encoder_layer", sublayer) for sublayer in ("attention", "feed_forward")),
    *(("decoder_layer", sublayer) for sublayer in ("attention", "cross_attention", "feed_forward")),
  ],
)
def test_dropout_after_every_sublayer(name, sublayer):
  # All parameters but the last bias of the sublayer are zero, so the layer adds that bias, after dropout, to
  # its inputs.
  layer = MODULES[name][0](dropout_rate=0.25)
  inputs = np.zeros((53, DIMS.T, DIMS.D), np.float32)
  arguments = (inputs,) if name == "encoder_layer" else (inputs, SOURCES[:1])
  params = jax.tree.map(np.zeros_like, random_parameters(layer, *arguments)["params"])
  bias = 3 + np.arange(DIMS.D, dtype=np.float32)
  params |= {sublayer: params[sublayer] | {"out": {**params[sublayer]["out"], "bias": bias}}}
  run, rngs = compiled(layer, deterministic=False), {"dropout": jax.random.key(0)}
  outputs = jax.device_get(run({"params": params}, *arguments, rngs=rngs))
  np.testing.assert_allclose(outputs, np.where(outputs == 0, 0, bias / 0.75), rtol=1e-6)
  assert abs(np.mean(outputs == 0) - 0.25) < 5 * np.sqrt(0.25 * 0.75 / outputs.size)


@modules
def test_deterministic_is_given_once(name):
  module, inputs = MODULES[name]
  variables = random_parameters(module(), *inputs)
  with pytest.raises(ValueError, match='"deterministic" was passed to the constructor and at call'):
    jax.eval_shape(lambda: module(deterministic=True).apply(variables, *inputs, deterministic=True))


def test_modules_can_be_pickled():
  modules = {name: make() for name, (make, _) in MODULES.items()}
  assert pickle.loads(pickle.dumps(modules)) == modules


@modules
def test_parameters_stay_float32_under_x64(name, float64):
  module, inputs = MODULES[name]
  shapes = jax.eval_shape(module().init_with_output, jax.random.key(0), *inputs)
  assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
  ("layer", "inputs", "message"),
  [
    (EncoderLayer(norm_position="Pre"), INPUTS, "norm_position must be pre, post or both, got 'Pre'"),
    (attention.EncoderLayer(5, 7), INPUTS, "qkv_features=12, num_heads=5"),
    (EncoderLayer(), None, "^inputs must be an array, got None"),
    (EncoderLayer(), np.ones(12, np.float32), r"must have axes \[\.\.\. [ST] D\], got shape \(12,\)"),
    (attention.FeedForward(0), INPUTS, "features must be an integer of at least 1, got 0"),
    (attention.FeedForward(3), np.ones((5, 7), int), "inputs must be floating-point, got int"),
  ],
)
def test_invalid_layers_raise(layer, inputs, message):
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(lambda rng: layer.init(rng, inputs), jax.random.key(0))
