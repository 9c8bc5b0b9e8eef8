"""Dense attention: all scores, their weights, and the weighted sum of the values, as the papers define them.

    weights = softmax(scores + bias)
    context = weights values

This engine stores arrays [T S]. It is the reference for the blockwise engine.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention.arrays.leading_axes import map_leading_axes
from attention.arrays.masking import (
  finish_rows,
  mark_rows,
  masked_scores,
  row_maxima,
  where_constant,
)
from attention.arrays.named_axes import leaf_axes
from attention.arrays.products import weighted_sums
from attention.engines.inputs import Inputs
from attention.normalizers.base import pair_weights
from attention.normalizers.rows import one_tile, score_tile
from attention.normalizers.softmax import Softmax


class AttentionOutput(NamedTuple):
  """The result of attention with weights or logsumexp.

  Attributes:
    context: [... T D].
    weights: weights before dropout, [... T S]; None if not requested.
    logsumexp: logarithm of the softmax denominator, [... T]; None if not requested.
  """

  context: jax.Array
  # `| Any` instead of `| None`, so that callers who request them need not exclude None.
  weights: jax.Array | Any = None
  logsumexp: jax.Array | Any = None


def dense(inputs: Inputs, shape: tuple[int, ...]) -> AttentionOutput:
  """Computes attention at all indices of the leading axes; see `dense_at_index`.

  Args:
    inputs: from `prepare`, as is the shape.
    shape: of the scores, [... T S].
  """
  if 0 in shape:
    shapes = (*shape[:-1], inputs.values.shape[-1]), shape, shape[:-1]
    context, weights, rows = (jnp.zeros(empty, inputs.values.dtype) for empty in shapes)
    return AttentionOutput(context, weights, where_constant(rows == 0, "-inf", rows))
  leaves, structure = jax.tree.flatten(inputs)

  def at_index(leaves: list[jax.Array]) -> AttentionOutput:
    return dense_at_index(jax.tree.unflatten(structure, leaves))

  arrays = ([jnp.asarray(leaf) for leaf in leaves],)
  return map_leading_axes(at_index, arrays, (leaf_axes(inputs),), shape[:-2])


def dense_at_index(inputs: Inputs) -> AttentionOutput:
  """Computes attention for query features [T X], key features [S X] and values [S D]."""
  inputs, normalizer = inputs.with_finite_vectors(), inputs.options.normalizer
  scores, allowed = inputs.scores_and_allowed()
  if type(normalizer) is Softmax:
    weights, logsumexp, row_max = softmax(scores, allowed, inputs.nonfinite_keys)
    if normalizer.sink is not None:
      share, added = normalizer.share(logsumexp)
      weights, logsumexp = weights * share, logsumexp + added
  else:
    tile, row_max = score_tile(scores, allowed, inputs.nonfinite_keys, (inputs.t, inputs.s))
    weights, logsumexp = pair_weights(normalizer, tile, normalizer.row_state(one_tile(tile))), row_max
  row_max = mark_rows(row_max, inputs.nonfinite_queries)
  context = weighted_sums(inputs.drop(weights), inputs.values)
  weights = finish_rows(row_max, weights)
  if allowed is not None:
    weights = jnp.where(allowed, weights, 0)
  logsumexp = finish_rows(row_max, logsumexp, "-inf")[..., 0]
  return AttentionOutput(finish_rows(row_max, context), weights, logsumexp)


class MaskedSoftmax(NamedTuple):
  """The softmax of masked scores.

  In rows that are empty or not finite, the numbers are finite and have no meaning; see `finish_rows`.

  Attributes:
    weights: [... T S].
    logsumexp: [... T 1].
    row_max: the largest score after masking, without derivatives, [... T 1].
  """

  weights: jax.Array
  logsumexp: jax.Array
  row_max: jax.Array


@jax.custom_jvp
def softmax(
  scores: jax.Array, allowed: jax.Array | None = None, nonfinite_keys: jax.Array | None = None
) -> MaskedSoftmax:
  """Computes the softmax of scores. The arguments are those of `masked_scores`.

  Its derivatives need the weights only:

      d weights[t, s] = weights[t, s] (d scores[t, s] - d logsumexp[t])
      d logsumexp[t] = sum over s of weights[t, s] d scores[t, s]
  """
  scores = masked_scores(scores, allowed, nonfinite_keys)
  row_max = row_maxima(scores)
  exponentials = jnp.exp(scores - row_max)
  denominator = jnp.sum(exponentials, axis=-1, keepdims=True)
  return MaskedSoftmax(exponentials / denominator, row_max + jnp.log(denominator), row_max)


@softmax.defjvp
def _softmax_jvp(primals: Any, tangents: Any) -> tuple[MaskedSoftmax, MaskedSoftmax]:
  result = softmax(*primals)
  # The derivative of a masked score may be NaN, and the gradient of its weight may overflow.
  has_weight = result.weights > 0
  d_scores = jnp.where(has_weight, tangents[0], 0)
  d_logsumexp = jnp.sum(result.weights * d_scores, axis=-1, keepdims=True)
  d_weights = jnp.where(has_weight, result.weights * (d_scores - d_logsumexp), 0)
  return result, MaskedSoftmax(d_weights, d_logsumexp, jnp.zeros_like(result.row_max))
