"""Combination of attention to different sets of keys."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from attention.arrays.checks import as_floating, as_real, check_rank
from attention.arrays.dtypes import compute_dtype
from attention.arrays.eager_jit import eager_jit
from attention.arrays.masking import is_minus_infinity, where_constant
from attention.arrays.shapes import broadcasts_to, with_rank


@eager_jit
def merge_partials(partials: Sequence[tuple[jax.Array, jax.Array]]) -> tuple[jax.Array, jax.Array]:
  """Merges attention to disjoint sets of keys into attention to all keys.

      logsumexp = log(sum over i of exp(logsumexps[i]))
      context   = sum over i of exp(logsumexps[i] - logsumexp) contexts[i]

  The result is exact, and differentiable with respect to contexts and logsumexps. A partial whose logsumexp
  is -inf (a fully masked row) is ignored, whatever its context.

  Args:
    partials: at least one pair of a context [... T D] and its logsumexp [... T], from `attend` with
      `return_logsumexp`. Leading axes broadcast.

  Returns:
    The context [... T D] in the dtype of the contexts, and the logsumexp [... T]. Rows that are fully masked
    in all partials have context 0 and logsumexp -inf.

  Raises:
    ValueError: if there are no partials, or their shapes or dtypes are incompatible.

  References:
    Milakov and Gimelshein 2018, arXiv:1805.02867, section 3.1.

  >>> first, second = (jnp.ones((1, 2)), jnp.zeros(1)), (jnp.zeros((1, 2)), jnp.zeros(1))
  >>> context, logsumexp = merge_partials([first, second])
  >>> context.tolist(), logsumexp.round(3).tolist()
  ([[0.5, 0.5]], [0.6930000185966492])
  """
  if not partials:
    raise ValueError("partials must contain at least one pair (context, logsumexp), got none")
  for partial in partials:
    if not isinstance(partial, (tuple, list)) or len(partial) != 2:
      raise ValueError(f"each partial must be a pair, (context, logsumexp), got {type(partial).__name__}")
  contexts = [as_floating("context", context) for context, _ in partials]
  logsumexps = [as_floating("logsumexp", logsumexp) for _, logsumexp in partials]
  dtype, axes = contexts[0].dtype, contexts[0].shape[-2:]
  for context, logsumexp in zip(contexts, logsumexps, strict=True):
    check_rank("context", context, "[... T D]")
    if context.shape[-2:] != axes or logsumexp.shape[-1:] != axes[:1] or context.dtype != dtype:
      raise ValueError(
        "partials must be pairs of a context [... T D] and a logsumexp [... T] with the same T, D and dtype, "
        f"got context {contexts[0].shape} {dtype} and then context {context.shape} {context.dtype}, "
        f"logsumexp {logsumexp.shape}"
      )
  rank = max(*(context.ndim - 1 for context in contexts), *(logsumexp.ndim for logsumexp in logsumexps))
  compute = compute_dtype(dtype)
  logsumexps = [with_rank(logsumexp, rank) for logsumexp in logsumexps]
  stacked = jnp.stack(jnp.broadcast_arrays(*logsumexps)).astype(compute)
  max_logsumexp = jnp.max(stacked, axis=0)
  shift = jax.lax.stop_gradient(jnp.where(jnp.isfinite(max_logsumexp), max_logsumexp, 0))
  shares = jnp.exp(stacked - shift[None])
  denominator = jnp.sum(shares, axis=0)
  is_empty = denominator == 0
  safe_denominator = jnp.where(is_empty, 1, denominator)
  merged: Any = 0
  for share, logsumexp, context in zip(shares, stacked, contexts, strict=True):
    context = with_rank(context, rank + 1).astype(compute)
    # The context of a fully masked row may be NaN, and 0 * NaN is NaN, in the gradient too.
    merged += share[..., None] * jnp.where(is_minus_infinity(logsumexp)[..., None], 0, context)
  logsumexp = where_constant(is_empty, "-inf", jnp.log(safe_denominator) + shift)
  context = (merged / safe_denominator[..., None]).astype(dtype)
  return context, jnp.broadcast_to(logsumexp, context.shape[:-1])


@eager_jit
def add_sink(
  context: jax.Array, logsumexp: jax.Array, sink: jax.Array | float
) -> tuple[jax.Array, jax.Array]:
  """Adds an attention sink: one more key with a given score and a value of zero.

      context   <- context exp(logsumexp) / (exp(logsumexp) + exp(sink))
      logsumexp <- log(exp(logsumexp) + exp(sink))

  The weights of the other keys then sum to less than 1. `Softmax(sink)` gives the same context. A sink of
  partial results must be added once, after `merge_partials`. The logsumexp of an empty row becomes the sink.

  Args:
    context: [... T D].
    logsumexp: [... T], from `attend` with `return_logsumexp`.
    sink: the score: a number, or an array [...] with leading axes, such as [N] for heads.

  Returns:
    The new context [... T D] and logsumexp [... T].

  Raises:
    ValueError: if the sink does not broadcast; see also `merge_partials`.

  References:
    Xiao et al. 2024, arXiv:2309.17453; one trained score per head: OpenAI 2025, arXiv:2508.10925.

  >>> context, _ = add_sink(jnp.ones((2, 3, 1)), jnp.zeros((2, 3)), jnp.array([0.0, -jnp.inf]))
  >>> context[:, 0, 0].tolist()
  [0.5, 1.0]
  """
  logsumexp = as_floating("logsumexp", logsumexp)
  scores = as_real("sink", sink).astype(logsumexp.dtype)[..., None]
  if not broadcasts_to(scores.shape, logsumexp.shape):
    raise ValueError(
      f"sink must be broadcastable to the leading axes of the logsumexp {logsumexp.shape}, "
      f"got shape {jnp.shape(sink)}"
    )
  scores = jnp.broadcast_to(with_rank(scores, logsumexp.ndim), logsumexp.shape)
  return merge_partials([(context, logsumexp), (jnp.zeros_like(context), scores)])
