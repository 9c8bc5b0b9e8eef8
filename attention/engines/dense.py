"""Dense attention: all scores, their weights, and the weighted sum, as the papers define them.

This engine stores arrays [... T S]. It is the reference for the blockwise engine.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention.arrays.shapes import with_rank
from attention.engines.attention_inputs import VECTORS, Inputs
from attention.engines.masking import finish_rows, finite
from attention.engines.softmax import MaskedScores, Normalizer, Softmax


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
  normalizer: Normalizer = Softmax(),  # noqa: B008 (it is immutable)
  return_logsumexp: bool,
) -> AttentionOutput:
  """Computes attention with weights.

  Args:
    inputs: from `prepare`, as is the shape.
    shape: of the scores, [... T S].
    normalizer: maps scores to weights.
    return_logsumexp: also compute the logsumexp.
  """
  vectors = {name: finite(getattr(inputs, name)) for name in VECTORS}
  inputs = dataclasses.replace(inputs, **vectors)
  scores, allowed = inputs.scores_and_allowed()
  allowed = None if allowed is None else with_rank(allowed, len(shape))
  rows = MaskedScores.of(jnp.broadcast_to(scores, shape), allowed, inputs.nonfinite_pairs())
  weights = normalizer.weights(rows)
  context = jnp.einsum("...TS,...SD->...TD", inputs.drop(weights), inputs.values)
  weights = finish_rows(rows.row_max, weights)
  return AttentionOutput(
    finish_rows(rows.row_max, context),
    weights if allowed is None else jnp.where(allowed, weights, 0),
    rows.logsumexp() if return_logsumexp else None,
  )
