"""Flax layers hold parameters and call the pure functions."""

import itertools

import chex
import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers import model_reference, reference
from helpers.fixtures import FLOAT32, always, assert_close
from helpers.model_reference import MODEL, compiled, float64, random_parameters

import attention
from attention import masks
from attention.layers.projections import LayerNorm
from attention.models.gru import GRUModule

# C, E: widths of queries and sources; the width of the layers is N H. F: of the feed-forward network. A:
# alignment.
DIMS = chex.Dimensions(B=2, T=5, S=7, N=3, H=11, C=13, E=17, F=19, A=23)
WIDTH = DIMS.N * DIMS.H


def array(*shape, seed=0):
  return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


queries, sources = array(*DIMS["BTC"], seed=1), array(*DIMS["BSE"], seed=2)
# The first key is always allowed, since Flax treats fully masked rows differently.
per_head = np.random.default_rng(3).random(DIMS["BNTS"]) < 0.6
per_head[..., 0] = True
MASKS = {"none": None, "pairs": per_head[0, 0], "sentences": per_head[:, :1], "heads": per_head}


def flax_attention(use_bias=True):
  return flax.linen.MultiHeadDotProductAttention(num_heads=DIMS.N, qkv_features=WIDTH, use_bias=use_bias)


def our_attention(**options):
  return attention.MultiHeadAttention(num_heads=DIMS.N, qkv_features=WIDTH, **options)


@pytest.mark.parametrize("use_bias", always(True, of=[True, False]), ids=["biases", "no_biases"])
@pytest.mark.parametrize("mask", always("none", "heads", of=MASKS))
def test_flax_parameters_give_flax_outputs(mask, use_bias):
  mask = None if MASKS[mask] is None else jnp.asarray(MASKS[mask])
  theirs, ours = flax_attention(use_bias), our_attention(use_bias=use_bias)
  variables = random_parameters(theirs, queries, sources)
  desired = compiled(theirs, deterministic=True)(variables, queries, sources, mask=mask)
  assert_close(compiled(ours)(variables, queries, sources, mask=mask), desired, MODEL)


@pytest.mark.parametrize("use_bias", [True, False], ids=["biases", "no_biases"])
def test_parameters_match_flax(use_bias):
  trees = [
    jax.eval_shape(module.init, jax.random.key(0), queries, sources)
    for module in (our_attention(use_bias=use_bias), flax_attention(use_bias))
  ]
  chex.assert_trees_all_equal_shapes_and_dtypes(*trees)


@pytest.mark.parametrize("K", always(1, of=[None, 3, 1]))
def test_layer_equals_the_pure_function(K):
  layer = our_attention(num_key_value_heads=K)
  variables = random_parameters(layer, queries, sources)
  mask, bias = jnp.asarray(per_head), array(*DIMS["NTS"], seed=4)
  options = {"mask": mask, "bias": bias, "return_weights": True}
  weights = attention.MultiHeadWeights(*model_reference.multi_head_fields(variables["params"]))
  assert weights.key.shape == (DIMS.E, K or DIMS.N, DIMS.H)
  pure = attention.multi_head_attention(queries, sources, weights, **options)
  own = layer.apply(variables, queries, sources, **options)
  desired = reference.multi_head_attention(
    queries, sources, model_reference.multi_head_fields(variables["params"]), mask=per_head, bias=bias
  )
  for ours, function, formula in zip(own, pure, desired, strict=False):
    assert_close(ours, function, FLOAT32)
    assert_close(ours, formula, 10 * MODEL)


def test_self_attention_without_sources():
  layer = our_attention()
  variables = random_parameters(layer, queries)
  desired = model_reference.self_attention(float64(variables["params"]), np.float64(queries))
  assert_close(compiled(layer)(variables, queries), desired, 10 * MODEL)
  assert_close(compiled(layer)(variables, queries, queries), desired, 10 * MODEL)


def test_prepared_sources_match_sources():
  layer = our_attention()
  variables = random_parameters(layer, queries, sources)
  keys_values = layer.apply(variables, sources, method="project_kv")
  attend = compiled(layer, "attend_with_kv", return_weights=True)
  result, pairs = attend(variables, queries, keys_values)
  desired = reference.multi_head_attention(
    queries, sources, model_reference.multi_head_fields(variables["params"])
  )
  assert_close(result, desired.context, 10 * MODEL)
  assert_close(pairs, desired.weights, MODEL)


def single_head_expected(kind, parameters, values, mask):
  parameters = float64(parameters)
  q, k = np.float64(queries), np.float64(sources)
  if kind == "bilinear":
    return reference.attend(reference.bilinear, q, k, values, matrix=parameters["matrix"], mask=mask)
  q, k = q @ parameters["query"]["kernel"], k @ parameters["key"]["kernel"]
  if kind == "additive":
    vector = parameters["score_vector"]
    return reference.attend(reference.additive, q, k, values, score_vector=vector, mask=mask)
  if kind == "cosine":
    return reference.attend(reference.cosine, q, k, values, scale=parameters["scale"], mask=mask)
  scale = DIMS.A**-0.5
  return reference.attend(reference.dot_product, q, k, values, scale=scale, mask=mask)


SINGLE_HEAD = {
  "additive": attention.AdditiveAttention(DIMS.A),
  "dot_product": attention.DotProductAttention(DIMS.A),
  "bilinear": attention.BilinearAttention(),
  "cosine": attention.CosineAttention(DIMS.A),
}


@pytest.mark.parametrize("kind", SINGLE_HEAD)
@pytest.mark.parametrize("has_values", [True, False], ids=["values", "keys_are_values"])
def test_single_head_layers_match_reference(kind, has_values):
  layer = SINGLE_HEAD[kind]
  values = array(*DIMS["BSF"], seed=5) if has_values else sources
  variables = random_parameters(layer, queries, sources)
  lengths = np.array([3, 7])
  actual = compiled(layer, return_weights=True)(
    variables,
    queries,
    sources,
    *([values] if has_values else []),
    mask=masks.lengths(source=jnp.asarray(lengths)),
  )
  mask = np.arange(DIMS.S) < lengths[:, None, None]
  desired = single_head_expected(kind, variables["params"], values, mask)
  assert_close(actual[0], desired.context, 10 * MODEL)
  assert_close(actual[1], desired.weights, MODEL)


@pytest.mark.parametrize("kind", SINGLE_HEAD)
def test_single_head_layers_add_a_bias(kind):
  layer = SINGLE_HEAD[kind]
  variables = random_parameters(layer, queries, sources)
  # So large that each query attends to one key only.
  chosen = np.array([6, 0, 3, 3, 1])
  bias = jnp.asarray(1e6 * (np.arange(DIMS.S) == chosen[:, None]), jnp.float32)
  context = layer.apply(variables, queries, sources, bias=bias)
  assert_close(context, np.asarray(sources)[:, chosen], FLOAT32)


def test_initial_cosine_scale():
  params = attention.CosineAttention(DIMS.A).init(jax.random.key(0), queries, sources)["params"]
  assert params["scale"] == np.float32(DIMS.A**0.5)


def test_feed_forward_matches_reference():
  layer = attention.FeedForward(DIMS.F)
  variables = random_parameters(layer, queries)
  desired = model_reference.feed_forward(float64(variables["params"]), np.float64(queries))
  assert_close(layer.apply(variables, queries), desired, MODEL)
  assert variables["params"]["hidden"]["kernel"].shape == (DIMS.C, DIMS.F)


def encoder_layer(norm, **options):
  return attention.EncoderLayer(DIMS.N, DIMS.F, norm_position=norm, **options)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("restricted", always(True, of=[False, True]), ids=["all", "mask_and_bias"])
def test_encoder_layer_matches_reference(norm, restricted):
  inputs = array(DIMS.B, DIMS.S, WIDTH, seed=6)
  mask = np.random.default_rng(7).random(DIMS["BNSS"]) < 0.6
  bias = array(*DIMS["NSS"], seed=8)
  layer = encoder_layer(norm)
  variables = random_parameters(layer, inputs)
  options = {"mask": jnp.asarray(mask), "bias": bias} if restricted else {}
  desired_options = {"mask": mask, "bias": bias} if restricted else {}
  desired = model_reference.encoder_layer(
    float64(variables["params"]), np.float64(inputs), norm, **desired_options
  )
  assert_close(compiled(layer)(variables, inputs, **options), desired, 10 * MODEL)


def decoder_layer(norm, **options):
  return attention.DecoderLayer(DIMS.N, DIMS.F, norm_position=norm, features=WIDTH, **options)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("restricted", always(True, of=[False, True]), ids=["all", "mask_and_bias"])
def test_decoder_layer_matches_reference(norm, restricted):
  inputs = array(DIMS.B, DIMS.T, WIDTH, seed=6)
  rng = np.random.default_rng(7)
  mask, source_mask = rng.random(DIMS["BNTT"]) < 0.6, rng.random(DIMS["BNTS"]) < 0.6
  bias = array(*DIMS["NTT"], seed=8)
  if not restricted:
    mask, source_mask, bias = mask | True, source_mask | True, 0 * bias
  layer = decoder_layer(norm)
  variables = random_parameters(layer, inputs, sources)
  options = {"mask": jnp.asarray(mask), "source_mask": jnp.asarray(source_mask), "bias": bias}
  apply = compiled(layer, return_weights=True)
  outputs, weights = apply(variables, inputs, sources, **(options if restricted else {}))
  parameters = float64(variables["params"])
  for b in range(DIMS.B):
    before = mask[b] & np.tril(np.ones((DIMS.T, DIMS.T), bool))

    def attend(parameters, inputs, before=before):
      return model_reference.multi_head(parameters, inputs, inputs, mask=before, bias=np.float64(bias))[0]

    desired, desired_weights = model_reference.decoder_layer(
      parameters, np.float64(inputs[b]), np.float64(sources[b]), norm, attend, source_mask[b]
    )
    assert_close(outputs[b], desired, 10 * MODEL)
    assert_close(weights[b], desired_weights, 10 * MODEL)


STOCHASTIC = {
  "multi_head": (our_attention(dropout_rate=0.4), (DIMS.B, DIMS.S, DIMS.E)),
  "feed_forward": (attention.FeedForward(DIMS.F, dropout_rate=0.4), (DIMS.B, DIMS.S, DIMS.E)),
  "encoder_layer": (encoder_layer("post", dropout_rate=0.4), (DIMS.B, DIMS.S, WIDTH)),
}


@pytest.mark.parametrize("name", STOCHASTIC)
def test_dropout_depends_on_key_and_deterministic(name):
  layer, shape = STOCHASTIC[name]
  inputs = array(*shape)
  variables = random_parameters(layer, inputs)

  def apply(seed, deterministic):
    rngs = {"dropout": jax.random.key(seed)}
    return compiled(layer, deterministic=deterministic)(variables, inputs, rngs=rngs)

  np.testing.assert_array_equal(apply(0, True), compiled(layer)(variables, inputs))
  np.testing.assert_array_equal(apply(0, False), apply(0, False))
  assert np.max(np.abs(apply(0, False) - apply(1, False))) > 0.1
  with pytest.raises(flax.errors.InvalidRngError):
    layer.apply(variables, inputs, deterministic=False)


@pytest.mark.parametrize("name", ["multi_head", "feed_forward"])
def test_dropout_preserves_the_mean(name):
  # Both are linear in the dropped units.
  layer, shape = STOCHASTIC[name]
  inputs = array(*shape)
  variables = random_parameters(layer, inputs)
  rngs = jax.random.split(jax.random.key(0), 1009)
  results = jax.jit(
    jax.vmap(lambda rng: layer.apply(variables, inputs, deterministic=False, rngs={"dropout": rng}))
  )(rngs)
  error = np.mean(results, axis=0) - layer.apply(variables, inputs)
  deviation = np.std(results, axis=0) / np.sqrt(len(rngs))
  # The largest of some thousand elements may be at five standard deviations.
  assert np.all(np.abs(error) < 5 * deviation + 1e-5)


@pytest.mark.parametrize(
  ("kind", "sublayer"),
  [
    *(("encoder", name) for name in ("attention", "feed_forward")),
    *(("decoder", name) for name in ("attention", "cross_attention", "feed_forward")),
  ],
)
def test_dropout_after_every_sublayer(kind, sublayer):
  # All parameters but the last bias of one sublayer are zero, so the layer adds that bias, after dropout, to
  # its inputs.
  layer = {"encoder": encoder_layer, "decoder": decoder_layer}[kind]("pre", dropout_rate=0.25)
  inputs = jnp.zeros((DIMS.B, DIMS.S, WIDTH))
  arguments = (inputs,) if kind == "encoder" else (inputs, sources)
  parameters = jax.tree.map(jnp.zeros_like, random_parameters(layer, *arguments)["params"])
  parameters[sublayer]["out"]["bias"] = 3.0 + jnp.arange(WIDTH, dtype=jnp.float32)
  rngs = {"dropout": jax.random.key(0)}
  result = layer.apply({"params": parameters}, *arguments, deterministic=False, rngs=rngs)
  scaled = np.broadcast_to(parameters[sublayer]["out"]["bias"] / 0.75, result.shape)
  assert_close(result, np.where(result == 0, 0, scaled), FLOAT32)
  share = np.mean(result == 0)
  assert abs(share - 0.25) < 5 * np.sqrt(0.25 * 0.75 / result.size)


@pytest.mark.parametrize("layer", [attention.AdditiveAttention(0), attention.DotProductAttention(0)])
def test_zero_width_raises(layer):
  with pytest.raises(ValueError, match="features must be an integer of at least 1, got 0"):
    layer.init(jax.random.key(0), queries, sources)


def test_integer_inputs_raise():
  integers = np.ones((5, 7), int)
  for layer in (our_attention(), *SINGLE_HEAD.values()):
    with pytest.raises(ValueError, match="floating"):
      layer.init(jax.random.key(0), integers, integers)


@pytest.mark.parametrize(
  ("dtype", "inputs_dtype", "norm"),
  always(
    *((None, jnp.bfloat16, "pre"), (jnp.bfloat16, jnp.float32, "post"), (jnp.float16, jnp.bfloat16, "pre")),
    of=list(
      itertools.product(
        (None, jnp.bfloat16, jnp.float16), (jnp.float32, jnp.bfloat16, jnp.float16), ("pre", "post")
      )
    ),
  ),
)
def test_encoder_layer_dtypes_match_flax(dtype, inputs_dtype, norm):
  inputs = jnp.asarray(array(DIMS.B, DIMS.S, WIDTH), inputs_dtype)
  layer = encoder_layer(norm, dtype=dtype)
  outputs, variables = jax.eval_shape(layer.init_with_output, jax.random.key(0), inputs)
  assert outputs.dtype == (dtype or jnp.float32)  # the parameters are float32
  assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {np.dtype(np.float32)}


@pytest.mark.parametrize("dtype", always(jnp.bfloat16, of=[jnp.bfloat16, jnp.float16]))
@pytest.mark.parametrize("kind", SINGLE_HEAD)
def test_single_head_layers_in_half_precision(kind, dtype):
  layer = SINGLE_HEAD[kind]
  variables = random_parameters(layer, queries, sources)
  half = jnp.asarray(queries, dtype), jnp.asarray(sources, dtype)
  context, weights = compiled(layer, return_weights=True)(variables, *half)
  assert context.dtype == weights.dtype == dtype
  desired = compiled(layer)(variables, *(array.astype(jnp.float32) for array in half))
  assert_close(np.float32(context), desired, 10 * float(jnp.finfo(dtype).eps))


@pytest.mark.parametrize("normalize_qk", [False, True])
def test_nan_padding_reaches_no_gradient(normalize_qk):
  # It is masked as a key, but is also a query.
  layer = our_attention(normalize_qk=normalize_qk)
  inputs = array(DIMS.B, DIMS.S, WIDTH)
  lengths = np.array([3, 7])
  is_padding = (np.arange(DIMS.S) >= lengths[:, None])[:, :, None]
  mask = masks.lengths(source=jnp.asarray(lengths)[:, None])
  variables = random_parameters(layer, inputs)
  random = np.where(is_padding, 0, array(*inputs.shape, seed=9))

  @jax.jit
  def gradients(variables, inputs):
    def loss(variables, inputs):
      outputs = layer.apply(variables, inputs, mask=mask)
      return jnp.sum(jnp.where(is_padding, 0, random * outputs))

    return jax.grad(loss, argnums=(0, 1))(variables, inputs)

  clean = np.where(is_padding, 0, inputs)
  desired = gradients(variables, clean)
  chex.assert_trees_all_equal(gradients(variables, np.where(is_padding, np.nan, inputs)), desired)


X64_LAYERS = {
  "multi_head": (attention.MultiHeadAttention(2, 6), (array(3, 5, 7),)),
  "additive": (attention.AdditiveAttention(4), (array(3, 5, 7), array(3, 2, 7))),
  "bilinear": (attention.BilinearAttention(), (array(3, 5, 7), array(3, 2, 7))),
  "recurrent_encoder": (attention.RecurrentEncoder(11, 5, 3), (np.ones((2, 5), int), np.array([5, 2]))),
  "transformer_encoder": (
    attention.TransformerEncoder(11, 4, num_heads=2),
    (np.ones((2, 5), int), np.array([5, 2])),
  ),
}


@pytest.mark.parametrize("name", X64_LAYERS)
def test_parameters_stay_float32_under_x64(name, float64):
  layer, inputs = X64_LAYERS[name]
  inputs = jax.tree.map(jnp.asarray, inputs)
  outputs, variables = jax.eval_shape(layer.init_with_output, jax.random.key(0), *inputs)
  dtypes = {leaf.dtype for leaf in jax.tree.leaves((outputs, variables))}
  assert dtypes == {np.dtype(np.float32)}


LAYERS = {
  "multi_head": (our_attention(), (queries, sources)),
  **{kind: (layer, (queries, sources)) for kind, layer in SINGLE_HEAD.items()},
  "feed_forward": (attention.FeedForward(DIMS.F), (queries,)),
  "encoder_layer": (encoder_layer("pre"), (array(DIMS.B, DIMS.S, WIDTH),)),
  "decoder_layer": (decoder_layer("pre"), (array(DIMS.B, DIMS.T, WIDTH), sources)),
}


@pytest.mark.parametrize("name", always("multi_head", of=LAYERS))
def test_nnx_users_can_wrap_a_layer(name):
  layer, inputs = LAYERS[name]
  wrapped = nnx.bridge.ToNNX(layer, rngs=nnx.Rngs(0)).lazy_init(*inputs)
  parameters = nnx.to_pure_dict(nnx.state(wrapped, nnx.Param))
  shapes = jax.eval_shape(layer.init, jax.random.key(0), *inputs)["params"]
  chex.assert_trees_all_equal_shapes(parameters, shapes)
  desired = compiled(layer)({"params": parameters}, *inputs)
  assert_close(wrapped(*inputs), desired, MODEL)


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_reach_every_parameter(name):
  layer, inputs = LAYERS[name]
  variables = random_parameters(layer, *inputs)
  random = array(*jax.eval_shape(layer.apply, variables, *inputs).shape, seed=9)

  def loss(variables):
    return jnp.sum(random * layer.apply(variables, *inputs))

  value, gradients = jax.jit(jax.value_and_grad(loss))(variables)
  if name == "decoder_layer":  # whose parts are the others
    assert_close(value / loss(variables), 1.0, MODEL)
  for path, gradient in flax.traverse_util.flatten_dict(gradients).items():
    assert np.all(np.isfinite(gradient)), path
    # A bias of all keys adds the same to all scores of a query, which has no effect.
    if path[-2:] != ("key", "bias"):
      assert np.max(np.abs(gradient)) > 1e-3, path


def assert_deviation(kernel, fan_in):
  """Asserts a variance of 1 / fan_in; an estimated deviation has a relative error of 1 / sqrt(2 n)."""
  estimate = np.std(np.float64(kernel)) * np.sqrt(fan_in)
  assert abs(estimate - 1) < 5 / np.sqrt(2 * kernel.size)


def test_initial_kernel_variance():
  layer = attention.MultiHeadAttention(num_heads=8, qkv_features=128, num_key_value_heads=4)
  parameters = layer.init(jax.random.key(0), jnp.ones((1, 31)), jnp.ones((1, 53)))["params"]
  assert_deviation(parameters["query"]["kernel"], 31)
  assert_deviation(parameters["key"]["kernel"], 53)
  assert_deviation(parameters["value"]["kernel"], 53)
  assert_deviation(parameters["out"]["kernel"], 128)
  for projection in parameters.values():
    np.testing.assert_array_equal(projection["bias"], 0.0)


def test_initial_alignment_variance():
  inputs = jnp.ones((1, 31)), jnp.ones((1, 53))
  additive = attention.AdditiveAttention(1009).init(jax.random.key(0), *inputs)["params"]
  assert_deviation(additive["query"]["kernel"], 31)
  assert_deviation(additive["key"]["kernel"], 53)
  assert_deviation(additive["score_vector"], 1009)


def test_gru_begins_with_orthogonal_gates():
  weights, _ = GRUModule(DIMS.H).init_with_output(jax.random.key(0), 211)
  assert_deviation(weights.input, 211)
  blocks = [np.float64(block) for block in np.split(weights.recurrent, 3, axis=1)]
  for block in blocks:
    assert_close(block.T @ block, np.eye(DIMS.H), MODEL)
  assert np.max(np.abs(blocks[0] - blocks[1])) > 0.1
  np.testing.assert_array_equal(np.concatenate([weights.bias, weights.recurrent_bias]), 0.0)


@pytest.mark.parametrize(
  ("layer", "message"),
  [
    (attention.MultiHeadAttention(3, 10), "qkv_features=10, num_heads=3"),
    (attention.MultiHeadAttention(6, 12, 4), "num_heads=6, num_key_value_heads=4"),
    (attention.MultiHeadAttention(6, 12, 0), "num_key_value_heads must be an integer of at least 1, got 0"),
    (attention.MultiHeadAttention(0, 12), "num_heads must be an integer of at least 1, got 0"),
    (attention.MultiHeadAttention(None), "integer of at least 1, got None"),
    (attention.MultiHeadAttention("8"), "integer of at least 1, got '8'"),
    (attention.MultiHeadAttention(2, 6, score=attention.Cosine), "score must be a Score .*, got .*Cosine"),
    (attention.MultiHeadAttention(2, 0), "qkv_features must be an integer of at least 1, got 0"),
    (attention.MultiHeadAttention(2), "qkv_features=13, num_heads=2"),
    (
      attention.MultiHeadAttention(2, 6, out_features=0),
      "out_features must be an integer of at least 1, got 0",
    ),
    (attention.MultiHeadAttention(2, 6, dtype=jnp.int32), "dtype must be floating-point, got .*int32"),
    (attention.MultiHeadAttention(2, 6, score="dot"), "score must be a Score .*, got 'dot'"),
    (attention.EncoderLayer(1, 7, norm_position="Pre"), "norm_position must be pre or post, got 'Pre'"),
    (attention.EncoderLayer(2, 7), "qkv_features=13, num_heads=2"),
  ],
)
def test_invalid_fields_raise(layer, message):
  with pytest.raises(ValueError, match=message):
    layer.init(jax.random.key(0), queries)


@pytest.mark.parametrize(
  ("layer", "name"), [(attention.MultiHeadAttention(1), "inputs_q"), (attention.EncoderLayer(1, 7), "inputs")]
)
def test_layers_take_lists_and_tell_none(layer, name):
  parameters = layer.init(jax.random.key(0), queries)
  np.testing.assert_array_equal(
    layer.apply(parameters, np.asarray(queries).tolist()), layer.apply(parameters, queries)
  )
  with pytest.raises(ValueError, match=f"^{name} must be an array, got None"):
    layer.init(jax.random.key(0), None)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_norm_matches_flax(dtype):
  rng = np.random.default_rng(0)
  inputs = jnp.asarray(rng.normal(3, 2, size=DIMS["BTC"]), dtype)
  params = {name: jnp.asarray(rng.normal(size=DIMS.C), dtype) for name in ("scale", "bias")}
  actual = LayerNorm().apply({"params": params}, inputs)
  desired = flax.linen.LayerNorm().apply(
    {"params": {name: leaf.astype(jnp.float32) for name, leaf in params.items()}}, inputs.astype(jnp.float32)
  )
  assert actual.dtype == dtype
  np.testing.assert_array_equal(actual, desired.astype(dtype))
