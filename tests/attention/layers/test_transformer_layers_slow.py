"""Encoder layers under `nn.remat` and `nn.scan`."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from helpers.model_reference import random_parameters

import attention
from attention import masks

pytestmark = pytest.mark.slow

N, F = 2, 17
INPUTS = np.random.default_rng(0).normal(size=(2, 5, 12)).astype(np.float32)
assert_close = functools.partial(chex.assert_trees_all_close, rtol=2e-5, atol=2e-5)


def test_remat_preserves_results():
  plain = attention.EncoderLayer(N, F, dropout_rate=0.4)
  rematerialized = nn.remat(attention.EncoderLayer)(N, F, 0.4, deterministic=False)

  @jax.jit
  def run(variables):
    def loss(variables, module, **options):
      outputs = module.apply(variables, INPUTS, rngs={"dropout": jax.random.key(3)}, **options)
      return jnp.sum(jnp.sin(outputs))

    return [
      jax.value_and_grad(loss)(variables, rematerialized),
      jax.value_and_grad(loss)(variables, plain, deterministic=False),
      loss(variables, plain),
    ]

  result, desired, other = run(random_parameters(plain, INPUTS))
  assert_close(result, desired)
  assert abs(result[0] - other) > 1e-2


class Block(nn.Module):
  """A rematerialized layer as a step of `nn.scan`."""

  deterministic: bool

  @nn.compact
  def __call__(self, inputs, mask):
    options = {"dropout_rate": 0.3, "deterministic": self.deterministic, "name": "layer"}
    return nn.remat(attention.EncoderLayer)(N, F, **options)(inputs, mask=mask), None


def test_scanned_layers_match_a_loop():
  mask = masks.causal() & masks.lengths(source=jnp.array([[5], [2]]))
  rngs = {"params": True, "dropout": True}
  stack = nn.scan(Block, variable_axes={"params": 0}, split_rngs=rngs, in_axes=nn.broadcast, length=3)
  variables = random_parameters(stack(deterministic=True), INPUTS, mask)

  @jax.jit
  def run(variables):
    looped = INPUTS
    for i in range(3):
      layer = jax.tree.map(lambda leaf, i=i: leaf[i], variables["params"]["layer"])
      looped = attention.EncoderLayer(N, F).apply({"params": layer}, looped, mask=mask)
    dropped = [
      stack(deterministic=False).apply(variables, INPUTS, mask, rngs={"dropout": jax.random.key(seed)})[0]
      for seed in (0, 1)
    ]
    return stack(deterministic=True).apply(variables, INPUTS, mask)[0], looped, dropped

  scanned, looped, dropped = jax.device_get(run(variables))
  assert_close(scanned, looped)
  for other in (scanned, dropped[1]):
    assert np.max(np.abs(dropped[0] - other)) > 0.1
