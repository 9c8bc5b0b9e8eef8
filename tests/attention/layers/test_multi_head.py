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


SCALES = np.array([2.0, 3.0, 5.0, 7.0], np.float32)


def cosine(queries, keys):
  queries, keys = (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True) for vectors in (queries, keys))
  return SCALES[:, None, None] * (queries @ np.swapaxes(keys, -1, -2))


# Options of the layer, and of the formula.
OPTIONS = {
  "cosine": ({"score": attention.Cosine(SCALES), "out_features": DIMS.D}, {"scores": cosine}),
  "rotary": (
    {"num_key_value_heads": 2, "use_bias": False, "position_fn": positions.rotary, "normalize_qk": True},
    {"rotates": True},
  ),
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


XAVIER, NORMAL, ONES = nn.initializers.xavier_uniform(), nn.initializers.normal(), nn.initializers.ones


@pytest.mark.parametrize(
  "options",
  [{"kernel_init": XAVIER, "bias_init": NORMAL}, {"out_kernel_init": XAVIER, "out_bias_init": ONES}],
)
def test_parameters_begin_as_those_of_flax(options):
  options |= {"out_features": DIMS.D, "normalize_qk": True}
  layers = our_attention(**options), flax_attention(**options)
  run = jax.jit(lambda rng: [layer.init(rng, QUERIES, SOURCES) for layer in layers])
  chex.assert_trees_all_close(*run(jax.random.key(0)), rtol=1e-6)


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
  exact, half = (our_attention(normalize_qk=True, dtype=dtype) for dtype in (None, jnp.bfloat16))
  variables = random_parameters(exact, QUERIES, SOURCES)
  halves = QUERIES.astype(jnp.bfloat16), SOURCES.astype(jnp.bfloat16)

  @jax.jit
  def run(halves):
    floats = (array.astype(jnp.float32) for array in halves)
    return exact.apply(variables, *floats), exact.apply(variables, *halves), half.apply(variables, *halves)

  desired, unrounded, rounded = run(halves)
  assert_close(unrounded, desired)  # float32 parameters avoid rounding
  # bfloat16 has 8 bits; four products follow each other.
  np.testing.assert_allclose(rounded.astype(jnp.float32), desired, rtol=4 * 2**-7, atol=4 * 2**-7)


def test_parameters_stay_float32_under_x64(float64):
  layer = our_attention(use_sinks=True, use_gate=True, normalize_qk=True)
  shapes = jax.eval_shape(layer.init_with_output, jax.random.key(0), QUERIES, SOURCES)
  assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {np.dtype(np.float32)}


def test_width_of_heads_without_qkv_features():
  layer, key = attention.MultiHeadAttention(4), jax.random.key(0)
  inputs = jnp.ones((DIMS.B, DIMS.T, 8))
  params = jax.eval_shape(layer.init, key, inputs, SOURCES)["params"]
  assert params["key"]["kernel"].shape == (DIMS.E, 4, 2)  # the width of the queries
  prepared = jax.eval_shape(lambda: layer.init_with_output(key, inputs, method="project_kv")[0])
  assert prepared[0].shape == prepared[1].shape == (DIMS.B, 4, DIMS.T, 2)  # or of the sources, without them


def test_inputs_kv_and_lists():
  layer = our_attention()
  variables = random_parameters(layer, QUERIES, SOURCES)

  @jax.jit
  def run(queries, sources):
    others = layer.apply(variables, QUERIES[0].tolist(), inputs_kv=sources)
    return others, layer.apply(variables, queries, sources)

  assert_close(*run(QUERIES[0], SOURCES[0]))


def test_dropout_needs_an_rng():
  layer = our_attention(dropout_rate=0.4)
  variables = random_parameters(layer, QUERIES)

  @jax.jit
  def run(variables):
    draw = functools.partial(layer.apply, variables, QUERIES, deterministic=False)
    dropped = [draw(rngs={"dropout": jax.random.key(seed)}) for seed in (0, 0, 1)]
    return dropped, layer.apply(variables, QUERIES), our_attention().apply(variables, QUERIES)

  (first, again, other), deterministic, without = jax.device_get(run(variables))
  chex.assert_trees_all_equal((first, deterministic), (again, without))
  assert np.max(np.abs(first - other)) > 0.1 and np.max(np.abs(first - without)) > 0.1
  with pytest.raises(flax.errors.InvalidRngError):
    jax.eval_shape(lambda: layer.apply(variables, QUERIES, deterministic=False))


def test_nan_padding_reaches_no_gradient():
  # Padding is masked both as a key and as a query, so its outputs are the bias.
  layer, lengths = our_attention(normalize_qk=True, use_gate=True), np.array([3, 5])
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


LAYER = functools.partial(attention.MultiHeadAttention, num_heads=6, qkv_features=12)


@pytest.mark.parametrize(
  ("layer", "inputs", "message"),
  [
    (LAYER(num_key_value_heads=5), QUERIES, "num_heads=6, num_key_value_heads=5"),
    (LAYER(num_key_value_heads=0), QUERIES, "num_key_value_heads must be an integer of at least 1, got 0"),
    (LAYER(num_heads=5), QUERIES, "qkv_features=12, num_heads=5"),
    (LAYER(qkv_features=None), QUERIES, "qkv_features=13, num_heads=6"),
    (LAYER(num_heads=None), QUERIES, "num_heads must be an integer of at least 1, got None"),
    (LAYER(num_heads="8"), QUERIES, "num_heads must be an integer of at least 1, got '8'"),
    (LAYER(qkv_features=0), QUERIES, "qkv_features must be an integer of at least 1, got 0"),
    (LAYER(out_features=0), QUERIES, "out_features must be an integer .*, got 0"),
    (LAYER(dtype=jnp.int32), QUERIES, "dtype must be floating-point, got .*int32"),
    (LAYER(score="dot"), QUERIES, "score must be a Score .*, got 'dot'"),
    (LAYER(score=attention.Cosine), QUERIES, "score must be a Score .*, got .*Cosine"),
    (
      LAYER(use_sinks=True, normalizer=attention.Sparsemax()),
      QUERIES,
      r"normalizer must be None with use_sinks, got Sparsemax\(\)",
    ),
    (LAYER(), None, "^inputs_q must be an array, got None"),
    (LAYER(), np.ones((5, 6), int), "floating"),
    (LAYER(), QUERIES[0, 0], r"must have axes \[\.\.\. [ST] D\], got shape \(13,\)"),
  ],
)
def test_invalid_fields_and_inputs_raise(layer, inputs, message):
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(lambda rng: layer.init(rng, inputs), jax.random.key(0))


@pytest.mark.parametrize("others", [{"inputs_k": SOURCES}, {"inputs_v": SOURCES}])
def test_inputs_kv_exclude_others(others):
  with pytest.raises(ValueError, match="inputs_kv must be None if inputs_k or inputs_v is given"):
    our_attention().init(jax.random.key(0), QUERIES, inputs_kv=SOURCES, **others)
