"""The masked softmax, and `Normalizer`, the base class of functions that map scores to weights.

A normalizer gets `MaskedScores`. Masked pairs cannot affect the weights it returns, and the engine handles
empty and non-finite rows, so a custom normalizer is short:

>>> import dataclasses
>>> from attention import attend, register_pytree, ScaledDotProduct
>>> @register_pytree
... @dataclasses.dataclass(frozen=True)
... class SquaredRelu(Normalizer):
...   def weights(self, rows):
...     return jnp.where(rows.valid, jax.nn.relu(rows.scores) ** 2, 0)
>>> queries, keys = jnp.array([[2.0]]), jnp.array([[1.0], [-1.0]])
>>> attend(ScaledDotProduct(), queries, keys, keys, normalizer=SquaredRelu()).tolist()
[[4.0]]
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from attention.arrays.checks import as_floating, check_rank
from attention.arrays.eager_jit import eager_jit
from attention.arrays.pytrees import NamedAxes, register_pytree
from attention.arrays.sharding import compute_dtype
from attention.engines.attention_inputs import check_pairs
from attention.engines.masking import (
  finish_rows,
  is_minus_infinity,
  is_valid_row,
  mask_value,
  masked_scores,
  softmax_shift,
)
from attention.masks import Array, Mask, as_mask


class MaskedScores(NamedTuple):
  """The scores of all queries, and which pairs are valid.

  Attributes:
    scores: [... T S]; 0 for invalid pairs (masked, or in an empty or non-finite row).
    shifted_scores: scores minus the maximum of their row; the lowest finite number for invalid pairs. Its
      derivatives are those of the scores.
    valid: which pairs are valid, booleans broadcastable to [... T S].
    row_max: the largest score after masking, [... T 1].
  """

  scores: jax.Array
  shifted_scores: jax.Array
  valid: jax.Array
  row_max: jax.Array

  @classmethod
  def of(
    cls, scores: jax.Array, allowed: jax.Array | None, nonfinite: jax.Array | None = None
  ) -> "MaskedScores":
    """Returns the masked scores for scores [... T S]; see `masked_scores` for the arguments."""
    # Weights do not depend on the shift, so it is not differentiated.
    masked = masked_scores(jax.lax.stop_gradient(scores), allowed, nonfinite)
    row_max = jnp.max(masked, axis=-1, keepdims=True, initial=mask_value(scores.dtype))
    valid = is_valid_row(row_max) if allowed is None else allowed & is_valid_row(row_max)
    # The values are those of the masked scores, the derivatives those of the valid scores.
    masked_values = jnp.where(valid, masked, mask_value(scores.dtype))
    scores = jnp.where(is_minus_infinity(scores), mask_value(scores.dtype), scores)
    scores = jnp.where(valid, scores, 0)
    shifted_scores = scores - jax.lax.stop_gradient(scores) + (masked_values - softmax_shift(row_max))
    return cls(scores, shifted_scores, valid, row_max)

  def exponentials(self) -> tuple[jax.Array, jax.Array]:
    """Returns exp(shifted_scores) [... T S], and its sum [... T 1], or 1 for invalid rows."""
    exponentials = jnp.exp(self.shifted_scores)
    denominator = jnp.sum(exponentials, axis=-1, keepdims=True)
    return exponentials, jnp.where(denominator == 0, 1, denominator)

  def logsumexp(self) -> jax.Array:
    """Returns log(sum of exp(score)), [... T]: -inf for empty rows, NaN for non-finite rows."""
    logsumexp = jnp.log(self.exponentials()[1]) + softmax_shift(self.row_max)
    return finish_rows(self.row_max, logsumexp, "-inf")[..., 0]


class Normalizer(NamedAxes):
  """Maps scores to weights. Subclasses are frozen dataclasses with `register_pytree` that define `weights`.

  A normalizer may hold arrays, and names their axes as a `Score` does. These must be finite: a NaN would
  reach the gradients of other queries.
  """

  def weights(self, rows: MaskedScores) -> jax.Array:
    """Returns the weights [... T S], which must be 0 for invalid pairs (see `rows.valid`)."""
    raise NotImplementedError(f"{type(self).__name__} must define weights(rows)")


@register_pytree
@dataclasses.dataclass(frozen=True)
class Softmax(Normalizer):
  """weights[t, s] = exp(scores[t, s]) / sum over r of exp(scores[t, r])."""

  def weights(self, rows):
    exponentials, denominator = rows.exponentials()
    # Masked weights are 0 already. `where` also sets their gradient to 0, which may otherwise overflow.
    return jnp.where(rows.valid, exponentials / denominator, 0)


@functools.partial(eager_jit, static_argnames=("return_logsumexp",))
def masked_softmax(
  scores: jax.Array, mask: Mask | Array, *, return_logsumexp: bool = False
) -> jax.Array | tuple[jax.Array, jax.Array]:
  """Computes the softmax over the last axis, restricted to the pairs that a mask allows.

      weights[t, s] = exp(scores[t, s]) / sum over allowed r of exp(scores[t, r]), 0 where not allowed

  A score of -inf is masked, too. Fully masked rows have zero weights and zero gradients. Rows with an allowed
  NaN have NaN weights and zero gradients.

  Args:
    scores: [... T S], floating-point.
    mask: a mask, or booleans broadcastable to [... T S]. True means "may attend".
    return_logsumexp: also return the logarithm of the sum.

  Returns:
    Weights [... T S] in the dtype of the scores. With `return_logsumexp`, a tuple of the weights and the
    logsumexp [... T], which has at least float32 and is -inf for fully masked rows.

  Raises:
    ValueError: if the scores are not floating-point, or the mask is not boolean or does not broadcast.

  >>> masked_softmax(jnp.zeros((2, 2)), jnp.array([[True, False], [False, False]])).tolist()
  [[1.0, 0.0], [0.0, 0.0]]
  """
  scores = as_floating("scores", scores)
  check_rank("scores", scores, "[... T S]")
  array = as_mask(mask).materialize(*scores.shape[-2:])
  check_pairs("mask", array.shape, scores.shape)
  allowed = jnp.broadcast_to(array, scores.shape) & ~is_minus_infinity(scores)
  rows = MaskedScores.of(scores.astype(compute_dtype(scores.dtype)), allowed)
  weights = jnp.where(allowed, finish_rows(rows.row_max, Softmax().weights(rows)), 0).astype(scores.dtype)
  return (weights, rows.logsumexp()) if return_logsumexp else weights
