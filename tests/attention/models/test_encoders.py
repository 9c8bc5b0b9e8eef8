"""Encoders, from source tokens to a memory and a final state."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import model_reference
from helpers.fixtures import FLOAT32, always, assert_close
from helpers.model_reference import MODEL, compiled, float64, random_parameters

import attention

# E: width of the embeddings; the transformer's width is 2 E = 22. F: of the feed-forward network.
DIMS = chex.Dimensions(B=3, S=7, V=13, E=11, H=5, F=17)
LENGTHS = np.array([4, 7, 1])
TOKENS = np.random.default_rng(0).integers(DIMS.V, size=DIMS["BS"])
# Models with random parameters amplify rounding.
TOLERANCE = 10 * MODEL


def recurrent(**options):
  return attention.RecurrentEncoder(DIMS.V, DIMS.E, DIMS.H, **options)


def transformer(**options):
  fields = {"num_layers": 2, "num_heads": 2, "mlp_dim": DIMS.F, **options}
  return attention.TransformerEncoder(DIMS.V, 2 * DIMS.E, **fields)


# No effect on a deterministic encoder.
DROPOUT = {"dropout_rate": 0.3, "variational_dropout": True, "word_dropout_rate": 0.3}
ENCODERS = {
  "recurrent": recurrent(num_layers=2),
  "recurrent_deep": recurrent(
    num_layers=3, residual=True, layer_norm=True, recurrent_dropout_rate=0.3, **DROPOUT
  ),
  "transformer_pre": transformer(),
  "transformer_post": transformer(norm_position="post", **DROPOUT),
  # Heads of an even width, for rotary embeddings.
  **{
    f"transformer_{places}": attention.TransformerEncoder(
      DIMS.V, 12, num_heads=3, mlp_dim=DIMS.F, position_encoding=places, normalize_qk=places == "rotary"
    )
    for places in ("relative", "rotary", "none")
  },
}
few_encoders = pytest.mark.parametrize(
  "name", always("recurrent_deep", "transformer_post", "transformer_rotary", of=ENCODERS)
)


@functools.cache
def variables_of(encoder):
  return random_parameters(encoder, jnp.asarray(TOKENS), jnp.asarray(LENGTHS))


def encode(encoder, variables, tokens=TOKENS, lengths=LENGTHS, rngs=None, deterministic=True):
  apply = compiled(encoder, deterministic=deterministic)
  return apply(variables, jnp.asarray(tokens), jnp.asarray(lengths), rngs=rngs)


@functools.cache
def differentiated(encoder):
  """Returns a function of parameters and lengths that returns the gradient and the encoding."""
  shapes = jax.eval_shape(functools.partial(encode, encoder), variables_of(encoder))
  rng = np.random.default_rng(1)
  random = [jnp.asarray(rng.normal(size=leaf.shape), jnp.float32) for leaf in shapes]

  def loss(variables, lengths):
    encoded = encoder.apply(variables, jnp.asarray(TOKENS), lengths)
    return sum(jnp.sum(one * other) for one, other in zip(random, encoded, strict=True)), encoded

  return jax.jit(jax.grad(loss, has_aux=True))


def is_real():
  return np.arange(DIMS.S) < LENGTHS[:, None]


# All of them in `make test`, too: this test defines an encoder.
@pytest.mark.parametrize("encoder", ENCODERS)
def test_encoders_match_reference(encoder):
  variables = variables_of(ENCODERS[encoder])
  memory, summary = encode(ENCODERS[encoder], variables)
  parameters = float64(variables["params"])
  for b, length in enumerate(LENGTHS):
    if encoder.startswith("recurrent"):
      desired = model_reference.recurrent_encoder(parameters, TOKENS[b, :length], ENCODERS[encoder].residual)
    else:
      module = ENCODERS[encoder]
      desired = model_reference.transformer_encoder(
        parameters, TOKENS[b, :length], module.norm_position, module.position_encoding
      )
    assert_close(memory[b, :length], desired[0], TOLERANCE)
    assert_close(summary[b], desired[1], TOLERANCE)


def test_normalize_qk():
  for name in ("transformer_pre", "transformer_rotary"):
    parameters = variables_of(ENCODERS[name])["params"]["layer_0"]["attention"]
    assert ("query_ln" in parameters) == ("key_ln" in parameters) == (name == "transformer_rotary")


@few_encoders
@pytest.mark.parametrize("deterministic", always(False, of=[True, False]))
def test_padding_is_ignored(name, deterministic):
  variables = variables_of(ENCODERS[name])
  others = np.where(is_real(), TOKENS, DIMS.V + 99)  # not even a token
  options = {"deterministic": deterministic, "rngs": {"dropout": jax.random.key(0)}}
  memory, summary = encode(ENCODERS[name], variables, **options)
  other_memory, other_summary = encode(ENCODERS[name], variables, others, **options)
  np.testing.assert_array_equal(other_memory[is_real()], memory[is_real()])
  np.testing.assert_array_equal(other_summary, summary)
  assert np.all(np.isfinite(memory[is_real()]))


def test_padding_is_ignored_under_dropout():
  encoder = ENCODERS["recurrent_deep"]
  random = np.random.default_rng(2).normal(size=(*DIMS["BS"], 2 * DIMS.H))
  random = jnp.asarray(np.where(is_real()[..., None], random, 0), jnp.float32)

  @jax.jit
  def differentiate(variables, tokens):
    def loss(variables):
      rngs = {"dropout": jax.random.key(0)}
      memory, summary = encoder.apply(variables, tokens, LENGTHS, deterministic=False, rngs=rngs)
      return jnp.sum(random * memory) + jnp.sum(summary)

    return jax.grad(loss)(variables)

  desired = differentiate(variables_of(encoder), jnp.asarray(TOKENS))
  others = jnp.asarray(np.where(is_real(), TOKENS, DIMS.V + 99))
  chex.assert_tree_all_finite(desired)
  chex.assert_trees_all_equal(differentiate(variables_of(encoder), others), desired)


@few_encoders
def test_single_sentence_matches_batch(name):
  variables = variables_of(ENCODERS[name])
  memory, summary = encode(ENCODERS[name], variables)
  alone = encode(ENCODERS[name], variables, TOKENS[:1, :4], LENGTHS[:1])
  assert_close(alone.memory[0], memory[0, :4], TOLERANCE)
  assert_close(alone.final_state[0], summary[0], TOLERANCE)


@few_encoders
def test_positions_see_both_directions(name):
  encoder = ENCODERS[name]
  variables = variables_of(encoder)
  memory, summary = encode(encoder, variables)
  for s in range(LENGTHS[0]):
    changed = TOKENS.copy()
    changed[0, s] = (changed[0, s] + 1) % DIMS.V
    other = encode(encoder, variables, changed)
    difference = np.max(np.abs(other.memory - memory), axis=-1)
    assert np.all(difference[0, : LENGTHS[0]] > 1e-4)
    np.testing.assert_array_equal(difference[1:], 0.0)
    assert np.max(np.abs(other.final_state - summary)[0]) > 1e-4


def test_directions_see_past_and_future():
  encoder = recurrent()
  variables = variables_of(encoder)
  changed = TOKENS.copy()
  changed[1, 3] = (changed[1, 3] + 1) % DIMS.V
  difference = np.abs(encode(encoder, variables, changed).memory - encode(encoder, variables).memory)[1]
  sees = np.max(difference.reshape(DIMS.S, 2, DIMS.H), axis=-1) > 1e-5
  np.testing.assert_array_equal(sees[:, 0], np.arange(DIMS.S) >= 3)
  np.testing.assert_array_equal(sees[:, 1], np.arange(DIMS.S) <= 3)


@few_encoders
def test_word_order_needs_positions(name):
  variables = variables_of(ENCODERS[name])
  swapped = TOKENS.copy()
  swapped[1, [0, 2]] = TOKENS[1, [2, 0]]
  assert TOKENS[1, 0] != TOKENS[1, 2]
  one, other = (encode(ENCODERS[name], variables, tokens)[0][1] for tokens in (TOKENS, swapped))
  change = np.max(np.abs(one - other), axis=-1)[[1, *range(3, DIMS.S)]]  # at the kept words
  if name == "transformer_none":
    assert np.all(change < TOLERANCE)
  else:
    assert np.all(change > 1e-4)


@few_encoders
def test_empty_sentence_is_finite(name):
  encoder = ENCODERS[name]
  results = differentiated(encoder)(variables_of(encoder), jnp.asarray([0, 7, 2]))
  chex.assert_tree_all_finite(results)
  np.testing.assert_array_equal(results[1].final_state[0], 0.0)


@few_encoders
def test_gradients_reach_every_parameter(name):
  encoder = ENCODERS[name]
  gradients, _ = differentiated(encoder)(variables_of(encoder), jnp.asarray(LENGTHS))
  for path, gradient in jax.tree.leaves_with_path(gradients):
    assert np.all(np.isfinite(gradient)), path
    if [key.key for key in path[-2:]] != ["key", "bias"]:
      assert np.max(np.abs(gradient)) > 1e-3, path


@pytest.mark.parametrize("name", ["recurrent", "transformer_pre"])
def test_dropout_only_when_not_deterministic(name):
  encoder = ENCODERS[name].clone(dropout_rate=0.5)
  variables = variables_of(encoder)

  def encode_with(seed, deterministic):
    rngs = {"dropout": jax.random.key(seed)}
    return encode(encoder, variables, deterministic=deterministic, rngs=rngs).memory

  np.testing.assert_array_equal(encode_with(0, True), encode_with(1, True))
  np.testing.assert_array_equal(encode_with(0, False), encode_with(0, False))
  assert np.max(np.abs(encode_with(0, False) - encode_with(1, False))) > 0.1


def test_recurrent_dropout_between_layers():
  encoder = recurrent(num_layers=2, dropout_rate=0.5)
  variables = jax.tree.map(jnp.asarray, variables_of(encoder))
  # Nothing after the embedding's dropout depends on the embedding.
  for direction in ("forward_0", "backward_0"):
    variables["params"][direction]["input"] *= 0
  memories = [
    encode(encoder, variables, deterministic=False, rngs={"dropout": jax.random.key(seed)}).memory
    for seed in (0, 1)
  ]
  assert np.max(np.abs(memories[0] - memories[1])) > 0.1


def transparent(num_layers, factor=0.0):
  """Returns variables with which layers with states [H] output tanh of the first H units of their inputs.

  Embeddings are random. Layers also read `factor` times the previous state.
  """
  encoder, H = recurrent(num_layers=num_layers), DIMS.H
  variables = jax.tree.map(jnp.zeros_like, variables_of(encoder))
  table = 0.3 + np.random.default_rng(2).random((DIMS.V, DIMS.E)).astype(np.float32)
  variables["params"]["embedding"]["embedding"] = jnp.asarray(table)
  for name, layer in variables["params"].items():
    if name != "embedding":
      layer["input"] = jnp.eye(*layer["input"].shape, 2 * H)
      layer["recurrent"] = factor * jnp.eye(H, 3 * H, 2 * H)
      layer["bias"] = jnp.concatenate([jnp.full(H, 100.0), jnp.full(H, -100.0), jnp.zeros(H)])
  return variables, table


def read_with_dropout(encoder, variables, tokens=TOKENS):
  """Returns the memory [B S 2 H] under dropout, and its halves, [B S H] each."""
  whole, rngs = np.full(DIMS.B, DIMS.S), {"dropout": jax.random.key(1)}
  memory = np.asarray(encode(encoder, variables, tokens, whole, rngs, deterministic=False).memory)
  return memory, memory[..., : DIMS.H], memory[..., DIMS.H :]


@pytest.mark.parametrize("variational", [False, True])
def test_variational_dropout(variational):
  encoder = recurrent(num_layers=2, dropout_rate=0.25, variational_dropout=variational)
  variables, table = transparent(2)
  _, ahead, behind = read_with_dropout(encoder, variables)
  # Both layers use dropout; the two directions of a layer have the same inputs.
  np.testing.assert_array_equal(ahead, behind)
  desired = np.tanh(np.tanh(table[TOKENS][..., : DIMS.H] / 0.75) / 0.75)
  assert_close(ahead, np.where(ahead == 0, 0, desired), FLOAT32)
  kept, number = 0.75**2, ahead.size / (DIMS.S if variational else 1)
  assert abs(np.mean(ahead != 0) - kept) < 5 * np.sqrt(kept * (1 - kept) / number)
  assert np.all((ahead == 0) == (ahead[:, :1] == 0)) == variational
  assert len(np.unique(ahead[:, 0] == 0, axis=0)) > 1


def test_an_encoder_drops_whole_words():
  variables, table = transparent(1)
  memory, ahead, _ = read_with_dropout(recurrent(word_dropout_rate=0.5), variables)
  is_dropped = np.all(memory == 0, axis=-1)
  assert 0 < np.sum(is_dropped) < is_dropped.size
  desired = np.tanh(table[TOKENS][..., : DIMS.H] / 0.5)
  assert_close(ahead, np.where(is_dropped[..., None], 0, desired), FLOAT32)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_recurrent_product_dropout(num_layers):
  encoder = recurrent(num_layers=num_layers, recurrent_dropout_rate=0.5)
  variables, table = transparent(num_layers, factor=0.5)
  word = np.full(DIMS["BS"], 3)
  if num_layers == 2:  # units that the layer below drops have no effect
    for name in ("forward_1", "backward_1"):
      layer = variables["params"][name]
      layer["input"] *= 0
      layer["bias"] = layer["bias"].at[2 * DIMS.H :].set(table[3, : DIMS.H])
  _, ahead, behind = read_with_dropout(encoder, variables, word)
  dropped = np.tanh(np.tile(table[3, : DIMS.H], (DIMS.S, 1)))
  kept = [dropped[0]]  # a state twice as large, halved by its weight
  for _ in range(1, DIMS.S):
    kept.append(np.tanh(table[3, : DIMS.H] + kept[-1]))
  masks = []
  for states in (ahead, behind[:, ::-1]):
    is_dropped = states[:, 1] == states[:, 0]
    masks.append(is_dropped)
    assert_close(states, np.where(is_dropped[:, None], dropped, np.stack(kept)), FLOAT32)
  assert 0.1 < np.mean(masks) < 0.9
  assert np.any(masks[0] != masks[1]) and len(np.unique(masks[0], axis=0)) > 1


def test_zero_residual_layer_is_identity():
  encoder = recurrent(num_layers=2, residual=True)
  variables = variables_of(encoder)["params"]
  zeroed = {name: jax.tree.map(jnp.zeros_like, variables[name]) for name in ("forward_1", "backward_1")}
  below = {name: layer for name, layer in variables.items() if name not in zeroed}
  actual = encode(encoder, {"params": {**below, **zeroed}}).memory
  np.testing.assert_array_equal(actual, encode(recurrent(), {"params": below}).memory)


def test_residual_adds_the_undropped_input():
  encoder = recurrent(num_layers=2, residual=True, dropout_rate=0.25)
  variables, _ = transparent(2)
  for name in ("forward_1", "backward_1"):
    variables["params"][name] = jax.tree.map(jnp.zeros_like, variables["params"][name])
  actual, *_ = read_with_dropout(encoder, variables)
  variables["params"].pop("forward_1"), variables["params"].pop("backward_1")
  desired, *_ = read_with_dropout(recurrent(dropout_rate=0.25), variables)
  np.testing.assert_array_equal(actual, desired)


def test_normalized_memory_statistics():
  encoder = recurrent(num_layers=2, layer_norm=True)
  variables = variables_of(encoder)
  norm = {"scale": jnp.full(2 * DIMS.H, 3.0), "bias": jnp.full(2 * DIMS.H, 2.0)}
  memory = encode(encoder, {"params": {**variables["params"], "norm_1": norm}}).memory
  assert_close(np.mean(memory, axis=-1), np.full(DIMS["BS"], 2.0), 10 * FLOAT32)
  assert_close(np.std(memory, axis=-1), np.full(DIMS["BS"], 3.0), 1e-3)  # except for the epsilon of the norm


def test_variational_embedding_dropout():
  encoder = transformer(num_layers=0, norm_position="post", dropout_rate=0.25, variational_dropout=True)
  memory = encode(encoder, variables_of(encoder), deterministic=False, rngs={"dropout": jax.random.key(0)})
  is_dropped = np.asarray(memory.memory == 0)
  np.testing.assert_array_equal(is_dropped, np.broadcast_to(is_dropped[:, :1], is_dropped.shape))
  assert np.any(is_dropped) and len(np.unique(is_dropped[:, 0], axis=0)) > 1


def test_word_dropout_keeps_positions():
  encoder = transformer(num_layers=0, norm_position="post", word_dropout_rate=0.5)
  variables, lengths = variables_of(encoder), np.full(DIMS.B, DIMS.S)
  rngs = {"dropout": jax.random.key(0)}
  memory = encode(encoder, variables, lengths=lengths, rngs=rngs, deterministic=False).memory
  where = model_reference.sinusoidal(DIMS.S, 2 * DIMS.E)
  word = np.asarray(variables["params"]["embedding"]["embedding"])[TOKENS] * np.sqrt(2 * DIMS.E) / 0.5
  is_dropped = np.max(np.abs(np.asarray(memory) - where), axis=-1) < 1e-6
  assert 0 < np.sum(is_dropped) < is_dropped.size
  assert_close(memory, where + np.where(is_dropped[..., None], 0, word), FLOAT32)


def test_dropout_after_adding_positions():
  encoder = transformer(num_layers=0, norm_position="post", dropout_rate=0.25)
  variables = variables_of(encoder)
  memory = encode(encoder, variables, deterministic=False, rngs={"dropout": jax.random.key(0)}).memory
  whole = encode(encoder, variables).memory
  assert_close(memory, np.where(memory == 0, 0, whole / 0.75), FLOAT32)
  share = np.mean(memory == 0)
  assert abs(share - 0.25) < 5 * np.sqrt(0.25 * 0.75 / memory.size)


def test_initial_embedding_variance():
  encoder = attention.TransformerEncoder(211, 128, num_layers=0)
  tokens = jnp.arange(211)[:, None]
  encoded, _ = encoder.init_with_output(jax.random.key(0), tokens, jnp.ones(211, int))
  variables = encoder.init(jax.random.key(0), tokens, jnp.ones(211, int))
  scaled = np.float64(variables["params"]["embedding"]["embedding"]) * np.sqrt(128)
  assert abs(np.std(scaled) - 1) < 5 / np.sqrt(2 * scaled.size)
  assert np.all(np.isfinite(encoded.memory))


@pytest.mark.parametrize(
  ("encoder", "message"),
  [
    (attention.TransformerEncoder(13, 7, num_heads=1), "width must be even, got 7"),
    (transformer(norm_position="none"), "norm_position must be pre or post, got 'none'"),
    (
      transformer(position_encoding="learnt"),
      "position_encoding must be one of sinusoidal, .*, none, got 'learnt'",
    ),
    (transformer(num_heads=3), "qkv_features=22, num_heads=3"),
    (recurrent(word_dropout_rate=1.0), r"word_dropout_rate must be a number in \[0, 1\), got 1.0"),
    (recurrent(recurrent_dropout_rate=1.5), r"recurrent_dropout_rate must be a number in .*, got 1.5"),
    (transformer(word_dropout_rate=-0.5), r"word_dropout_rate must be a number in \[0, 1\), got -0.5"),
    (transformer(implementation="fast"), "implementation must be one of .*, got 'fast'"),
  ],
)
def test_invalid_fields_raise(encoder, message):
  with pytest.raises(ValueError, match=message):
    variables_of(encoder)
