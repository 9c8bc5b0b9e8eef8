"""Monotonic weights, which only move forward."""

import dataclasses

import jax
import jax.numpy as jnp

from attention.arrays.checks import as_floating, check_rank
from attention.arrays.dtypes import compute_dtype
from attention.arrays.eager_jit import eager_jit
from attention.arrays.named_axes import register_pytree
from attention.arrays.shapes import broadcasts_to, is_known
from attention.normalizers.base import Normalizer


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
