"""Loops over the leading axes of arrays."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.arrays import leading_axes


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
@pytest.mark.parametrize("per_step", [None, 1, 2, 4, 7, 30])
def test_walking_over_leading_axes_is_broadcasting(kept, per_step):
  rng = np.random.default_rng(0)
  shapes = (2, 3, 5, 7), (2, 1, 5, 1), (1, 3, 1, 7), (1, 1, 1, 7)
  arrays = [jnp.asarray(rng.normal(size=shape)) for shape in shapes]

  def product(*arrays):
    assert arrays[0].ndim == kept + 1
    return {"product": math.prod(arrays)}

  @jax.jit
  def run(first, *others):
    leading = (2, 3, 5)[: 3 - kept]
    letters = ("X" * (kept + 1),) * 4
    return leading_axes.map_leading_axes(product, (first, *others), letters, leading, per_step)

  actual = run(*arrays)["product"]
  np.testing.assert_allclose(actual, np.prod(np.broadcast_arrays(*arrays), axis=0), rtol=1e-6, atol=1e-6)


def test_unvarying_results_are_repeated():
  result = leading_axes.map_leading_axes(lambda array: array + 1, (jnp.zeros((1, 1, 2)),), ("X",), (3, 5))
  np.testing.assert_array_equal(result, np.ones((3, 5, 2)))


def test_branches_survive_vmap():
  flags = np.array([[True, False], [False, False], [True, True]])
  assert jax.vmap(leading_axes.unvmap_any, out_axes=None)(flags)
  assert not jax.vmap(leading_axes.unvmap_any, out_axes=None)(flags[1:2])
  nested = jax.vmap(jax.vmap(leading_axes.unvmap_any, out_axes=None), out_axes=None)
  assert nested(flags)

  def branch(flag, x):
    return jax.lax.cond(leading_axes.unvmap_any(flag), jnp.sin, jnp.cos, x)

  # With one answer per batch element, JAX would take both branches, and could not transpose them.
  assert "cond" in str(jax.make_jaxpr(jax.vmap(branch))(flags[:, 0], np.ones(3)))


@pytest.mark.parametrize(
  ("count", "at_once", "steps"),
  [(12, 1, [12]), (12, 5, [3]), (12, 12, []), (97, 64, []), (7, 3, [2]), (7, 0, [7])],
)
def test_rows_at_a_time_is_bounded(count, at_once, steps):
  # All groups have the same size if it is more than half of the best size; otherwise there is a remainder.
  items = jnp.asarray(np.random.default_rng(0).normal(size=(count, 3)))

  def in_slices(items):
    def scaled(arrays, count):
      return arrays[0] * jnp.sum(arrays[0], axis=-1, keepdims=True) * arrays[1]

    return leading_axes.map_slices(scaled, (items, jnp.ones(())), (True, False), at_once)

  scans = [
    equation for equation in jax.make_jaxpr(in_slices)(items).eqns if equation.primitive.name == "scan"
  ]
  assert [loop.params["length"] for loop in scans] == steps
  np.testing.assert_allclose(in_slices(items), items * jnp.sum(items, axis=1, keepdims=True), rtol=1e-5)
