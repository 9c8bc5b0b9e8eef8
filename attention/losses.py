"""Losses of attention weights."""

import jax
import jax.numpy as jnp

from attention.arrays.checks import as_array, as_floating, as_integers, check_rank
from attention.arrays.dtypes import compute_dtype
from attention.arrays.shapes import with_rank


def alignment_loss(weights: jax.Array, links: jax.Array) -> jax.Array:
  """Returns the cross-entropy between attention weights and a known alignment, in nats, summed over targets.

      loss = - sum over t, s of A[t, s] log weights[t, s],   A = links / (number of links of t)

  A target without links does not contribute. Weights are clipped to at least 1e-9, with zero gradient below.

  Args:
    weights: attention weights, [... T S].
    links: which sources each target is aligned with, booleans [... T S].

  Returns:
    One loss per sentence, [...], at least float32.

  Raises:
    ValueError: if the shapes differ.

  References:
    Chen et al. 2016, arXiv:1607.01628 (their mean over targets is a sum here).

  >>> weights = jnp.array([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]])
  >>> links = jnp.array([[True, False, False], [False, False, False]])
  >>> f"{alignment_loss(weights, links):.2f}"
  '0.69'
  """
  weights, links = as_floating("weights", weights), as_array("links", links)
  check_rank("weights", weights, "[... T S]")
  if weights.shape != links.shape:
    raise ValueError(f"weights and links must have the same shape, got {weights.shape} and {links.shape}")
  if jnp.issubdtype(links.dtype, jnp.complexfloating):
    raise ValueError(f"links must be booleans, got {links.dtype}")
  weights = weights.astype(compute_dtype(weights.dtype))
  labels = links.astype(weights.dtype)
  labels /= jnp.maximum(jnp.sum(labels, axis=-1, keepdims=True), 1)
  # Weights without a link may be 0, and the derivative of log(0) is not finite.
  log_weights = jnp.log(jnp.where(links, jnp.maximum(weights, 1e-9), 1))
  return -jnp.sum(labels * log_weights, axis=(-2, -1))


def coverage_loss(weights: jax.Array, lengths: jax.Array) -> jax.Array:
  """Returns a penalty for attending to the same source repeatedly, summed over targets.

      coverage[t] = sum over t' < t of weights[t']
      loss = sum over t, s of min(weights[t, s], coverage[t, s])

  Args:
    weights: attention weights, [... T S].
    lengths: number of valid targets, integers [...].

  Returns:
    One loss per sentence, [...], at least float32.

  Raises:
    ValueError: if the shapes are incompatible.

  References:
    See et al. 2017, arXiv:1704.04368, equations 10 and 12 (without their factor).

  >>> twice = jnp.array([[1.0, 0.0], [0.25, 0.75], [0.0, 1.0]])
  >>> coverage_loss(twice, jnp.array(2)).tolist(), coverage_loss(twice, jnp.array(3)).tolist()
  (0.25, 1.0)
  """
  weights, lengths = as_floating("weights", weights), as_integers("lengths", lengths)
  if weights.ndim < 2 or lengths.shape != weights.shape[:-2]:
    raise ValueError(
      f"weights must be [... T S] and lengths [...], got weights {weights.shape}, lengths {lengths.shape}"
    )
  weights = weights.astype(compute_dtype(weights.dtype))
  coverage = jnp.cumsum(weights, axis=-2) - weights
  losses = jnp.sum(jnp.minimum(weights, coverage), axis=-1)
  positions = with_rank(jnp.arange(weights.shape[-2]), lengths.ndim + 1)
  is_valid = positions < lengths[..., None]
  return jnp.sum(jnp.where(is_valid, losses, 0), axis=-1)
