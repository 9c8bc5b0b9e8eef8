"""Options of multi-head attention: scores, rotary embeddings, normalization, dtypes, initializers, widths."""

import functools

import chex
import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from helpers import model_reference, reference
from helpers.fixtures import FLOAT32, always, assert_close
from helpers.model_reference import MODEL, compiled, float64, random_parameters
from jax.sharding import PartitionSpec

import attention
from attention import masks, positions

# C, E: widths of queries and sources. N: two heads share a key and value head. H is even, for rotary
# embeddings.
DIMS = chex.Dimensions(B=2, T=5, S=7, N=4, K=2, H=6, C=13, E=17, D=19, F=23)
WIDTH = DIMS.N * DIMS.H
LENGTHS = np.array([4, 7])


def array(*shape, seed=0):
  return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


queries, sources = array(*DIMS["BTC"], seed=1), array(*DIMS["BSE"], seed=2)


def our_attention(**options):
  return attention.MultiHeadAttention(DIMS.N, WIDTH, **options)


def flax_attention(qkv_features=WIDTH, **options):
  return nn.MultiHeadDotProductAttention(DIMS.N, qkv_features=qkv_features, **options)


class PerHead(nn.Module):
  """Additive scores with a trained vector per head."""

  @nn.compact
  def __call__(self, queries, keys):
    shape = queries.shape[-3], queries.shape[-1]
    return attention.Additive(self.param("score_vector", nn.initializers.normal(), shape, jnp.float32))


SCALES = np.array([2.0, 3.0, 5.0, 7.0], np.float32)
# Options of the layer, and the corresponding options of the reference, given the parameters.
OPTIONS = {
  "cosine": ({"score": attention.Cosine(SCALES)}, {"pair_score": reference.cosine, "scale": SCALES}),
  "capped": (
    {"score": attention.SoftCap(attention.ScaledDotProduct(1.0), 2.0)},
    {"pair_score": lambda query, key: 2 * np.tanh(np.sum(query * key) / 2)},
  ),
  "rotary": ({"position_fn": positions.rotary}, {"rotates": True}),
  "normalised": ({"normalize_qk": True}, {}),
  "rotary_normalised": ({"position_fn": positions.rotary, "normalize_qk": True}, {"rotates": True}),
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("K", always(DIMS.K, of=[None, DIMS.K]))
def test_options_match_their_formulas(name, K):
  options, desired_options = OPTIONS[name]
  layer = our_attention(num_key_value_heads=K, **options)
  variables = random_parameters(layer, queries, sources)
  mask = masks.lengths(source=jnp.asarray(LENGTHS)[:, None])
  # Not `compiled`: scores that contain arrays are not hashable.
  apply = jax.jit(functools.partial(layer.apply, return_weights=True))
  actual = apply(variables, queries, sources, mask=mask)
  parameters = float64(variables["params"])
  for b, length in enumerate(LENGTHS):
    context, weights = model_reference.multi_head(
      parameters, np.float64(queries[b]), np.float64(sources[b, :length]), **desired_options
    )
    assert_close(actual[0][b], context, 10 * MODEL)
    assert_close(actual[1][b, ..., :length], weights, MODEL)


@pytest.mark.parametrize("K", [None, DIMS.K])
def test_score_modules_have_parameters(K):
  layer = our_attention(num_key_value_heads=K, score=PerHead())
  variables = random_parameters(layer, queries, sources)
  score_vector = variables["params"]["score"]["score_vector"]
  assert score_vector.shape == DIMS["NH"]
  actual = compiled(layer)(variables, queries, sources)
  for b in range(DIMS.B):
    context, _ = model_reference.multi_head(
      float64(variables["params"]),
      np.float64(queries[b]),
      np.float64(sources[b]),
      pair_score=reference.additive,
      score_vector=np.float64(score_vector),
    )
    assert_close(actual[b], context, 10 * MODEL)


def test_rotation_matches_hand_value():
  # All queries and keys are (1, 0), so the score of positions at distance 1 is cos(1) / sqrt(2).
  layer = attention.MultiHeadAttention(1, position_fn=positions.rotary, use_bias=False)
  inputs = jnp.asarray([[1.0, 0.0], [1.0, 0.0]])
  variables = layer.init(jax.random.key(0), inputs)
  kernel = jnp.eye(2)[:, None]
  parameters = dict(variables["params"], query={"kernel": kernel}, key={"kernel": kernel})
  _, weights = layer.apply({"params": parameters}, inputs, return_weights=True)
  near, far = np.exp(1 / np.sqrt(2)), np.exp(np.cos(1) / np.sqrt(2))
  desired = np.array([[near, far], [far, near]]) / (near + far)
  assert_close(weights, [desired], FLOAT32)


def test_normalized_vectors_match_hand_values():
  # (3, 1) and (1, 3) minus their mean, divided by their deviation of 1, are (1, -1) and (-1, 1), times a
  # scale of 2.
  layer = attention.MultiHeadAttention(1, normalize_qk=True, use_bias=False)
  inputs = jnp.asarray([[3.0, 1.0], [1.0, 3.0]])
  variables = layer.init(jax.random.key(0), inputs)
  kernel = {"kernel": jnp.eye(2)[:, None]}
  parameters = dict(variables["params"], query=kernel, key=kernel, query_ln={"scale": jnp.full(2, 2.0)})
  _, weights = layer.apply({"params": parameters}, inputs, return_weights=True)
  score = 2 * (1 + 1) / np.sqrt(2)
  same, other = np.exp(score), np.exp(-score)
  # The variance is 1 + 1e-6.
  assert_close(weights, [np.array([[same, other], [other, same]]) / (same + other)], 1e-5)


def flax_equals(ours, theirs, *inputs):
  """Asserts that both layers have the same tree of parameters and the same result."""
  chex.assert_trees_all_equal_shapes_and_dtypes(
    *(jax.eval_shape(module.init, jax.random.key(0), *inputs) for module in (ours, theirs))
  )
  variables = random_parameters(theirs, *inputs)
  assert_close(compiled(ours)(variables, *inputs), compiled(theirs)(variables, *inputs), 10 * MODEL)


@pytest.mark.parametrize("use_bias", [True, False], ids=["biases", "no_biases"])
def test_normalization_matches_flax(use_bias):
  options = {"normalize_qk": True, "use_bias": use_bias}
  flax_equals(our_attention(**options), flax_attention(**options), queries, sources)


def test_result_width_matches_flax():
  options = {"out_features": DIMS.D}
  flax_equals(our_attention(**options), flax_attention(**options), queries, sources)


def test_flax_models_change_one_name():
  def model(layer_cls):
    class Model(nn.Module):
      @nn.compact
      def __call__(self, inputs, memory, mask):
        options = {"num_heads": DIMS.N, "qkv_features": WIDTH, "dropout_rate": 0.1, "deterministic": True}
        inputs += layer_cls(name="itself", **options)(inputs)
        inputs += layer_cls(name="masked", **options)(inputs, memory, mask=mask)
        inputs += layer_cls(name="three", **options)(inputs, memory, 2 * memory)
        return layer_cls(out_features=7, name="named", **options)(inputs_q=inputs, inputs_k=memory)

    return Model()

  mask = np.random.default_rng(3).random((DIMS.B, DIMS.N, DIMS.T, DIMS.S)) < 0.7
  ours = model(attention.MultiHeadAttention)
  flax_equals(ours, model(nn.MultiHeadDotProductAttention), queries, sources, mask | (np.arange(DIMS.S) == 0))


def test_inputs_kv_are_keys_and_values():
  layer = our_attention()
  variables = layer.init(jax.random.key(0), queries, sources)
  np.testing.assert_array_equal(
    layer.apply(variables, queries, inputs_kv=sources), layer.apply(variables, queries, sources)
  )
  with pytest.raises(ValueError, match="inputs_kv must be None if inputs_k or inputs_v is given"):
    layer.apply(variables, queries, sources, inputs_kv=sources)


def test_default_widths_match_flax():
  ours = attention.MultiHeadAttention(DIMS.N)
  flax_equals(ours, flax_attention(None), array(DIMS.B, DIMS.T, WIDTH), sources)


def test_default_width_of_prepared_sources():
  layer = attention.MultiHeadAttention(DIMS.N)
  inputs, others = array(DIMS.B, DIMS.T, DIMS.C), array(DIMS.B, DIMS.S, WIDTH)
  (keys, values), _ = layer.init_with_output(jax.random.key(0), others, method="project_kv")
  assert keys.shape == values.shape == DIMS["BNSH"]
  variables = random_parameters(layer, inputs, (keys, values), method="attend_with_kv")
  assert variables["params"]["query"]["kernel"].shape == DIMS["CNH"]


@pytest.mark.parametrize(
  "dtype", always(None, jnp.bfloat16, of=[None, jnp.bfloat16, jnp.float16, jnp.float32])
)
@pytest.mark.parametrize("param_dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize(
  ("of_queries", "of_sources"),
  [
    (jnp.float32, jnp.float32),
    (jnp.bfloat16, jnp.bfloat16),
    (jnp.bfloat16, jnp.float32),
    (jnp.float16, jnp.bfloat16),
  ],
)
def test_dtypes_match_flax(dtype, param_dtype, of_queries, of_sources):
  options = {"dtype": dtype, "param_dtype": param_dtype, "normalize_qk": True, "out_features": DIMS.D}
  inputs = queries.astype(of_queries), sources.astype(of_sources)
  ours = jax.eval_shape(our_attention(**options).init_with_output, jax.random.key(0), *inputs)
  with jax.numpy_dtype_promotion("standard"):  # required by Flax's layer
    theirs = jax.eval_shape(flax_attention(**options).init_with_output, jax.random.key(0), *inputs)
  chex.assert_trees_all_equal_shapes_and_dtypes(ours, theirs)


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_half_precision_inputs_match_float32(dtype):
  layer, exact = our_attention(dtype=dtype, normalize_qk=True), our_attention(normalize_qk=True)
  variables = random_parameters(exact, queries, sources)
  halves = queries.astype(jnp.bfloat16), sources.astype(jnp.bfloat16)
  desired = compiled(exact)(variables, *(half.astype(jnp.float32) for half in halves))
  # Without a dtype, float32 parameters avoid rounding. bfloat16 has 8 bits; several products follow each
  # other.
  tolerance = MODEL if dtype is None else 20 * float(jnp.finfo(dtype).eps)
  assert_close(np.float32(compiled(layer)(variables, *halves)), desired, tolerance)


INITIALISERS = {
  "default": {},
  "orthogonal": {"kernel_init": nn.initializers.orthogonal(), "bias_init": nn.initializers.normal()},
  "of_out": {
    "out_kernel_init": nn.initializers.xavier_uniform(),
    "out_bias_init": nn.initializers.constant(3.0),
  },
}


@pytest.mark.parametrize("name", INITIALISERS)
def test_parameters_begin_as_those_of_flax(name):
  options = {"out_features": DIMS.D, "normalize_qk": True, **INITIALISERS[name]}
  ours, theirs = (
    layer(**options).init(jax.random.key(0), queries, sources) for layer in (our_attention, flax_attention)
  )
  chex.assert_trees_all_equal(ours, theirs)


def test_initializers_may_carry_sharding():
  init = nn.with_partitioning(nn.initializers.lecun_normal(), ("model", "heads", None))
  layer = our_attention(kernel_init=init)
  variables = layer.init(jax.random.key(0), queries, sources)
  assert nn.get_partition_spec(variables)["params"]["query"]["kernel"] == PartitionSpec(
    "model", "heads", None
  )
  desired = our_attention().init(jax.random.key(0), queries, sources)
  chex.assert_trees_all_equal(flax.core.meta.unbox(variables), desired)


def rotating(*args, **options):
  return attention.MultiHeadAttention(
    *args, position_fn=positions.rotary, num_key_value_heads=1, normalize_qk=True, **options
  )


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_encoder_layer_uses_its_options(norm):
  inputs = array(DIMS.B, DIMS.S, WIDTH, seed=6)
  layer = attention.EncoderLayer(DIMS.N, DIMS.F, norm_position=norm, self_attention_cls=rotating)
  variables = random_parameters(layer, inputs)
  parameters = float64(variables["params"])
  assert set(parameters) == {"attention", "attention_norm", "feed_forward", "feed_forward_norm"}
  assert parameters["attention"]["key"]["kernel"].shape == (WIDTH, 1, DIMS.H)
  actual = compiled(layer)(variables, inputs)

  def attend(parameters, inputs):
    return model_reference.multi_head(parameters, inputs, inputs, rotates=True)[0]

  for b in range(DIMS.B):
    desired = model_reference.encoder_layer(parameters, np.float64(inputs[b]), norm, attend)
    assert_close(actual[b], desired, 10 * MODEL)


def test_encoder_layer_passes_options_on():
  result = {}

  def self_attention_cls(**options):
    result.update(options)
    return attention.MultiHeadAttention(**options)

  layer = attention.EncoderLayer(
    DIMS.N, DIMS.F, 0.3, "pre", "blockwise", jnp.bfloat16, jnp.float16, self_attention_cls
  )
  variables = jax.eval_shape(layer.init, jax.random.key(0), array(DIMS.T, WIDTH))
  assert result == {
    "num_heads": DIMS.N,
    "dropout_rate": 0.3,
    "implementation": "blockwise",
    "dtype": jnp.bfloat16,
    "param_dtype": jnp.float16,
  }
  assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {np.dtype(jnp.float16)}


def test_gradients_with_all_options():
  layer = our_attention(
    num_key_value_heads=DIMS.K,
    out_features=DIMS.D,
    score=PerHead(),
    position_fn=positions.rotary,
    normalize_qk=True,
  )
  variables = random_parameters(layer, queries, sources)
  random = array(*DIMS["BTD"], seed=9)

  def loss(variables):
    return jnp.sum(random * layer.apply(variables, queries, sources))

  def exact_loss(parameters):
    options = {"pair_score": reference.additive, "score_vector": parameters["score"]["score_vector"]}
    inputs = (float64(pair) for pair in zip(queries, sources, strict=True))
    results = [model_reference.multi_head(parameters, *pair, rotates=True, **options)[0] for pair in inputs]
    return np.sum(np.float64(random) * np.stack(results))

  gradients = jax.jit(jax.grad(loss))(variables)["params"]
  parameters = float64(variables["params"])
  rng = np.random.default_rng(3)
  for name in ("query", "key", "value", "out", "query_ln", "key_ln", "score"):
    direction = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), parameters[name])

    def along(step, name=name, direction=direction):
      return exact_loss(
        parameters | {name: jax.tree.map(lambda x, d: x + step * d, parameters[name], direction)}
      )

    slopes = jax.tree.map(lambda g, d: np.sum(np.float64(g) * d), gradients[name], direction)
    assert_close(sum(jax.tree.leaves(slopes)), reference.derivative(along, 0.0, 1.0), 10 * MODEL)
