"""The softmax of masked scores, and `Normalizer`, the base class of what maps scores to weights.

A normalizer is given `MaskedScores`, the scores of each query and the keys that it may attend to. Masked
pairs cannot affect the weights that it returns; the engine handles rows that are empty or broken. A custom
one is a few lines:

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
  """The scores of each query and the keys that it may attend to.

  Attributes:
    scores: [... T S]; 0 for pairs that do not count: masked, or of a row that is empty or broken.
    shifted_scores: the scores minus the largest of their row; the lowest number for pairs that do not count.
      Its derivatives are those of the scores.
    valid: which pairs count, booleans that broadcast to [... T S].
    row_max: the largest masked score, [... T 1].
  """

  scores: jax.Array
  shifted_scores: jax.Array
  valid: jax.Array
  row_max: jax.Array

  @classmethod
  def of(
    cls, scores: jax.Array, allowed: jax.Array | None, nonfinite: jax.Array | None = None
  ) -> "MaskedScores":
    """Returns the rows of scores [... T S]; the arguments are those of `masked_scores`."""
    # Any shift would give the same weights, so it is not differentiated.
    masked = masked_scores(jax.lax.stop_gradient(scores), allowed, nonfinite)
    row_max = jnp.max(masked, axis=-1, keepdims=True, initial=mask_value(scores.dtype))
    valid = is_valid_row(row_max) if allowed is None else allowed & is_valid_row(row_max)
    # The value is that of the masked scores, the derivative that of the scores which are used.
    masked_values = jnp.where(valid, masked, mask_value(scores.dtype))
    scores = jnp.where(is_minus_infinity(scores), mask_value(scores.dtype), scores)
    scores = jnp.where(valid, scores, 0)
    shifted_scores = scores - jax.lax.stop_gradient(scores) + (masked_values - softmax_shift(row_max))
    return cls(scores, shifted_scores, valid, row_max)

  def exponentials(self) -> tuple[jax.Array, jax.Array]:
    """Returns exp(shifted) [... T S], and its sum [... T 1], 1 for rows without weights."""
    exponentials = jnp.exp(self.shifted_scores)
    denominator = jnp.sum(exponentials, axis=-1, keepdims=True)
    return exponentials, jnp.where(denominator == 0, 1, denominator)

  def logsumexp(self) -> jax.Array:
    """Returns the logarithm of the sum of exp(score), [... T]: -inf for empty rows, NaN for broken rows."""
    logsumexp = jnp.log(self.exponentials()[1]) + softmax_shift(self.row_max)
    return finish_rows(self.row_max, logsumexp, "-inf")[..., 0]


class Normalizer(NamedAxes):
  """What makes weights of scores. Subclasses are frozen dataclasses, registered by `register_pytree`.

  Like a score it may hold arrays, whose own axes it names: see `Score`. These must be finite: NaN in them is
  not kept from other queries' gradients.
  """

  def weights(self, rows: MaskedScores) -> jax.Array:
    """Returns the weights [... T S], zeros for pairs that do not count (`rows.valid`)."""
    raise NotImplementedError(f"{type(self).__name__} must define weights(rows)")


@register_pytree
@dataclasses.dataclass(frozen=True)
class Softmax(Normalizer):
  """weights[t, s] = exp(scores[t, s]) / sum over r of exp(scores[t, r])."""

  def weights(self, rows):
    exponentials, denominator = rows.exponentials()
    # A masked weight is 0 already. This is for its gradient, which a large value may overflow.
    return jnp.where(rows.valid, exponentials / denominator, 0)


@functools.partial(eager_jit, static_argnames=("return_logsumexp",))
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
  scores = as_floating("scores", scores)
  check_rank("scores", scores, "[... T S]")
  array = as_mask(mask).materialize(*scores.shape[-2:])
  check_pairs("mask", array.shape, scores.shape)
  allowed = jnp.broadcast_to(array, scores.shape) & ~is_minus_infinity(scores)
  rows = MaskedScores.of(scores.astype(compute_dtype(scores.dtype)), allowed)
  weights = jnp.where(allowed, finish_rows(rows.row_max, Softmax().weights(rows)), 0).astype(scores.dtype)
  return (weights, rows.logsumexp()) if return_logsumexp else weights
