"""Implementations agree: "blockwise" equals "dense", and so do its derivatives.

test_transformations.py has more options and transformations.
"""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DIMS, FLOAT32, GRADIENTS, SCORES, attend, attend_fully, draw, random_like

from attention import masks

B, T, S = DIMS["BTS"]


def results_and_derivatives(inputs, mask, implementation):
  """Returns the results, their tangents, and the gradients of a loss."""

  def results(inputs):
    context, weights, logsumexp = attend_fully(inputs, mask=mask, implementation=implementation)
    return context, weights, jnp.where(logsumexp > -jnp.inf, logsumexp, 0)

  def loss(inputs):
    return sum(jnp.sum(jnp.sin(array)) for array in results(inputs))

  return (*jax.jvp(results, (inputs,), (random_like(inputs),)), jax.grad(loss)(inputs))


@pytest.mark.parametrize("kind", SCORES)
def test_blockwise_equals_dense(kind):
  # The second sentence has one key, and the first query none.
  mask = masks.causal(-1) & masks.lengths(source=np.array([4, 1]))
  inputs = draw(kind)

  @jax.jit
  def run(inputs):
    return [results_and_derivatives(inputs, mask, name) for name in ("dense", "blockwise")]

  dense, blockwise = run(inputs)
  chex.assert_trees_all_close(blockwise[0], dense[0], **FLOAT32)
  chex.assert_trees_all_close(blockwise[1:], dense[1:], **GRADIENTS)


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
@pytest.mark.parametrize(
  ("kind", "dtype"), [*((kind, jnp.bfloat16) for kind in SCORES), ("additive", jnp.float16)]
)
def test_half_precision_is_rounded_once(kind, dtype, implementation):
  # Parameters and biases stay in float32; they may be more precise than the inputs.
  inputs = draw(kind)
  halved = inputs._replace(
    queries=inputs.queries.astype(dtype), keys=inputs.keys.astype(dtype), values=inputs.values.astype(dtype)
  )
  actual = attend_fully(halved, implementation=implementation)
  assert [array.dtype for array in actual] == [dtype, dtype, jnp.float32]
  exact = attend_fully(jax.tree.map(np.float32, halved), implementation="dense")
  half_ulp = {jnp.bfloat16: 2.0**-8, jnp.float16: 2.0**-11}[dtype]
  for array, desired, rtol in zip(actual, exact, (half_ulp, half_ulp, 4e-6), strict=True):
    np.testing.assert_allclose(np.float64(array), np.float64(desired), rtol=rtol, atol=4e-6)


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_half_precision_gradients_keep_dtypes(implementation):
  inputs = jax.tree.map(lambda array: array.astype(jnp.bfloat16), draw("scaled_dot_product"))
  inputs = inputs._replace(score=draw("scaled_dot_product").score)

  def loss(inputs, implementation):
    return jnp.sum(jnp.float32(attend(inputs, implementation=implementation)))

  slopes = jax.grad(loss)(inputs, implementation)
  exact = jax.grad(loss)(jax.tree.map(np.float32, inputs), "dense")
  assert [leaf.dtype for leaf in jax.tree.leaves(slopes)] == [jnp.float32, *[jnp.bfloat16] * 4]
  chex.assert_trees_all_close(slopes, exact, rtol=2.0**-7, atol=1e-3)


@pytest.mark.parametrize("kind", ["scaled_dot_product", "additive"])
def test_auto_equals_dense(kind):
  inputs = draw(kind)
  chex.assert_trees_all_close(attend(inputs), attend(inputs, implementation="dense"), **FLOAT32)
  # More than 2^24 scores are computed in blocks.
  many = inputs._replace(queries=np.zeros((2, 4099, 11), np.float32), bias=None)
  many = many._replace(keys=np.zeros((2, 4099, 11), np.float32), values=np.zeros((2, 4099, 2), np.float32))
  assert "4099x4099" not in jax.jit(attend).lower(many).as_text()
  assert "4099x4099" in jax.jit(functools.partial(attend, implementation="dense")).lower(many).as_text()
