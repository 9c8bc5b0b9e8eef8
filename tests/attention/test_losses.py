"""Losses of attention weights, and the cross-entropy of a linear layer."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from attention.losses import alignment_loss, coverage_loss, linear_cross_entropy, linear_losses

B, T, S = 3, 5, 7
CLOSE = {"rtol": 4e-6, "atol": 4e-6}
LENGTHS = np.array([5, 2, 0])


def random_weights(seed=0):
  weights = 0.1 + np.random.default_rng(seed).random((B, T, S))
  return weights / weights.sum(axis=-1, keepdims=True)


def random_links():
  links = np.random.default_rng(1).random((B, T, S)) < 0.3
  links[0, 2] = False  # a word without links
  return links


def test_alignment_loss_matches_formula():
  weights, links = random_weights(), random_links()
  desired = np.zeros(B)
  for b, t in np.ndindex(B, T):
    if links[b, t].any():
      desired[b] -= np.mean(np.log(weights[b, t][links[b, t]]))
  np.testing.assert_allclose(
    alignment_loss(jnp.asarray(weights, jnp.float32), jnp.asarray(links)), desired, rtol=4e-05, atol=4e-05
  )


def test_coverage_loss_matches_a_loop():
  weights = random_weights()
  desired = np.zeros(B)
  for b in range(B):
    covered = np.zeros(S)
    for t in range(LENGTHS[b]):
      desired[b] += np.sum(np.minimum(weights[b, t], covered))
      covered += weights[b, t]
  np.testing.assert_allclose(
    coverage_loss(jnp.asarray(weights, jnp.float32), jnp.asarray(LENGTHS)), desired, rtol=4e-05, atol=4e-05
  )


@pytest.mark.usefixtures("float64")
def test_gradients_match_differences():
  weights, links = jnp.asarray(random_weights()), jnp.asarray(random_links())
  check_grads(lambda weights: alignment_loss(weights, links), (weights,), order=2, eps=1e-6)
  check_grads(lambda weights: coverage_loss(weights, jnp.asarray(LENGTHS)), (weights,), order=1, eps=1e-7)


def test_zero_weights_have_finite_losses():
  weights = jnp.zeros((B, T, S)).at[:, :, 0].set(1)
  links = jnp.asarray(random_links())
  for loss in (lambda w: alignment_loss(w, links), lambda w: coverage_loss(w, jnp.asarray(LENGTHS))):
    value, gradient = jax.value_and_grad(lambda w, loss=loss: jnp.sum(loss(w)))(weights)
    assert np.isfinite(value) and np.all(np.isfinite(gradient))


def test_half_precision_is_summed_in_float32():
  weights = jnp.asarray(random_weights(), jnp.bfloat16)
  exact = weights.astype(jnp.float32)
  for loss in (
    lambda w: alignment_loss(w, jnp.asarray(random_links())),
    lambda w: coverage_loss(w, jnp.asarray(LENGTHS)),
  ):
    assert loss(weights).dtype == jnp.float32
    np.testing.assert_allclose(loss(weights), loss(exact), rtol=4e-05, atol=4e-05)


def test_mismatched_shapes_raise():
  with pytest.raises(ValueError, match=r"must have the same shape, got \(3, 5, 7\) and \(5, 7\)"):
    alignment_loss(jnp.ones((B, T, S)), jnp.ones((T, S), bool))
  with pytest.raises(ValueError, match=r"got weights \(3, 5, 7\), lengths \(5,\)"):
    coverage_loss(jnp.ones((B, T, S)), jnp.ones(T, int))
  with pytest.raises(ValueError, match=r"weights must have axes \[... T S\], got shape \(2,\)"):
    alignment_loss(jnp.ones(2), jnp.ones(2, bool))


def test_lists_are_arrays():
  assert alignment_loss([[0.5, 0.5]], [[True, False]]) == pytest.approx(np.log(2))
  assert coverage_loss([[[0.5, 0.5], [1.0, 0.0]]], [2]).tolist() == [0.5]


# The cross-entropy of a linear layer. Three rows of logits are a chunk.

N, H, V = 5, 2, 2**20 - 3
PAD_ID = 0


def draw(scale=1.0):
  """Returns hidden [N H], kernel [H V], bias [V] and targets [N], some of them padding."""
  rng = np.random.default_rng(0)
  arrays = (jnp.asarray(scale * rng.normal(size=shape), jnp.float32) for shape in ((N, H), (H, V), (V,)))
  targets = rng.integers(1, V, N)
  targets[2] = PAD_ID
  return *arrays, jnp.asarray(targets)


def plain_losses(hidden, kernel, bias, targets, smoothing=0.0):
  """Returns the cross-entropy with the smoothed distribution of each target, from an array of all logits."""
  log_probabilities = jax.nn.log_softmax(hidden @ kernel + bias[None])
  of_target = jnp.take_along_axis(log_probabilities, targets[:, None], axis=-1)[:, 0]
  losses = -(1 - smoothing) * of_target - smoothing * jnp.mean(log_probabilities, axis=-1)
  return jnp.where(targets == PAD_ID, 0, losses)


def test_cross_entropy_by_hand():
  # Probabilities 1/2, 1/4, 1/4 and smoothing 3/10: 8/10 ln 4 + 1/10 ln 2 + 1/10 ln 4 = 19/10 ln 2.
  logits = jnp.log(jnp.asarray([0.5, 0.25, 0.25]))
  loss = linear_cross_entropy(jnp.ones((1, 1)), logits[None], jnp.zeros(3), jnp.asarray([1]), 0.3)
  np.testing.assert_allclose(loss, 1.9 * np.log(2), **CLOSE)


@pytest.mark.parametrize(("smoothing", "scale"), [(0.0, 30.0), (0.1, 1.0)])
def test_losses_in_chunks_match_formula(smoothing, scale):
  *arrays, targets = draw(scale=scale)

  @functools.partial(jax.jit, static_argnums=0)
  def total(function, arrays, targets):
    return jax.value_and_grad(lambda arrays: 3 * jnp.sum(function(*arrays, targets, smoothing)))(arrays)

  actual, desired = (total(function, arrays, targets) for function in (linear_cross_entropy, plain_losses))
  np.testing.assert_allclose(actual[0], desired[0], rtol=1e-5)
  for one, other in zip(actual[1], desired[1], strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * np.max(np.abs(other)))
  of_each = linear_losses(*arrays, targets)
  np.testing.assert_allclose(of_each, plain_losses(*arrays, targets), rtol=1e-5)


def test_padding_has_no_gradient():
  hidden, kernel, bias, targets = (array[..., :7] for array in draw())
  targets = targets % 7
  changed = jnp.where((targets == PAD_ID)[:, None], 100.0, hidden[: len(targets)])

  @jax.jit
  def run(hidden, kernel):
    loss = linear_cross_entropy(hidden, kernel, bias, targets)
    return loss, jax.grad(linear_cross_entropy, (0, 1))(hidden, kernel, bias, targets)

  result = run(hidden[: len(targets)], kernel)
  chex.assert_trees_all_equal(run(changed, kernel), result)
  assert not np.any(result[1][0][targets == PAD_ID])


def test_memory_is_bounded():
  shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((512, 8), (8, 32768), (32768,))]
  targets = jax.ShapeDtypeStruct((512,), jnp.int32)
  compiled = jax.jit(jax.grad(linear_cross_entropy, (0, 1, 2))).lower(*shapes, targets).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < 0.6 * 4 * 512 * 32768


def test_bfloat16_is_summed_in_float32():
  *arrays, targets = draw()
  halves = [array.astype(jnp.bfloat16) for array in arrays]
  loss, gradients = jax.value_and_grad(linear_cross_entropy, (0, 1, 2))(*halves, targets)
  assert loss.dtype == jnp.float32
  assert {gradient.dtype for gradient in gradients} == {jnp.dtype(jnp.bfloat16)}
  exact = [half.astype(jnp.float32) for half in halves]
  desired, exact_gradients = jax.value_and_grad(linear_cross_entropy, (0, 1, 2))(*exact, targets)
  np.testing.assert_allclose(loss, desired, rtol=1e-4)
  np.testing.assert_allclose(gradients[1].astype(jnp.float32), exact_gradients[1], rtol=2**-7, atol=1e-6)
