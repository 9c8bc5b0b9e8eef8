"""The Transformer decoder: formulas, caches, padding, positions, dropout."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import model_reference as reference
from helpers.decoders import DIMS, ENCODED, LENGTHS, TARGETS, assert_padding_is_ignored, variables_of
from helpers.model_reference import float64

import attention

WIDTH = 18
decoder = functools.partial(
  attention.TransformerDecoder, DIMS.V, WIDTH, num_layers=1, num_heads=3, mlp_dim=11
)
MODULES = {
  "three_layers": decoder(position_encoding="rotary", normalize_qk=True, num_layers=3),
  "post": decoder(norm_position="post", tied_embeddings=True),
  "relative": decoder(position_encoding="relative"),
}
assert_close = functools.partial(chex.assert_trees_all_close, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", MODULES)
def test_decoder_matches_formulas(name):
  module = MODULES[name]
  variables = variables_of(module)
  # If half of the table were for later words, relative distances of 8 and more would share a row.
  targets = np.random.default_rng(2).integers(DIMS.V, size=(DIMS.B, 16))

  @jax.jit
  def run(variables):
    _, memory = module.apply(variables, ENCODED, LENGTHS, method="prepare")
    heads = module.apply(variables, (), targets, memory, method="attention_weights")
    return *module.apply(variables, (), targets, memory), heads

  logits, weights, heads = jax.device_get(run(variables))
  params, memory = float64((variables["params"], ENCODED.memory))
  for b, length in enumerate(LENGTHS):
    how = module.norm_position, module.position_encoding
    desired, desired_heads = reference.transformer_decoder(params, memory[b, :length], targets[b], *how)
    assert_close((logits[b], heads[b, ..., :length]), (desired, desired_heads))
    assert not np.any(heads[b, ..., length:])
    layer = 1 if name == "three_layers" else 0  # the penultimate, or the only one
    assert_close(weights[b, :, :length], desired_heads[layer].mean(axis=0))


def test_caches_match_the_whole():
  module = decoder(norm_position="post")
  variables = variables_of(module)
  begun = np.array([2, 3, 1])  # prompts, padded to 4 words

  @jax.jit
  def run(variables):
    call = functools.partial(module.apply, variables)
    state, memory = call(ENCODED, LENGTHS, DIMS.T, method="prepare")
    state, *prompt = call(state, TARGETS[:, :4], memory, method="prefill")
    state = tuple(cache._replace(length=jnp.asarray(begun)) for cache in state)

    def step(state, tokens):
      state, *results = call(state, tokens, memory, method="step")
      return state, results

    words = np.stack([TARGETS[range(DIMS.B), begun], TARGETS[range(DIMS.B), begun + 1]])
    state, steps = jax.lax.scan(step, state, words)
    return prompt, steps, list(call((), TARGETS, memory)), state[0].length

  prompt, steps, whole, lengths = jax.device_get(run(variables))
  np.testing.assert_array_equal(lengths, begun + 2)
  for b in range(DIMS.B):
    assert_close([x[b, : begun[b]] for x in prompt], [x[b, : begun[b]] for x in whole])
    assert_close([x[:, b] for x in steps], [x[b, begun[b] : begun[b] + 2] for x in whole])


def test_too_many_words_give_nan():
  module = MODULES["relative"]
  variables = variables_of(module)

  @jax.jit
  def run(variables):
    state, memory = module.apply(variables, ENCODED, LENGTHS, 2, method="prepare")

    def step(state, tokens):
      return module.apply(variables, state, tokens, memory, method="step")[:2]

    return memory, jax.lax.scan(step, state, TARGETS[:, :3].T)[1]

  memory, logits = jax.device_get(run(variables))
  assert np.all(np.isfinite(logits[:2])) and np.all(np.isnan(logits[2]))
  with pytest.raises(ValueError, match=r"state must contain caches, from prepare\(.*max_length\), got none"):
    module.apply(variables, (), TARGETS[:, 0], memory, method="step")


def test_training_ignores_padding():
  dropout = {"dropout_rate": 0.3, "variational_dropout": True, "word_dropout_rate": 0.3}
  assert_padding_is_ignored(decoder(position_encoding="relative", **dropout))


@pytest.mark.parametrize(
  "dropout",
  [{"word_dropout_rate": 0.5}, {"dropout_rate": 0.5, "variational_dropout": True}],
  ids=["words", "units"],
)
def test_dropout_of_inputs(dropout):
  # The other parameters are zero, so that features are the norm of the inputs of the first layer.
  module = decoder(**dropout)
  params = jax.tree.map(np.zeros_like, variables_of(module)["params"])
  params["norm"]["scale"] = np.ones(WIDTH, np.float32)
  table = 3 + np.random.default_rng(1).random((DIMS.V, WIDTH))
  params["embedding"]["embedding"] = table.astype(np.float32)

  @jax.jit
  def run(params):
    call, rngs = functools.partial(module.apply, {"params": params}), {"dropout": jax.random.key(0)}
    state, memory = call(ENCODED, LENGTHS, method="prepare")
    return call(state, TARGETS, memory, deterministic=False, rngs=rngs, method="output_features")[0]

  features = np.asarray(run(params))
  words, places = table[TARGETS] * np.sqrt(WIDTH), reference.sinusoidal(DIMS.T, WIDTH)
  norm = functools.partial(reference.layer_norm, {"scale": 1.0})
  if "word_dropout_rate" in dropout:  # before positions are added
    is_dropped = np.max(np.abs(features - norm(places)), axis=-1, keepdims=True) < 1e-4
    inputs = places + np.where(is_dropped, 0, words / 0.5)
  else:  # dropped units are the smallest
    is_dropped = features <= features.min(axis=-1, keepdims=True) + 1e-4
    inputs = np.where(is_dropped, 0, (words + places) / 0.5)
    assert np.all(is_dropped == is_dropped[:, :1])
  assert_close(features, norm(inputs))
  assert 0.2 < np.mean(is_dropped) < 0.8 and np.any(is_dropped != is_dropped[:1])


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
    ({"norm_position": "none"}, "norm_position must be pre, post or both, got 'none'"),
    ({"position_encoding": "learnt"}, "must be one of sinusoidal, .*, none, got 'learnt'"),
    ({"num_heads": 5}, "qkv_features=18, num_heads=5"),
    ({"word_dropout_rate": 1.0}, r"word_dropout_rate must be a number in \[0, 1\), got 1.0"),
    ({"implementation": "fast"}, "implementation must be one of .*, got 'fast'"),
  ],
)
def test_invalid_fields_raise(options, message):
  with pytest.raises(ValueError, match=message):
    variables_of(decoder(**options))
