"""Uses of the layer for multi-head attention that rarely break: gradients through a cache, and NNX."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers.model_reference import compiled, random_parameters

import attention
from attention import masks, positions

pytestmark = pytest.mark.slow

B, T, D = 3, 7, 24
LAYER = attention.MultiHeadAttention(
  4, num_key_value_heads=2, position_fn=positions.rotary, normalize_qk=True
)
TOKENS = np.random.default_rng(1).normal(size=(B, T, D)).astype(np.float32)


def test_gradients_through_the_cache():
  random = np.random.default_rng(9).normal(size=(B, T, D)).astype(np.float32)

  @jax.jit
  def run(variables, inputs):
    def parts(variables, inputs):
      cache = LAYER.apply(variables, inputs, T, method="init_cache")
      first, cache = LAYER.apply(variables, inputs[:, :4], mask=masks.causal(), cache=cache)
      second, _ = LAYER.apply(variables, inputs[:, 4:], mask=masks.causal(), cache=cache)
      return jnp.sum(random * jnp.concatenate([first, second], axis=1))

    def whole(variables, inputs):
      return jnp.sum(random * LAYER.apply(variables, inputs, mask=masks.causal()))

    return [jax.grad(function, argnums=(0, 1))(variables, inputs) for function in (parts, whole)]

  chex.assert_trees_all_close(*run(random_parameters(LAYER, TOKENS), TOKENS), rtol=2e-5, atol=2e-5)


def test_nnx_users_can_wrap_a_layer():
  wrapped = nnx.bridge.ToNNX(LAYER, rngs=nnx.Rngs(0)).lazy_init(TOKENS)
  params = nnx.to_pure_dict(nnx.state(wrapped, nnx.Param))
  desired = compiled(LAYER)({"params": params}, TOKENS)
  chex.assert_trees_all_close(wrapped(TOKENS), desired, rtol=1e-4, atol=1e-4)
