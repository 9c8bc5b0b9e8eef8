"""Normalizers other than softmax: sparsemax, entmax, sigmoid, monotonic and Gaussian window."""

import dataclasses

import jax
import jax.numpy as jnp

from attention.arrays.checks import as_array, as_floating, check_numbers, check_rank
from attention.arrays.eager_jit import eager_jit
from attention.arrays.pytrees import register_pytree
from attention.arrays.shapes import broadcasts_to, is_known, with_rank
from attention.arrays.sharding import compute_dtype
from attention.engines.softmax import Normalizer, Softmax


@register_pytree
@dataclasses.dataclass(frozen=True)
class Sparsemax(Normalizer):
  """The Euclidean projection of the scores onto the probability simplex. Many weights are zero.

      weights[t, s] = max(scores[t, s] - threshold[t], 0)

  References:
    Martins and Astudillo 2016, arXiv:1602.02068, algorithm 1.
  """

  def weights(self, rows):
    clipped = _clip_shifted(rows.shifted_scores)
    sizes = _sizes(clipped)
    ordered = jnp.sort(clipped, axis=-1, descending=True)
    support = _support(clipped, ordered, (jnp.cumsum(ordered, axis=-1) - 1) / sizes)
    size, scores = _size(support, clipped.dtype), jnp.where(support, rows.shifted_scores, 0)
    return _where_positive(support, scores - (_sum(scores) - 1) / size)


@register_pytree
@dataclasses.dataclass(frozen=True)
class Entmax15(Normalizer):
  """1.5-entmax, between softmax and `Sparsemax`. Some weights are zero.

      weights[t, s] = max(scores[t, s] / 2 - threshold[t], 0)^2

  References:
    Peters et al. 2019, arXiv:1905.05702, algorithm 2.
  """

  def weights(self, rows):
    clipped = _clip_shifted(rows.shifted_scores / 2)
    sizes = _sizes(clipped)
    ordered = jnp.sort(clipped, axis=-1, descending=True)
    means = jnp.cumsum(ordered, axis=-1) / sizes
    variances = jnp.cumsum(ordered**2, axis=-1) / sizes - means**2
    support = _support(clipped, ordered, means - jnp.sqrt(jnp.maximum(1 / sizes - variances, 0)))
    size, halves = _size(support, clipped.dtype), jnp.where(support, rows.shifted_scores, 0) / 2
    mean = _sum(halves) / size
    variance = _sum(jnp.where(support, (halves - mean) ** 2, 0)) / size
    # The square root is the mean minus the threshold.
    return _where_positive(support, halves - mean + jnp.sqrt(jnp.maximum(1 / size - variance, 1e-30))) ** 2


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

  def weights(self, rows):
    scores = rows.scores
    if self.subtract_log_length:
      valid = jnp.broadcast_to(rows.valid, scores.shape)
      keys = jnp.sum(valid, axis=-1, keepdims=True, dtype=scores.dtype)
      scores = scores - jnp.log(jnp.maximum(keys, 1))
    return jnp.where(rows.valid, jax.nn.sigmoid(scores), 0)


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
  previous_weights: jax.Array
  hard: bool = dataclasses.field(default=False, metadata={"static": True})

  def weights(self, rows):
    scores = rows.scores
    stops = (scores >= 0).astype(scores.dtype) if self.hard else jax.nn.sigmoid(scores)
    return monotonic_weights(jnp.where(rows.valid, stops, 0), self.previous_weights)


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

  def weights(self, rows):
    softmax, centers = Softmax().weights(rows), as_array("centers", self.centers)
    if not broadcasts_to(centers.shape, softmax.shape[:-1]):
      raise ValueError(
        f"centers must be broadcastable to the queries [... T], got centers {centers.shape}, queries "
        f"{softmax.shape[:-1]}"
      )
    positions = with_rank(jnp.arange(softmax.shape[-1], dtype=softmax.dtype), softmax.ndim)
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


def _clip_shifted(shifted_scores: jax.Array) -> jax.Array:
  """Clips shifted scores to at least -1: a score more than 1 below the maximum has no weight."""
  return jnp.maximum(jax.lax.stop_gradient(shifted_scores), -1)


def _sizes(scores: jax.Array) -> jax.Array:
  """Returns 1 to S, with the rank and dtype of scores [... T S]."""
  return with_rank(jnp.arange(1, scores.shape[-1] + 1, dtype=scores.dtype), scores.ndim)


def _support(scores: jax.Array, ordered: jax.Array, thresholds: jax.Array) -> jax.Array:
  """Returns which pairs have positive weight, booleans [... T S].

  Args:
    scores: clipped scores, [... T S]; -1 for invalid pairs, which is below every threshold.
    ordered: the scores of each row in descending order, [... T S].
    thresholds: the threshold if the first k scores have weight, for each k, [... T S]. The support is the
      largest k whose last score is above its threshold.
  """
  size = _sum(((ordered > thresholds) & (ordered > -1)).astype(scores.dtype))
  threshold = _sum(jnp.where(_sizes(scores) == size, thresholds, 0))
  return scores > threshold


def _size(support: jax.Array, dtype: jnp.dtype) -> jax.Array:
  """Returns the number of pairs with weight in each row, at least 1, [... T 1]."""
  return jnp.maximum(_sum(support.astype(dtype)), 1)


def _sum(numbers: jax.Array) -> jax.Array:
  return jnp.sum(numbers, axis=-1, keepdims=True)


def _where_positive(support: jax.Array, numbers: jax.Array) -> jax.Array:
  """Returns the numbers of the support, and 0 elsewhere or where rounding makes them negative."""
  return jnp.where(support & (numbers > 0), numbers, 0)
