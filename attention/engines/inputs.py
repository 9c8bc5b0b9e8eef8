"""What attention is calculated from, checked and made ready for either engine."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.axes import HasAxes, axes_of
from attention.arrays.broadcasting import broadcast_leading, broadcasts_to, same_rank, with_rank
from attention.arrays.hints import LAYOUT, axes_lacking, ones_hint
from attention.arrays.precision import compute_dtype
from attention.arrays.pytrees import register_pytree
from attention.engines.dropout import Dropout
from attention.engines.guards import finite, is_bad, is_minus_infinity, where
from attention.masks import Array, FromArray, Mask
from attention.scores.score import Score


@register_pytree
@dataclasses.dataclass(frozen=True)
class Inputs(HasAxes):
  """What some queries and some keys need to attend: all of them, or those of a tile.

  Attributes:
    score: how well a key fits a query.
    queries: the score's features of the queries, a pytree of arrays [... T X].
    keys: likewise of the keys, [... S X].
    values: [... S D].
    bad_queries: which queries, or their features, are not finite, booleans [... T].
    bad_keys: which keys, their features or values are not finite, booleans [... S].
    t: positions of the queries, consecutive integers [T]; a last tile repeats the last.
    s: positions of the keys, likewise, [S].
    mask: who may attend to whom; None for everyone to everyone.
    bias: a function of t and s, added to the scores; None for none.
    dropout: which weights are dropped; None for none.
  """

  axes = {
    "queries": "TX",
    "keys": "SX",
    "values": "SD",
    "bad_queries": "T",
    "bad_keys": "S",
    "t": "T",
    "s": "S",
  }
  score: Score
  queries: Any
  keys: Any
  values: jax.Array
  bad_queries: jax.Array
  bad_keys: jax.Array
  t: jax.Array
  s: jax.Array
  mask: Mask | None = None
  bias: Any = None
  dropout: Dropout | None = None

  def positions(self) -> tuple[jax.Array, jax.Array]:
    """Returns the positions of the queries, [T 1], and of the keys, [1 S]."""
    return self.t.reshape(-1, 1), self.s.reshape(1, -1)

  def scores_and_allowed(self) -> tuple[jax.Array, jax.Array | None]:
    """Returns the scores of all pairs, and which may attend; None for all. Both broadcast to [... T S]."""
    dtype = self.values.dtype
    t, s = self.positions()
    scores = self.score.tile(self.queries, self.keys).astype(dtype)
    allowed = None
    if self.bias is not None:
      terms = jnp.asarray(self.bias(t, s)).astype(dtype)
      allowed = ~is_minus_infinity(terms)
      scores, terms = same_rank(scores, jnp.where(allowed, terms, 0))
      scores += terms
    scores = self.score.modify(scores, t, s)
    if self.mask is not None:
      tile = self.mask.tile(t, s)
      allowed = tile if allowed is None else functools.reduce(jnp.logical_and, same_rank(allowed, tile))
    return scores, allowed if allowed is None else with_rank(allowed, scores.ndim)

  def broken_pairs(self) -> jax.Array:
    """Returns infinity for pairs whose query, key or value is not finite, else 0; broadcasts to [... T S]."""
    zero = jnp.zeros((), self.values.dtype)
    queries, keys = same_rank(*(where(bad, "inf", zero) for bad in (self.bad_queries, self.bad_keys)))
    return queries[..., :, None] + keys[..., None, :]

  def drop(self, weights: jax.Array) -> jax.Array:
    """Returns the weights [... T S], after dropout."""
    return weights if self.dropout is None else self.dropout.drop(weights, *self.positions())

  def with_mask_if(self, some_are_masked: bool) -> "Inputs":
    """Returns the same without a mask, unless some pairs are masked."""
    return self if some_are_masked else dataclasses.replace(self, mask=None)


def prepare(
  score: Score,
  queries: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  *,
  mask: Mask | None,
  bias: Any,
  dropout_rate: Array | None,
  dropout_rng: jax.Array | None,
  positions: tuple[jax.Array, jax.Array] | None = None,
  length: int | None = None,
) -> tuple[Inputs, tuple[int, ...]]:
  """Returns the inputs of an engine, and the shape [... T S] of their scores.

  Args:
    score: how well a key fits a query.
    queries: [... T H].
    keys: [... S H].
    values: [... S D].
    mask: who may attend to whom; None for everyone to everyone.
    bias: from `as_bias`, added to the scores; None for none.
    dropout_rate: probability of dropping a weight, and
    dropout_rng: a key; None for no dropout.
    positions: of the queries [T] and keys [S], where they are a part of longer sequences; None for all.
    length: of the whole sequence of queries then.

  Raises:
    ValueError: if the score's features or tile, the mask or the bias do not fit.
  """
  T, S = queries.shape[-2], keys.shape[-2]
  dtype = compute_dtype(queries.dtype)
  queries, keys = same_rank(queries.astype(dtype), keys.astype(dtype))
  values = values.astype(dtype)
  score = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype) if _is_floating(leaf) else leaf, score)
  query_features, bad_queries = _features(score.query_features, queries)
  key_features, bad_keys = _features(score.key_features, keys)
  inputs = Inputs(
    score=score,
    queries=query_features,
    keys=key_features,
    values=values,
    bad_queries=bad_queries,
    bad_keys=functools.reduce(jnp.logical_or, same_rank(bad_keys, is_bad(values))),
    t=jnp.arange(T) if positions is None else positions[0],
    s=jnp.arange(S) if positions is None else positions[1],
    mask=mask,
    bias=bias,
  )
  shape = jax.eval_shape(lambda: _checked_scores(inputs)).shape
  if dropout_rng is not None and dropout_rate is not None:
    drops = Dropout.of(dropout_rng, dropout_rate, shape[:-2], T if length is None else length)
    inputs = dataclasses.replace(inputs, dropout=drops)
  return inputs, shape


def _is_floating(leaf: Any) -> bool:
  return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def _features(function: Callable[[jax.Array], Any], vectors: jax.Array) -> tuple[Any, jax.Array]:
  """Returns the features of vectors [... X H], and which of both are not finite, [... X]."""
  cleaned = finite(vectors)
  leaves, structure = jax.tree.flatten(function(cleaned))
  for leaf in leaves:
    if np.ndim(leaf) < 2 or leaf.shape[-2] not in (1, vectors.shape[-2]):
      raise ValueError(
        f"{function.__qualname__} must return arrays whose axis -2 has the {vectors.shape[-2]} positions of "
        f"{vectors.shape}, got shape {np.shape(leaf)}"
      )
  # Vectors that are their own features need not be copied.
  leaves = [vectors if leaf is cleaned else leaf for leaf in leaves]
  distinct = {id(leaf): leaf for leaf in (vectors, *leaves)}.values()
  are_bad = same_rank(*map(is_bad, distinct))
  return jax.tree.unflatten(structure, leaves), functools.reduce(jnp.logical_or, are_bad)


def _checked_scores(inputs: Inputs) -> jax.Array:
  """Returns the scores [... T S] of all pairs, or raises ValueError if what they are made of does not fit."""
  if any(np.ndim(leaf) for leaf in jax.tree.leaves(inputs.score)):
    _check_one_pair(inputs)
  score = type(inputs.score).__name__
  tile = inputs.score.tile(inputs.queries, inputs.keys)
  if not isinstance(tile, (jax.Array, np.ndarray)):
    raise ValueError(f"{score}.tile must return an array of scores, got {tile!r}")
  bad_queries, bad_keys = inputs.bad_queries, inputs.bad_keys
  T, S = bad_queries.shape[-1], bad_keys.shape[-1]
  leading = broadcast_leading(*jax.tree.leaves((inputs.queries, inputs.keys)), names="queries and keys")
  pairs = (*leading, T, S)
  if tile.shape[-2:] != pairs[-2:] or not broadcasts_to(pairs, tile.shape):
    raise ValueError(f"{score}.tile must return scores [... T S] = {pairs}, got shape {tile.shape}")
  if not jnp.issubdtype(tile.dtype, jnp.floating):
    raise ValueError(f"{score}.tile must return floating scores, got {tile.dtype}")
  t, s = inputs.positions()
  modified = inputs.score.modify(tile, t, s)
  if modified.shape[-2:] != pairs[-2:] or not broadcasts_to(tile.shape, modified.shape):
    raise ValueError(
      f"{score}.modify must return scores [... T S] = {tile.shape}, got shape {modified.shape}"
    )
  leading = broadcast_leading(modified, inputs.values, names="scores and values")
  shape = (*leading, T, S)
  if inputs.mask is not None:
    if isinstance(inputs.mask, FromArray):
      check_pairs("mask", jnp.shape(inputs.mask.values), shape)
    check_pairs("mask", inputs.mask.array(T, S).shape, shape)
  if inputs.bias is not None:
    terms = inputs.bias(t, s)
    if not hasattr(terms, "dtype"):
      raise ValueError(f"bias must be an array, or a function that returns one, got {terms!r}")
    if not jnp.issubdtype(terms.dtype, jnp.floating):
      raise ValueError(
        f"bias must be of a floating type, got {terms.dtype}; who may attend is the `mask` argument"
      )
    check_pairs("bias", terms.shape, shape)
  return jnp.broadcast_to(with_rank(modified, len(shape)), shape)


def _check_one_pair(inputs: Inputs) -> None:
  """Raises ValueError if arrays of a score for each head, say, are not put before T and S by its tile.

  With as many heads as keys the shapes fit by chance, and no other check would notice.
  """
  score = inputs.score
  leaves, structure = jax.tree.flatten(score)
  if all(np.ndim(array) == len(own or "") for own, array in zip(axes_of(score), leaves, strict=True)):
    return

  def one(array, axes="TX"):
    sizes = list(np.shape(array))
    for i, axis in enumerate(reversed(axes or ""), 1):
      sizes[-i] = 1 if axis in "TS" else sizes[-i]
    return jax.ShapeDtypeStruct(sizes, jnp.result_type(array))

  of_one = jax.tree.unflatten(structure, map(one, leaves, axes_of(score)))
  features = jax.tree.map(one, (inputs.queries, inputs.keys))
  try:
    shape = jax.eval_shape(lambda score, features: score.tile(*features), of_one, features).shape
  except Exception:  # of the tile's own; the whole will raise it
    return
  if shape[-2:] != (1, 1):
    name = type(score).__name__
    raise ValueError(
      f"{name}.tile must put the leading axes of the score's arrays before T and S, array[..., None, None]; "
      f"for one query and one key it returned {shape}"
    )


def check_pairs(name: str, got: tuple[int, ...], shape: tuple[int, ...]) -> None:
  """Raises ValueError unless what a mask or bias gives broadcasts to the scores [... T S]."""
  if not broadcasts_to(got, shape):
    message = f"{name} must be broadcastable to [... T S] = {shape}, got shape {got}"
    is_turned = len(shape) > 3 and got[-2:] == (shape[-3], shape[-3])
    raise ValueError(message + ones_hint(axes_lacking(got, shape)) + f"; {LAYOUT}" * is_turned)
