"""Ensembles average the probabilities and attention weights of their members."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.model_reference import random_parameters

import attention

V, E, H = 13, 4, 6
rng = np.random.default_rng(0)
SOURCES, LENGTHS, TARGETS = rng.integers(V, size=(2, 5)), np.array([5, 2]), rng.integers(V, size=(2, 2))
assert_close = functools.partial(chex.assert_trees_all_close, rtol=1e-4, atol=1e-4)


def translator(kind):
  encoder = attention.RecurrentEncoder(V, E, H)
  return attention.Seq2Seq(encoder, attention.RecurrentDecoder(V, E, H, kind))


def params_of(model, seed=0):
  return random_parameters(model, SOURCES, LENGTHS, TARGETS, seed=seed)["params"]


def test_ensemble_averages_probabilities():
  model = translator("additive")
  members = model, model, translator("none")
  ensemble = attention.Ensemble(members)
  params = [params_of(member, seed) for seed, member in enumerate(members)]

  @jax.jit
  def run(params):
    variables, results = {"params": params}, []
    state, memory = ensemble.apply(variables, SOURCES, LENGTHS, method="encode")
    for t in range(TARGETS.shape[1]):
      state, *step = ensemble.apply(variables, state, TARGETS[:, t], memory, method="step")
      results.append(step)
    alone = [
      member.apply({"params": own}, SOURCES, LENGTHS, TARGETS)
      for member, own in zip(members, params, strict=True)
    ]
    return [jnp.stack(item, axis=1) for item in zip(*results, strict=True)], alone

  (log_probabilities, weights), alone = jax.device_get(run(params))
  assert_close(np.exp(log_probabilities), np.mean([jax.nn.softmax(logits) for logits, _ in alone], axis=0))
  assert alone[2][1] is None
  assert_close(weights, np.mean([own for _, own in alone[:2]], axis=0))


def test_members_without_attention_have_no_weights():
  model = translator("none")
  ensemble, variables = attention.Ensemble((model,)), {"params": [params_of(model)]}

  def run():
    state, memory = ensemble.apply(variables, SOURCES, LENGTHS, method="encode")
    return ensemble.apply(variables, state, TARGETS[:, 0], memory, method="step")[2]

  assert jax.eval_shape(run) is None


def test_invalid_calls_raise():
  ensemble = attention.Ensemble((translator("none"),))
  with pytest.raises(ValueError, match=r"^params must have one entry per member, 1, got 2$"):
    ensemble.apply({"params": [{}, {}]}, method="encode")
  with pytest.raises(ValueError, match=r"^method must be encode or step, got 'output_features'$"):
    ensemble.apply({"params": [{}]}, method="output_features")
