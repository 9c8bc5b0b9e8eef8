"""Tests of linear_cross_entropy, against float64 and values computed by hand."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import reference
from helpers.fixtures import DIFFERENCES, FLOAT32, assert_close

from attention import losses
from attention.losses import linear_cross_entropy

DIMS = chex.Dimensions(N=11, H=5, V=7)
PAD_ID = 0
chunk_sizes = pytest.mark.parametrize("rows", [1, 3, 11, 100])


@pytest.fixture
def set_chunk_rows(monkeypatch):
  """Returns a function that sets the number of rows per chunk."""
  return lambda rows: monkeypatch.setattr(losses, "MAX_CHUNK_LOGITS", rows * DIMS.V)


def draw(dtype=np.float32, scale=1.0):
  """Returns hidden [N H], kernel [H V], bias [V] and targets [N], some of them padding."""
  rng = np.random.default_rng(0)
  hidden, kernel, bias = (scale * rng.normal(size=DIMS[axes]) for axes in ("NH", "HV", "V"))
  targets = rng.integers(1, DIMS.V, DIMS.N)
  targets[[2, 7, 10]] = PAD_ID
  return *(jnp.asarray(array, dtype) for array in (hidden, kernel, bias)), jnp.asarray(targets)


def expected(hidden, kernel, bias, targets, smoothing=0.0):
  """Returns the loss in float64: the cross-entropy with the smoothed distribution of each target."""
  total = 0.0
  for row, target in zip(np.asarray(hidden, np.float64), np.asarray(targets), strict=True):
    logits = row @ np.asarray(kernel, np.float64) + np.asarray(bias, np.float64)
    log_probabilities = logits - logits.max() - np.log(np.sum(np.exp(logits - logits.max())))
    smoothed = np.full(DIMS.V, smoothing / DIMS.V)
    smoothed[target] += 1 - smoothing
    total -= (target != PAD_ID) * np.sum(smoothed * log_probabilities)
  return total


def test_loss_matches_hand_computation():
  # Probabilities 1/2, 1/4, 1/4 and smoothing 3/10: 8/10 ln 4 + 1/10 ln 2 + 1/10 ln 4 = 19/10 ln 2.
  logits = jnp.log(jnp.asarray([0.5, 0.25, 0.25]))
  loss = linear_cross_entropy(jnp.ones((1, 1)), logits[None], jnp.zeros(3), jnp.asarray([1]), 0.3)
  assert_close(loss, 1.9 * np.log(2), FLOAT32)


@chunk_sizes
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_loss_equals_float64(rows, smoothing, scale, set_chunk_rows):
  set_chunk_rows(rows)
  arguments = draw(scale=scale)
  desired = expected(*arguments, smoothing)
  for function in (linear_cross_entropy, jax.jit(linear_cross_entropy, static_argnums=4)):
    assert_close(function(*arguments, smoothing) / desired, 1.0, FLOAT32)


@chunk_sizes
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradients_equal_float64(rows, smoothing, set_chunk_rows, float64):
  set_chunk_rows(rows)
  *arrays, targets = draw(np.float64)
  gradients = jax.grad(lambda *arrays: 3 * linear_cross_entropy(*arrays, targets, smoothing), (0, 1, 2))(
    *arrays
  )
  rng = np.random.default_rng(1)
  for i, gradient in enumerate(gradients):
    direction = rng.normal(size=gradient.shape)

    def loss(array, i=i):
      changed = [*arrays[:i], array, *arrays[i + 1 :]]
      return 3 * expected(*changed, targets, smoothing)

    slope = reference.derivative(loss, np.asarray(arrays[i]), direction)
    assert_close(np.sum(gradient * direction), slope, DIFFERENCES)


def test_padding_has_no_gradient():
  hidden, kernel, bias, targets = draw()
  changed = jnp.where((targets == PAD_ID)[:, None], 100.0, hidden)
  run = jax.value_and_grad(lambda hidden, kernel: linear_cross_entropy(hidden, kernel, bias, targets), (0, 1))
  (loss, expected_gradients), (changed_loss, gradients) = run(hidden, kernel), run(changed, kernel)
  assert loss == changed_loss
  jax.tree.map(np.testing.assert_array_equal, gradients, expected_gradients)
  np.testing.assert_array_equal(gradients[0][targets == PAD_ID], 0.0)


def test_memory_is_bounded(monkeypatch):
  N, H, V = 512, 8, 4096
  monkeypatch.setattr(losses, "MAX_CHUNK_LOGITS", 32 * V)
  shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((N, H), (H, V), (V,))]
  targets = jax.ShapeDtypeStruct((N,), jnp.int32)
  compiled = jax.jit(jax.grad(linear_cross_entropy, (0, 1, 2))).lower(*shapes, targets).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < 0.25 * 4 * N * V


def test_bfloat16_is_summed_in_float32():
  *arrays, targets = draw()
  halves = [array.astype(jnp.bfloat16) for array in arrays]
  loss = linear_cross_entropy(*halves, targets)
  assert loss.dtype == jnp.float32
  assert_close(loss, expected(*[half.astype(jnp.float32) for half in halves], targets), 1e-4)
  gradients = jax.grad(linear_cross_entropy, (0, 1, 2))(*halves, targets)
  assert {gradient.dtype for gradient in gradients} == {jnp.dtype(jnp.bfloat16)}


@chunk_sizes
def test_losses_per_target(set_chunk_rows, rows):
  set_chunk_rows(rows)
  hidden, kernel, bias, targets = draw()
  single = losses.linear_losses(hidden, kernel, bias, targets)
  separate = [expected(hidden[n : n + 1], kernel, bias, targets[n : n + 1]) for n in range(DIMS.N)]
  assert_close(single, np.array(separate), FLOAT32)
  assert single[2] == single[7] == single[10] == 0.0


def test_chunks_are_summed_in_float32(set_chunk_rows):
  arguments = [array.astype(jnp.bfloat16) for array in draw()[:3]]
  gradient = jax.grad(
    lambda kernel, targets: linear_cross_entropy(arguments[0], kernel, arguments[2], targets)
  )
  set_chunk_rows(1)  # eleven chunk_sizes
  chunked = gradient(arguments[1], draw()[3])
  set_chunk_rows(100)
  unchunked = gradient(arguments[1], draw()[3])
  assert chunked.dtype == jnp.bfloat16
  # Both are rounded once. Rounding each of eleven chunks would exceed the tolerance.
  np.testing.assert_allclose(
    chunked.astype(jnp.float32), unchunked.astype(jnp.float32), rtol=2**-8, atol=1e-4
  )
