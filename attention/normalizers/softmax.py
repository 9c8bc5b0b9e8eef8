"""The softmax, with an optional sink, and the masked softmax."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.checks import as_floating, check_numbers, check_rank
from attention.arrays.dtypes import compute_dtype
from attention.arrays.eager_jit import eager_jit
from attention.arrays.masking import finish_rows, is_minus_infinity
from attention.arrays.named_axes import register_pytree
from attention.arrays.shapes import check_pairs, with_rank
from attention.masks import Array, Mask, as_mask
from attention.normalizers.base import Normalizer
from attention.normalizers.rows import one_tile


@register_pytree
@dataclasses.dataclass(frozen=True)
class Softmax(Normalizer):
  """weights[t, s] = exp(scores[t, s]) / sum over r of exp(scores[t, r]).

  Attributes:
    sink: the score of an attention sink, one more key with a value of zero: exp(sink) is added to the sum. A
      number, or an array [...] with leading axes, such as [N] for heads. 0 is "softmax off by one".

  References:
    Xiao et al. 2024, arXiv:2309.17453; one trained score per head: OpenAI 2025, arXiv:2508.10925; 0: Miller
    2023, "Attention is off by one".
  """

  axes = {"sink": ""}
  sink: jax.Array | float | None = None

  def validate(self):
    if self.sink is not None:
      check_numbers("sink", self.sink, "a real number below infinity", lambda sink: sink < np.inf)

  def row_state(self, rows):
    row_max = rows.max()
    denominator = rows.sum(lambda tile: jnp.exp(tile.shifted(row_max)))
    if self.sink is not None:
      sink = self.sink_scores(row_max)
      shift = jax.lax.stop_gradient(jnp.maximum(row_max, sink))
      return shift, denominator * jnp.exp(row_max - shift) + jnp.exp(sink - shift)
    return row_max, jnp.where(denominator == 0, 1, denominator)

  def weights(self, tile, state):
    row_max, denominator = state
    return jnp.exp(tile.shifted(row_max)) / denominator

  def sink_scores(self, rows: jax.Array) -> jax.Array:
    """Returns the score of the sink for each row, with the shape and dtype of rows [... T 1]."""
    sink = jnp.asarray(self.sink, rows.dtype)[..., None, None]
    sink = jnp.where(sink < jnp.inf, sink, jnp.nan)  # an infinite score gives NaN, as for other keys
    return jnp.broadcast_to(with_rank(sink, rows.ndim), rows.shape)


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
  positions = jnp.arange(scores.shape[-2])[:, None], jnp.arange(scores.shape[-1])[None, :]
  tile, rows, row_max = one_tile(scores.astype(compute_dtype(scores.dtype)), allowed, None, positions)
  state = Softmax().row_state(rows)
  weights = finish_rows(row_max, Softmax().weights(tile, state))
  weights = jnp.where(allowed, weights, 0).astype(scores.dtype)
  return (weights, logsumexp(row_max, state)) if return_logsumexp else weights


def logsumexp(row_max: jax.Array, state: tuple[jax.Array, jax.Array]) -> jax.Array:
  """Returns log(sum of exp(score)), [... T]: -inf for empty rows, NaN for non-finite rows.

  Args:
    row_max: the largest score of each row after masking, [... T 1].
    state: of `Softmax`.
  """
  shift, denominator = state
  return finish_rows(row_max, jnp.log(denominator) + shift, "-inf")[..., 0]
