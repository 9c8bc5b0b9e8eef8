"""The inputs of the engines: options, features, values, positions, mask, bias and dropout."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.dtypes import compute_dtype
from attention.arrays.masking import finite, is_minus_infinity, where
from attention.arrays.named_axes import NamedAxes, leaf_axes, register_pytree
from attention.arrays.shapes import (
  broadcast_leading,
  broadcasts_to,
  check_pairs,
  same_rank,
  with_rank,
)
from attention.engines.dropout import Dropout
from attention.masks import Array, Mask
from attention.scores.base import Score

# Fields of Inputs in which engines replace NaN and infinity by zeros.
VECTORS = ("queries", "keys", "values")


@register_pytree
@dataclasses.dataclass(frozen=True)
class Options:
  """The validated score and options of `attend`. Static fields determine the compiled program."""

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

  def select_output(self, output: Any) -> Any:
    """Returns the context, or the whole output if weights or logsumexp were requested."""
    return output if self.return_weights or self.return_logsumexp else output.context


@register_pytree
@dataclasses.dataclass(frozen=True)
class Inputs(NamedAxes):
  """The inputs of attention, for all queries and keys or for one tile.

  Attributes:
    score: the score function.
    queries: query features, a pytree of arrays [... T X].
    keys: key features, a pytree of arrays [... S X].
    values: [... S D].
    nonfinite_queries: which queries or query features are not finite, booleans [... T].
    nonfinite_keys: which keys, key features or values are not finite, booleans [... S].
    t: query positions, consecutive integers [T 1]; the last tile repeats the last position.
    s: key positions [1 S], like t.
    mask: which pairs may attend. None: all.
    bias: a function of t and s, added to the scores, or None.
    dropout: which weights are dropped, or None.
    normalizer: maps scores to weights.
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
  normalizer: Any = None

  def with_finite_vectors(self) -> "Inputs":
    """Returns the inputs with zeros for NaN and infinity in queries, keys and values."""
    return dataclasses.replace(self, **{name: finite(getattr(self, name)) for name in VECTORS})

  def scores_and_allowed(self, use_mask: bool = True) -> tuple[jax.Array, jax.Array | None]:
    """Returns the scores, and which pairs may attend (None: all). Both broadcast to [... T S]."""
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
    """Returns infinity for pairs with a non-finite query, key or value, else 0; broadcasts to [... T S]."""
    zero = jnp.zeros((), self.values.dtype)
    queries, keys = same_rank(
      where(self.nonfinite_queries, "inf", zero), where(self.nonfinite_keys, "inf", zero)
    )
    return queries[..., :, None] + keys[..., None, :]

  def drop(self, weights: jax.Array) -> jax.Array:
    """Applies dropout to the weights [... T S]."""
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
    options: the validated options.
    positions: positions of the queries [T] and keys [S], if they are a shard of longer sequences.
    length: number of queries of the whole sequence, with `positions`.

  Raises:
    ValueError: if the features, the scores, the mask or the bias have incompatible shapes.
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
    normalizer=jax.tree.map(as_dtype, options.normalizer),
  )
  shape = jax.eval_shape(lambda: _checked_scores(inputs)).shape
  if options.dropout_rng is not None:
    num_queries = T if length is None else length
    dropout = Dropout.of(options.dropout_rng, options.dropout_rate, shape[:-2], num_queries)
    inputs = dataclasses.replace(inputs, dropout=dropout)
  return inputs, shape


def _features(function: Callable[[jax.Array], Any], vectors: jax.Array) -> tuple[Any, jax.Array]:
  """Returns the features of vectors [... X H], and which vectors or features are not finite, [... X]."""
  cleaned = finite(vectors)
  features = function(cleaned)
  is_finite = jnp.isfinite(vectors)
  nonfinite = []
  for leaf in jax.tree.leaves(features):
    if np.ndim(leaf) < 2 or leaf.shape[-2] not in (1, vectors.shape[-2]):
      raise ValueError(
        f"{function.__qualname__} must return arrays whose axis -2 has size {vectors.shape[-2]} or 1, "
        f"got shape {np.shape(leaf)} for vectors {vectors.shape}"
      )
    if leaf is cleaned:
      continue
    if leaf.shape == vectors.shape:
      is_finite &= jnp.isfinite(leaf)  # before the reduction, so that XLA reads both arrays in one pass
    else:
      nonfinite.append(~jnp.all(jnp.isfinite(leaf), axis=-1))
  nonfinite.append(~jnp.all(is_finite, axis=-1))
  # If the features are the vectors themselves, avoid a copy: the engines make features finite anyway.
  features = jax.tree.map(lambda leaf: vectors if leaf is cleaned else leaf, features)
  return features, functools.reduce(jnp.logical_or, same_rank(*nonfinite))


def _checked_scores(inputs: Inputs) -> jax.Array:
  """Returns the scores [... T S] of all pairs, or raises ValueError if a component has an invalid shape."""
  score = type(inputs.score).__name__
  try:
    tile = inputs.score.scores(inputs.queries, inputs.keys)
  except (TypeError, ValueError) as error:
    if hint := _axes_hint(inputs):
      raise ValueError(f"{error}{hint}") from error
    raise
  if not isinstance(tile, (jax.Array, np.ndarray)):
    raise ValueError(f"{score}.scores must return an array of scores, got {tile!r}")
  T, S = inputs.t.shape[0], inputs.s.shape[1]
  leading = broadcast_leading(*jax.tree.leaves((inputs.queries, inputs.keys)), names="queries and keys")
  pairs = (*leading, T, S)
  if tile.shape[-2:] != pairs[-2:] or not broadcasts_to(pairs, tile.shape):
    raise ValueError(f"{score}.scores must return scores [... T S] = {pairs}, got shape {tile.shape}")
  if not jnp.issubdtype(tile.dtype, jnp.floating):
    raise ValueError(f"{score}.scores must return floating-point scores, got {tile.dtype}")
  named_leaves = zip(jax.tree.leaves(inputs.score), leaf_axes(inputs.score), strict=True)
  if 0 not in (T, S) and any(np.ndim(leaf) > len(letters.replace("?", "")) for leaf, letters in named_leaves):
    # If the number of heads equals the number of keys, wrong shapes broadcast. One pair reveals them.
    pair = one_pair(inputs, all_leading_axes=True)
    pair_shape = pair.score.scores(pair.queries, pair.keys).shape
    if pair_shape[-2:] != (1, 1):
      raise ValueError(
        f"{score}.scores must insert axes for T and S after the leading axes of its arrays, "
        f"array[..., None, None], got shape {pair_shape} for one query and one key"
      )
  modified = inputs.score.score_mod(tile, inputs.t, inputs.s)
  if modified.shape[-2:] != pairs[-2:] or not broadcasts_to(tile.shape, modified.shape):
    raise ValueError(
      f"{score}.score_mod must return scores [... T S] = {tile.shape}, got shape {modified.shape}"
    )
  shape = (*broadcast_leading(modified, inputs.values, names="scores and values"), T, S)
  _check_axes(inputs.score, shape)
  _check_axes(inputs.normalizer, shape)
  if inputs.mask is not None:
    for leaf, letters in zip(jax.tree.leaves(inputs.mask), leaf_axes(inputs.mask), strict=True):
      if letters == "TS":
        check_pairs("mask", np.shape(leaf), shape)
    check_pairs("mask", inputs.mask.materialize(T, S).shape, shape)
  if inputs.bias is not None:
    terms = inputs.bias(inputs.t, inputs.s)
    if not hasattr(terms, "dtype"):
      raise ValueError(f"bias must be an array, or a function that returns one, got {terms!r}")
    if not jnp.issubdtype(terms.dtype, jnp.floating):
      raise ValueError(f"bias must be floating-point, got {terms.dtype}; pass boolean masks as `mask`")
    check_pairs("bias", terms.shape, shape)
  return jnp.broadcast_to(with_rank(modified, len(shape)), shape)


def _check_axes(tree: Any, shape: tuple[int, ...]) -> None:
  """Raises ValueError unless the arrays of a score or normalizer broadcast to scores of a shape [... T S]."""
  sizes = {"T": shape[-2], "S": shape[-1]}
  for (path, leaf), letters in zip(jax.tree_util.tree_leaves_with_path(tree), leaf_axes(tree), strict=True):
    got = np.shape(leaf)
    trailing = zip(letters, got[len(got) - len(letters) :], strict=True)
    allowed = (*shape[:-2], *(sizes.get(letter, size) for letter, size in trailing))
    if not broadcasts_to(got, allowed):
      name = f"{type(tree).__name__}{jax.tree_util.keystr(path)}"
      raise ValueError(f"{name} must be broadcastable to {allowed}, got shape {got}")


def _axes_hint(inputs: Inputs) -> str:
  """Returns a hint for an error of a score with an array that has the leading axes of the queries, or ""."""
  leading = jax.tree.leaves(inputs.queries)[0].shape[:-2]
  for path, leaf in jax.tree_util.tree_leaves_with_path(inputs.score):
    if np.ndim(leaf) and np.shape(leaf) == leading[-np.ndim(leaf) :]:
      name, field = type(inputs.score).__name__, jax.tree_util.keystr(path).removeprefix(".")
      return (
        f" ({name}.scores failed; if {field} has one number per head, set "
        f'axes = {{"{field}": ""}} and use self.{field}[..., None, None])'
      )
  return ""


def one_pair(inputs: Inputs, *, all_leading_axes: bool) -> Inputs:
  """Returns the inputs of one query and one key, at all indices of the leading axes or only the first."""

  def cut(array: jax.Array, letters: str) -> jax.Array:
    index = tuple(slice(1) if letter in "TS" else slice(None) for letter in letters)
    return array[(..., *index)] if all_leading_axes else array[(0,) * (array.ndim - len(letters)) + index]

  leaves, structure = jax.tree.flatten(inputs)
  pairs = [cut(jnp.asarray(leaf), letters) for leaf, letters in zip(leaves, leaf_axes(inputs), strict=True)]
  return jax.tree.unflatten(structure, pairs)
