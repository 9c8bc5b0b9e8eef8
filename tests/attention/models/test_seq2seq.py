"""Encoder and decoder together."""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.fixtures import always, assert_close
from helpers.model_reference import MODEL, compiled, random_parameters

import attention
from attention.models.decoder_attention import ATTENTION_TYPES

# H: width of the decoder's state; the transformer's width is 2 E.
DIMS = chex.Dimensions(B=3, T=5, S=7, V=13, E=11, H=22)
LENGTHS = np.array([4, 7, 1])
random = np.random.default_rng(0)
SOURCES = random.integers(DIMS.V, size=DIMS["BS"])
TARGETS = random.integers(DIMS.V, size=DIMS["BT"])

ENCODERS = {
  "recurrent": attention.RecurrentEncoder(DIMS.V, DIMS.E, DIMS.H, num_layers=2, dropout_rate=0.5),
  "transformer": attention.TransformerEncoder(DIMS.V, 2 * DIMS.E, num_heads=2, mlp_dim=17, dropout_rate=0.5),
}
DROPOUT = {"variational_dropout": True, "word_dropout_rate": 0.3}
RECURRENT = {"num_layers": 2, "residual": True, "layer_norm": True, "recurrent_dropout_rate": 0.3, **DROPOUT}
# With these the decoder has every option too.
ENCODERS["deep"] = ENCODERS["recurrent"].clone(**RECURRENT)
ENCODERS["variational"] = ENCODERS["transformer"].clone(**DROPOUT)
PAIRS = [
  ("recurrent", "additive"),
  ("transformer", "multi_head"),
  ("recurrent", "none"),
  ("deep", "additive"),
  ("variational", "multi_head"),
  ("recurrent", "transformer"),
  ("variational", "transformer"),
]
pairs = pytest.mark.parametrize(
  ("encoder", "kind"), always(("deep", "additive"), ("variational", "transformer"), of=PAIRS)
)


def model(encoder, kind):
  if kind == "transformer":
    options = {"tied_embeddings": True, **DROPOUT} if encoder == "variational" else {}
    sizes = {"num_heads": 2, "mlp_dim": 17, "dropout_rate": 0.5}
    return attention.Seq2Seq(
      ENCODERS[encoder], attention.TransformerDecoder(DIMS.V, DIMS.H, **sizes, **options)
    )
  options = {"tied_embeddings": True, **RECURRENT} if encoder in ("deep", "variational") else {}
  decoder = attention.RecurrentDecoder(DIMS.V, DIMS.E, DIMS.H, kind, num_heads=2, dropout_rate=0.5, **options)
  return attention.Seq2Seq(ENCODERS[encoder], decoder)


def arguments(rows=slice(None), width=DIMS.S):
  return tuple(jnp.asarray(array[rows]) for array in (SOURCES[:, :width], LENGTHS, TARGETS))


@functools.cache
def variables_of(module):
  return random_parameters(module, *arguments())


@pairs
def test_encode_and_steps_match_call(encoder, kind):
  module = model(encoder, kind)
  variables = variables_of(module)
  logits, weights = compiled(module)(variables, *arguments())
  state, memory = compiled(module, "encode", max_length=DIMS.T)(variables, *arguments()[:2])
  for t in range(DIMS.T):
    state, step_logits, step_weights = compiled(module, "step")(
      variables, state, jnp.asarray(TARGETS[:, t]), memory
    )
    assert_close(step_logits, logits[:, t], 10 * MODEL)
    if kind == "none":
      assert weights is None and step_weights is None
    else:
      assert_close(step_weights, weights[:, t], 10 * MODEL)


@pairs
def test_single_sentence_matches_batch(encoder, kind):
  module = model(encoder, kind)
  variables = variables_of(module)
  logits, weights = compiled(module)(variables, *arguments())
  alone, own_weights = compiled(module)(variables, *arguments(slice(0, 1), width=4))
  assert_close(alone[0], logits[0], 10 * MODEL)
  if kind != "none":
    assert_close(own_weights[0], weights[0, :, :4], 10 * MODEL)


@pairs
def test_gradients_reach_every_parameter(encoder, kind):
  module = model(encoder, kind)
  variables = variables_of(module)

  def loss(variables):
    logits, _ = module.apply(variables, *arguments())
    return jnp.sum(logits**2)

  for path, gradient in jax.tree.leaves_with_path(jax.jit(jax.grad(loss))(variables)):
    assert np.all(np.isfinite(gradient)), path
    # A bias of all keys adds the same to all scores of a query, which has no effect.
    if [key.key for key in path[-2:]] != ["key", "bias"]:
      assert np.max(np.abs(gradient)) > 1e-4, path


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_encoder_and_decoder_drop_units(part):
  module = model("recurrent", "additive")
  other = "decoder" if part == "encoder" else "encoder"
  module = module.clone(**{other: getattr(module, other).clone(dropout_rate=0.0)})
  variables = variables_of(module)
  logits = [
    compiled(module, deterministic=False)(variables, *arguments(), rngs={"dropout": jax.random.key(seed)})[0]
    for seed in (0, 1)
  ]
  assert np.max(np.abs(logits[0] - logits[1])) > 0.1


@pairs
def test_features_times_output_weights_are_logits(encoder, kind):
  module = model(encoder, kind)
  variables = variables_of(module)
  features = compiled(module, "output_features")(variables, *arguments())
  logits, weights = compiled(module)(variables, *arguments())
  vectors, kernel, bias = map(np.float64, features[:3])
  assert_close(vectors @ kernel + bias, logits, 10 * MODEL)
  jax.tree.map(functools.partial(assert_close, tolerance=MODEL), features.weights, weights)


def rounded(variables, dtype):
  """Returns variables in a dtype, with values that bfloat16 can represent."""
  return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16).astype(dtype), variables)


def dtypes(tree):
  return {leaf.dtype for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)}


@functools.cache
def initial(module):
  """Returns initial parameters, since random ones amplify the rounding of bfloat16."""
  return jax.jit(module.init)(jax.random.key(0), *arguments())


# A model without options, and each kind of attention with half of the options.
@pytest.mark.parametrize(
  ("encoder", "kind"),
  always(
    ("variational", "transformer"),
    of=[PAIRS[0], *PAIRS[-2:], *zip(itertools.cycle(("deep", "variational")), ATTENTION_TYPES, strict=False)],
  ),
)
def test_bfloat16_parameters(encoder, kind):
  module = model(encoder, kind)
  params, exact = (rounded(initial(module), dtype) for dtype in (jnp.bfloat16, jnp.float32))
  actual, desired = (compiled(module)(params, *arguments()) for params in (params, exact))
  logits, *others = actual
  assert logits.dtype == jnp.float32  # as losses and searches use them
  assert dtypes(others) <= {jnp.dtype(jnp.bfloat16)}
  for one, two in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
    assert_close(one.astype(jnp.float32), two, 0.03 * np.max(np.abs(two)))


@pytest.mark.parametrize(
  ("encoder", "kind"),
  always(
    ("variational", "additive"),
    of=[*PAIRS[-2:], *zip(itertools.cycle(("variational", "deep")), ATTENTION_TYPES, strict=False)],
  ),
)
@pytest.mark.exhaustive
def test_bfloat16_training_and_translation(encoder, kind):
  module = model(encoder, kind)
  variables = rounded(initial(module), jnp.bfloat16)

  def loss(variables):
    rngs = {"dropout": jax.random.key(0)}
    results = module.apply(variables, *arguments(), deterministic=False, rngs=rngs, method="output_features")
    return sum(jnp.sum(leaf.astype(jnp.float32) ** 2) for leaf in jax.tree.leaves(results)), results

  gradients, results = jax.jit(jax.grad(loss, has_aux=True))(variables)
  encoded = compiled(module, "encode", max_length=DIMS.T)(variables, *arguments()[:2])
  step = compiled(module, "step")(variables, encoded[0], arguments()[2][:, 0], encoded[1])
  state, logits, weights = step
  assert logits.dtype == jnp.float32
  for tree in (gradients, results, encoded, (state, weights)):
    assert dtypes(tree) == {jnp.dtype(jnp.bfloat16)}
  for tree in (gradients, results, encoded, step):
    chex.assert_tree_all_finite(tree)
