"""Normalizers with sparse weights: sparsemax and 1.5-entmax."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from attention.arrays.named_axes import register_pytree
from attention.normalizers.base import Normalizer
from attention.normalizers.rows import ScoreRows, ScoreTile


class Threshold(Normalizer):
  """Base class of normalizers that subtract a threshold from scaled scores and raise the rest to a power.

      weights[t, s] = max(scale scores[t, s] - threshold[t], 0)^power, where the weights sum to 1

  Newton's method finds the threshold from below. The sum is convex, so no step passes the threshold. A last
  step, exact for the keys above it, gives the derivatives.
  """

  scale: ClassVar[float]
  power: ClassVar[int]

  def row_state(self, rows):
    row_max = rows.max()
    threshold = self._search(rows.without_gradient(), row_max)

    def sums(tile: ScoreTile) -> Any:
      above = self._above(tile, row_max, threshold)
      return (above > 0).astype(above.dtype), above, above**2

    size, total, squares = rows.sum(sums)
    size = jnp.maximum(size, 1)
    if self.power == 1:
      return row_max, threshold + (total - 1) / size
    # The smaller root d of sum of (above - d)^2 = 1.
    root = jnp.sqrt(jnp.maximum(total**2 - size * (squares - 1), 1e-30))
    return row_max, threshold + (squares - 1) / jnp.where(total + root > 0, total + root, 1)

  def weights(self, tile, state):
    return self._above(tile, *state) ** self.power

  def _search(self, rows: ScoreRows, row_max: jax.Array) -> jax.Array:
    """Returns the threshold of each row minus its largest scaled score, [T 1]."""

    def newton_step(threshold: jax.Array) -> jax.Array:
      def terms(tile: ScoreTile) -> Any:
        above = self._above(tile, row_max, threshold)
        return above**self.power, jnp.where(above > 0, above ** (self.power - 1), 0)

      total, slope = rows.sum(terms)
      return threshold + (total - 1) / jnp.maximum(self.power * slope, 1)

    def is_moving(thresholds: tuple[jax.Array, jax.Array]) -> jax.Array:
      before, now = thresholds
      return jnp.any(now - before > 4 * jnp.finfo(now.dtype).eps)

    first = 0 * row_max - 1  # the largest score alone has weight 1
    thresholds = first, newton_step(first)
    return jax.lax.while_loop(is_moving, lambda pair: (pair[1], newton_step(pair[1])), thresholds)[1]

  def _above(self, tile: ScoreTile, row_max: jax.Array, threshold: jax.Array) -> jax.Array:
    """Returns max(scale (scores - row_max) - threshold, 0), [T S]."""
    return jax.nn.relu(jnp.maximum(self.scale * tile.shifted(row_max), -2) - threshold)


@register_pytree
@dataclasses.dataclass(frozen=True)
class Sparsemax(Threshold):
  """The Euclidean projection of the scores onto the probability simplex. Many weights are zero.

      weights[t, s] = max(scores[t, s] - threshold[t], 0)

  References:
    Martins and Astudillo 2016, arXiv:1602.02068, equation 2. Threshold by Newton's method: Goncalves et al.
    2025, arXiv:2502.12082.
  """

  scale = 1.0
  power = 1


@register_pytree
@dataclasses.dataclass(frozen=True)
class Entmax15(Threshold):
  """1.5-entmax, between softmax and `Sparsemax`. Some weights are zero.

      weights[t, s] = max(scores[t, s] / 2 - threshold[t], 0)^2

  References:
    Peters et al. 2019, arXiv:1905.05702, equation 10. Threshold: as `Sparsemax`.
  """

  scale = 0.5
  power = 2
