"""What keeps masked pairs, empty rows, NaN and infinity apart, for both engines.

0 * NaN is NaN. So both engines calculate with finite vectors, and a query that attends to something that is
not finite gets NaN at the end: its row is broken.

The largest masked score tells what a row is. A masked pair has the lowest number of the floating type as its
score, and not -inf. A broken pair has infinity, and not NaN: from some thousand numbers on, XLA for CPUs
leaves NaN out of their maximum (JAX 0.10 to 0.12). Constants stay inside `jax.jit`. So `jax_debug_nans` and
`jax_debug_infs` stop at broken rows alone.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.broadcasting import same_rank


@functools.partial(jax.jit, static_argnames="constant", inline=True)
def where(condition: jax.Array, constant: str, numbers: jax.Array) -> jax.Array:
  """Returns the numbers, but "nan", "inf" or "-inf" where the condition holds."""
  return jnp.where(condition, float(constant), numbers)


def finite(tree: Any) -> Any:
  """Returns a pytree of arrays with zeros in the place of NaN and infinity."""
  return jax.tree.map(lambda array: jnp.where(jnp.isfinite(array), array, jnp.zeros_like(array)), tree)


def is_bad(vectors: jax.Array) -> jax.Array:
  """Returns which vectors [... X H] hold a NaN or an infinity, [... X]."""
  return ~jnp.all(jnp.isfinite(vectors), axis=-1)


def lowest(dtype: jnp.dtype) -> np.ndarray:
  """Returns the score of a masked pair: the lowest number, whose exponential is 0."""
  return np.asarray(jnp.finfo(dtype).min, dtype)


def overflowed(dtype: jnp.dtype) -> np.ndarray:
  """Returns the score of an allowed pair whose score was -inf: the number above `lowest`."""
  return np.nextafter(lowest(dtype), np.zeros((), dtype))


def is_minus_infinity(numbers: jax.Array) -> jax.Array:
  """Returns which numbers are -inf."""
  return numbers < lowest(numbers.dtype)


def masked_scores(scores: jax.Array, allowed: jax.Array | None, broken: jax.Array | None = None) -> jax.Array:
  """Returns the scores of allowed pairs, infinity for broken ones, and the lowest number for the others.

  Allowed scores stay above that, so that the largest of a row tells whether the row is empty.

  Args:
    scores: [... T S].
    allowed: which pairs may attend, booleans [... T S]; None for all.
    broken: infinity for pairs whose query, key or value is not finite, else 0, [... T S]; None for none.
  """
  overflow = overflowed(scores.dtype)
  least = np.nextafter(overflow, np.zeros((), scores.dtype))
  if broken is not None:
    scores, broken = same_rank(scores, broken)
    scores += broken
  low = jnp.where(is_minus_infinity(scores), overflow, least)
  scores = jnp.where(scores < least, low, where(jnp.isnan(scores), "inf", scores))
  return scores if allowed is None else jnp.where(allowed, scores, lowest(scores.dtype))


def is_empty(largest: jax.Array) -> jax.Array:
  """Returns, from the largest masked score of each row, which rows attend to nothing."""
  return largest == lowest(largest.dtype)


def has_weights(largest: jax.Array) -> jax.Array:
  """Returns, from the largest masked score of each row, which rows are neither empty nor broken."""
  return (largest > overflowed(largest.dtype)) & jnp.isfinite(largest)


def is_broken(largest: jax.Array) -> jax.Array:
  """Returns, from the largest masked score of each row, which rows attend to what is not finite."""
  return (largest == overflowed(largest.dtype)) | ~jnp.isfinite(largest)


def shift_of(largest: jax.Array) -> jax.Array:
  """Returns by what the exponentials of a row are shifted: its largest score, 0 for a row without weights."""
  return jnp.where(has_weights(largest), largest, 0)
