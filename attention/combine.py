"""Joining attention to different parts of the keys."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from attention.arrays.checks import as_floating, as_real, check_rank
from attention.arrays.eager_jit import eager_jit
from attention.arrays.shapes import broadcasts_to, with_rank
from attention.arrays.sharding import compute_dtype
from attention.engines.masking import is_minus_infinity, where


@eager_jit
def merge_partials(partials: Sequence[tuple[jax.Array, jax.Array]]) -> tuple[jax.Array, jax.Array]:
  """Returns the attention to all keys, from the attention to each of several disjoint sets of them.

      logsumexp = log(sum over i of exp(logsumexps[i]))
      context   = sum over i of exp(logsumexps[i] - logsumexp) contexts[i]

  It is exact, and differentiable by contexts and logsumexps. A set in which a query may attend to nothing
  (logsumexp -inf) has no part in it, whatever its context.

  Source: Milakov and Gimelshein 2018, arXiv:1805.02867, section 3.1.

  Args:
    partials: at least one pair of a context [... T D] and its logsumexp [... T], which `attend` returns with
      return_logsumexp; leading axes broadcast.

  Returns:
    The context [... T D] in the contexts' dtype, and the logsumexp [... T], with the leading axes of all; 0
    and -inf for queries that may attend to nothing at all.

  Raises:
    ValueError: if there is no partial, one's context and logsumexp do not fit, or the dtypes differ.

  >>> first, second = (jnp.ones((1, 2)), jnp.zeros(1)), (jnp.zeros((1, 2)), jnp.zeros(1))
  >>> context, logsumexp = merge_partials([first, second])
  >>> context.tolist(), logsumexp.round(3).tolist()
  ([[0.5, 0.5]], [0.6930000185966492])
  """
  if not partials:
    raise ValueError("partials must hold at least one pair of a context and a logsumexp, got none")
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
        "each partial must be a context [... T D] and its logsumexp [... T], all of one T, D and dtype, "
        f"here {axes} and {dtype}, got {context.dtype} {context.shape} and {logsumexp.shape}"
      )
  rank = max(*(context.ndim - 1 for context in contexts), *(one.ndim for one in logsumexps))
  compute = compute_dtype(dtype)
  stacked = jnp.stack(jnp.broadcast_arrays(*(with_rank(one, rank) for one in logsumexps))).astype(compute)
  max_logsumexp = jnp.max(stacked, axis=0)
  shift = jax.lax.stop_gradient(jnp.where(jnp.isfinite(max_logsumexp), max_logsumexp, 0))
  shares = jnp.exp(stacked - shift[None])
  denominator = jnp.sum(shares, axis=0)
  is_empty = denominator == 0
  safe_denominator = jnp.where(is_empty, 1, denominator)
  merged: Any = 0
  for share, one, context in zip(shares, stacked, contexts, strict=True):
    context = with_rank(context, rank + 1).astype(compute)
    # What a query may not attend to must not meet it, nor its gradient: 0 * NaN is NaN.
    merged += share[..., None] * jnp.where(is_minus_infinity(one)[..., None], 0, context)
  logsumexp = where(is_empty, "-inf", jnp.log(safe_denominator) + shift)
  context = (merged / safe_denominator[..., None]).astype(dtype)
  return context, jnp.broadcast_to(logsumexp, context.shape[:-1])


@eager_jit
def add_sink(
  context: jax.Array, logsumexp: jax.Array, sink: jax.Array | float
) -> tuple[jax.Array, jax.Array]:
  """Returns the attention with one more key, of a given score and a value of zero.

      context   <- context exp(logsumexp) / (exp(logsumexp) + exp(sink))
      logsumexp <- log(exp(logsumexp) + exp(sink))

  A query that finds nothing worth its attention can rest it there: the keys' weights sum to less than 1.

  Source: Xiao et al. 2024, arXiv:2309.17453; a trained score for each head: OpenAI 2025, arXiv:2508.10925.

  Args:
    context: [... T D].
    logsumexp: [... T], from `attend` with return_logsumexp.
    sink: the score, a number, or numbers [...] that broadcast, [N] for heads.

  Returns:
    The new context [... T D] and logsumexp [... T].

  Raises:
    ValueError: if the sink does not broadcast, or as in `merge_partials`.

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
