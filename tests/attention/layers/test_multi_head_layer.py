"""The Flax layer for multi-head attention: options, parameters, dtypes, dropout and errors."""

import functools

import chex
import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from helpers import model_reference as reference
from helpers.model_reference import compiled, float64, random_parameters
from jax.sharding import PartitionSpec

import attention
from attention import masks, positions

# C, E: widths of queries and sources. K: number of key heads. H is even, for rotary embeddings.
DIMS = chex.Dimensions(B=2, T=5, S=7, N=4, K=2, H=6, C=13, E=17, D=19)
WIDTH = DIMS.N * DIMS.H
rng = np.random.default_rng(0)
QUERIES, SOURCES, VALUES = (rng.normal(size=DIMS[axes]).astype(np.float32) for axes in ("BTC", "BSE", "BSD"))
# The first key is always allowed, since Flax treats fully masked rows differently.
MASK = (rng.random(DIMS["BNTS"]) < 0.6) | (np.arange(DIMS.S) == 0)
BIAS = rng.normal(size=DIMS["NTS"]).astype(np.float32)
assert_close = functools.partial(chex.assert_trees_all_close, rtol=1e-4, atol=1e-4)


def our_attention(**options):
  return attention.MultiHeadAttention(DIMS.N, WIDTH, **options)


def flax_attention(**options):
  return nn.MultiHeadDotProductAttention(DIMS.N, qkv_features=WIDTH, **options)


def test_layer_equals_the_pure_function():
  layer = our_attention(num_key_value_heads=1)
  variables = random_parameters(layer, QUERIES, SOURCES)

  @jax.jit
  def run(variables):
    params = variables["params"]
    names = "query", "key", "value", "out"
    weights = attention.MultiHeadWeights(
      *(params[name]["kernel"] for name in names), *(params[name]["bias"] for name in names)
    )
    options = {"mask": MASK, "bias": BIAS, "return_weights": True}
    pure = attention.multi_head_attention(QUERIES, SOURCES, weights, **options)
    return layer.apply(variables, QUERIES, SOURCES, **options), (pure.context, pure.weights)

  assert_close(*run(variables), rtol=1e-5, atol=1e-5)


SCALES = np.array([2.0, 3.0, 5.0, 7.0], np.float32)


def cosine(queries, keys):
  queries, keys = (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True) for vectors in (queries, keys))
  return SCALES[:, None, None] * (queries @ np.swapaxes(keys, -1, -2))


# Options of the layer, and of the formula.
OPTIONS = {
  "plain": ({}, {}),
  "grouped": ({"num_key_value_heads": 2, "use_bias": False}, {}),
  "width": ({"out_features": DIMS.D}, {}),
  "cosine": ({"score": attention.Cosine(SCALES)}, {"scores": cosine}),
  "rotary": ({"position_fn": positions.rotary}, {"rotates": True}),
  "normalized": ({"position_fn": positions.rotary, "normalize_qk": True}, {"rotates": True}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_match_their_formulas(name):
  layer = our_attention(**OPTIONS[name][0])
  variables = random_parameters(layer, QUERIES, SOURCES)
  apply = jax.jit(functools.partial(layer.apply, return_weights=True))
  actual = apply(variables, QUERIES, SOURCES, mask=MASK, bias=BIAS)
  params, *inputs = float64((variables["params"], QUERIES, SOURCES))
  assert_close(actual, reference.multi_head(params, *inputs, mask=MASK, bias=BIAS, **OPTIONS[name][1]))


class PerHead(nn.Module):
  """Additive scores with a trained vector per head."""

  @nn.compact
  def __call__(self, queries, keys):
    shape = queries.shape[-3], queries.shape[-1]
    return attention.Additive(self.param("score_vector", nn.initializers.normal(), shape, jnp.float32))


def test_results_and_gradients_with_all_options():
  layer = our_attention(
    num_key_value_heads=DIMS.K,
    out_features=DIMS.D,
    score=PerHead(),
    position_fn=positions.rotary,
    normalize_qk=True,
    use_sinks=True,
    use_gate=True,
    implementation="blockwise",
  )
  variables = random_parameters(layer, QUERIES, SOURCES)
  random = np.random.default_rng(1).normal(size=DIMS["BTD"]).astype(np.float32)

  def formula(params):
    def heads(name, inputs):
      kernel, bias = params[name]["kernel"], params[name]["bias"]
      heads = jnp.einsum("BTD,DNH->BNTH", inputs, kernel) + bias[None, :, None]
      if f"{name}_ln" in params:
        heads -= heads.mean(axis=-1, keepdims=True)
        heads *= jax.lax.rsqrt(jnp.mean(heads**2, axis=-1, keepdims=True) + 1e-6)
        heads = positions.rotary(heads * params[f"{name}_ln"]["scale"][None, None, None])
      return jnp.repeat(heads, DIMS.N // heads.shape[1], axis=1)

    queries, keys, values = heads("query", QUERIES), heads("key", SOURCES), heads("value", SOURCES)
    sums = jnp.tanh(queries[..., :, None, :] + keys[..., None, :, :])
    scores = jnp.einsum("BNTSH,NH->BNTS", sums, params["score"]["score_vector"])
    exponentials = jnp.where(MASK, jnp.exp(scores), 0)
    total = exponentials.sum(axis=-1, keepdims=True) + jnp.exp(params["sinks"])[None, :, None, None]
    weights = exponentials / total
    context = (weights @ values) * jax.nn.sigmoid(heads("gate", QUERIES))
    out = params["out"]
    return jnp.einsum("BNTH,NHD->BTD", context, out["kernel"]) + out["bias"][None, None], weights

  def run(params, function):
    def loss(params):
      outputs = function(params)
      return jnp.sum(random * outputs[0]), outputs

    return jax.grad(loss, has_aux=True)(params)

  def own(params):
    return layer.apply({"params": params}, QUERIES, SOURCES, mask=MASK, return_weights=True)

  params = variables["params"]
  actual, desired = jax.jit(lambda params: [run(params, function) for function in (own, formula)])(params)
  assert_close(actual, desired)


def test_rotation_matches_hand_value():
  # All queries and keys are (1, 0), so the score of positions at distance 1 is cos(1) / sqrt(2).
  layer = attention.MultiHeadAttention(1, position_fn=positions.rotary, use_bias=False)
  inputs, kernel = jnp.array([[1.0, 0.0], [1.0, 0.0]]), jnp.eye(2)[:, None]
  params = random_parameters(layer, inputs)["params"] | {
    "query": {"kernel": kernel},
    "key": {"kernel": kernel},
  }
  _, weights = jax.device_get(compiled(layer, return_weights=True)({"params": params}, inputs))
  near, far = np.exp(1 / np.sqrt(2)), np.exp(np.cos(1) / np.sqrt(2))
  np.testing.assert_allclose(weights, [np.array([[near, far], [far, near]]) / (near + far)], rtol=1e-5)


def test_flax_models_change_one_name():
  def model(layer_cls):
    class Model(nn.Module):
      @nn.compact
      def __call__(self, inputs, memory, values, mask):
        options = {"num_heads": DIMS.N, "qkv_features": WIDTH, "dropout_rate": 0.1, "deterministic": True}
        inputs += layer_cls(name="itself", normalize_qk=True, **options)(inputs)
        inputs += layer_cls(name="masked", use_bias=False, **options)(inputs, memory, mask=mask)
        inputs += layer_cls(name="three", **options)(inputs, memory, values)
        return layer_cls(out_features=8, name="named", **options)(inputs_q=inputs, inputs_k=memory)

    return Model()

  ours, theirs = (model(layer) for layer in (attention.MultiHeadAttention, nn.MultiHeadDotProductAttention))
  arguments = QUERIES, SOURCES, VALUES, MASK
  shapes = [jax.eval_shape(module.init, jax.random.key(0), *arguments) for module in (ours, theirs)]
  chex.assert_trees_all_equal_shapes_and_dtypes(*shapes)
  variables = random_parameters(theirs, *arguments)
  assert_close(compiled(ours)(variables, *arguments), compiled(theirs)(variables, *arguments))


@pytest.mark.parametrize(
  "options",
  [
    {"kernel_init": nn.initializers.xavier_uniform(), "bias_init": nn.initializers.normal()},
    {"out_kernel_init": nn.initializers.xavier_uniform(), "out_bias_init": nn.initializers.ones},
  ],
  ids=["all", "out"],
)
def test_parameters_begin_as_those_of_flax(options):
  ours, theirs = (
    jax.jit(layer(out_features=DIMS.D, normalize_qk=True, **options).init)(
      jax.random.key(0), QUERIES, SOURCES
    )
    for layer in (our_attention, flax_attention)
  )
  chex.assert_trees_all_close(ours, theirs, rtol=1e-6)


def test_initializers_may_carry_sharding():
  init = nn.with_partitioning(nn.initializers.lecun_normal(), ("model", "heads", None))
  shapes = jax.eval_shape(our_attention(kernel_init=init).init, jax.random.key(0), QUERIES, SOURCES)
  specs = nn.get_partition_spec(shapes)["params"]
  assert specs["query"]["kernel"] == PartitionSpec("model", "heads", None)
  assert flax.core.meta.unbox(shapes)["params"]["query"]["kernel"].shape == DIMS["CNH"]


@pytest.mark.parametrize(
  ("dtype", "param_dtype", "of_queries", "of_sources"),
  [
    (None, jnp.float32, jnp.bfloat16, jnp.bfloat16),
    (None, jnp.bfloat16, jnp.bfloat16, jnp.bfloat16),
    (None, jnp.bfloat16, jnp.float16, jnp.bfloat16),
    (jnp.bfloat16, jnp.float32, jnp.float32, jnp.float32),
    (jnp.float16, jnp.bfloat16, jnp.float32, jnp.bfloat16),
  ],
)
def test_dtypes_match_flax(dtype, param_dtype, of_queries, of_sources):
  options = {"dtype": dtype, "param_dtype": param_dtype, "normalize_qk": True}
  inputs = QUERIES.astype(of_queries), SOURCES.astype(of_sources)
  ours = jax.eval_shape(our_attention(**options).init_with_output, jax.random.key(0), *inputs)
  with jax.numpy_dtype_promotion("standard"):  # required by Flax's layer
    theirs = jax.eval_shape(flax_attention(**options).init_with_output, jax.random.key(0), *inputs)
  chex.assert_trees_all_equal_shapes_and_dtypes(ours, theirs)


def test_half_precision_inputs_match_float32():
  exact = our_attention(normalize_qk=True)
  variables = random_parameters(exact, QUERIES, SOURCES)
  halves = QUERIES.astype(jnp.bfloat16), SOURCES.astype(jnp.bfloat16)
  desired = compiled(exact)(variables, *(half.astype(jnp.float32) for half in halves))
  assert_close(compiled(exact)(variables, *halves), desired)  # float32 parameters avoid rounding
  layer = our_attention(normalize_qk=True, dtype=jnp.bfloat16)
  rounded = compiled(layer)(variables, *halves).astype(jnp.float32)
  np.testing.assert_allclose(rounded, desired, rtol=0.1, atol=0.1)


def test_parameters_stay_float32_under_x64(float64):
  layer = our_attention(use_sinks=True, use_gate=True, normalize_qk=True)
  shapes = jax.eval_shape(layer.init_with_output, jax.random.key(0), QUERIES, SOURCES)
  assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {np.dtype(np.float32)}


def test_prepared_sources_match_sources():
  layer = our_attention()
  variables = random_parameters(layer, QUERIES, SOURCES, VALUES)

  @jax.jit
  def run(variables):
    prepared = layer.apply(variables, SOURCES, VALUES, method="project_kv")
    of_prepared = layer.apply(variables, QUERIES, prepared, return_weights=True, method="attend_with_kv")
    return of_prepared, layer.apply(variables, QUERIES, SOURCES, VALUES, return_weights=True)

  assert_close(*run(variables))


def test_width_of_heads_without_qkv_features():
  layer, key = attention.MultiHeadAttention(4), jax.random.key(0)
  inputs = jnp.ones((DIMS.B, DIMS.T, 8))
  params = jax.eval_shape(layer.init, key, inputs, SOURCES)["params"]
  assert params["key"]["kernel"].shape == (DIMS.E, 4, 2)  # the width of the queries
  prepared = jax.eval_shape(lambda: layer.init_with_output(key, inputs, method="project_kv")[0])
  assert prepared[0].shape == prepared[1].shape == (DIMS.B, 4, DIMS.T, 2)  # or of the sources, without them


def test_inputs_kv_are_keys_and_values():
  layer = our_attention()
  variables = random_parameters(layer, QUERIES, SOURCES)
  named = compiled(layer)(variables, QUERIES, inputs_kv=SOURCES)
  chex.assert_trees_all_equal(named, compiled(layer)(variables, QUERIES, SOURCES))
  for others in ({"inputs_k": SOURCES}, {"inputs_v": SOURCES}):
    with pytest.raises(ValueError, match="inputs_kv must be None if inputs_k or inputs_v is given"):
      layer.apply(variables, QUERIES, inputs_kv=SOURCES, **others)


def test_dropout_needs_an_rng():
  layer = our_attention(dropout_rate=0.4)
  variables = random_parameters(layer, QUERIES)

  @jax.jit
  def run(variables):
    dropped = [
      layer.apply(variables, QUERIES, deterministic=False, rngs={"dropout": jax.random.key(seed)})
      for seed in (0, 0, 1)
    ]
    return (
      dropped,
      layer.apply(variables, QUERIES, deterministic=True),
      our_attention().apply(variables, QUERIES),
    )

  (first, again, other), deterministic, without = jax.device_get(run(variables))
  chex.assert_trees_all_equal(first, again)
  assert np.max(np.abs(first - other)) > 0.1 and np.max(np.abs(first - without)) > 0.1
  chex.assert_trees_all_equal(deterministic, without)
  with pytest.raises(flax.errors.InvalidRngError):
    jax.eval_shape(lambda: layer.apply(variables, QUERIES, deterministic=False))


@pytest.mark.parametrize("options", [{}, {"normalize_qk": True, "use_gate": True}], ids=["plain", "all"])
def test_nan_padding_reaches_no_gradient(options):
  # Padding is masked both as a key and as a query, so its outputs are the bias.
  layer, lengths = our_attention(**options), np.array([3, 5])
  mask = masks.lengths(source=lengths[:, None], target=lengths[:, None])
  variables = random_parameters(layer, QUERIES)

  @jax.jit
  def run(variables, inputs):
    def loss(variables, inputs):
      outputs = layer.apply(variables, inputs, mask=mask)
      return jnp.sum(outputs**2), outputs

    return jax.grad(loss, argnums=(0, 1), has_aux=True)(variables, inputs)

  is_padding = (np.arange(DIMS.T) >= lengths[:, None])[:, :, None]
  desired = jax.device_get(run(variables, np.where(is_padding, 0, QUERIES)))
  chex.assert_trees_all_equal(run(variables, np.where(is_padding, np.float32(np.nan), QUERIES)), desired)
  chex.assert_tree_all_finite(desired)


@pytest.mark.parametrize(
  ("layer", "message"),
  [
    (attention.MultiHeadAttention(3, 10), "qkv_features=10, num_heads=3"),
    (attention.MultiHeadAttention(2), "qkv_features=13, num_heads=2"),
    (attention.MultiHeadAttention(6, 12, 4), "num_heads=6, num_key_value_heads=4"),
    (attention.MultiHeadAttention(6, 12, 0), "num_key_value_heads must be an integer of at least 1, got 0"),
    (attention.MultiHeadAttention(None), "num_heads must be an integer of at least 1, got None"),
    (attention.MultiHeadAttention("8"), "num_heads must be an integer of at least 1, got '8'"),
    (attention.MultiHeadAttention(2, 0), "qkv_features must be an integer of at least 1, got 0"),
    (attention.MultiHeadAttention(2, 6, out_features=0), "out_features must be an integer .*, got 0"),
    (attention.MultiHeadAttention(2, 6, dtype=jnp.int32), "dtype must be floating-point, got .*int32"),
    (attention.MultiHeadAttention(2, 6, score="dot"), "score must be a Score .*, got 'dot'"),
    (attention.MultiHeadAttention(2, 6, score=attention.Cosine), "score must be a Score .*, got .*Cosine"),
    (
      attention.MultiHeadAttention(2, 6, use_sinks=True, normalizer=attention.Sparsemax()),
      r"normalizer must be None with use_sinks, got Sparsemax\(\)",
    ),
  ],
)
def test_invalid_fields_raise(layer, message):
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(layer.init, jax.random.key(0), QUERIES)


@pytest.mark.parametrize(
  ("inputs", "message"),
  [
    (None, "^inputs_q must be an array, got None"),
    (np.ones((5, 6), int), "floating"),
    (np.ones(6, np.float32), r"must have axes \[\.\.\. [ST] D\], got shape \(6,\)"),
  ],
)
def test_invalid_inputs_raise(inputs, message):
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(lambda rng: attention.MultiHeadAttention(2).init(rng, inputs), jax.random.key(0))


def test_inputs_may_be_lists():
  layer = our_attention()
  variables = random_parameters(layer, QUERIES[0])
  output = jax.jit(lambda: layer.apply(variables, QUERIES[0].tolist()))()
  assert_close(output, compiled(layer)(variables, QUERIES[0]))
