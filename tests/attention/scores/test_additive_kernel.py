"""The sums of additive attention, score_vector . tanh(query + key), and their derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.scores.additive_kernel import sums_of_tanh

# Enough terms for loops, with all remainders of the number of rows of a step; and few terms.
MANY = [(37, 41, 29), (3, 431, 31), (432, 3, 30), (181, 191, 1)]
FEW = [(2, 3, 5), (1, 1000, 59), (1000, 1, 59)]


def draw(T, S, A, scale=1.0):
  rng = np.random.default_rng(0)
  queries, keys, vector = (rng.normal(size=shape) for shape in ((T, A), (S, A), (A,)))
  return np.float32(scale * queries), np.float32(scale * keys), np.float32(vector)


def exact(queries, keys, vector):
  """Returns the sums, and their derivatives by pre-activation [T S A] and by vector, in float64."""
  queries, keys, vector = (array.astype(np.float64) for array in (queries, keys, vector))
  tanh = np.tanh(queries[:, None, :] + keys[None, :, :])
  return np.sum(vector * tanh, axis=-1), vector * (1 - tanh**2), tanh


@jax.jit
def run(inputs, of_loss, directions):
  """Returns the sums, their gradients and their tangents; compiled once for inputs of the same shapes."""
  sums, pull = jax.vjp(sums_of_tanh, *inputs)
  return sums, pull(of_loss), jax.jvp(sums_of_tanh, inputs, directions)[1]


def assert_exact(inputs, unit=1.0):
  """Asserts that sums, gradients and tangents, divided by `unit`, are exact up to rounding of sums."""
  desired, slopes, tanh = exact(*inputs)
  rng = np.random.default_rng(1)
  of_loss = rng.normal(size=desired.shape)
  directions = [rng.normal(size=array.shape) for array in inputs]

  sums, gradients, tangent = run(inputs, np.float32(of_loss), tuple(map(np.float32, directions)))
  pairs = slopes * of_loss[..., None]
  exact_gradients = pairs.sum(1), pairs.sum(0), np.einsum("TS,TSA->A", of_loss, tanh)
  exact_tangent = np.einsum("TSA,TSA->TS", slopes, directions[0][:, None] + directions[1][None])
  exact_tangent += tanh @ directions[2]
  rounding = 16 * float(np.finfo(np.float32).eps) * max(*inputs[0].shape, len(inputs[1]))
  results = (sums, desired), *zip(gradients, exact_gradients, strict=True), (tangent, exact_tangent)
  for actual, wanted in results:
    np.testing.assert_allclose(actual / unit, wanted / unit, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("size", [*MANY, *FEW])
def test_sums_and_derivatives_are_exact(size):
  assert_exact(draw(*size))


# Pre-activations beyond the range of the factored form, and far beyond.
@pytest.mark.parametrize("scale", [20.0, 1e4])
def test_large_pre_activations_are_exact(scale):
  assert_exact(draw(*MANY[0], scale=scale))


# Without a limit, results are wrong from 14.8 on if all four units of a division have that size.
@pytest.mark.parametrize("size", [6.9, 15.0, 16.0, 44.5])
@pytest.mark.parametrize("count", [1, 4])  # units of that size; of four, all share a division
def test_exact_where_divisors_may_overflow(size, count):
  rng = np.random.default_rng(0)
  queries, keys = (rng.uniform(-1, 1, (length, 16)).astype(np.float32) for length in (47, 53))
  signs = rng.choice(np.float32([-1, 1]), (47, count))
  units = slice(None, None, 16 // count)
  # Pre-activations that cancel, and those that do not.
  queries[:, units] = signs * np.float32(size / 2)
  keys[:, units] = np.where(rng.random((53, count)) < 0.5, -size / 2, size / 2)
  assert_exact((queries, keys, rng.normal(size=16, scale=1e3).astype(np.float32)), unit=1e3)


@pytest.mark.parametrize("scale", [1e-2, 1e-4, 1e-6])
def test_small_pre_activations_keep_their_digits(scale):
  queries, keys, vector = draw(*MANY[0], scale=scale)
  desired, _, tanh = exact(queries, keys, vector / np.float32(scale))
  actual, pull = jax.vjp(jax.jit(sums_of_tanh), queries, keys, vector / np.float32(scale))
  np.testing.assert_allclose(actual, desired, rtol=1e-4, atol=1e-4)
  of_vector = pull(jnp.ones_like(actual))[2] / scale
  np.testing.assert_allclose(of_vector, np.sum(tanh, axis=(0, 1)) / scale, rtol=1e-4, atol=5e-3)


def test_one_small_unit_keeps_its_digits():
  queries, keys, vector = draw(*MANY[0])
  for array in (queries, keys):
    array[:, 0] *= 1e-5
  vector[1:] = 0  # the other units are large, and do not count
  desired, _, _ = exact(queries, keys, vector)
  np.testing.assert_allclose(sums_of_tanh(queries, keys, vector) * 1e5, desired * 1e5, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("in_axes", [(0, 0, 0), (0, None, None), (None, 0, None), (None, None, 0)])
def test_gradients_under_vmap(in_axes):
  inputs = draw(*MANY[0])
  # The second is beyond the range of the factored form.
  inputs = [x if axis is None else np.stack([x, 20 * x]) for x, axis in zip(inputs, in_axes, strict=True)]

  def gradients(*inputs):
    return jax.grad(lambda *inputs: jnp.sum(jnp.sin(sums_of_tanh(*inputs))), (0, 1, 2))(*inputs)

  actual = jax.jit(jax.vmap(gradients, in_axes))(*inputs)
  for i in range(2):
    one = [x if axis is None else x[i] for x, axis in zip(inputs, in_axes, strict=True)]
    for gradient, desired in zip(actual, jax.jit(gradients)(*one), strict=True):
      np.testing.assert_allclose(gradient[i], desired, rtol=1e-3, atol=1e-4 * np.max(np.abs(desired)))


def test_many_terms_need_loops():
  for size in MANY:
    assert "scan" in str(jax.make_jaxpr(sums_of_tanh)(*draw(*size)))
  for size in FEW:
    assert "scan" not in str(jax.make_jaxpr(sums_of_tanh)(*draw(*size)))


def test_no_array_has_three_axes():
  T, S, A = 64, 128, 256

  def loss(inputs):
    return jnp.sum(sums_of_tanh(*inputs) ** 2)

  program = jax.jit(jax.grad(loss)).lower(draw(T, S, A)).compile()
  assert program.memory_analysis().temp_size_in_bytes < T * S * A * 4 / 8


def test_cpu_loops_contain_products():
  traced = jax.jit(sums_of_tanh).trace(*draw(*MANY[0]))
  programs = (traced.lower(lowering_platforms=(name,)).as_text() for name in ("cpu", "cuda"))
  products = [program.count("dot_general") for program in programs]
  assert products == [2, 1]  # tanh is multiplied by the score vector; loops of fractions need one on CPUs
