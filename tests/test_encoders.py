"""Encoders: from source tokens to a memory and a summary."""

import functools

import chex
import jax
import jax.numpy as jnp
import models
import numpy as np
import pytest
from contract import FLOAT32, assert_close
from models import MODEL, compiled, float64, random_parameters

import attention

# E: width of a word's vector; the transformer's width is 2 E = 22. F: of the feed-forward network.
DIMS = chex.Dimensions(B=3, S=7, V=13, E=11, H=5, F=17)
LENGTHS = np.array([4, 7, 1])
TOKENS = np.random.default_rng(0).integers(DIMS.V, size=DIMS["BS"])
# Models of random parameters amplify rounding.
TOLERANCE = 10 * MODEL


def recurrent(**options):
  return attention.RecurrentEncoder(DIMS.V, DIMS.E, DIMS.H, **options)


def transformer(**options):
  fields = {"num_layers": 2, "num_heads": 2, "feed_forward_width": DIMS.F, **options}
  return attention.TransformerEncoder(DIMS.V, 2 * DIMS.E, **fields)


ENCODERS = {
  "recurrent": recurrent(num_layers=2),
  "transformer_pre": transformer(),
  "transformer_post": transformer(norm="post"),
}
encoders = pytest.mark.parametrize("name", ENCODERS)


@functools.cache
def variables_of(encoder):
  return random_parameters(encoder, jnp.asarray(TOKENS), jnp.asarray(LENGTHS))


def encode(encoder, variables, tokens=TOKENS, lengths=LENGTHS, rngs=None, deterministic=True):
  apply = compiled(encoder, deterministic=deterministic)
  return apply(variables, jnp.asarray(tokens), jnp.asarray(lengths), rngs=rngs)


@functools.cache
def differentiated(encoder):
  """Returns a function of parameters and lengths; it returns the gradient and what was encoded."""
  shapes = jax.eval_shape(lambda: encode(encoder, variables_of(encoder)))
  rng = np.random.default_rng(1)
  random = [jnp.asarray(rng.normal(size=leaf.shape), jnp.float32) for leaf in shapes]

  def loss(variables, lengths):
    encoded = encoder.apply(variables, jnp.asarray(TOKENS), lengths)
    return sum(jnp.sum(one * other) for one, other in zip(random, encoded, strict=True)), encoded

  return jax.jit(jax.grad(loss, has_aux=True))


def is_real():
  return np.arange(DIMS.S) < LENGTHS[:, None]


@encoders
def test_memory_and_summary_are_those_of_the_formula_for_each_sentence_without_padding(name):
  variables = variables_of(ENCODERS[name])
  memory, summary = encode(ENCODERS[name], variables)
  parameters = float64(variables["params"])
  for b, length in enumerate(LENGTHS):
    if name.startswith("recurrent"):
      desired = models.recurrent_encoder(parameters, TOKENS[b, :length])
    else:
      desired = models.transformer_encoder(parameters, TOKENS[b, :length], name[12:])
    assert_close(memory[b, :length], desired[0], TOLERANCE)
    assert_close(summary[b], desired[1], TOLERANCE)


@encoders
def test_what_stands_at_padding_changes_neither_real_positions_nor_the_summary(name):
  variables = variables_of(ENCODERS[name])
  others = np.where(is_real(), TOKENS, DIMS.V + 99)  # not even a token
  memory, summary = encode(ENCODERS[name], variables)
  other_memory, other_summary = encode(ENCODERS[name], variables, others)
  np.testing.assert_array_equal(other_memory[is_real()], memory[is_real()])
  np.testing.assert_array_equal(other_summary, summary)


@encoders
def test_a_sentence_alone_is_what_it_is_in_a_batch(name):
  variables = variables_of(ENCODERS[name])
  memory, summary = encode(ENCODERS[name], variables)
  alone = encode(ENCODERS[name], variables, TOKENS[:1, :4], LENGTHS[:1])
  assert_close(alone.memory[0], memory[0, :4], TOLERANCE)
  assert_close(alone.summary[0], summary[0], TOLERANCE)


@encoders
def test_every_position_sees_the_words_before_and_after_it(name):
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
    assert np.max(np.abs(other.summary - summary)[0]) > 1e-4


def test_one_direction_sees_the_past_and_the_other_the_future():
  encoder = recurrent()
  variables = variables_of(encoder)
  changed = TOKENS.copy()
  changed[1, 3] = (changed[1, 3] + 1) % DIMS.V
  difference = np.abs(encode(encoder, variables, changed).memory - encode(encoder, variables).memory)[1]
  sees = np.max(difference.reshape(DIMS.S, 2, DIMS.H), axis=-1) > 1e-5
  np.testing.assert_array_equal(sees[:, 0], np.arange(DIMS.S) >= 3)
  np.testing.assert_array_equal(sees[:, 1], np.arange(DIMS.S) <= 3)


@encoders
def test_the_order_of_words_matters(name):
  variables = variables_of(ENCODERS[name])
  same = np.full(DIMS["BS"], 5)
  memory, _ = encode(ENCODERS[name], variables, same)
  # The same word at every position: only where it stands can tell its vectors apart.
  steps = np.max(np.abs(np.diff(memory[1], axis=0)), axis=-1)
  assert np.all(steps > 1e-4)


@encoders
def test_an_empty_sentence_gives_finite_values_and_gradients(name):
  encoder = ENCODERS[name]
  results = differentiated(encoder)(variables_of(encoder), jnp.asarray([0, 7, 2]))
  chex.assert_tree_all_finite(results)
  np.testing.assert_array_equal(results[1].summary[0], 0.0)


@encoders
def test_gradients_reach_every_parameter_of_an_encoder(name):
  encoder = ENCODERS[name]
  gradients, _ = differentiated(encoder)(variables_of(encoder), jnp.asarray(LENGTHS))
  for path, gradient in jax.tree.leaves_with_path(gradients):
    assert np.all(np.isfinite(gradient)), path
    if [key.key for key in path[-2:]] != ["key", "bias"]:
      assert np.max(np.abs(gradient)) > 1e-3, path


@pytest.mark.parametrize("name", ["recurrent", "transformer_pre"])
def test_an_encoder_drops_units_only_when_not_deterministic(name):
  encoder = ENCODERS[name].clone(dropout_rate=0.5)
  variables = variables_of(encoder)

  def encode_with(seed, deterministic):
    rngs = {"dropout": jax.random.key(seed)}
    return encode(encoder, variables, deterministic=deterministic, rngs=rngs).memory

  np.testing.assert_array_equal(encode_with(0, True), encode_with(1, True))
  np.testing.assert_array_equal(encode_with(0, False), encode_with(0, False))
  assert np.max(np.abs(encode_with(0, False) - encode_with(1, False))) > 0.1


def test_a_recurrent_encoder_drops_units_between_its_layers():
  encoder = recurrent(num_layers=2, dropout_rate=0.5)
  variables = jax.tree.map(jnp.asarray, variables_of(encoder))
  # Nothing that follows the embedding's dropout depends on the embedding.
  for direction in ("forward_0", "backward_0"):
    variables["params"][direction]["input"] *= 0
  memories = [
    encode(encoder, variables, deterministic=False, rngs={"dropout": jax.random.key(seed)}).memory
    for seed in (0, 1)
  ]
  assert np.max(np.abs(memories[0] - memories[1])) > 0.1


def test_a_transformer_encoder_drops_units_of_embedding_plus_position():
  encoder = transformer(num_layers=0, norm="post", dropout_rate=0.25)
  variables = variables_of(encoder)
  memory = encode(encoder, variables, deterministic=False, rngs={"dropout": jax.random.key(0)}).memory
  whole = encode(encoder, variables).memory
  assert_close(memory, np.where(memory == 0, 0, whole / 0.75), FLOAT32)
  share = np.mean(memory == 0)
  assert abs(share - 0.25) < 5 * np.sqrt(0.25 * 0.75 / memory.size)


def test_embeddings_of_a_transformer_begin_with_unit_variance_beside_the_positions():
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
    (transformer(norm="none"), "norm must be pre or post, got 'none'"),
    (transformer(num_heads=3), "width=22, num_heads=3"),
    (transformer(implementation="fast"), "implementation must be one of .*, got 'fast'"),
  ],
)
def test_impossible_fields_of_an_encoder_are_errors(encoder, message):
  with pytest.raises(ValueError, match=message):
    variables_of(encoder)
