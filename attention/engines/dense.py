"""Dense attention: all scores, their weights, and the weighted sum, as the papers define them.

This engine stores arrays [... T S]. It is the reference for the blockwise engine.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention.arrays.masking import finish_rows
from attention.arrays.shapes import with_rank
from attention.engines.inputs import Inputs
from attention.normalizers.base import pair_weights
from attention.normalizers.rows import one_tile
from attention.normalizers.softmax import logsumexp


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


def dense(
  inputs: Inputs,
  shape: tuple[int, ...],
  *,
  return_logsumexp: bool,
) -> AttentionOutput:
  """Computes attention with weights.

  Args:
    inputs: from `prepare`, as is the shape.
    shape: of the scores, [... T S].
    return_logsumexp: also compute the logsumexp; the normalizer must be `Softmax`.
  """
  inputs = inputs.with_finite_vectors()
  scores, allowed = inputs.scores_and_allowed()
  scores = jnp.broadcast_to(scores, shape)
  tile, rows, row_max = one_tile(scores, allowed, inputs.nonfinite_pairs(), (inputs.t, inputs.s))
  state = inputs.normalizer.row_state(rows)
  weights = pair_weights(inputs.normalizer, tile, state)
  context = jnp.einsum("...TS,...SD->...TD", inputs.drop(weights), inputs.values)
  weights = finish_rows(row_max, weights)
  return AttentionOutput(
    finish_rows(row_max, context),
    weights if allowed is None else jnp.where(with_rank(allowed, len(shape)), weights, 0),
    logsumexp(row_max, state) if return_logsumexp else None,
  )
