"""The Transformer decoder: formulas, caches, padding, positions, dropout."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import model_reference as reference
from helpers.model_reference import compiled, float64, random_parameters

import attention

# D: width of the decoder; E: of the memory, C: of the final state; F: of the feed-forward network.
DIMS = chex.Dimensions(B=3, T=5, S=7, N=3, D=18, V=13, E=17, C=19, F=11)
rng = np.random.default_rng(0)
LENGTHS, TARGETS = np.array([4, 7, 1]), rng.integers(DIMS.V, size=DIMS["BT"])
ENCODED = attention.Encoded(*(rng.normal(size=DIMS[axes]).astype(np.float32) for axes in ("BSE", "BC")))
decoder = functools.partial(
  attention.TransformerDecoder, DIMS.V, DIMS.D, num_layers=1, num_heads=DIMS.N, mlp_dim=DIMS.F
)
MODULES = {
  "three_layers": decoder(position_encoding="rotary", normalize_qk=True, num_layers=3),
  "post": decoder(norm_position="post", tied_embeddings=True),
  "relative": decoder(position_encoding="relative"),
}
assert_close = functools.partial(chex.assert_trees_all_close, rtol=1e-3, atol=1e-3)


def decode(module, targets, encoded=ENCODED, lengths=LENGTHS, **options):
  """Runs a bound decoder over whole targets."""
  state, memory = module.prepare(encoded, lengths)
  return module(state, targets, memory, **options)


def variables_of(module):
  return random_parameters(module, TARGETS, method=decode)


@pytest.mark.parametrize("name", MODULES)
def test_decoder_matches_formulas(name):
  module = MODULES[name]
  variables = variables_of(module)

  @jax.jit
  def run(variables):
    _, memory = module.apply(variables, ENCODED, LENGTHS, method="prepare")
    heads = module.apply(variables, (), TARGETS, memory, method="attention_weights")
    return *module.apply(variables, (), TARGETS, memory), heads

  logits, weights, heads = jax.device_get(run(variables))
  params, memory = float64((variables["params"], ENCODED.memory))
  for b, length in enumerate(LENGTHS):
    how = module.norm_position, module.position_encoding
    desired, desired_heads = reference.transformer_decoder(params, memory[b, :length], TARGETS[b], *how)
    assert_close(logits[b], desired)
    assert_close(heads[b, ..., :length], desired_heads)
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


def test_sixteen_distances_are_distinct():
  # If half of the table were for later words, distances of 8 and more would share a row.
  module, targets = MODULES["relative"], np.random.default_rng(2).integers(DIMS.V, size=(DIMS.B, 16))
  variables = variables_of(module)
  logits, _ = jax.device_get(compiled(module, decode)(variables, targets))
  params, memory = float64((variables["params"], ENCODED.memory[0, : LENGTHS[0]]))
  assert_close(logits[0], reference.transformer_decoder(params, memory, targets[0], "pre", "relative")[0])


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
  module = decoder(
    position_encoding="relative", dropout_rate=0.3, variational_dropout=True, word_dropout_rate=0.3
  )
  variables, random = variables_of(module), np.random.default_rng(1).normal(size=DIMS["BTV"])

  @jax.jit
  def run(encoded, targets, lengths):
    def loss(variables, encoded):
      rngs = {"dropout": jax.random.key(0)}
      results = module.apply(
        variables, targets, encoded, lengths, method=decode, deterministic=False, rngs=rngs
      )
      return jnp.sum(np.float32(random) * results[0]), results

    return jax.grad(loss, argnums=(0, 1), has_aux=True)(variables, encoded)

  (gradients, of_encoded), results = desired = jax.device_get(run(ENCODED, TARGETS, LENGTHS))
  is_padding = (np.arange(DIMS.S) >= LENGTHS[:, None])[..., None]
  padded = ENCODED._replace(memory=np.where(is_padding, np.float32(np.nan), ENCODED.memory))
  chex.assert_trees_all_equal(run(padded, TARGETS, LENGTHS), desired)
  np.testing.assert_array_equal(np.where(is_padding, of_encoded.memory, 0), 0)
  assert np.all(np.any(of_encoded.memory != 0, axis=-1) | is_padding[..., 0])
  for path, gradient in jax.tree.leaves_with_path(gradients):
    assert np.all(np.isfinite(gradient)), path
    if [key.key for key in path[-2:]] != ["key", "bias"]:  # a bias of all keys has no effect
      assert np.max(np.abs(gradient)) > 1e-4, path
  # Later words and other sentences have no effect.
  changed = TARGETS.copy()
  changed[1, 2] = (changed[1, 2] + 1) % DIMS.V
  for actual, before in zip(jax.device_get(run(ENCODED, changed, LENGTHS)[1]), results, strict=True):
    np.testing.assert_array_equal(actual[::2], before[::2])
    np.testing.assert_array_equal(actual[1, :2], before[1, :2])
    assert np.max(np.abs(actual[1, 2] - before[1, 2])) > 1e-5
  empty = jax.device_get(run(ENCODED, TARGETS, np.array([0, 7, 2])))
  chex.assert_tree_all_finite(empty)
  np.testing.assert_array_equal(empty[1][1][0], 0)


@pytest.mark.parametrize(
  "dropout",
  [{"word_dropout_rate": 0.5}, {"dropout_rate": 0.5, "variational_dropout": True}],
  ids=["words", "units"],
)
def test_dropout_of_inputs(dropout):
  # The other parameters are zero, so that features are the norm of the inputs of the first layer.
  module = decoder(**dropout)
  params = jax.tree.map(np.zeros_like, variables_of(module)["params"])
  params["norm"]["scale"] = np.ones(DIMS.D, np.float32)
  table = 3 + np.random.default_rng(1).random(DIMS["VD"])
  params["embedding"]["embedding"] = table.astype(np.float32)

  @jax.jit
  def run(params):
    call, rngs = functools.partial(module.apply, {"params": params}), {"dropout": jax.random.key(0)}
    state, memory = call(ENCODED, LENGTHS, method="prepare")
    return call(state, TARGETS, memory, deterministic=False, rngs=rngs, method="output_features")[0]

  features = np.asarray(run(params))
  words, places = table[TARGETS] * np.sqrt(DIMS.D), reference.sinusoidal(DIMS.T, DIMS.D)
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
    ({"norm_position": "none"}, "norm_position must be pre or post, got 'none'"),
    ({"position_encoding": "learnt"}, "must be one of sinusoidal, .*, none, got 'learnt'"),
    ({"num_heads": 5}, "qkv_features=18, num_heads=5"),
    ({"word_dropout_rate": 1.0}, r"word_dropout_rate must be a number in \[0, 1\), got 1.0"),
    ({"implementation": "fast"}, "implementation must be one of .*, got 'fast'"),
  ],
)
def test_invalid_fields_raise(options, message):
  with pytest.raises(ValueError, match=message):
    variables_of(decoder(**options))
