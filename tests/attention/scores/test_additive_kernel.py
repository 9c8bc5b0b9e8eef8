"""The sums of additive attention, score_vector . tanh(query + key), and their derivatives."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.fixtures import EPSILON, always, assert_close

from attention.scores import additive_kernel as additive

# Sizes below, above and between the number of rows of a loop step. Exactness must also hold for the formula
# that is fast for many scores.
pytestmark = pytest.mark.usefixtures("additive_in_loops")

SIZES = [(2, 3, 5), (13, 11, 17), (2, 19, 8), (16, 2, 1)]


def sums_of_tanh(queries, keys, vector):
  """The kernel with leading axes, and a vector [... 1 A]."""
  kernel = jnp.vectorize(additive.sums_of_tanh, signature="(t,a),(s,a),(a)->(t,s)")
  return kernel(queries, keys, vector[..., 0, :])


def draw(leading, T, S, A, scale=1.0):
  rng = np.random.default_rng(0)
  shapes = (*leading, T, A), (*leading, S, A), (*leading, 1, A)
  queries, keys, vector = (rng.normal(size=shape) for shape in shapes)
  return tuple(np.float32(array) for array in (scale * queries, scale * keys, vector))


def exact(queries, keys, vector):
  """Returns the sums, and d sum / d pre-activation [... T S A], in float64."""
  queries, keys, vector = (array.astype(np.float64) for array in (queries, keys, vector))
  tanh = np.tanh(queries[..., :, None, :] + keys[..., None, :, :])
  vectors = vector[..., None, :]
  return np.sum(vectors * tanh, axis=-1), vectors * (1 - tanh**2), tanh


def tolerance(A):
  return 16 * EPSILON * A


# Pre-activations within the range of the factored form, beyond it, and far beyond.
@pytest.mark.parametrize(
  ("leading", "size", "scale"),
  always(
    *(((2,), size, 1.0) for size in SIZES),
    *(((), SIZES[1], scale) for scale in (20.0, 1e4)),
    of=list(itertools.product([(), (2,)], SIZES, [1.0, 20.0, 1e4])),
  ),
)
def test_sums_and_gradients_are_exact(leading, size, scale):
  inputs = draw(leading, *size, scale=scale)
  desired, slopes, tanh = exact(*inputs)
  of_loss = np.random.default_rng(1).normal(size=desired.shape)
  actual, pull = jax.vjp(jax.jit(sums_of_tanh), *inputs)
  d_queries, d_keys, d_vector = pull(jnp.asarray(of_loss, jnp.float32))
  limit = tolerance(max(size))
  assert_close(actual, desired, limit)
  weighted = of_loss[..., None] * slopes
  assert_close(d_queries, np.sum(weighted, axis=-2), limit)
  assert_close(d_keys, np.sum(weighted, axis=-3), limit)
  assert_close(d_vector[..., 0, :], np.einsum("...ts,...tsa->...a", of_loss, tanh), limit)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_forward_mode_is_exact(scale):
  T, S, A = SIZES[1]
  inputs = draw((), T, S, A, scale=scale)
  directions = draw((), T, S, A)[::-1]
  directions = (directions[2], directions[1], directions[0])
  _, slopes, tanh = exact(*inputs)
  changes = (
    np.einsum("tsa,ta->ts", slopes, directions[0]),
    np.einsum("tsa,sa->ts", slopes, directions[1]),
    np.einsum("tsa,a->ts", tanh, directions[2][0]),
  )
  for i, desired in enumerate(changes):

    def alone(array, i=i):
      return sums_of_tanh(*inputs[:i], array, *inputs[i + 1 :])

    actual = jax.jvp(jax.jit(alone), (inputs[i],), (directions[i],))[1]
    assert_close(actual, desired, tolerance(A))


@pytest.mark.parametrize("one", [6.5, 6.9, 20.0, 44.0, 89.0])
def test_exact_at_range_limits(one):
  # Pre-activations that cancel, and those that do not. The limit is between the first two.
  queries = np.float32([[one, -one, one, 0.25]])
  keys = np.float32([[-one, one, one, 0.5], [0.5 - one, one - 0.5, 0, -0.25]])
  vector = np.float32([[1.0, 2.0, 3.0, 5.0]])
  desired, slopes, _ = exact(queries, keys, vector)
  actual, pull = jax.vjp(sums_of_tanh, queries, keys, vector)
  assert_close(actual, desired, tolerance(4))
  assert_close(pull(jnp.ones((1, 2)))[0], np.sum(slopes, axis=-2), tolerance(4))


# Without a limit, results are wrong from 14.8 on if all four units of a division have that size.
@pytest.mark.parametrize("size", [5.0, 10.0, 10.6, 15.0, 16.0, 43.0, 89.0])
@pytest.mark.parametrize("count", [1, 4, 16])  # units of that size; of four, all share a division
def test_exact_where_divisors_may_overflow(size, count):
  rng = np.random.default_rng(0)
  queries, keys = (rng.uniform(-1, 1, (length, 16)).astype(np.float32) for length in (29, 31))
  signs = rng.choice(np.float32([-1, 1]), (29, count))
  units = slice(None, None, 16 // count)
  queries[:, units] = signs * np.float32(size / 2)
  keys[:, units] = np.where(rng.random((31, count)) < 0.5, -size / 2, size / 2)
  vector = rng.normal(size=(1, 16), scale=1e3).astype(np.float32)
  desired, slopes, _ = exact(queries, keys, vector)
  actual, pull = jax.vjp(jax.jit(sums_of_tanh), queries, keys, vector)
  assert_close(actual / 1e3, desired / 1e3, tolerance(16))
  d_queries, d_keys, _ = pull(jnp.ones((29, 31)))
  assert_close(d_queries / 1e3, np.sum(slopes, axis=-2) / 1e3, tolerance(16))
  assert_close(d_keys / 1e3, np.sum(slopes, axis=-3) / 1e3, tolerance(16))


def test_vmap_over_small_and_large():
  T, S, A = SIZES[0]
  inputs = [np.stack(pair) for pair in zip(draw((), T, S, A), draw((), T, S, A, scale=1e4), strict=True)]
  desired, slopes, _ = exact(*inputs)

  def run(*inputs):
    sums, pull = jax.vjp(sums_of_tanh, *inputs)
    return sums, pull(jnp.ones_like(sums))

  actual, (d_queries, d_keys, _) = jax.jit(jax.vmap(run))(*inputs)
  assert_close(actual, desired, tolerance(A))
  assert_close(d_queries, np.sum(slopes, axis=-2), tolerance(A))
  assert_close(d_keys, np.sum(slopes, axis=-3), tolerance(A))


@pytest.mark.parametrize("scale", [1e-2, 1e-4, 1e-6])
def test_small_pre_activations_keep_their_digits(scale):
  queries, keys, vector = draw((), *SIZES[1], scale=scale)
  desired, _, tanh = exact(queries, keys, vector / np.float32(scale))
  actual, pull = jax.vjp(jax.jit(sums_of_tanh), queries, keys, vector / np.float32(scale))
  assert_close(actual, desired, tolerance(SIZES[1][2]))
  d_vector = pull(jnp.ones_like(actual))[2] / scale
  assert_close(d_vector[0], np.sum(tanh, axis=(0, 1)) / scale, tolerance(max(SIZES[1]) ** 2))


def test_one_small_unit_keeps_its_digits():
  queries, keys, vector = draw((), *SIZES[1])
  for array in (queries, keys):
    array[:, 0] *= 1e-5
  vector[:, 1:] = 0  # the other units are large, and do not count
  desired, _, _ = exact(queries, keys, vector)
  assert_close(sums_of_tanh(queries, keys, vector) * 1e5, desired * 1e5, tolerance(SIZES[1][2]))


@pytest.mark.parametrize("size", [(2, 3, 5), (1, 1000, 9), (1000, 1, 9)])
def test_few_sums_are_computed_directly(size, monkeypatch):
  monkeypatch.setattr(additive, "MAX_TERMS_WITHOUT_LOOPS", 2**13)
  monkeypatch.setattr(additive, "_factored", None)
  inputs = draw((2,), *size)
  desired, slopes, tanh = exact(*inputs)
  actual, pull = jax.vjp(jax.jit(sums_of_tanh), *inputs)
  d_queries, d_keys, d_vector = pull(jnp.ones_like(actual))
  assert_close(actual, desired, tolerance(max(size)))
  assert_close(d_queries, np.sum(slopes, axis=-2), tolerance(max(size)))
  assert_close(d_keys, np.sum(slopes, axis=-3), tolerance(max(size)))
  assert_close(d_vector[..., 0, :], np.sum(tanh, axis=(-3, -2)), tolerance(max(size)))


def test_no_three_axis_array():
  T, S, A = 64, 128, 256
  inputs = draw((), T, S, A)

  def loss(*inputs):
    return jnp.sum(sums_of_tanh(*inputs) ** 2)

  program = jax.jit(jax.grad(loss, (0, 1, 2))).lower(*inputs).compile()
  assert program.memory_analysis().temp_size_in_bytes < T * S * A * 4 / 8


SHAPES = (2, 1, 1, 7, 5), (1, 3, 1, 11, 5), (1, 1, 2, 1, 5)  # leading axes that broadcast


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1, 2)])
def test_gradients_of_arrays_that_broadcast(wanted):
  rng = np.random.default_rng(2)
  inputs = [rng.normal(size=shape).astype(np.float32) for shape in SHAPES]
  of_loss = rng.normal(size=(2, 3, 2, 7, 11)).astype(np.float32)

  def gradients(function):
    return jax.jit(jax.grad(lambda *inputs: jnp.sum(of_loss * function(*inputs)), wanted))(*inputs)

  def reference(queries, keys, vector):
    tanh = jnp.tanh(queries[..., :, None, :] + keys[..., None, :, :])
    return jnp.sum(vector[..., None, :] * tanh, axis=-1)

  for actual, desired in zip(gradients(sums_of_tanh), gradients(reference), strict=True):
    assert_close(actual, desired, tolerance(5 * 11))


@pytest.mark.parametrize("in_axes", [(0, None, None), (None, 0, None), (None, None, 0)])
def test_gradients_under_vmap(in_axes):
  rng = np.random.default_rng(3)
  inputs = [rng.normal(size=shape[-2:]).astype(np.float32) for shape in SHAPES]
  inputs = [x if axis is None else np.stack([x, 2 * x]) for x, axis in zip(inputs, in_axes, strict=True)]

  def gradients(*inputs):
    return jax.grad(lambda *inputs: jnp.sum(jnp.sin(sums_of_tanh(*inputs))), (0, 1, 2))(*inputs)

  actual = jax.jit(jax.vmap(gradients, in_axes))(*inputs)
  for i in range(2):
    one = [x if axis is None else x[i] for x, axis in zip(inputs, in_axes, strict=True)]
    for gradient, desired in zip(actual, gradients(*one), strict=True):
      assert_close(gradient[i], desired, tolerance(5 * 11))


def test_cpu_loops_contain_products():
  traced = jax.jit(sums_of_tanh).trace(*draw((), *SIZES[1]))
  products = [
    traced.lower(lowering_platforms=(name,)).as_text().count("dot_general") for name in ("cpu", "cuda")
  ]
  assert products == [2, 1]  # tanh is multiplied by the score vector; loops of fractions need one on CPUs
