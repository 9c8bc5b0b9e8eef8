"""Normalizers that apply a function to each score: sigmoid and softpick."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from attention.arrays.checks import check_number
from attention.arrays.named_axes import register_pytree
from attention.normalizers.base import Normalizer
from attention.normalizers.rows import ScoreTile


@register_pytree
@dataclasses.dataclass(frozen=True)
class Sigmoid(Normalizer):
  """weights[t, s] = sigmoid(scores[t, s]), independently for each key.

  Attributes:
    subtract_log_length: subtract log(number of valid keys) from the scores, as the paper recommends. Weights
      of scores around 0 then sum to about 1. Static.

  References:
    Ramapuram et al. 2024, arXiv:2409.04431, equation 3.
  """

  subtract_log_length: bool = dataclasses.field(default=False, metadata={"static": True})

  def row_state(self, rows):
    return jnp.log(jnp.maximum(rows.sum(lambda tile: 1), 1)) if self.subtract_log_length else ()

  def weights(self, tile, state):
    return jax.nn.sigmoid(tile.scores - state if self.subtract_log_length else tile.scores)


@register_pytree
@dataclasses.dataclass(frozen=True)
class Softpick(Normalizer):
  """Rectified softmax: a score of at most 0 has no weight. The weights of a row sum to at most 1.

      weights[t, s] = relu(exp(scores[t, s]) - 1) / (sum over r of |exp(scores[t, r]) - 1| + epsilon)

  Attributes:
    epsilon: at least 1e-37, so that the sum is not 0 in float32. Static.

  References:
    Zuhri et al. 2025, arXiv:2504.20966, equation 5.
  """

  epsilon: float = dataclasses.field(default=1e-6, metadata={"static": True})

  def validate(self):
    check_number(
      "epsilon", self.epsilon, "at least 1e-37 and finite", lambda epsilon: 1e-37 <= epsilon < math.inf
    )

  def row_state(self, rows):
    shift = jnp.maximum(rows.max(), 0)

    def distance(tile: ScoreTile) -> jax.Array:
      rectified = self._rectified(tile, shift)
      # Not jnp.abs, whose derivative at 0 is 1 in JAX 0.10.1, while that of relu in `weights` is 0.
      return jnp.where(rectified > 0, rectified, -rectified)

    total = rows.sum(distance)
    return shift, total + self.epsilon * jnp.exp(-shift)

  def weights(self, tile, state):
    shift, denominator = state
    return jax.nn.relu(self._rectified(tile, shift)) / denominator

  def _rectified(self, tile: ScoreTile, shift: jax.Array) -> jax.Array:
    """Returns (exp(scores) - 1) / exp(shift)."""
    small = jnp.expm1(jnp.minimum(tile.scores, 1)) * jnp.exp(-shift)  # exact for scores near 0
    return jnp.where(tile.scores < 1, small, jnp.exp(tile.shifted(shift)) - jnp.exp(-shift))
