"""Losses of attention weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.fixtures import FLOAT32, assert_close

from attention.losses import alignment_loss, coverage_loss

B, T, S = 3, 5, 7
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
  assert_close(alignment_loss(jnp.asarray(weights, jnp.float32), jnp.asarray(links)), desired, 10 * FLOAT32)


def test_coverage_loss_matches_a_loop():
  weights = random_weights()
  desired = np.zeros(B)
  for b in range(B):
    covered = np.zeros(S)
    for t in range(LENGTHS[b]):
      desired[b] += np.sum(np.minimum(weights[b, t], covered))
      covered += weights[b, t]
  assert_close(coverage_loss(jnp.asarray(weights, jnp.float32), jnp.asarray(LENGTHS)), desired, 10 * FLOAT32)


@pytest.mark.parametrize(
  "loss",
  [
    lambda weights: alignment_loss(weights, jnp.asarray(random_links())),
    lambda weights: coverage_loss(weights, jnp.asarray(LENGTHS)),
  ],
  ids=["alignment", "coverage"],
)
def test_gradients_are_those_of_differences(loss):
  with jax.enable_x64(True):
    weights, direction = jnp.asarray(random_weights()), jnp.asarray(random_weights(2) - random_weights(3))
    _, slope = jax.jvp(loss, (weights,), (direction,))
    ahead, behind = (loss(weights + step * direction) for step in (1e-6, -1e-6))
    np.testing.assert_allclose(slope, (ahead - behind) / 2e-6, rtol=1e-6, atol=1e-9)
    gradient = jax.jit(jax.grad(lambda weights: jnp.sum(loss(weights))))(weights)
    np.testing.assert_allclose(jnp.sum(gradient * direction), jnp.sum(slope), rtol=1e-9)


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
    assert_close(loss(weights), loss(exact), 10 * FLOAT32)


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
