"""Attention as the papers define it: all scores, their softmax, the weighted sum.

This engine stores arrays [... T S]. It is the definition that every other engine is held to.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.axes import axes_of
from attention.arrays.precision import compute_dtype
from attention.arrays.shapes import (
  LAYOUT,
  axes_lacking,
  broadcast_leading,
  broadcasts_to,
  check_rank,
  put_in_ones,
  with_rank,
)
from attention.engines import dropout
from attention.engines.finite import Features, features_of, finite
from attention.engines.marks import (
  is_empty,
  is_minus_infinity,
  marked,
  masked,
  nan_where,
  overflows,
  shift_of,
)
from attention.masks import Array, FromArray, Mask, as_mask
from attention.scores.score import Score

BiasLike: TypeAlias = jax.Array | np.ndarray | float | Callable[[jax.Array, jax.Array], jax.Array]


class Attended(NamedTuple):
  """What an engine returns.

  Attributes:
    context: [... T D].
    weights: [... T S]; None from an engine that does not store them.
    logsumexp: [... T], a finite number where the row is empty.
    is_empty: which queries may attend to nothing, booleans [... T].
  """

  context: jax.Array
  weights: jax.Array | None
  logsumexp: jax.Array
  is_empty: jax.Array


def dense(
  score: Score,
  queries: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  *,
  mask: Mask | None,
  bias: BiasLike | None,
  dropout_rate: float,
  dropout_rng: jax.Array | None,
) -> Attended:
  """Returns the attention of the queries to the keys and values; the checks are `attend`'s.

  Args:
    score: how well a key fits a query.
    queries: [... T H], float32 or float64, as are keys and values.
    keys: [... S H].
    values: [... S D].
    mask: who may attend to whom; None for everyone to everyone.
    bias: added to the scores; None for none.
    dropout_rate: probability of dropping a weight.
    dropout_rng: needed where the rate is not 0.
  """
  features = features_of(score, queries, keys, values)
  scores, allowed = scores_and_allowed(score, features, mask, bias)
  scores = marked(scores, allowed)
  largest = _largest(scores)
  is_over = overflows(largest)
  has_no_weights = is_over | is_empty(largest)
  scores = jnp.where(is_over, masked(scores.dtype), scores)
  weights, logsumexp = _softmax(scores, jnp.where(has_no_weights, 0, largest))
  kept = _drop(weights, dropout_rate, dropout_rng)
  if allowed is not None:
    # The weight of a masked pair is 0 already. This is for its gradient, which a large value may overflow.
    kept = jnp.where(allowed, kept, 0)
  context = jnp.einsum("...TS,...SD->...TD", kept, finite(features.values))
  # Without weights it is zero already. This is for gradients: NaN from above must not reach an empty row.
  context = jnp.where(has_no_weights, 0, context)

  bad_scores, bad_context = _which_attend_to_bad(features, allowed, scores.shape[:-1])
  spoil = nan_where(bad_scores | is_over[..., 0], weights.dtype)
  spoiled = weights + spoil[..., None]
  return Attended(
    context + (spoil + nan_where(bad_context, context.dtype))[..., None],
    spoiled if allowed is None else jnp.where(allowed, spoiled, 0),
    logsumexp + spoil,
    is_empty(largest)[..., 0],
  )


def _largest(scores: jax.Array) -> jax.Array:
  """Returns the largest score of each row, [... T 1], as a constant; the mark of what is masked for none."""
  largest = jnp.max(scores, axis=-1, keepdims=True, initial=masked(scores.dtype))
  return jax.lax.stop_gradient(largest)


def _which_attend_to_bad(
  features: Features, allowed: jax.Array | None, rows: tuple[int, ...]
) -> tuple[jax.Array, jax.Array]:
  """Returns which queries [... T] are not finite or attend to such a key, and which to such a value."""
  bad_queries, bad_keys, bad_values = (
    with_rank(bad, len(rows)) for bad in (features.bad_queries, features.bad_keys, features.bad_values)
  )
  if allowed is None:
    has_keys = bad_keys.shape[-1] > 0
    bad_scores = has_keys & bad_queries | jnp.any(bad_keys, axis=-1, keepdims=True)
    bad_context = jnp.any(bad_values, axis=-1, keepdims=True)
  else:
    bad_pairs = allowed & (bad_queries[..., :, None] | bad_keys[..., None, :])
    bad_scores = jnp.any(bad_pairs, axis=-1)
    bad_context = jnp.any(allowed & bad_values[..., None, :], axis=-1)
  return jnp.broadcast_to(bad_scores, rows), jnp.broadcast_to(bad_context, rows)


def scores_and_allowed(
  score: Score, features: Features, mask: Mask | None, bias: BiasLike | None
) -> tuple[jax.Array, jax.Array | None]:
  """Returns the scores with their bias, and which pairs may attend, [... T S]; None for all.

  Raises:
    ValueError: if the score's tile, the mask or the bias do not fit the queries and keys.
  """
  _check_one_pair(score, features)
  scores = score.tile(finite(features.queries), finite(features.keys))
  _check_scores(score, scores, features.bad_queries, features.bad_keys)
  scores = scores.astype(features.values.dtype)
  leading = broadcast_leading(scores, features.values, names="scores and values")
  scores = jnp.broadcast_to(scores, (*leading, *scores.shape[-2:]))
  allowed = None if mask is None else _mask_array(mask, scores.shape)
  if bias is not None:
    terms = _bias_array(bias, scores.shape).astype(scores.dtype)
    allowed_by_bias = ~is_minus_infinity(terms)
    allowed = allowed_by_bias if allowed is None else allowed & allowed_by_bias
    scores += jnp.where(allowed_by_bias, terms, 0)
  return scores, allowed


def masked_softmax(scores: jax.Array, mask: Mask | Array) -> jax.Array:
  """Returns the softmax over the last axis of the scores that the mask allows.

      weights[t, s] = exp(scores[t, s]) / sum over allowed r of exp(scores[t, r]), 0 where not allowed

  A score of -inf is not allowed either. A row that allows nothing gets zero weights and zero gradients.

  Args:
    scores: [... T S], floating.
    mask: a mask, or booleans that broadcast to [... T S], True = may attend.

  Returns:
    Weights [... T S] in the dtype of the scores.

  Raises:
    ValueError: if the scores are not floating, the mask is not boolean or does not broadcast to them.

  >>> masked_softmax(jnp.zeros((2, 2)), jnp.array([[True, False], [False, False]])).tolist()
  [[1.0, 0.0], [0.0, 0.0]]
  """
  scores = jnp.asarray(scores)
  check_rank("scores", scores, "[... T S]")
  if not jnp.issubdtype(scores.dtype, jnp.floating):
    raise ValueError(f"scores must be of a floating type, got {scores.dtype}")
  allowed = _mask_array(as_mask(mask), scores.shape)
  allowed &= ~is_minus_infinity(scores)
  compute = marked(scores.astype(compute_dtype(scores.dtype)), allowed)
  return _softmax(compute, shift_of(_largest(compute)))[0].astype(scores.dtype)


def _softmax(scores: jax.Array, shift: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns weights [... T S] and log(sum(exp(scores))) [... T]; zeros for rows of which all is masked.

  Args:
    scores: [... T S], marked.
    shift: the largest of each row, or 0 if there is none, [... T 1]. It keeps exponentials in range; any
      other would give the same result, so it is not differentiated.
  """
  exponentials = jnp.exp(scores - shift)
  total = jnp.sum(exponentials, axis=-1, keepdims=True)
  total = jnp.where(total == 0, 1, total)
  return exponentials / total, (jnp.log(total) + shift)[..., 0]


def _drop(weights: jax.Array, rate: float, rng: jax.Array | None) -> jax.Array:
  """Returns the weights with a share of them set to zero, the others scaled to keep the mean."""
  if rate == 0.0 or rng is None:
    return weights
  *leading, T, S = weights.shape
  rows = dropout.rows(tuple(leading), T, jnp.arange(T))[..., None]
  columns = with_rank(jnp.arange(S, dtype=jnp.uint32), weights.ndim)
  return dropout.drop(dropout.seeds(rng), rate, rows, columns, weights)


def _check_one_pair(score: Score, features: Features) -> None:
  """Raises ValueError if arrays of a score for each head, say, are not put before T and S by its tile.

  Where there are as many heads as keys, nobody else would notice.
  """
  arrays = zip(axes_of(score), jax.tree.leaves(score), strict=True)
  if all(np.ndim(array) == len(own or "") for own, array in arrays):
    return

  def one(array):
    return jax.ShapeDtypeStruct((*array.shape[:-2], 1, array.shape[-1]), array.dtype)

  try:
    shape = jax.eval_shape(score.tile, *jax.tree.map(one, (features.queries, features.keys))).shape
  except Exception:  # of the tile's own; the whole will raise it
    return
  if shape[-2:] != (1, 1):
    name = type(score).__name__
    raise ValueError(
      f"{name}.tile must put the leading axes of the score's arrays before T and S, array[..., None, None]; "
      f"for one query and one key it returned {shape}"
    )


def _check_scores(score: Score, scores: jax.Array, bad_queries: jax.Array, bad_keys: jax.Array) -> None:
  """Raises ValueError unless a user's tile of T queries and S keys has returned what it should."""
  leading = broadcast_leading(bad_queries[..., None], bad_keys[..., None], names="queries and keys")
  pairs = (*leading, bad_queries.shape[-1], bad_keys.shape[-1])
  if not isinstance(scores, (jax.Array, np.ndarray)):
    raise ValueError(f"{type(score).__name__}.tile must return an array of scores, got {scores!r}")
  if scores.shape[-2:] != pairs[-2:] or not broadcasts_to(pairs, scores.shape):
    raise ValueError(
      f"{type(score).__name__}.tile must return scores [... T S] = {pairs}, got shape {scores.shape}"
    )
  if not jnp.issubdtype(scores.dtype, jnp.floating):
    raise ValueError(f"{type(score).__name__}.tile must return floating scores, got {scores.dtype}")


def _mask_array(mask: Mask, shape: tuple[int, ...]) -> jax.Array:
  """Returns the mask as booleans of the shape of the scores."""
  if isinstance(mask, FromArray):
    _check_pairs("mask", jnp.asarray(mask.values), shape)
  array = mask.array(*shape[-2:])
  _check_pairs("mask", array, shape)
  return jnp.broadcast_to(array, shape)


def _bias_array(bias: BiasLike, shape: tuple[int, ...]) -> jax.Array:
  """Returns the bias as an array of the shape of the scores."""
  T, S = shape[-2:]
  bias = bias(jnp.arange(T)[:, None], jnp.arange(S)[None, :]) if callable(bias) else bias
  if bias is None or isinstance(bias, (str, Mask)) or callable(bias):
    hint = "; who may attend is the `mask` argument" if isinstance(bias, Mask) else ""
    raise ValueError(f"bias must be an array, or a function that returns one, got {bias!r}{hint}")
  bias = jnp.asarray(bias)
  if not jnp.issubdtype(bias.dtype, jnp.floating):
    raise ValueError(
      f"bias must be of a floating type, got {bias.dtype}; who may attend is the `mask` argument"
    )
  _check_pairs("bias", bias, shape)
  return jnp.broadcast_to(bias, shape)


def _check_pairs(name: str, array: jax.Array, shape: tuple[int, ...]) -> None:
  if not broadcasts_to(array.shape, shape):
    message = f"{name} must be broadcastable to [... T S] = {shape}, got shape {array.shape}"
    is_turned = len(shape) > 3 and array.shape[-2:] == (shape[-3], shape[-3])
    raise ValueError(message + put_in_ones(axes_lacking(array.shape, shape)) + f"; {LAYOUT}" * is_turned)
