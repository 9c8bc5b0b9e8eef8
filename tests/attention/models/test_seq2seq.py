"""Encoder and decoder together: methods, weights of heads, dtypes, gradients."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from helpers.model_reference import compiled, random_parameters

import attention

V, E, H = 13, 11, 22
rng = np.random.default_rng(0)
ARGUMENTS = rng.integers(V, size=(3, 7)), np.array([4, 7, 1]), rng.integers(V, size=(3, 5))
DROPOUT = {"dropout_rate": 0.5, "variational_dropout": True, "word_dropout_rate": 0.3}
DEEP = {"num_layers": 2, "residual": True, "layer_norm": True, "recurrent_dropout_rate": 0.3, **DROPOUT}
TRANSFORMER = {"num_layers": 1, "num_heads": 2, "mlp_dim": 17, **DROPOUT}
ENCODERS = {
  "recurrent": attention.RecurrentEncoder(V, E, H // 2),
  "deep": attention.RecurrentEncoder(V, E, H // 2, **DEEP),
  "transformer": attention.TransformerEncoder(V, H, **TRANSFORMER),
}
recurrent = functools.partial(attention.RecurrentDecoder, V, E, H)
MODELS = {
  "deep": attention.Seq2Seq(
    ENCODERS["deep"], recurrent(attention="multi_head", num_heads=2, tied_embeddings=True, **DEEP)
  ),
  "none": attention.Seq2Seq(ENCODERS["recurrent"], recurrent(attention="none")),
  "transformer": attention.Seq2Seq(
    ENCODERS["transformer"], attention.TransformerDecoder(V, H, tied_embeddings=True, **TRANSFORMER)
  ),
}
GRU = attention.Seq2Seq(ENCODERS["recurrent"], recurrent())
pytestmark = pytest.mark.slow
assert_close = functools.partial(chex.assert_trees_all_close, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", MODELS)
def test_methods_agree_with_the_call(name):
  model = MODELS[name]
  variables = random_parameters(model, *ARGUMENTS)

  @jax.jit
  def run(variables):
    call = functools.partial(model.apply, variables)
    state, memory = call(*ARGUMENTS[:2], 5, method="encode")

    def step(state, tokens):
      state, *results = call(state, tokens, memory, method="step")
      return state, results

    steps = jax.lax.scan(step, state, ARGUMENTS[2].T)[1]
    features = call(*ARGUMENTS, method="output_features")
    from_features = features.vectors @ features.kernel + features.bias[None, None], features.weights
    heads = call(*ARGUMENTS, method="attention_weights")
    return call(*ARGUMENTS), jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), steps), from_features, heads

  whole, steps, from_features, heads = jax.device_get(run(variables))
  assert_close(whole, tuple(steps))
  assert_close(whole, from_features)
  assert (heads.encoder is None) == (name in ("deep", "none"))
  if name == "none":
    assert whole[1] is None and heads.decoder is None
  else:
    assert heads.decoder.shape == (3, 1, 2, 5, 7)
    assert_close(whole[1], heads.decoder[:, 0].mean(axis=1))
  if heads.encoder is not None:
    own = {"params": variables["params"]["encoder"]}
    assert_close(heads.encoder, compiled(model.encoder, return_weights=True)(own, *ARGUMENTS[:2])[1])


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_encoder_and_decoder_drop_units(part):
  model = MODELS["none"]
  model = model.clone(**{part: getattr(model, part).clone(dropout_rate=0.5)})
  variables = random_parameters(model, *ARGUMENTS)

  @jax.jit
  def run(rng):
    options = {"deterministic": False, "rngs": {"dropout": rng}}
    features = model.apply(variables, *ARGUMENTS, method="output_features", **options)
    return model.apply(variables, *ARGUMENTS, **options)[0], features.vectors

  for first, second in zip(run(jax.random.key(0)), run(jax.random.key(1)), strict=True):
    assert np.max(np.abs(first - second)) > 0.1


def test_gradients_reach_every_parameter():
  def loss(variables):
    return jnp.sum(MODELS["transformer"].apply(variables, *ARGUMENTS)[0] ** 2)

  gradients = jax.jit(jax.grad(loss))(random_parameters(MODELS["transformer"], *ARGUMENTS))
  for path, gradient in jax.tree.leaves_with_path(jax.device_get(gradients)):
    assert np.all(np.isfinite(gradient)), path
    if [key.key for key in path[-2:]] != ["key", "bias"]:  # a bias of all keys has no effect
      assert np.max(np.abs(gradient)) > 1e-4, path


def dtypes(tree):
  return {leaf.dtype for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)}


@pytest.mark.parametrize("kind", ["deep", "transformer", "location_aware", "monotonic", "local"])
def test_bfloat16_parameters_give_bfloat16(kind):
  options = {"num_heads": 2, "input_feeding": True, "attend_order": "after"}
  custom = attention.Seq2Seq(ENCODERS["recurrent"], recurrent(attention=kind, **options))
  model = MODELS.get(kind, custom)
  variables = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), random_parameters(model, *ARGUMENTS))

  def run(variables):
    def loss(variables):
      rngs = {"dropout": jax.random.key(0)}
      results = model.apply(variables, *ARGUMENTS, deterministic=False, rngs=rngs, method="output_features")
      return jnp.sum(results.vectors.astype(jnp.float32)), results

    encoded = model.apply(variables, *ARGUMENTS[:2], 5, method="encode")
    state, logits, weights = model.apply(variables, encoded[0], ARGUMENTS[2][:, 0], encoded[1], method="step")
    return logits, (jax.grad(loss, has_aux=True)(variables), encoded, state, weights)

  logits, others = jax.eval_shape(run, variables)
  assert dtypes(logits) == {np.dtype(np.float32)}  # as losses and searches use them
  assert dtypes(others) == {np.dtype(jnp.bfloat16)}


@pytest.mark.parametrize("model", [GRU, MODELS["transformer"]], ids=["gru", "transformer"])
def test_bfloat16_results_are_close(model):
  # Small parameters, since large ones amplify rounding.
  variables = jax.tree.map(lambda leaf: leaf / 3, random_parameters(model, *ARGUMENTS))
  halves = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), variables)
  actual = jax.device_get(compiled(model)(halves, *ARGUMENTS))
  assert actual[0].dtype == jnp.float32
  desired = compiled(model)(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), halves), *ARGUMENTS)
  for one, other in zip(actual, desired, strict=True):
    np.testing.assert_allclose(one.astype(jnp.float32), other, atol=0.03 * np.max(np.abs(other)))


class Wrapped(nn.Module):
  """A custom decoder, without heads."""

  inner: attention.RecurrentDecoder

  def prepare(self, *arguments):
    return self.inner.prepare(*arguments)

  def __call__(self, *arguments, **options):
    return self.inner(*arguments, **options)


def test_custom_decoders_need_no_heads():
  model = attention.Seq2Seq(ENCODERS["recurrent"], Wrapped(recurrent()))

  @jax.jit
  def run(variables):
    heads = model.apply(variables, *ARGUMENTS, method="attention_weights")
    return heads, model.apply(variables, *ARGUMENTS)[1]

  heads, weights = jax.device_get(run(random_parameters(model, *ARGUMENTS)))
  assert heads.encoder is None
  assert_close(heads.decoder[:, 0, 0], weights)
