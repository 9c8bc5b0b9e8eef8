"""Encoder and decoder together."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import assert_close
from models import MODEL, compiled, random_parameters

import attention

# H: width of the decoder's state; the transformer's width is 2 E.
DIMS = chex.Dimensions(B=3, T=5, S=7, V=13, E=11, H=22)
LENGTHS = np.array([4, 7, 1])
random = np.random.default_rng(0)
SOURCES = random.integers(DIMS.V, size=DIMS["BS"])
TARGETS = random.integers(DIMS.V, size=DIMS["BT"])

ENCODERS = {
  "recurrent": attention.RecurrentEncoder(DIMS.V, DIMS.E, DIMS.H, num_layers=2, dropout_rate=0.5),
  "transformer": attention.TransformerEncoder(
    DIMS.V, 2 * DIMS.E, num_heads=2, feed_forward_width=17, dropout_rate=0.5
  ),
}
PAIRS = [
  ("recurrent", "additive"),
  ("transformer", "multi_head"),
  ("recurrent", "none"),
]
pairs = pytest.mark.parametrize(("encoder", "kind"), PAIRS)


def model(encoder, kind):
  decoder = attention.Decoder(DIMS.V, DIMS.E, DIMS.H, attention=kind, num_heads=2, dropout_rate=0.5)
  return attention.Seq2Seq(ENCODERS[encoder], decoder)


def arguments(rows=slice(None), width=DIMS.S):
  return tuple(jnp.asarray(array[rows]) for array in (SOURCES[:, :width], LENGTHS, TARGETS))


@functools.cache
def variables_of(module):
  return random_parameters(module, *arguments())


@pairs
def test_encode_and_steps_are_the_whole_call(encoder, kind):
  module = model(encoder, kind)
  variables = variables_of(module)
  logits, weights = compiled(module)(variables, *arguments())
  state, memory = compiled(module, "encode")(variables, *arguments()[:2])
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
def test_a_sentence_alone_is_translated_as_in_a_batch(encoder, kind):
  module = model(encoder, kind)
  variables = variables_of(module)
  logits, weights = compiled(module)(variables, *arguments())
  alone, own_weights = compiled(module)(variables, *arguments(slice(0, 1), width=4))
  assert_close(alone[0], logits[0], 10 * MODEL)
  if kind != "none":
    assert_close(own_weights[0], weights[0, :, :4], 10 * MODEL)


@pairs
def test_gradients_reach_every_parameter_of_a_model_and_are_finite(encoder, kind):
  module = model(encoder, kind)
  variables = variables_of(module)

  def loss(variables):
    logits, _ = module.apply(variables, *arguments())
    return jnp.sum(logits**2)

  for path, gradient in jax.tree.leaves_with_path(jax.jit(jax.grad(loss))(variables)):
    assert np.all(np.isfinite(gradient)), path
    # A bias of all keys shifts all scores of a query alike, which changes nothing.
    if [key.key for key in path[-2:]] != ["key", "bias"]:
      assert np.max(np.abs(gradient)) > 1e-4, path


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_both_parts_drop_units_when_not_deterministic(part):
  module = model("recurrent", "additive")
  other = "decoder" if part == "encoder" else "encoder"
  module = module.clone(**{other: getattr(module, other).clone(dropout_rate=0.0)})
  variables = variables_of(module)
  logits = [
    compiled(module, deterministic=False)(variables, *arguments(), rngs={"dropout": jax.random.key(seed)})[0]
    for seed in (0, 1)
  ]
  assert np.max(np.abs(logits[0] - logits[1])) > 0.1
