"""Searches with a Transformer decoder reorder its caches together with the hypotheses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.model_reference import compiled, random_parameters

import attention
from attention import decoding

pytestmark = pytest.mark.slow

V, LENGTH = 13, 5
SOURCES, LENGTHS = np.random.default_rng(0).integers(V, size=(3, 7)), np.array([4, 7, 1])


@pytest.mark.parametrize("position_encoding", ["sinusoidal", "relative", "rotary"])
def test_search_with_caches_matches_rereading(position_encoding):
  sizes = {"num_layers": 1, "num_heads": 3, "mlp_dim": 5, "position_encoding": position_encoding}
  encoder = attention.TransformerEncoder(V, 18, **sizes)
  model = attention.Seq2Seq(encoder, attention.TransformerDecoder(V, 18, **sizes))
  variables = random_parameters(model, SOURCES, LENGTHS, SOURCES)
  options = {"batch_size": 3, "max_length": LENGTH, "bos_id": 1, "eos_id": -1}  # no sentence ends

  @jax.jit
  def search(variables):
    state, memory = model.apply(variables, SOURCES, LENGTHS, LENGTH, method="encode")

    def step(state, tokens):
      return model.apply(variables, state, tokens, memory, method="step")

    return (
      decoding.greedy(step, state, **options),
      decoding.beam_search(step, state, beam_size=4, n_best=4, **options),
    )

  def read(tokens):  # all words at once
    targets = jnp.concatenate([jnp.ones((3, 1), int), tokens[:, :-1]], axis=1)
    logits, weights = compiled(model)(variables, SOURCES, LENGTHS, targets)
    return jax.nn.log_softmax(logits), weights

  greedy, beams = search(variables)
  np.testing.assert_array_equal(greedy.tokens, np.argmax(read(greedy.tokens)[0], axis=-1))
  for k in range(4):
    log_probabilities, weights = read(beams.tokens[:, k])
    chosen = jnp.take_along_axis(log_probabilities, beams.tokens[:, k, :, None], axis=-1)[..., 0]
    np.testing.assert_allclose(beams.scores[:, k], jnp.sum(chosen, axis=-1), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(beams.weights[:, k], weights, rtol=1e-5, atol=1e-5)
