"""Normalizers other than softmax."""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from attention.arrays.checks import as_floating, as_real, check_number, check_numbers, check_rank
from attention.arrays.eager_jit import eager_jit
from attention.arrays.pytrees import register_pytree
from attention.arrays.shapes import broadcasts_to, is_known, with_rank
from attention.arrays.sharding import compute_dtype
from attention.engines.rows import ScoreRows, ScoreTile
from attention.engines.softmax import Normalizer, Softmax


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
    """Returns the threshold of each row minus its largest scaled score, [... T 1]."""

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
    """Returns max(scale (scores - row_max) - threshold, 0), [... T S]."""
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
    """Returns -log(1 - sigmoid(scores)), [... T S], at most 1000, of which nothing is left; 0 if invalid."""
    return jnp.where(tile.valid, jnp.minimum(jax.nn.softplus(tile.scores), 1000), 0)


@register_pytree
@dataclasses.dataclass(frozen=True)
class Monotonic(Normalizer):
  """Monotonic attention: weights only move forward from those of the previous query.

  The probability of stopping at a key is the sigmoid of its score; see `monotonic_weights`.

  Attributes:
    previous_weights: weights of the previous query, [... T S]. For the first query, 1 at the first key and 0
      at the others.
    hard: if True, stop at the first key with probability of at least 1/2. The weight of that key is 1, and
      there are no gradients. If False, return expected weights. Static.

  References:
    Raffel et al. 2017, arXiv:1704.00784.
  """

  axes = {"previous_weights": "TS"}
  whole_rows = True  # `previous_weights` is as large as the scores
  previous_weights: jax.Array
  hard: bool = dataclasses.field(default=False, metadata={"static": True})

  def weights(self, tile, state):
    scores = tile.scores
    stops = (scores >= 0).astype(scores.dtype) if self.hard else jax.nn.sigmoid(scores)
    return monotonic_weights(jnp.where(tile.valid, stops, 0), self.previous_weights)


@register_pytree
@dataclasses.dataclass(frozen=True)
class GaussianWindow(Normalizer):
  """Softmax weights times a Gaussian around an expected position.

      weights[t, s] = softmax(scores[t])[s] exp(-(s - centers[t])^2 / (2 stddev^2))

  Attributes:
    centers: real-valued key positions, [... T].
    stddev: positive; in the paper, half of the window radius D.

  References:
    Luong et al. 2015, arXiv:1508.04025, equation 10, "local-p". Use a mask to exclude keys outside the
    window.
  """

  axes = {"centers": "T", "stddev": ""}
  centers: jax.Array
  stddev: jax.Array | float

  def validate(self):
    check_numbers("stddev", self.stddev, "above 0 in float32", lambda stddev: stddev > 0)

  def row_state(self, rows):
    return Softmax().row_state(rows)

  def weights(self, tile, state):
    softmax, centers = Softmax().weights(tile, state), as_real("centers", self.centers)
    positions = with_rank(tile.s.astype(softmax.dtype), softmax.ndim)
    centers = with_rank(centers.astype(softmax.dtype)[..., None], softmax.ndim)
    stddev = with_rank(jnp.asarray(self.stddev, softmax.dtype)[..., None, None], softmax.ndim)
    return softmax * jnp.exp(-(((positions - centers) / stddev) ** 2) / 2)


@eager_jit
def monotonic_weights(probabilities: jax.Array, previous_weights: jax.Array) -> jax.Array:
  """Returns monotonic attention weights, given the weights of the previous query.

  From the position of the previous query, each key is visited in turn, and attention stops at it with the
  given probability:

      reached[s] = (1 - probabilities[s - 1]) reached[s - 1] + previous_weights[s]
      weights[s] = probabilities[s] reached[s]

  Probabilities between 0 and 1 give expected weights, which have gradients. Probabilities of 0 and 1 give
  hard attention: one key, or none if the end is reached, which also holds for all later queries.

  Args:
    probabilities: probability of stopping at each key, [... S]; 0 for masked keys.
    previous_weights: weights of the previous query, [... S]; for the first query, 1 at the first key and 0 at
      the others.

  Returns:
    Weights [... S], which sum to at most 1.

  Raises:
    ValueError: if the shapes are incompatible.

  References:
    Raffel et al. 2017, arXiv:1704.00784, equations 9 and 10, without the division of equation 11.

  >>> monotonic_weights(jnp.array([0.5, 0.5, 1.0]), jnp.array([1.0, 0.0, 0.0])).tolist()
  [0.5, 0.25, 0.25]
  """
  probabilities, previous_weights = (
    as_floating("probabilities", probabilities),
    as_floating("previous_weights", previous_weights),
  )
  check_rank("previous_weights", previous_weights, "[... S]")
  if not broadcasts_to(previous_weights.shape, probabilities.shape):
    raise ValueError(
      "previous_weights must be broadcastable to the probabilities [... S], "
      f"got previous_weights {previous_weights.shape}, probabilities {probabilities.shape}"
    )
  dtype = compute_dtype(probabilities.dtype)
  stops, starts = (
    probabilities.astype(dtype),
    jnp.broadcast_to(previous_weights, probabilities.shape).astype(dtype),
  )
  passes = jnp.concatenate([jnp.zeros_like(stops[..., :1]), 1 - stops[..., :-1]], axis=-1)
  return (stops * _recurrence(passes, starts)).astype(probabilities.dtype)


def _recurrence(factors: jax.Array, terms: jax.Array) -> jax.Array:
  """Returns x[s] = factors[s] x[s - 1] + terms[s] along the last axis."""

  def merge(first, second):
    (factor, term), (next_factor, next_term) = first, second
    return factor * next_factor, term * next_factor + next_term

  if is_known(terms.shape[-1]):
    return jax.lax.associative_scan(merge, (factors, terms), axis=-1)[1]

  def step(carry, inputs):  # associative_scan does not support symbolic lengths
    carry = merge((0, carry), inputs)[1]
    return carry, carry

  inputs = jnp.moveaxis(factors, -1, 0), jnp.moveaxis(terms, -1, 0)
  return jnp.moveaxis(jax.lax.scan(step, jnp.zeros_like(terms[..., 0]), inputs)[1], 0, -1)


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
