"""The GRU decoder with attention: step and scan, state, padding, the order of things."""

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
from attention.decoders import ATTENTIONS

# E: width of a word's vector. D: of the memory, C: of the summary. N divides H.
DIMS = chex.Dimensions(B=3, T=5, S=7, N=2, H=22, V=13, E=11, D=17, C=19)
LENGTHS = np.array([4, 7, 1])
TARGETS = np.random.default_rng(0).integers(DIMS.V, size=DIMS["BT"])
kinds = pytest.mark.parametrize("kind", ATTENTIONS)
attending = pytest.mark.parametrize("kind", [kind for kind in ATTENTIONS if kind != "none"])


def decoder(kind, **options):
  return attention.Decoder(DIMS.V, DIMS.E, DIMS.H, attention=kind, num_heads=DIMS.N, **options)


def encoded():
  rng = np.random.default_rng(1)
  return attention.Encoded(
    memory=jnp.asarray(rng.normal(size=DIMS["BSD"]), jnp.float32),
    summary=jnp.asarray(rng.normal(size=DIMS["BC"]), jnp.float32),
  )


def decode(module, encoded, targets, lengths, **options):
  """Runs a bound decoder over whole targets."""
  state, memory = module.prepare(encoded, lengths)
  return module(state, targets, memory, **options)


@functools.cache
def variables_of(module):
  arguments = encoded(), jnp.asarray(TARGETS), jnp.asarray(LENGTHS)
  return random_parameters(module, *arguments, method=decode)


def run(kind, targets=TARGETS, source=None):
  """Returns logits [B T V] and weights [B T S]."""
  module = decoder(kind)
  source = encoded() if source is None else source
  arguments = source, jnp.asarray(targets), jnp.asarray(LENGTHS)
  return compiled(module, decode)(variables_of(module), *arguments)


@functools.cache
def differentiated(kind):
  """Returns a function of parameters, source and lengths; it returns both gradients, logits and weights."""

  def loss(variables, source, lengths):
    results = decoder(kind).apply(variables, source, jnp.asarray(TARGETS), lengths, method=decode)
    return jnp.sum(results[0] ** 2), results

  return jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))


@kinds
def test_logits_and_weights_are_those_of_the_formula_for_each_sentence_without_padding(kind):
  parameters = float64(variables_of(decoder(kind))["params"])
  logits, weights = run(kind)
  memory, summary = float64(encoded())
  for b, length in enumerate(LENGTHS):
    desired = models.decoder(kind, parameters, memory[b, :length], summary[b], TARGETS[b])
    assert_close(logits[b], desired[0], 10 * MODEL)
    if kind != "none":
      assert_close(weights[b, :, :length], desired[1], MODEL)


@kinds
def test_step_by_step_is_the_scan_of_the_whole(kind):
  module = decoder(kind)
  variables = variables_of(module)
  logits, weights = run(kind)
  state, memory = module.apply(variables, encoded(), jnp.asarray(LENGTHS), method="prepare")
  for t in range(DIMS.T):
    state, step_logits, step_weights = compiled(module, "step")(
      variables, state, jnp.asarray(TARGETS[:, t]), memory
    )
    assert_close(step_logits, logits[:, t], MODEL)
    if kind == "none":
      assert step_weights is None and weights is None
    else:
      assert_close(step_weights, weights[:, t], MODEL)


@kinds
def test_a_token_changes_its_own_and_all_later_logits_and_none_before(kind):
  logits, _ = run(kind)
  for t in range(DIMS.T):
    changed = TARGETS.copy()
    changed[1, t] = (changed[1, t] + 1) % DIMS.V
    other, _ = run(kind, changed)
    difference = np.max(np.abs(other - logits), axis=-1)
    assert np.all(difference[1, t:] > 1e-5)
    np.testing.assert_array_equal(difference[1, :t], 0.0)
    np.testing.assert_array_equal(difference[[0, 2]], 0.0)


@attending
def test_a_token_changes_the_weights_of_later_positions_only(kind):
  # Bahdanau's order: the state before the word asks.
  _, weights = run(kind)
  for t in range(DIMS.T):
    changed = TARGETS.copy()
    changed[1, t] = (changed[1, t] + 1) % DIMS.V
    _, other = run(kind, changed)
    difference = np.max(np.abs(other - weights)[1], axis=-1)
    np.testing.assert_array_equal(difference[: t + 1], 0.0)
    assert np.all(difference[t + 1 :] > 1e-6)


@attending
def test_weights_are_zero_at_padding_and_sum_to_one(kind):
  _, weights = run(kind)
  is_padding = np.arange(DIMS.S) >= LENGTHS[:, None, None]
  np.testing.assert_array_equal(np.where(is_padding, weights, 0.0), 0.0)
  assert_close(np.sum(weights, axis=-1), np.ones(DIMS["BT"]), FLOAT32)


@kinds
@pytest.mark.parametrize("content", [1e4, np.nan])
def test_padding_of_the_memory_changes_neither_logits_nor_gradients(kind, content):
  variables, lengths = variables_of(decoder(kind)), jnp.asarray(LENGTHS)
  is_padding = np.arange(DIMS.S) >= LENGTHS[:, None]
  whole = encoded()
  padded = whole._replace(memory=jnp.where(is_padding[:, :, None], content, whole.memory))

  desired, desired_results = differentiated(kind)(variables, whole, lengths)
  gradients, results = differentiated(kind)(variables, padded, lengths)
  np.testing.assert_array_equal(gradients[1].memory[is_padding], 0.0)
  chex.assert_trees_all_equal(results, desired_results)
  chex.assert_trees_all_equal(gradients, desired)


def test_additive_attention_keeps_nothing_of_all_sources_and_units_for_a_steps_gradient():
  B, T, S, A = 3, 64, 64, 64

  def temporary_memory(kind):
    model = attention.Decoder(vocabulary_size=5, embedding_width=7, width=A, attention=kind)
    memory, targets = jnp.ones((B, S, A)), jnp.ones((B, T), jnp.int32)

    def loss(variables):
      logits, _ = model.apply(variables, memory, targets, method=run)
      return jnp.sum(logits**2)

    def run(decoder, memory, targets):
      state, prepared = decoder.prepare(attention.Encoded(memory, memory[:, 0]), jnp.full((B,), S))
      return decoder(state, targets, prepared)

    variables = model.init(jax.random.key(0), memory, targets, method=run)
    return jax.jit(jax.grad(loss)).lower(variables).compile().memory_analysis().temp_size_in_bytes

  # What the recurrence keeps is the same for both; [T B S A] would be 3 MiB more.
  assert temporary_memory("additive") < temporary_memory("scaled_dot_product") + B * T * S * A


@kinds
def test_a_sentence_without_words_gives_finite_logits_and_gradients(kind):
  lengths = jnp.asarray([0, 7, 2])
  gradients, (logits, weights) = differentiated(kind)(variables_of(decoder(kind)), encoded(), lengths)
  chex.assert_tree_all_finite((gradients, logits))
  if kind != "none":
    np.testing.assert_array_equal(weights[0], 0.0)


@kinds
def test_the_context_is_the_summary_only_without_attention(kind):
  whole = encoded()
  logits, _ = run(kind)
  other, _ = run(kind, source=whole._replace(memory=whole.memory + 1))
  sees_memory = np.max(np.abs(other - logits)) > 1e-3
  assert sees_memory == (kind != "none")
  other, _ = run(kind, source=whole._replace(summary=whole.summary + 1))
  assert np.max(np.abs(other - logits)[:, 0]) > 1e-3


@kinds
def test_gradients_reach_every_parameter_of_a_decoder(kind):
  variables = variables_of(decoder(kind))
  (gradients, _), _ = differentiated(kind)(variables, encoded(), jnp.asarray(LENGTHS))
  for path, gradient in jax.tree.leaves_with_path(gradients):
    assert np.all(np.isfinite(gradient)), path
    if [key.key for key in path[-2:]] != ["key", "bias"]:
      assert np.max(np.abs(gradient)) > 1e-4, path


def dropped(variables, rate, deterministic=True, **options):
  """Returns logits under dropout."""
  apply = compiled(decoder("additive", dropout_rate=rate), decode, deterministic=deterministic)
  return apply(variables, encoded(), jnp.asarray(TARGETS), jnp.asarray(LENGTHS), **options)[0]


def test_a_decoder_drops_units_only_when_not_deterministic():
  variables = variables_of(decoder("additive"))
  logits = [
    dropped(variables, 0.5, deterministic=False, rngs={"dropout": jax.random.key(seed)}) for seed in (0, 0, 1)
  ]
  np.testing.assert_array_equal(dropped(variables, 0.5), dropped(variables, 0.0))
  np.testing.assert_array_equal(logits[0], logits[1])
  assert np.max(np.abs(logits[0] - logits[2])) > 0.1


def test_a_decoder_drops_units_of_the_embedding_and_of_the_read_out():
  # The hidden layer of the read-out sees the embedding only, unit by unit, and the logits are that layer.
  variables = jax.tree.map(jnp.zeros_like, variables_of(decoder("additive")))
  parameters = variables["params"]
  table = 0.3 + np.random.default_rng(2).random((DIMS.V, DIMS.E)).astype(np.float32)
  parameters["embedding"]["embedding"] = jnp.asarray(table)
  before = DIMS.H + DIMS.D
  parameters["readout"]["kernel"] = jnp.eye(before + DIMS.E, DIMS.H, -before)
  parameters["logits"]["kernel"] = jnp.eye(DIMS.H, DIMS.V)
  logits = dropped(variables, 0.25, deterministic=False, rngs={"dropout": jax.random.key(0)})
  logits = np.asarray(logits)[:, :, : DIMS.E]
  twice = np.tanh(table[TARGETS] / 0.75) / 0.75
  assert_close(logits, np.where(logits == 0, 0, twice), FLOAT32)
  kept = 0.75**2
  assert abs(np.mean(logits != 0) - kept) < 5 * np.sqrt(kept * (1 - kept) / logits.size)


@pytest.mark.parametrize(
  ("module", "message"),
  [
    (decoder("luong"), "attention must be one of additive, .*, none, got 'luong'"),
    (attention.Decoder(13, 11, 22, "multi_head", num_heads=3), "width=22, num_heads=3"),
    *(
      (decoder(kind, implementation="fast"), "implementation must be one of .*, got 'fast'")
      for kind in ("additive", "scaled_dot_product", "bilinear", "multi_head")
    ),
  ],
)
def test_impossible_fields_of_a_decoder_are_errors(module, message):
  with pytest.raises(ValueError, match=message):
    variables_of(module)
