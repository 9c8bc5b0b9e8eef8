"""Losses of attention weights: what a translator can be trained for besides the right words."""

import jax
import jax.numpy as jnp

from attention.arrays.checks import as_array, as_floating, as_integers, check_rank
from attention.arrays.shapes import with_rank
from attention.arrays.sharding import compute_dtype


def alignment_loss(weights: jax.Array, links: jax.Array) -> jax.Array:
  """Returns how far attention is from a known alignment: its cross-entropy, in nats, summed over the targets.

      loss = - sum over t, s of A[t, s] log weights[t, s],   A = links / (number of links of t)

  A target without links counts nothing. Of a linked source that gets less than 1e-9 of the weight the
  gradient is 0, and the loss that of 1e-9.

  Source: Chen et al. 2016, arXiv:1607.01628 (their mean over the targets is here a sum).

  Args:
    weights: of the attention, [... T S]; those of a target sum to 1 at most, or all could be 1.
    links: which sources each target translates, booleans [... T S].

  Returns:
    One number for each sentence, [...], float32, or float64 where that goes in.

  Raises:
    ValueError: if the shapes differ.

  >>> weights = jnp.array([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]])
  >>> links = jnp.array([[True, False, False], [False, False, False]])
  >>> f"{alignment_loss(weights, links):.2f}"
  '0.69'
  """
  weights, links = as_floating("weights", weights), as_array("links", links)
  check_rank("weights", weights, "[... T S]")
  if weights.shape != links.shape:
    raise ValueError(f"weights and links must have one shape, got {weights.shape} and {links.shape}")
  if jnp.issubdtype(links.dtype, jnp.complexfloating):
    raise ValueError(f"links must be booleans, got {links.dtype}")
  weights = weights.astype(compute_dtype(weights.dtype))
  wanted = links.astype(weights.dtype)
  wanted /= jnp.maximum(jnp.sum(wanted, axis=-1, keepdims=True), 1)
  # Where nothing is wanted a weight may be zero, whose logarithm has no finite derivative.
  log_weights = jnp.log(jnp.where(links, jnp.maximum(weights, 1e-9), 1))
  return -jnp.sum(wanted * log_weights, axis=(-2, -1))


def coverage_loss(weights: jax.Array, lengths: jax.Array) -> jax.Array:
  """Returns how much attention goes where it has been before, summed over the targets.

      coverage[t] = sum over t' < t of weights[t']
      loss = sum over t, s of min(weights[t, s], coverage[t, s])

  Source: See et al. 2017, arXiv:1704.04368, equations 10 and 12 (without their factor).

  Args:
    weights: of the attention, [... T S].
    lengths: how many of the T targets are real, integers [...].

  Returns:
    One number for each sentence, [...], float32, or float64 where that goes in.

  Raises:
    ValueError: if the shapes do not fit.

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
  again = jnp.sum(jnp.minimum(weights, coverage), axis=-1)
  places = with_rank(jnp.arange(weights.shape[-2]), lengths.ndim + 1)
  is_real = places < lengths[..., None]
  return jnp.sum(jnp.where(is_real, again, 0), axis=-1)
