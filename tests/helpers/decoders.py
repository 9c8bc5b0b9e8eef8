"""Inputs of decoders, and what training with padding promises for all of them."""

import chex
import jax
import jax.numpy as jnp
import numpy as np

import attention
from helpers.model_reference import random_parameters

# D: width of the memory, C: of the final state.
DIMS = chex.Dimensions(B=3, T=5, S=7, V=13, D=17, C=19)
rng = np.random.default_rng(0)
LENGTHS, TARGETS = np.array([4, 7, 1]), rng.integers(DIMS.V, size=DIMS["BT"])
ENCODED = attention.Encoded(*(rng.normal(size=DIMS[axes]).astype(np.float32) for axes in ("BSD", "BC")))


def decode(module, targets=TARGETS, encoded=ENCODED, lengths=LENGTHS, **options):
  """Runs a bound decoder over whole targets."""
  state, memory = module.prepare(encoded, lengths)
  return module(state, targets, memory, **options)


def variables_of(module):
  return random_parameters(module, method=decode)


def assert_padding_is_ignored(module):
  """Asserts that padding, later words and other sentences have no effect in training, with dropout."""
  variables = variables_of(module)
  random = np.random.default_rng(1).normal(size=DIMS["BTV"]).astype(np.float32)

  @jax.jit
  def run(encoded, targets, lengths):
    def loss(variables, encoded):
      options = {"deterministic": False, "rngs": {"dropout": jax.random.key(0)}}
      results = module.apply(variables, targets, encoded, lengths, method=decode, **options)
      return jnp.sum(random * results[0]), results

    return jax.grad(loss, argnums=(0, 1), has_aux=True)(variables, encoded)

  (gradients, of_encoded), results = desired = jax.device_get(run(ENCODED, TARGETS, LENGTHS))
  is_padding = (np.arange(DIMS.S) >= LENGTHS[:, None])[..., None]
  padded = ENCODED._replace(memory=np.where(is_padding, np.float32(np.nan), ENCODED.memory))
  chex.assert_trees_all_equal(run(padded, TARGETS, LENGTHS), desired)
  np.testing.assert_array_equal(np.where(is_padding, of_encoded.memory, 0), 0)
  assert np.all(np.any(of_encoded.memory != 0, axis=-1) | is_padding[..., 0])
  for path, gradient in jax.tree.leaves_with_path(gradients):
    assert np.all(np.isfinite(gradient)), path
    if [key.key for key in path[-2:]] != ["key", "bias"]:  # it adds the same to all scores
      assert np.max(np.abs(gradient)) > 1e-4, path
  changed = TARGETS.copy()
  changed[1, 2] = (changed[1, 2] + 1) % DIMS.V
  for actual, before in zip(jax.device_get(run(ENCODED, changed, LENGTHS)[1]), results, strict=True):
    np.testing.assert_array_equal(actual[::2], before[::2])
    np.testing.assert_array_equal(actual[1, :2], before[1, :2])
    assert np.max(np.abs(actual[1, 3] - before[1, 3])) > 1e-5
  empty = jax.device_get(run(ENCODED, TARGETS, np.array([0, 7, 2])))
  chex.assert_tree_all_finite(empty)
  np.testing.assert_array_equal(empty[1][1][0], 0)
