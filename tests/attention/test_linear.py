"""The function `linear`, and the layer with its parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.layers.projections import Linear
from attention.linear import linear

D, X = 5, 3
LEADING = [(), (7,), (2, 7), (2, 1, 7), (2, 0), (0,)]


def _draw(leading, seed=0):
  rng = np.random.default_rng(seed)
  return rng.standard_normal((*leading, D)), rng.standard_normal((D, X))


@pytest.mark.parametrize("leading", LEADING, ids=str)
def test_projection_matches_matmul(leading, float64):
  vectors, kernel = _draw(leading)
  products = linear(jnp.asarray(vectors), jnp.asarray(kernel))
  assert products.shape == (*leading, X)
  for place in np.ndindex(leading):
    expected = [sum(vectors[place][d] * kernel[d, x] for d in range(D)) for x in range(X)]
    np.testing.assert_allclose(products[place], expected, rtol=1e-12)


@pytest.mark.parametrize("leading", LEADING, ids=str)
def test_projection_gradients(leading, float64):
  vectors, kernel = _draw(leading)
  factors = np.random.default_rng(1).standard_normal((*leading, X))
  of_vectors, of_kernel = jax.grad(lambda *inputs: jnp.sum(linear(*inputs) * factors), argnums=(0, 1))(
    jnp.asarray(vectors), jnp.asarray(kernel)
  )
  np.testing.assert_allclose(of_vectors, factors @ kernel.T, rtol=1e-12)
  expected = np.zeros((D, X))
  for place in np.ndindex(leading):
    expected += np.outer(vectors[place], factors[place])
  np.testing.assert_allclose(of_kernel, expected, rtol=1e-12)


def test_zero_width_axis_gives_zeros():
  assert linear(jnp.ones((2, 7, 0)), jnp.ones((0, X))).tolist() == np.zeros((2, 7, X)).tolist()


@pytest.mark.parametrize("of_vectors", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("dtype", [None, jnp.float32, jnp.bfloat16])
def test_bias_dtype_matches_flax(dtype, of_vectors):
  variables = {"params": {"kernel": jnp.array([[1.0, 2.0], [3.0, 4.0]]), "bias": jnp.array([0.5, -0.5])}}
  outputs = Linear(2, dtype).apply(variables, jnp.array([[[1, 1]], [[2, -1]]], of_vectors))
  assert outputs.dtype == (dtype or jnp.float32)  # the parameters are float32
  assert outputs.tolist() == [[[4.5, 5.5]], [[-0.5, -0.5]]]
