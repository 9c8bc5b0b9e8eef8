"""Masked scores, and the classification of rows by their largest score.

0 * NaN is NaN, so the engines compute with finite vectors and finite scores, and a row that attends to a
non-finite vector is set to NaN at the end.

The score of a masked pair is the lowest finite number of its dtype, not -inf, and that of a non-finite pair
the largest, not NaN, since XLA for CPUs ignores NaN in a maximum of more than some thousand numbers (JAX 0.10
to 0.12). The largest score of a row after masking thus determines whether it is empty, non-finite or valid.
Constants stay inside `jax.jit`, so `jax_debug_nans` and `jax_debug_infs` only stop at non-finite rows.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.shapes import with_rank


@functools.partial(jax.jit, static_argnames="constant", inline=True)
def where_constant(condition: jax.Array, constant: str, numbers: jax.Array) -> jax.Array:
  """Returns `numbers`, but the constant "nan", "inf" or "-inf" where the condition holds."""
  return jnp.where(condition, float(constant), numbers)


def zero_nonfinite(tree: Any) -> Any:
  """Replaces NaN and infinity by zeros in a pytree of arrays."""
  return jax.tree.map(lambda array: jnp.where(jnp.isfinite(array), array, jnp.zeros_like(array)), tree)


def any_nonfinite(vectors: jax.Array) -> jax.Array:
  """Returns which vectors [... X H] contain NaN or infinity, booleans [... X]."""
  return ~jnp.all(jnp.isfinite(vectors), axis=-1)


def has_nonfinite_sum(vectors: jax.Array) -> jax.Array:
  """Returns which vectors [... X H] contain NaN or infinity, or have a sum that overflows, booleans [... X].

  XLA for CPUs computes sums in half the time of `any_nonfinite`.
  """
  return ~jnp.isfinite(jnp.sum(vectors, axis=-1))


class Levels(NamedTuple):
  """Numbers that stand for scores of special pairs. All are finite, in increasing order.

  Attributes:
    masked: of masked pairs.
    minus_infinity: of allowed pairs whose score is -inf.
    lowest: the lowest score of other pairs; lower ones are raised.
    nonfinite: of allowed pairs with a non-finite query, key, value or score.
  """

  masked: np.ndarray
  minus_infinity: np.ndarray
  lowest: np.ndarray
  nonfinite: np.ndarray


def levels(dtype: jnp.dtype) -> Levels:
  """Returns the numbers for a floating-point dtype: its three lowest finite numbers, and its largest."""
  masked, zero = np.asarray(jnp.finfo(dtype).min, dtype), np.zeros((), dtype)
  minus_infinity = np.nextafter(masked, zero)
  return Levels(masked, minus_infinity, np.nextafter(minus_infinity, zero), -masked)


def is_minus_infinity(numbers: jax.Array) -> jax.Array:
  """Returns which numbers are -inf, without using that constant outside `jax.jit`."""
  return numbers < levels(numbers.dtype).masked


def masked_scores(
  scores: jax.Array, allowed: jax.Array | None = None, nonfinite_keys: jax.Array | None = None
) -> jax.Array:
  """Returns finite scores: those of allowed pairs, and the constants of this file for others.

  Args:
    scores: [... T S].
    allowed: which pairs may attend, booleans broadcastable to [... T S]. None: all.
    nonfinite_keys: which keys or values are not finite, booleans [... S]. None: none.
  """
  special = levels(scores.dtype)
  is_finite = scores <= special.nonfinite  # False for NaN
  if nonfinite_keys is not None:
    is_finite &= ~nonfinite_keys[..., None, :]
  almost_one = 1 - jnp.finfo(scores.dtype).eps  # a product, unlike a constant, keeps the derivative
  raised = jnp.where(scores < special.masked, special.minus_infinity, scores * almost_one)
  scores = jnp.where(is_finite, jnp.where(scores < special.lowest, raised, scores), special.nonfinite)
  return scores if allowed is None else jnp.where(allowed, scores, special.masked)


def row_maxima(scores: jax.Array) -> jax.Array:
  """Returns the largest of the masked scores [... T S] of each row, [... T 1], without derivatives."""
  scores = jax.lax.stop_gradient(scores)
  return jnp.max(scores, axis=-1, keepdims=True, initial=levels(scores.dtype).masked)


def mark_rows(row_max: jax.Array, nonfinite_queries: jax.Array) -> jax.Array:
  """Returns the largest scores of rows [... T 1], marked as non-finite for the given queries [... T]."""
  is_marked = with_rank(nonfinite_queries[..., None], row_max.ndim) & (row_max > levels(row_max.dtype).masked)
  return jnp.where(is_marked, levels(row_max.dtype).nonfinite, row_max)


def is_valid_row(row_max: jax.Array) -> jax.Array:
  """Returns which rows are neither empty nor non-finite, from their largest scores after masking."""
  return (row_max >= levels(row_max.dtype).lowest) & (row_max < levels(row_max.dtype).nonfinite)


@functools.partial(jax.jit, static_argnames="empty", inline=True)
def finish_rows(row_max: jax.Array, numbers: jax.Array, empty: str = "0") -> jax.Array:
  """Returns `numbers` for valid rows, `empty` for empty rows, and NaN for non-finite rows.

  Invalid rows have zero gradients, even if the incoming gradient is NaN.

  Args:
    row_max: the largest score of each row after masking, [... T 1].
    numbers: results of each row, [... T X].
    empty: the result of an empty row, "0" or "-inf".
  """
  without = jnp.where(row_max == levels(row_max.dtype).masked, float(empty), jnp.nan)
  return jnp.where(is_valid_row(row_max), numbers, without)
