"""The gradients of a recurrent decoder need no memory for pairs of targets and sources."""

import jax
import jax.numpy as jnp
import pytest

import attention

pytestmark = pytest.mark.slow


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
