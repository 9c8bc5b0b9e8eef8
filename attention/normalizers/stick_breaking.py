"""Stick-breaking weights."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from attention.arrays.named_axes import register_pytree
from attention.arrays.shapes import is_known
from attention.normalizers.base import Normalizer
from attention.normalizers.rows import ScoreTile


@register_pytree
@dataclasses.dataclass(frozen=True)
class StickBreaking(Normalizer):
  """Each key, from the last to the first, takes a share of what the keys after it left.

      weights[t, s] = sigmoid(scores[t, s]) product over r > s of (1 - sigmoid(scores[t, r]))

  Of two keys with equal scores, the later one has the larger weight. With `masks.causal(offset=-1)`, queries
  attend to earlier positions only, as in the paper.

  References:
    Tan et al. 2024, arXiv:2410.17980, equation 1.
  """

  reverse = True

  def row_state(self, rows):
    scores = rows.like.scores
    return jnp.zeros((*scores.shape[:-1], 1), scores.dtype)

  def weights(self, tile, state):
    return jnp.exp(jax.nn.log_sigmoid(tile.scores) - _sums_after(self._minus_log_left(tile)) - state)

  def next_state(self, tile, state):
    return state + jnp.sum(self._minus_log_left(tile), axis=-1, keepdims=True)

  def _minus_log_left(self, tile: ScoreTile) -> jax.Array:
    """Returns -log(1 - sigmoid(scores)), [T S], at most 1000, of which nothing is left; 0 if invalid."""
    return jnp.where(tile.valid, jnp.minimum(jax.nn.softplus(tile.scores), 1000), 0)


def _sums_after(terms: jax.Array) -> jax.Array:
  """Returns the sum of all later terms along the last axis, for each of the finite terms [... S].

  It uses matrix products: first within parts of about sqrt(S) terms, and then over parts. On a CPU, this is
  several times faster than `jax.lax.cumsum`.
  """
  S = terms.shape[-1]
  if not is_known(S):  # the shape of a matrix must be known
    later = jnp.concatenate([terms[..., 1:], jnp.zeros_like(terms[..., :1])], axis=-1)
    return jax.lax.cumsum(later, axis=terms.ndim - 1, reverse=True)
  size = max(1, math.isqrt(S))
  count = -(-S // size)
  parts = jnp.pad(terms, [(0, 0)] * (terms.ndim - 1) + [(0, count * size - S)])
  parts = parts.reshape(*terms.shape[:-1], count, size)
  within = parts @ jnp.tri(size, k=-1, dtype=terms.dtype)
  after = jnp.sum(parts, axis=-1) @ jnp.tri(count, k=-1, dtype=terms.dtype)
  return (within + after[..., None]).reshape(*terms.shape[:-1], count * size)[..., :S]
