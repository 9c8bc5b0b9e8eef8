"""Numbers that mark what is masked, what has overflowed, and what is no number.

NaN and infinity are made only where a result is to be one, or of scores above 1e31. What is masked is marked
by the lowest number of the floating type, not by -inf, and constants stay inside `jax.jit`. So
`jax_debug_nans` and `jax_debug_infs` stop at what is wrong alone, outside of `jax.jit` too.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def masked(dtype: jnp.dtype) -> np.ndarray:
  """Returns the score that marks a masked pair: the lowest number, whose exponential is 0."""
  return np.asarray(jnp.finfo(dtype).min, dtype)


def overflowed(dtype: jnp.dtype) -> np.ndarray:
  """Returns the score that marks an allowed pair whose score is -inf: the number above `masked`."""
  return np.nextafter(masked(dtype), np.zeros((), dtype))


def is_minus_infinity(numbers: jax.Array) -> jax.Array:
  """Returns which numbers are -inf."""
  return numbers < masked(numbers.dtype)


def marked(scores: jax.Array, allowed: jax.Array | None) -> jax.Array:
  """Returns the scores with their marks, and all others above these.

  So the largest of a row tells rows that are empty from rows all of whose scores have overflowed, and these
  from others.

  Args:
    scores: [... T S].
    allowed: which pairs may attend, booleans [... T S]; None for all.
  """
  overflow = overflowed(scores.dtype)
  least = np.nextafter(overflow, np.zeros((), scores.dtype))
  scores = jnp.where(is_minus_infinity(scores), overflow, jnp.maximum(scores, least))
  return scores if allowed is None else jnp.where(allowed, scores, masked(scores.dtype))


def is_empty(largest: jax.Array) -> jax.Array:
  """Returns, from the largest marked scores, which rows attend to nothing."""
  return largest == masked(largest.dtype)


def overflows(largest: jax.Array) -> jax.Array:
  """Returns, from the largest marked scores, which rows attend to one of inf or NaN, or to -inf alone."""
  is_fine = (largest > overflowed(largest.dtype)) & jnp.isfinite(largest)
  return ~is_empty(largest) & ~is_fine


def shift_of(largest: jax.Array) -> jax.Array:
  """Returns by what exponentials are shifted: the largest score, or 0 if there is none."""
  return jnp.where(is_empty(largest) | ~jnp.isfinite(largest), 0, largest)


@functools.partial(jax.jit, inline=True)
def minus_infinity_where(condition: jax.Array, numbers: jax.Array) -> jax.Array:
  """Returns the numbers, but -inf where the condition holds."""
  return jnp.where(condition, -jnp.inf, numbers)


@functools.partial(jax.jit, static_argnames="dtype", inline=True)
def nan_where(condition: jax.Array, dtype: jnp.dtype) -> jax.Array:
  """Returns NaN where the condition holds and 0 elsewhere."""
  return jnp.where(condition, jnp.asarray(jnp.nan, dtype), 0)
