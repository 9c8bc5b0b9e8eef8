"""The softmax of given scores, restricted by a mask."""

import functools

import jax
import jax.numpy as jnp

from attention.arrays.checks import as_floating, check_rank
from attention.arrays.dtypes import compute_dtype
from attention.arrays.eager_jit import eager_jit
from attention.arrays.masking import finish_rows, is_minus_infinity
from attention.arrays.shapes import check_pairs
from attention.engines.dense import softmax
from attention.masks import Array, Mask, as_mask


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
  weights, logsumexp, row_max = softmax(scores.astype(compute_dtype(scores.dtype)), allowed)
  weights = jnp.where(allowed, finish_rows(row_max, weights), 0).astype(scores.dtype)
  return (weights, finish_rows(row_max, logsumexp, "-inf")[..., 0]) if return_logsumexp else weights
