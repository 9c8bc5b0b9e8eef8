"""Masked scores, and what a row's largest masked score says about the row, for both engines.

0 * NaN is NaN. So the engines compute with finite vectors, and a query that attends to a vector that is not
finite gets NaN at the end: its row is broken.

The score of a masked pair is the lowest number of the floating type, not -inf. The score of a broken pair is
infinity, not NaN: beyond some thousand numbers, XLA for CPUs ignores NaN in a maximum (JAX 0.10 to 0.12). So
the largest masked score of a row tells whether the row is empty, broken, or has weights. Constants stay
inside `jax.jit`, so `jax_debug_nans` and `jax_debug_infs` stop at broken rows only.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.shapes import same_rank


@functools.partial(jax.jit, static_argnames="constant", inline=True)
def where(condition: jax.Array, constant: str, numbers: jax.Array) -> jax.Array:
  """Returns the numbers, but "nan", "inf" or "-inf" where the condition holds."""
  return jnp.where(condition, float(constant), numbers)


def finite(tree: Any) -> Any:
  """Returns a pytree of arrays with zeros instead of NaN and infinity."""
  return jax.tree.map(lambda array: jnp.where(jnp.isfinite(array), array, jnp.zeros_like(array)), tree)


def mask_value(dtype: jnp.dtype, above: int = 0) -> np.ndarray:
  """Returns the lowest number of a floating type, or the number so many steps above it."""
  number = np.asarray(jnp.finfo(dtype).min, dtype)
  for _ in range(above):
    number = np.nextafter(number, np.zeros((), dtype))
  return number


def is_minus_infinity(numbers: jax.Array) -> jax.Array:
  """Returns which numbers are -inf, without that constant outside `jax.jit`."""
  return numbers < mask_value(numbers.dtype)


def masked_scores(
  scores: jax.Array, allowed: jax.Array | None, nonfinite: jax.Array | None = None
) -> jax.Array:
  """Returns the scores of allowed pairs, infinity for broken pairs, and the lowest number for masked pairs.

  An allowed score of -inf becomes the number one step above the lowest, any other stays above that.

  Args:
    scores: [... T S].
    allowed: which pairs may attend, booleans [... T S]; None for all.
    nonfinite: infinity for pairs whose query, key or value is not finite, else 0, [... T S]; None for none.
  """
  dtype = scores.dtype
  if nonfinite is not None:
    scores, nonfinite = same_rank(scores, nonfinite)
    scores += nonfinite
  least = jnp.where(is_minus_infinity(scores), mask_value(dtype, 1), mask_value(dtype, 2))
  scores = jnp.where(scores < mask_value(dtype, 2), least, where(jnp.isnan(scores), "inf", scores))
  return scores if allowed is None else jnp.where(allowed, scores, mask_value(dtype))


def is_valid_row(row_max: jax.Array) -> jax.Array:
  """Returns, from the largest masked score of each row, which rows are neither empty nor broken."""
  return (row_max > mask_value(row_max.dtype, 1)) & jnp.isfinite(row_max)


def softmax_shift(row_max: jax.Array) -> jax.Array:
  """Returns the shift of the exponentials of each row: its largest score, 0 for a row without weights."""
  return jnp.where(is_valid_row(row_max), row_max, 0)


@functools.partial(jax.jit, static_argnames="empty")
def finish_rows(row_max: jax.Array, numbers: jax.Array, empty: str = "0") -> jax.Array:
  """Returns the results of all rows: `empty` for empty rows, NaN for broken rows, else the numbers.

  Rows without weights get no gradient either, even if it is NaN.

  Args:
    row_max: the largest masked score of each row, [... T 1].
    numbers: results of each row, [... T X].
    empty: the result of an empty row, "0" or "-inf".
  """
  without = jnp.where(row_max == mask_value(row_max.dtype), float(empty), jnp.nan)
  return jnp.where(is_valid_row(row_max), numbers, without)
