"""What attention is calculated from, checked and made ready for either engine."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.pytrees import NamedAxes, leaf_axes, register_pytree
from attention.arrays.shapes import (
  LAYOUT,
  axes_lacking,
  broadcast_leading,
  broadcasts_to,
  ones_hint,
  same_rank,
  with_rank,
)
from attention.arrays.sharding import compute_dtype
from attention.engines.dropout import Dropout
from attention.engines.masking import finite, is_minus_infinity, where
from attention.masks import Array, Mask
from attention.scores.score import Score

# The fields of Inputs that an engine makes finite first.
VECTORS = ("queries", "keys", "values")


@register_pytree
@dataclasses.dataclass(frozen=True)
class Options:
  """The score and the options of an attention, checked. Static fields decide which program is compiled."""

  score: Score
  mask: Mask | None
  bias: Any
  dropout_rate: Array | None
  dropout_rng: jax.Array | None
  normalizer: Any
  return_weights: bool = dataclasses.field(metadata={"static": True})
  return_logsumexp: bool = dataclasses.field(metadata={"static": True})
  implementation: str = dataclasses.field(metadata={"static": True})
  block_sizes: tuple[int, int] | None = dataclasses.field(metadata={"static": True})

  def returned(self, attended: Any) -> Any:
    """Returns the context alone, unless more was asked for."""
    return attended if self.return_weights or self.return_logsumexp else attended.context


@register_pytree
@dataclasses.dataclass(frozen=True)
class Inputs(NamedAxes):
  """The inputs of the attention of some queries to some keys: all of them, or those of a tile.

  Attributes:
    score: the score function.
    queries: the score's features of the queries, a pytree of arrays [... T X].
    keys: its features of the keys, [... S X].
    values: [... S D].
    nonfinite_queries: which queries, or their features, are not finite, booleans [... T].
    nonfinite_keys: which keys, their features or values are not finite, booleans [... S].
    t: positions of the queries, consecutive integers [T 1]; a last tile repeats the last.
    s: positions of the keys, likewise, [1 S].
    mask: which pairs may attend; None for all.
    bias: a function of t and s, added to the scores; None for none.
    dropout: which weights are dropped; None for none.
  """

  axes = {
    "queries": "TX",
    "keys": "SX",
    "values": "SD",
    "nonfinite_queries": "T",
    "nonfinite_keys": "S",
    "t": "TX",
    "s": "XS",
  }
  score: Score
  queries: Any
  keys: Any
  values: jax.Array
  nonfinite_queries: jax.Array
  nonfinite_keys: jax.Array
  t: jax.Array
  s: jax.Array
  mask: Mask | None = None
  bias: Any = None
  dropout: Dropout | None = None

  def scores_and_allowed(self, use_mask: bool = True) -> tuple[jax.Array, jax.Array | None]:
    """Returns the scores, and which pairs may attend, None for all. Both broadcast to [... T S]."""
    dtype = self.values.dtype
    scores = self.score.scores(self.queries, self.keys).astype(dtype)
    allowed = None
    if self.bias is not None:
      terms = jnp.asarray(self.bias(self.t, self.s)).astype(dtype)
      allowed = ~is_minus_infinity(terms)
      scores, terms = same_rank(scores, jnp.where(allowed, terms, 0))
      scores += terms
    scores = self.score.score_mod(scores, self.t, self.s)
    if self.mask is not None and use_mask:
      tile = self.mask.mask_mod(self.t, self.s)
      allowed = tile if allowed is None else functools.reduce(jnp.logical_and, same_rank(allowed, tile))
    return scores, allowed if allowed is None else with_rank(allowed, scores.ndim)

  def nonfinite_pairs(self) -> jax.Array:
    """Returns infinity for pairs whose query, key or value is not finite, else 0; broadcasts to [... T S]."""
    zero = jnp.zeros((), self.values.dtype)
    queries, keys = same_rank(
      where(self.nonfinite_queries, "inf", zero), where(self.nonfinite_keys, "inf", zero)
    )
    return queries[..., :, None] + keys[..., None, :]

  def drop(self, weights: jax.Array) -> jax.Array:
    """Returns the weights [... T S], after dropout."""
    return weights if self.dropout is None else self.dropout.drop(weights, self.t, self.s)


def prepare(
  queries: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  options: Options,
  positions: tuple[jax.Array, jax.Array] | None = None,
  length: int | None = None,
) -> tuple[Inputs, tuple[int, ...]]:
  """Returns the inputs of an engine, and the shape [... T S] of their scores.

  Args:
    queries: [... T H].
    keys: [... S H].
    values: [... S D].
    options: the checked options, with the score.
    positions: of the queries [T] and keys [S], where they are a part of longer sequences; None for all.
    length: of the whole sequence of queries then.

  Raises:
    ValueError: if the score's features or tile, the mask or the bias do not fit.
  """
  T, S = queries.shape[-2], keys.shape[-2]
  dtype = compute_dtype(queries.dtype)
  queries, keys = same_rank(queries.astype(dtype), keys.astype(dtype))
  t, s = (jnp.arange(T), jnp.arange(S)) if positions is None else positions

  def as_dtype(leaf: Any) -> Any:
    return jnp.asarray(leaf, dtype) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else leaf

  score = jax.tree.map(as_dtype, options.score)
  query_features, nonfinite_queries = _features(score.query_features, queries)
  key_features, nonfinite_keys = _features(score.key_features, keys)
  values = values.astype(dtype)
  nonfinite_values = ~jnp.all(jnp.isfinite(values), axis=-1)
  inputs = Inputs(
    score=score,
    queries=query_features,
    keys=key_features,
    values=values,
    nonfinite_queries=nonfinite_queries,
    nonfinite_keys=functools.reduce(jnp.logical_or, same_rank(nonfinite_keys, nonfinite_values)),
    t=t[:, None],
    s=s[None, :],
    mask=options.mask,
    bias=options.bias,
  )
  shape = jax.eval_shape(lambda: _checked_scores(inputs)).shape
  if options.dropout_rng is not None:
    of_all = T if length is None else length
    drops = Dropout.of(options.dropout_rng, options.dropout_rate, shape[:-2], of_all)
    inputs = dataclasses.replace(inputs, dropout=drops)
  return inputs, shape


def _features(function: Callable[[jax.Array], Any], vectors: jax.Array) -> tuple[Any, jax.Array]:
  """Returns the features of vectors [... X H], and which vectors or features are not finite, [... X]."""
  cleaned = finite(vectors)
  features = function(cleaned)
  are_bad = [~jnp.all(jnp.isfinite(vectors), axis=-1)]
  for leaf in jax.tree.leaves(features):
    if np.ndim(leaf) < 2 or leaf.shape[-2] not in (1, vectors.shape[-2]):
      raise ValueError(
        f"{function.__qualname__} must return arrays whose axis -2 has the {vectors.shape[-2]} positions of "
        f"{vectors.shape}, got shape {np.shape(leaf)}"
      )
    if leaf is not cleaned:
      are_bad.append(~jnp.all(jnp.isfinite(leaf), axis=-1))
  # Vectors that are their own features are not copied: the engines make features finite anyway.
  features = jax.tree.map(lambda leaf: vectors if leaf is cleaned else leaf, features)
  return features, functools.reduce(jnp.logical_or, same_rank(*are_bad))


def _checked_scores(inputs: Inputs) -> jax.Array:
  """Returns the scores [... T S] of all pairs, or raises ValueError if what they are made of does not fit."""
  score = type(inputs.score).__name__
  tile = inputs.score.scores(inputs.queries, inputs.keys)
  if not isinstance(tile, (jax.Array, np.ndarray)):
    raise ValueError(f"{score}.scores must return an array of scores, got {tile!r}")
  T, S = inputs.t.shape[0], inputs.s.shape[1]
  leading = broadcast_leading(*jax.tree.leaves((inputs.queries, inputs.keys)), names="queries and keys")
  pairs = (*leading, T, S)
  if tile.shape[-2:] != pairs[-2:] or not broadcasts_to(pairs, tile.shape):
    raise ValueError(f"{score}.scores must return scores [... T S] = {pairs}, got shape {tile.shape}")
  if not jnp.issubdtype(tile.dtype, jnp.floating):
    raise ValueError(f"{score}.scores must return floating scores, got {tile.dtype}")
  own_axes = zip(jax.tree.leaves(inputs.score), leaf_axes(inputs.score), strict=True)
  if 0 not in (T, S) and any(np.ndim(leaf) > len(own.replace("?", "")) for leaf, own in own_axes):
    # With as many heads as keys the shapes fit by chance, but not for one query and one key.
    pair = one_pair(inputs, all_leading_axes=True)
    of_pair = pair.score.scores(pair.queries, pair.keys).shape
    if of_pair[-2:] != (1, 1):
      raise ValueError(
        f"{score}.scores must put the leading axes of the score's arrays before T and S, "
        f"array[..., None, None]; for one query and one key it returned {of_pair}"
      )
  modified = inputs.score.score_mod(tile, inputs.t, inputs.s)
  if modified.shape[-2:] != pairs[-2:] or not broadcasts_to(tile.shape, modified.shape):
    raise ValueError(
      f"{score}.score_mod must return scores [... T S] = {tile.shape}, got shape {modified.shape}"
    )
  shape = (*broadcast_leading(modified, inputs.values, names="scores and values"), T, S)
  if inputs.mask is not None:
    for leaf, own in zip(jax.tree.leaves(inputs.mask), leaf_axes(inputs.mask), strict=True):
      if own == "TS":
        check_pairs("mask", np.shape(leaf), shape)
    check_pairs("mask", inputs.mask.materialize(T, S).shape, shape)
  if inputs.bias is not None:
    terms = inputs.bias(inputs.t, inputs.s)
    if not hasattr(terms, "dtype"):
      raise ValueError(f"bias must be an array, or a function that returns one, got {terms!r}")
    if not jnp.issubdtype(terms.dtype, jnp.floating):
      raise ValueError(
        f"bias must be of a floating type, got {terms.dtype}; who may attend is the `mask` argument"
      )
    check_pairs("bias", terms.shape, shape)
  return jnp.broadcast_to(with_rank(modified, len(shape)), shape)


def one_pair(inputs: Inputs, *, all_leading_axes: bool) -> Inputs:
  """Returns the inputs of one query and one key, at all indices of the leading axes, or at the first."""

  def cut(array: jax.Array, own: str) -> jax.Array:
    index = tuple(slice(1) if letter in "TS" else slice(None) for letter in own)
    return array[(..., *index)] if all_leading_axes else array[(0,) * (array.ndim - len(own)) + index]

  leaves, structure = jax.tree.flatten(inputs)
  pairs = [cut(jnp.asarray(leaf), own) for leaf, own in zip(leaves, leaf_axes(inputs), strict=True)]
  return jax.tree.unflatten(structure, pairs)


def check_pairs(name: str, got: tuple[int, ...], shape: tuple[int, ...]) -> None:
  """Raises ValueError unless what a mask or bias gives broadcasts to the scores [... T S]."""
  if not broadcasts_to(got, shape):
    message = f"{name} must be broadcastable to [... T S] = {shape}, got shape {got}"
    is_turned = len(shape) > 3 and got[-2:] == (shape[-3], shape[-3])
    raise ValueError(message + ones_hint(axes_lacking(got, shape)) + f"; {LAYOUT}" * is_turned)
