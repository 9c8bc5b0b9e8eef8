"""Masked scores, and the classification of rows by their largest score.

0 * NaN is NaN, so the engines compute with finite vectors and finite scores, and a row that attends to a
non-finite vector is set to NaN at the end.

The score of a masked pair is the lowest finite number of its dtype, not -inf, and that of a non-finite pair
the largest, not NaN, since XLA for CPUs ignores NaN in a maximum of more than some thousand numbers (JAX 0.10
to 0.12). The largest score of a row after masking thus determines whether it is empty, non-finite or valid.
Constants stay inside `jax.jit`, so `jax_debug_nans` and `jax_debug_infs` only stop at non-finite rows.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@functools.partial(jax.jit, static_argnames="constant", inline=True)
def where(condition: jax.Array, constant: str, numbers: jax.Array) -> jax.Array:
  """Returns `numbers`, but the constant "nan", "inf" or "-inf" where the condition holds."""
  return jnp.where(condition, float(constant), numbers)


def finite(tree: Any) -> Any:
  """Replaces NaN and infinity by zeros in a pytree of arrays."""
  return jax.tree.map(lambda array: jnp.where(jnp.isfinite(array), array, jnp.zeros_like(array)), tree)


def any_nonfinite(vectors: jax.Array, *others: jax.Array) -> jax.Array:
  """Returns which vectors [... X H] contain NaN or infinity, booleans [... X].

  Args:
    vectors: [... X H].
    others: more arrays of the same shape.
  """
  # A single reduction of all arrays, so that XLA reads them in one pass.
  is_finite = functools.reduce(jnp.logical_and, map(jnp.isfinite, others), jnp.isfinite(vectors))
  return ~jnp.all(is_finite, axis=-1)


def masked(dtype: jnp.dtype) -> np.ndarray:
  """Returns the score of masked pairs: the lowest finite number of a floating-point dtype."""
  return np.asarray(jnp.finfo(dtype).min, dtype)


def minus_infinity(dtype: jnp.dtype) -> np.ndarray:
  """Returns the score of allowed pairs whose score is -inf: the number after `masked`."""
  return np.nextafter(masked(dtype), np.zeros((), dtype))


def lowest(dtype: jnp.dtype) -> np.ndarray:
  """Returns the lowest finite score, to which lower ones are raised: the number after `minus_infinity`."""
  return np.nextafter(minus_infinity(dtype), np.zeros((), dtype))


def nonfinite(dtype: jnp.dtype) -> np.ndarray:
  """Returns the score of non-finite pairs: the largest finite number of a floating-point dtype."""
  return np.asarray(jnp.finfo(dtype).max, dtype)


def is_minus_infinity(numbers: jax.Array) -> jax.Array:
  """Returns which numbers are -inf, without using that constant outside `jax.jit`."""
  return numbers < masked(numbers.dtype)


def masked_scores(
  scores: jax.Array, allowed: jax.Array | None = None, nonfinite_keys: jax.Array | None = None
) -> jax.Array:
  """Returns finite scores: those of allowed pairs, and the constants of this file for others.

  Args:
    scores: [... T S].
    allowed: which pairs may attend, booleans broadcastable to [... T S]. None: all.
    nonfinite_keys: which keys or values are not finite, booleans [... S]. None: none.
  """
  dtype = scores.dtype
  least, largest = jnp.where(scores < masked(dtype), minus_infinity(dtype), lowest(dtype)), nonfinite(dtype)
  is_finite = scores <= largest  # False for NaN
  if nonfinite_keys is not None:
    is_finite &= ~nonfinite_keys[..., None, :]
  scores = jnp.where(is_finite, jnp.where(scores < lowest(dtype), least, scores), largest)
  return scores if allowed is None else jnp.where(allowed, scores, masked(dtype))


def row_maxima(scores: jax.Array, nonfinite_queries: jax.Array | None = None) -> jax.Array:
  """Returns the largest of the masked scores of each row, [... T 1], without derivatives.

  Args:
    scores: from `masked_scores`, [... T S].
    nonfinite_queries: which queries are not finite, booleans [... T]. None: none.
  """
  scores = jax.lax.stop_gradient(scores)
  row_max = jnp.max(scores, axis=-1, keepdims=True, initial=masked(scores.dtype))
  return row_max if nonfinite_queries is None else mark_rows(row_max, nonfinite_queries)


def mark_rows(row_max: jax.Array, nonfinite_queries: jax.Array) -> jax.Array:
  """Returns the largest scores of rows [... T 1], marked as non-finite for the given queries [... T]."""
  is_marked = nonfinite_queries[..., None] & (row_max > masked(row_max.dtype))
  return jnp.where(is_marked, nonfinite(row_max.dtype), row_max)


def is_valid_row(row_max: jax.Array) -> jax.Array:
  """Returns which rows are neither empty nor non-finite, from their largest scores after masking."""
  return (row_max >= lowest(row_max.dtype)) & (row_max < nonfinite(row_max.dtype))


@functools.partial(jax.jit, static_argnames="empty", inline=True)
def finish_rows(row_max: jax.Array, numbers: jax.Array, empty: str = "0") -> jax.Array:
  """Returns `numbers` for valid rows, `empty` for empty rows, and NaN for non-finite rows.

  Invalid rows have zero gradients, even if the incoming gradient is NaN.

  Args:
    row_max: the largest score of each row after masking, [... T 1].
    numbers: results of each row, [... T X].
    empty: the result of an empty row, "0" or "-inf".
  """
  without = jnp.where(row_max == masked(row_max.dtype), float(empty), jnp.nan)
  return jnp.where(is_valid_row(row_max), numbers, without)
