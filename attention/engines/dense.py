"""Attention as the papers define it: all scores, their softmax, the weighted sum.

This engine stores arrays [... T S]. It is the definition that every other engine is held to.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention.arrays.broadcasting import check_rank
from attention.arrays.precision import compute_dtype
from attention.engines.guards import (
  finite,
  has_weights,
  is_empty,
  is_minus_infinity,
  lowest,
  masked_scores,
  minus_infinity_where,
  nan_where,
  shift_of,
)
from attention.engines.inputs import Inputs, check_pairs
from attention.masks import Array, Mask, as_mask


class Attended(NamedTuple):
  """What attention returns where more than the context is asked for.

  Attributes:
    context: [... T D].
    weights: before dropout, [... T S]; None if not asked for.
    logsumexp: the logarithm of the softmax's denominator, [... T]; None if not asked for.
  """

  context: jax.Array
  # To type checkers `| Any` stands for None, of which who asked for them need not think.
  weights: jax.Array | Any = None
  logsumexp: jax.Array | Any = None


def dense(inputs: Inputs, shape: tuple[int, ...], *, return_logsumexp: bool) -> Attended:
  """Returns the attention of the queries to the keys and values, with the weights.

  Args:
    inputs: from `prepare`, as is the shape.
    shape: of the scores, [... T S].
    return_logsumexp: whether it is asked for; -inf is made for nothing else.
  """
  inputs = inputs.with_vectors(*finite((inputs.queries, inputs.keys, inputs.values)))
  scores, allowed = inputs.scores_and_allowed()
  scores = jnp.broadcast_to(scores, shape)
  allowed = jnp.broadcast_to(True if allowed is None else allowed, shape)
  empty, broken = _empty_and_broken(scores, allowed, inputs.bad_queries)

  softmax = masked_softmax(jnp.where(broken, 0, scores), allowed, return_logsumexp=return_logsumexp)
  weights, logsumexp = softmax if isinstance(softmax, tuple) else (softmax, None)
  context = jnp.einsum("...TS,...SD->...TD", inputs.drop(weights), inputs.values)

  nan = nan_where(broken, context.dtype)
  # An empty row is zero already. This is for gradients: NaN from above must not reach it.
  context = jnp.where(empty | broken, nan, context)
  weights = jnp.where(broken & allowed, nan, weights)
  return Attended(context, weights, None if logsumexp is None else logsumexp + nan[..., 0])


def _empty_and_broken(
  scores: jax.Array, allowed: jax.Array, bad_queries: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns which rows [... T 1] attend to nothing, and which are to be NaN."""
  largest = _largest(masked_scores(scores, allowed))
  bad_queries = jnp.broadcast_to(bad_queries, scores.shape[:-1])[..., None]
  return is_empty(largest), ~is_empty(largest) & (bad_queries | ~has_weights(largest))


def _largest(scores: jax.Array) -> jax.Array:
  """Returns the largest masked score of each row, [... T 1], as a constant."""
  largest = jnp.max(scores, axis=-1, keepdims=True, initial=lowest(scores.dtype))
  return jax.lax.stop_gradient(largest)


def masked_softmax(
  scores: jax.Array, mask: Mask | Array, *, return_logsumexp: bool = False
) -> jax.Array | tuple[jax.Array, jax.Array]:
  """Returns the softmax over the last axis of the scores that the mask allows.

      weights[t, s] = exp(scores[t, s]) / sum over allowed r of exp(scores[t, r]), 0 where not allowed

  A score of -inf is not allowed either. A row that allows nothing gets zero weights and zero gradients.

  Args:
    scores: [... T S], floating.
    mask: a mask, or booleans that broadcast to [... T S], True = may attend.
    return_logsumexp: whether to return the logarithm of the sum too.

  Returns:
    Weights [... T S] in the dtype of the scores; or a tuple of them and the logsumexp [... T], which is at
    least float32, and -inf for a row that allows nothing.

  Raises:
    ValueError: if the scores are not floating, the mask is not boolean or does not broadcast to them.

  >>> masked_softmax(jnp.zeros((2, 2)), jnp.array([[True, False], [False, False]])).tolist()
  [[1.0, 0.0], [0.0, 0.0]]
  """
  scores = jnp.asarray(scores)
  check_rank("scores", scores, "[... T S]")
  if not jnp.issubdtype(scores.dtype, jnp.floating):
    raise ValueError(f"scores must be of a floating type, got {scores.dtype}")
  array = as_mask(mask).array(*scores.shape[-2:])
  check_pairs("mask", array.shape, scores.shape)
  allowed = jnp.broadcast_to(array, scores.shape) & ~is_minus_infinity(scores)

  compute = masked_scores(scores.astype(compute_dtype(scores.dtype)), allowed)
  shift = shift_of(_largest(compute))  # any other would give the same result: it is not differentiated
  exponentials = jnp.exp(compute - shift)
  total = jnp.sum(exponentials, axis=-1, keepdims=True)
  total = jnp.where(total == 0, 1, total)
  # A masked weight is 0 already. This is for its gradient, which a large value may overflow.
  weights = jnp.where(allowed, exponentials / total, 0).astype(scores.dtype)
  if not return_logsumexp:
    return weights
  is_empty = ~jnp.any(allowed, axis=-1)
  return weights, minus_infinity_where(is_empty, (jnp.log(total) + shift)[..., 0])
