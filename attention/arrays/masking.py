"""Masked scores, and the classification of rows by their largest score.

0 * NaN is NaN, so the engines compute with finite vectors, and a row that attends to a non-finite vector is
set to NaN at the end.

The score of a masked pair is the lowest finite number of its dtype, not -inf. The score of a non-finite pair
is infinity, not NaN, since XLA for CPUs ignores NaN in a maximum of more than some thousand numbers (JAX 0.10
to 0.12). The largest score of a row after masking thus determines whether it is empty, non-finite or valid.
Constants stay inside `jax.jit`, so `jax_debug_nans` and `jax_debug_infs` only stop at non-finite rows.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.shapes import same_rank


@functools.partial(jax.jit, static_argnames="constant", inline=True)
def where(condition: jax.Array, constant: str, numbers: jax.Array) -> jax.Array:
  """Returns `numbers`, but the constant "nan", "inf" or "-inf" where the condition holds."""
  return jnp.where(condition, float(constant), numbers)


def finite(tree: Any) -> Any:
  """Replaces NaN and infinity by zeros in a pytree of arrays."""
  return jax.tree.map(lambda array: jnp.where(jnp.isfinite(array), array, jnp.zeros_like(array)), tree)


def mask_value(dtype: jnp.dtype, above: int = 0) -> np.ndarray:
  """Returns the lowest finite number of a floating-point dtype, or the number `above` steps above it."""
  number = np.asarray(jnp.finfo(dtype).min, dtype)
  for _ in range(above):
    number = np.nextafter(number, np.zeros((), dtype))
  return number


def is_minus_infinity(numbers: jax.Array) -> jax.Array:
  """Returns which numbers are -inf, without using that constant outside `jax.jit`."""
  return numbers < mask_value(numbers.dtype)


def masked_scores(
  scores: jax.Array, allowed: jax.Array | None, nonfinite: jax.Array | None = None
) -> jax.Array:
  """Returns the scores of allowed pairs, infinity for non-finite pairs, and `mask_value` for masked pairs.

  An allowed score of -inf becomes the number one step above `mask_value`; other scores stay above that.

  Args:
    scores: [... T S].
    allowed: which pairs may attend, booleans [... T S]. None: all.
    nonfinite: infinity for pairs with a non-finite query, key or value, else 0, [... T S]. None: all finite.
  """
  dtype = scores.dtype
  if nonfinite is not None:
    scores, nonfinite = same_rank(scores, nonfinite)
    scores += nonfinite
  least = jnp.where(is_minus_infinity(scores), mask_value(dtype, 1), mask_value(dtype, 2))
  scores = jnp.where(scores < mask_value(dtype, 2), least, where(jnp.isnan(scores), "inf", scores))
  return scores if allowed is None else jnp.where(allowed, scores, mask_value(dtype))


def is_valid_row(row_max: jax.Array) -> jax.Array:
  """Returns which rows are neither empty nor non-finite, from their largest scores after masking."""
  return (row_max > mask_value(row_max.dtype, 1)) & jnp.isfinite(row_max)


def softmax_shift(row_max: jax.Array) -> jax.Array:
  """Returns the number that is subtracted from the scores of each row: its maximum, or 0 for invalid rows."""
  return jnp.where(is_valid_row(row_max), row_max, 0)


@functools.partial(jax.jit, static_argnames="empty")
def finish_rows(row_max: jax.Array, numbers: jax.Array, empty: str = "0") -> jax.Array:
  """Returns `numbers` for valid rows, `empty` for empty rows, and NaN for non-finite rows.

  Invalid rows have zero gradients, even if the incoming gradient is NaN.

  Args:
    row_max: the largest score of each row after masking, [... T 1].
    numbers: results of each row, [... T X].
    empty: the result of an empty row, "0" or "-inf".
  """
  without = jnp.where(row_max == mask_value(row_max.dtype), float(empty), jnp.nan)
  return jnp.where(is_valid_row(row_max), numbers, without)
