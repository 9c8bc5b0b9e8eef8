"""Encoders, from source tokens to a memory and a final state."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import model_reference as reference
from helpers.model_reference import compiled, float64, random_parameters

import attention

# D: width of transformers; E: of embeddings; H: of recurrent states; F: of the feed-forward network.
DIMS = chex.Dimensions(B=3, S=7, V=13, D=12, E=11, H=5, F=17)
TOKENS, LENGTHS = np.random.default_rng(0).integers(DIMS.V, size=DIMS["BS"]), np.array([4, 7, 1])
IS_REAL = np.arange(DIMS.S) < LENGTHS[:, None]
RNGS = {"dropout": jax.random.key(1)}
recurrent = functools.partial(attention.RecurrentEncoder, DIMS.V, DIMS.E, DIMS.H)
transformer = functools.partial(
  attention.TransformerEncoder, DIMS.V, DIMS.D, num_layers=2, num_heads=3, mlp_dim=DIMS.F
)
# No effect on a deterministic encoder.
DROPOUT = {"dropout_rate": 0.3, "variational_dropout": True, "word_dropout_rate": 0.3}
ENCODERS = {
  "recurrent": recurrent(num_layers=2),
  "deep": recurrent(num_layers=3, residual=True, layer_norm=True, recurrent_dropout_rate=0.3, **DROPOUT),
  "pre": transformer(),
  "post": transformer(norm_position="post", **DROPOUT),
  "relative": transformer(position_encoding="relative", num_layers=1),
  "rotary": transformer(position_encoding="rotary", normalize_qk=True, num_layers=1),
  "none": transformer(position_encoding="none", num_layers=1),
}
assert_close = functools.partial(chex.assert_trees_all_close, rtol=2e-5, atol=2e-5)


def variables_of(encoder):
  return random_parameters(encoder, TOKENS, LENGTHS)


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_match_formulas(name):
  encoder = ENCODERS[name]
  variables = variables_of(encoder)
  params = float64(variables["params"])
  memory, summary = jax.device_get(compiled(encoder)(variables, TOKENS, LENGTHS))
  for b, length in enumerate(LENGTHS):
    if name in ("recurrent", "deep"):
      desired = reference.recurrent_encoder(params, TOKENS[b, :length], encoder.residual)
    else:
      how = encoder.norm_position, encoder.position_encoding
      desired = reference.transformer_encoder(params, TOKENS[b, :length], *how)
    assert_close((memory[b, :length], summary[b]), desired)


@pytest.mark.parametrize("name", ["deep", "post"])
def test_padding_is_ignored_under_dropout(name):
  encoder = ENCODERS[name]
  width = encoder.features * (2 if name == "deep" else 1)
  random = np.random.default_rng(2).normal(size=(*DIMS["BS"], width))
  random = np.where(IS_REAL[..., None], random, 0).astype(np.float32)

  @jax.jit
  def run(variables, tokens, lengths):
    def loss(variables):
      encoded = encoder.apply(variables, tokens, lengths, deterministic=False, rngs=RNGS)
      return jnp.sum(random * encoded.memory) + jnp.sum(encoded.final_state), encoded

    gradients, (memory, summary) = jax.grad(loss, has_aux=True)(variables)
    return gradients, jnp.where(IS_REAL[..., None], memory, 0), summary

  variables = variables_of(encoder)
  desired = jax.device_get(run(variables, TOKENS, LENGTHS))
  no_tokens = np.where(IS_REAL, TOKENS, DIMS.V + 99)
  chex.assert_trees_all_equal(run(variables, no_tokens, LENGTHS), desired)
  gradients, _, summary = empty = jax.device_get(run(variables, TOKENS, np.array([0, 7, 2])))
  chex.assert_tree_all_finite(empty)
  np.testing.assert_array_equal(summary[0], 0)
  for path, gradient in jax.tree.leaves_with_path(gradients):
    if [key.key for key in path[-2:]] != ["key", "bias"]:  # a bias of all keys has no effect
      assert np.max(np.abs(gradient)) > 1e-4, path


def test_dropout_only_when_not_deterministic():
  encoder = ENCODERS["pre"].clone(dropout_rate=0.5)
  variables = variables_of(encoder)

  @jax.jit
  def run(rng):
    encode = functools.partial(encoder.apply, variables, TOKENS, LENGTHS, rngs={"dropout": rng})
    return encode(deterministic=False).memory, encode().memory

  (first, still), (again, _), (other, other_still) = (run(jax.random.key(seed)) for seed in (0, 0, 1))
  np.testing.assert_array_equal(first, again)
  np.testing.assert_array_equal(still, other_still)
  assert np.max(np.abs(first - other)) > 0.1 and np.max(np.abs(first - still)) > 0.1


def transparent(num_layers, factor=0.0):
  """Returns parameters with which layers with states [H] output tanh of the first H units of their inputs.

  Embeddings are random. Layers also read `factor` times the previous state.
  """
  H = DIMS.H
  params = jax.tree.map(np.zeros_like, float64(variables_of(recurrent(num_layers=num_layers))["params"]))
  table = 0.3 + np.random.default_rng(2).random(DIMS["VE"])
  params["embedding"]["embedding"] = table
  for name, layer in params.items():
    if name != "embedding":
      layer["input"] = np.eye(*layer["input"].shape, 2 * H)
      layer["recurrent"] = factor * np.eye(H, 3 * H, 2 * H)
      layer["bias"] = np.concatenate([np.full(H, 100.0), np.full(H, -100.0), np.zeros(H)])
  return params, table[..., :H]


def read_with_dropout(params, tokens=TOKENS, **options):
  """Returns the forward and backward halves of the memory of whole sentences under dropout, [B S H] each."""
  run = compiled(recurrent(**options), deterministic=False)
  variables = {"params": jax.tree.map(jnp.float32, params)}
  memory = np.asarray(run(variables, tokens, np.full(DIMS.B, DIMS.S), rngs=RNGS).memory)
  return memory[..., : DIMS.H], memory[..., DIMS.H :]


@pytest.mark.parametrize("variational", [False, True])
def test_dropout_before_every_layer(variational):
  params, table = transparent(2)
  ahead, behind = read_with_dropout(params, num_layers=2, dropout_rate=0.25, variational_dropout=variational)
  np.testing.assert_array_equal(ahead, behind)  # the two directions of a layer have the same inputs
  desired = np.tanh(np.tanh(table[TOKENS] / 0.75) / 0.75)
  assert_close(ahead, np.where(ahead == 0, 0, desired))
  kept, number = 0.75**2, ahead.size / (DIMS.S if variational else 1)
  assert abs(np.mean(ahead != 0) - kept) < 5 * np.sqrt(kept * (1 - kept) / number)
  assert np.all((ahead == 0) == (ahead[:, :1] == 0)) == variational
  assert len(np.unique(ahead[:, 0] == 0, axis=0)) > 1


def test_a_recurrent_encoder_drops_whole_words():
  params, table = transparent(1)
  ahead, _ = read_with_dropout(params, word_dropout_rate=0.5)
  is_dropped = np.all(ahead == 0, axis=-1)
  assert 0 < np.sum(is_dropped) < is_dropped.size
  assert_close(ahead, np.where(is_dropped[..., None], 0, np.tanh(table[TOKENS] / 0.5)))


def test_dropout_in_recurrent_products():
  params, table = transparent(2, factor=0.5)
  word = table[3]
  for name in ("forward_1", "backward_1"):  # units that the layer below drops have no effect
    params[name]["input"] *= 0
    params[name]["bias"][2 * DIMS.H :] = word
  ahead, behind = read_with_dropout(params, np.full(DIMS["BS"], 3), num_layers=2, recurrent_dropout_rate=0.5)
  kept = [np.tanh(word)]  # a state twice as large, halved by its weight
  for _ in range(1, DIMS.S):
    kept.append(np.tanh(word + kept[-1]))
  dropped = []
  for states in (ahead, behind[:, ::-1]):
    is_dropped = states[:, 1] == states[:, 0]  # at all steps or at none
    assert_close(states, np.where(is_dropped[:, None], np.tanh(word), np.stack(kept)))
    dropped.append(is_dropped)
  assert 0.1 < np.mean(dropped) < 0.9 and np.any(dropped[0] != dropped[1])
  assert len(np.unique(dropped[0], axis=0)) > 1


def test_residual_adds_the_undropped_input():
  params, _ = transparent(2)
  for name in ("forward_1", "backward_1"):
    params[name] = jax.tree.map(np.zeros_like, params[name])
  actual = read_with_dropout(params, num_layers=2, residual=True, dropout_rate=0.25)
  desired = read_with_dropout(
    {name: layer for name, layer in params.items() if "_1" not in name}, dropout_rate=0.25
  )
  np.testing.assert_array_equal(actual, desired)


@pytest.mark.parametrize(
  "dropout",
  [{"word_dropout_rate": 0.5}, {"dropout_rate": 0.5, "variational_dropout": True}],
  ids=["words", "units"],
)
def test_dropout_of_transformer_inputs(dropout):
  encoder = transformer(num_layers=0, norm_position="post", **dropout)
  variables, whole = variables_of(encoder), np.full(DIMS.B, DIMS.S)
  memory = np.asarray(compiled(encoder, deterministic=False)(variables, TOKENS, whole, rngs=RNGS).memory)
  words = np.asarray(variables["params"]["embedding"]["embedding"])[TOKENS] * np.sqrt(DIMS.D)
  places = reference.sinusoidal(DIMS.S, DIMS.D)
  if "word_dropout_rate" in dropout:  # before positions are added
    is_dropped = np.max(np.abs(memory - places), axis=-1, keepdims=True) < 1e-6
    assert_close(memory, places + np.where(is_dropped, 0, words / 0.5))
  else:
    is_dropped = memory == 0
    assert_close(memory, np.where(is_dropped, 0, (words + places) / 0.5))
    assert np.all(is_dropped == is_dropped[:, :1])
  assert 0.2 < np.mean(is_dropped) < 0.8 and np.any(is_dropped != is_dropped[:1])


def test_weights_of_each_layer_and_head():
  encoder = transformer()
  variables = variables_of(encoder)

  @jax.jit
  def run(variables):
    run_encoder = functools.partial(encoder.apply, variables, TOKENS, LENGTHS)
    return run_encoder(return_weights=True), run_encoder()

  (encoded, weights), desired = jax.device_get(run(variables))
  assert_close(encoded, desired)
  assert weights.shape == (DIMS.B, 2, 3, DIMS.S, DIMS.S)
  np.testing.assert_allclose(weights.sum(axis=-1), np.ones((DIMS.B, 2, 3, DIMS.S)), rtol=1e-5)
  assert not np.any(weights[0, ..., 4:])
  # Those of the first layer.
  params = float64(variables["params"])
  inputs, _ = reference.transformer_input(params, TOKENS[1], "sinusoidal", True)
  layer = params["layer_0"]
  inputs = reference.layer_norm(layer["attention_norm"], inputs)
  assert_close(weights[1, 0], reference.multi_head(layer["attention"], inputs, inputs)[1])


def test_initial_embedding_variance():
  encoder, tokens = attention.TransformerEncoder(211, 128, num_layers=0), np.arange(211)[:, None]
  params = jax.jit(encoder.init)(jax.random.key(0), tokens, np.ones(211, int))["params"]
  scaled = params["embedding"]["embedding"] * np.sqrt(128)
  assert abs(np.std(scaled) - 1) < 5 / np.sqrt(2 * scaled.size)


@pytest.mark.parametrize(
  ("encoder", "message"),
  [
    (attention.TransformerEncoder(13, 7, num_heads=1), "width must be even, got 7"),
    (transformer(norm_position="none"), "norm_position must be pre, post or both, got 'none'"),
    (transformer(position_encoding="learnt"), "must be one of sinusoidal, .*, none, got 'learnt'"),
    (transformer(num_heads=5), "qkv_features=12, num_heads=5"),
    (transformer(word_dropout_rate=-0.5), r"word_dropout_rate must be a number in \[0, 1\), got -0.5"),
    (transformer(implementation="fast"), "implementation must be one of .*, got 'fast'"),
    (recurrent(word_dropout_rate=1.0), r"word_dropout_rate must be a number in \[0, 1\), got 1.0"),
    (recurrent(recurrent_dropout_rate=1.5), "recurrent_dropout_rate must be a number in .*, got 1.5"),
    (recurrent(num_layers=0), "num_layers must be at least 1, got 0"),
    (attention.RecurrentEncoder(13, 11, 0), "features must be an integer of at least 1, got 0"),
  ],
)
def test_invalid_fields_raise(encoder, message):
  with pytest.raises(ValueError, match=message):
    variables_of(encoder)
