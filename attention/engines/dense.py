"""Attention as the papers define it: all scores, their softmax, the weighted sum.

This engine stores arrays [... T S]. It is the definition that every other engine is held to.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention.arrays.broadcasting import as_array, check_rank, with_rank
from attention.arrays.precision import compute_dtype
from attention.arrays.programs import one_program
from attention.engines.guards import (
  finite,
  has_weights,
  is_broken,
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
  # `| Any` instead of `| None`: who asked for them need not rule out None.
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
  allowed = None if allowed is None else with_rank(allowed, len(shape))
  softmax = Softmax.of(jnp.broadcast_to(scores, shape), allowed, inputs.broken_pairs())
  context = jnp.einsum("...TS,...SD->...TD", inputs.drop(softmax.weights), inputs.values)
  # Without weights it is zero already. This is for gradients: NaN from above must not reach such a row.
  context = jnp.where(softmax.has_weights, context, softmax.nan)
  return Attended(context, softmax.weights_or_nan(), softmax.logsumexp() if return_logsumexp else None)


@one_program
def masked_softmax(
  scores: jax.Array, mask: Mask | Array, *, return_logsumexp: bool = False
) -> jax.Array | tuple[jax.Array, jax.Array]:
  """Returns the softmax over the last axis of the scores that the mask allows.

      weights[t, s] = exp(scores[t, s]) / sum over allowed r of exp(scores[t, r]), 0 where not allowed

  A score of -inf is not allowed either. A row that allows nothing gets zero weights and zero gradients. A row
  that allows a NaN gets NaN weights and zero gradients.

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
  scores = as_array("scores", scores)
  check_rank("scores", scores, "[... T S]")
  if not jnp.issubdtype(scores.dtype, jnp.floating):
    raise ValueError(f"scores must be of a floating type, got {scores.dtype}")
  array = as_mask(mask).array(*scores.shape[-2:])
  check_pairs("mask", array.shape, scores.shape)
  allowed = jnp.broadcast_to(array, scores.shape) & ~is_minus_infinity(scores)
  softmax = Softmax.of(scores.astype(compute_dtype(scores.dtype)), allowed)
  weights = softmax.weights_or_nan().astype(scores.dtype)
  return (weights, softmax.logsumexp()) if return_logsumexp else weights


class Softmax(NamedTuple):
  """The softmax of scores over the keys that may be attended to.

  Attributes:
    weights: [... T S], zeros for rows that are empty or broken.
    total: sum of exp(score - shift), [... T 1]; 1 for rows without weights.
    largest: the largest masked score, [... T 1].
    allowed: which pairs may attend, booleans [... T S]; None for all.
  """

  weights: jax.Array
  total: jax.Array
  largest: jax.Array
  allowed: jax.Array | None

  @classmethod
  def of(cls, scores: jax.Array, allowed: jax.Array | None, broken: jax.Array | None = None) -> "Softmax":
    """Returns the softmax of scores [... T S]; the arguments are those of `masked_scores`."""
    # Any shift would give the same result, so it is not differentiated.
    masked = masked_scores(jax.lax.stop_gradient(scores), allowed, broken)
    largest = jnp.max(masked, axis=-1, keepdims=True, initial=lowest(scores.dtype))
    used = has_weights(largest) if allowed is None else allowed & has_weights(largest)
    # The value is that of the masked scores, the derivative that of the scores which are used.
    held = jnp.where(used, masked, lowest(scores.dtype))
    scores = jnp.where(used & ~is_minus_infinity(scores), scores, 0)
    exponentials = jnp.exp(scores - jax.lax.stop_gradient(scores) + (held - shift_of(largest)))
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    total = jnp.where(total == 0, 1, total)
    weights = exponentials / total
    if allowed is not None:
      # A masked weight is 0 already. This is for its gradient, which a large value may overflow.
      weights = jnp.where(allowed, weights, 0)
    return cls(weights, total, largest, allowed)

  @property
  def has_weights(self) -> jax.Array:
    """Which rows are neither empty nor broken, [... T 1]."""
    return has_weights(self.largest)

  @property
  def nan(self) -> jax.Array:
    """NaN for broken rows, else 0, [... T 1]."""
    return nan_where(is_broken(self.largest), self.weights.dtype)

  def weights_or_nan(self) -> jax.Array:
    """Returns the weights, NaN for broken rows."""
    weights = self.weights + self.nan
    return weights if self.allowed is None else jnp.where(self.allowed, weights, 0)

  def logsumexp(self) -> jax.Array:
    """Returns the logarithm of the sum of exp(score), [... T]: -inf for empty rows, NaN for broken ones."""
    logsumexp = jnp.log(self.total) + shift_of(self.largest) + self.nan
    return minus_infinity_where(is_empty(self.largest), logsumexp)[..., 0]
