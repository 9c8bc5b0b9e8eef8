"""Dropout in each part of a recurrent decoder, and the memory of its gradients."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.decoders import DIMS, TARGETS, decode, variables_of
from helpers.model_reference import compiled, float64

import attention

pytestmark = pytest.mark.slow

EMBED, H = 11, 22
decoder = functools.partial(attention.RecurrentDecoder, DIMS.V, EMBED, H)
assert_close = functools.partial(chex.assert_trees_all_close, rtol=2e-5, atol=2e-5)


def dropped(params, **options):
  """Returns logits and weights under dropout."""
  variables = {"params": jax.tree.map(jnp.float32, params)}
  run = compiled(decoder(**options), decode, deterministic=False)
  return run(variables, rngs={"dropout": jax.random.key(0)})


def zeros(**options):
  return jax.tree.map(np.zeros_like, float64(variables_of(decoder(**options))["params"]))


def reading_embeddings():
  """Returns parameters whose logits are tanh of the embedding, unit by unit, and the embedding."""
  params, before = zeros(), H + DIMS.D
  table = 0.3 + np.random.default_rng(2).random((DIMS.V, EMBED))
  params["embedding"]["embedding"] = table
  params["readout"]["kernel"] = np.eye(before + EMBED, H, -before)
  params["logits"]["kernel"] = np.eye(H, DIMS.V)
  return params, table


@pytest.mark.parametrize("variational", [False, True])
def test_dropout_of_embedding_and_readout(variational):
  params, table = reading_embeddings()
  logits, _ = dropped(params, dropout_rate=0.25, variational_dropout=variational)
  logits = np.asarray(logits)[..., :EMBED]
  assert_close(logits, np.where(logits == 0, 0, np.tanh(table[TARGETS] / 0.75) / 0.75))
  kept, number = 0.75**2, logits.size / (DIMS.T if variational else 1)
  assert abs(np.mean(logits != 0) - kept) < 5 * np.sqrt(kept * (1 - kept) / number)
  assert np.all((logits == 0) == (logits[:, :1] == 0)) == variational
  assert len(np.unique(logits[:, 0] == 0, axis=0)) > 1


def test_a_decoder_drops_whole_words():
  params, table = reading_embeddings()
  logits = np.asarray(dropped(params, word_dropout_rate=0.5)[0])[..., :EMBED]
  is_dropped = np.all(logits == 0, axis=-1, keepdims=True)
  assert 0 < np.sum(is_dropped) < is_dropped.size
  assert_close(logits, np.where(is_dropped, 0, np.tanh(table[TARGETS] / 0.5)))


BIAS = 0.3 + np.random.default_rng(2).random(H)
ways = pytest.mark.parametrize("way", [{}, {"attend_order": "after"}, {"input_feeding": True}], ids=str)


def reading_states(**options):
  """Returns parameters whose logits are tanh of the top state, with gates that take each candidate."""
  params = zeros(num_layers=2, **options)
  for name in ("cell", "cell_1"):
    params[name]["bias"] = np.concatenate([np.full(H, 100.0), np.full(H, -100.0), np.zeros(H)])
  params["readout"]["kernel"] = np.eye(len(params["readout"]["kernel"]), H)
  params["logits"]["kernel"] = np.eye(H, DIMS.V)
  return params


@ways
def test_dropout_in_recurrent_products(way):
  # The top state is tanh of the bias and of half the previous state.
  params = reading_states(**way)
  params["cell_1"]["recurrent"] = 0.5 * np.eye(H, 3 * H, 2 * H)
  params["cell_1"]["bias"][2 * H :] = BIAS
  logits, _ = dropped(params, num_layers=2, recurrent_dropout_rate=0.5, **way)
  kept = [np.tanh(BIAS)]
  for _ in range(1, DIMS.T):
    kept.append(np.tanh(BIAS + kept[-1]))  # a state twice as large, halved by its weight
  is_dropped = np.asarray(logits[:, 1] == logits[:, 0])
  states = np.where(is_dropped[:, None], np.tanh(BIAS)[: DIMS.V], np.stack(kept)[:, : DIMS.V])
  assert_close(logits, np.tanh(states))
  assert 0.1 < np.mean(is_dropped) < 0.9 and len(np.unique(is_dropped, axis=0)) > 1


@ways
def test_dropout_between_layers(way):
  params = reading_states(**way)
  params["cell"]["bias"][2 * H :] = BIAS
  params["cell_1"]["input"] = np.eye(H, 3 * H, 2 * H)
  logits = np.asarray(dropped(params, num_layers=2, dropout_rate=0.25, **way)[0])
  twice = np.tanh(np.tanh(np.tanh(BIAS[: DIMS.V]) / 0.75)) / 0.75  # dropped there, and from the readout
  assert_close(logits, np.where(logits == 0, 0, twice))
  assert abs(np.mean(logits != 0) - 0.75**2) < 5 * np.sqrt(0.75**2 * (1 - 0.75**2) / logits.size)


def test_additive_steps_store_no_pairs():
  B, T, S, A = 3, 64, 64, 64
  encoded = attention.Encoded(jnp.ones((B, S, A)), jnp.ones((B, A)))
  targets, lengths = jnp.ones((B, T), jnp.int32), jnp.full(B, S)

  def temporary_memory(kind):
    module = attention.RecurrentDecoder(vocabulary_size=5, embed_dim=7, features=A, attention=kind)

    def decode(module):
      state, memory = module.prepare(encoded, lengths)
      return module(state, targets, memory)[0]

    def loss(variables):
      return jnp.sum(module.apply(variables, method=decode) ** 2)

    variables = jax.eval_shape(lambda: module.init(jax.random.key(0), method=decode))
    return jax.jit(jax.grad(loss)).lower(variables).compile().memory_analysis().temp_size_in_bytes

  # Both have the same residuals of the recurrence; [T B S A] would be 3 MiB more.
  assert temporary_memory("additive") < temporary_memory("scaled_dot_product") + B * T * S * A
