"""The inputs of the engines: vectors, positions, and the options of `attend`.

Tiles are computed at one index of the leading axes, from queries [T H], keys [S H] and values [S D];
`map_index_batches` takes care of all indices.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.dtypes import compute_dtype
from attention.arrays.leading_axes import map_leading_axes
from attention.arrays.masking import any_nonfinite, has_nonfinite_sum, is_minus_infinity, zero_nonfinite
from attention.arrays.named_axes import NamedAxes, has_user_code, leaf_axes, register_pytree
from attention.arrays.shapes import broadcast_leading, same_rank
from attention.engines.component_checks import at_one_index, check_components, scores_shape
from attention.engines.dropout import Dropout
from attention.masks import Mask
from attention.scores.base import Score


@register_pytree
@dataclasses.dataclass(frozen=True)
class Options(NamedAxes):
  """The score and the validated options of `attend`.

  Attributes:
    score: the score function.
    mask: which pairs may attend. None: all.
    bias: a function of positions, added to the scores, or None.
    normalizer: maps scores to weights.
    dropout: which weights are dropped, or None.
  """

  score: Score
  mask: Mask | None = None
  bias: Any = None
  normalizer: Any = None
  dropout: Dropout | None = None


class Settings(NamedTuple):
  """How `attend` computes, and what it returns. All are static: they determine the compiled program."""

  return_weights: bool
  return_logsumexp: bool
  implementation: str
  block_sizes: tuple[int, int] | None

  def select_output(self, output: Any) -> Any:
    """Returns the context, or the whole output if weights or logsumexp were requested."""
    return output if self.return_weights or self.return_logsumexp else output.context


@register_pytree
@dataclasses.dataclass(frozen=True)
class Inputs(NamedAxes):
  """The inputs of attention: for all indices of the leading axes, for one, or for a tile of one.

  Attributes:
    options: the score, mask, bias, normalizer and dropout.
    queries: query features, a pytree of arrays [... T X].
    keys: key features, a pytree of arrays [... S X].
    values: [... S D].
    t: query positions, integers [T], consecutive in each tile; the last tile repeats the last position.
    s: key positions [S], like t.
    nonfinite_queries: which queries or query features are not finite, booleans [... T].
    nonfinite_keys: which keys, key features or values are not finite, booleans [... S].
    is_key: which keys are not padding, booleans [S]. None: all.
  """

  axes = {
    "queries": "TX",
    "keys": "SX",
    "values": "SD",
    "nonfinite_queries": "T",
    "nonfinite_keys": "S",
    "t": "T",
    "s": "S",
    "is_key": "S",
  }
  options: Options
  queries: Any
  keys: Any
  values: jax.Array
  t: jax.Array
  s: jax.Array
  nonfinite_queries: jax.Array
  nonfinite_keys: jax.Array
  is_key: jax.Array | None = None

  def with_finite_vectors(self) -> "Inputs":
    """Returns the inputs with zeros for NaN and infinity in queries, keys and values."""
    queries, keys, values = zero_nonfinite((self.queries, self.keys, self.values))
    return dataclasses.replace(self, queries=queries, keys=keys, values=values)

  def scores_and_allowed(self) -> tuple[jax.Array, jax.Array | None]:
    """Returns the scores [T S] of one index, and which pairs may attend (None: all)."""
    options, t, s = self.options, self.t[:, None], self.s[None, :]
    pairs, dtype = (t.shape[0], s.shape[1]), self.values.dtype
    scores = _scores(options.score, "scores", pairs, self.queries, self.keys).astype(dtype)
    conditions = []
    if options.bias is not None:
      terms = options.bias(t, s)
      _check_terms(terms)
      terms = jnp.broadcast_to(terms.astype(dtype), pairs)
      conditions.append(~is_minus_infinity(terms))
      scores += jnp.where(conditions[0], terms, 0)
    scores = _scores(options.score, "score_mod", pairs, scores, t, s).astype(dtype)
    if self.is_key is not None:
      conditions.append(jnp.broadcast_to(self.is_key[None, :], pairs))
    if options.mask is not None:
      conditions.append(jnp.broadcast_to(options.mask.tile(t, s), pairs))
    return scores, functools.reduce(jnp.logical_and, conditions) if conditions else None

  def drop(self, weights: jax.Array) -> jax.Array:
    """Applies dropout to the weights [T S]."""
    dropout = self.options.dropout
    return weights if dropout is None else dropout.drop(weights, self.t[:, None], self.s[None, :])


def _check_terms(terms: Any) -> None:
  if not hasattr(terms, "dtype"):
    raise ValueError(f"bias must be an array, or a function that returns one, got {terms!r}")
  if not jnp.issubdtype(terms.dtype, jnp.floating):
    raise ValueError(f"bias must be floating-point, got {terms.dtype}; pass boolean masks as `mask`")


def _scores(score: Score, method: str, pairs: tuple[int, int], *arguments: Any) -> jax.Array:
  """Returns the scores from a method of a score, or raises ValueError if their shape is invalid."""
  name = f"{type(score).__name__}.{method}"
  try:
    scores = getattr(score, method)(*arguments)
  except (TypeError, ValueError) as error:
    if has_user_code(score):
      error.add_note(_shapes(score, name, arguments))
    raise
  if not isinstance(scores, (jax.Array, np.ndarray)):
    raise ValueError(f"{name} must return an array of scores, got {scores!r}")
  if scores.shape != pairs:
    raise ValueError(
      f"{name} must return scores [T S] = {pairs}, got shape {scores.shape}; "
      f"{_shapes(score, name, arguments)}"
    )
  if not jnp.issubdtype(scores.dtype, jnp.floating):
    raise ValueError(f"{name} must return floating-point scores, got {scores.dtype}")
  return jnp.asarray(scores)


def _shapes(score: Score, name: str, arguments: tuple[Any, ...]) -> str:
  """Returns the shapes that a method of a score sees, for an error."""
  leaves = jax.tree_util.tree_leaves_with_path(score)
  fields = {getattr(path[0], "name", ""): np.shape(leaf) for path, leaf in leaves}
  seen = [str(np.shape(leaf)) for leaf in jax.tree.leaves(arguments)]
  seen += [f"{type(score).__name__}.{field} {shape}" for field, shape in fields.items() if field]
  message = f"{name}, for one sequence and head, sees shapes {', '.join(seen)}"
  for field, shape in fields.items():
    is_nested = isinstance(getattr(score, field, None), NamedAxes)
    if field and shape and field not in score.axes and not is_nested:
      letters = "HKLMNO"[: len(shape) - 1]
      return f'{message}; if {field} has one array per head, set axes = {{"{field}": "{letters}"}}'
  return message


def prepare(
  queries: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  options: Options,
  positions: tuple[jax.Array, jax.Array] | None = None,
  length: int | None = None,
) -> tuple[Inputs, tuple[int, ...]]:
  """Returns the inputs, with the features of the vectors, and the shape [... T S] of their scores.

  Args:
    queries: [... T H].
    keys: [... S H].
    values: [... S D].
    options: the validated options.
    positions: positions of the queries [T] and keys [S], if they are a shard of longer sequences.
    length: number of queries of the whole sequence, with `positions`.

  Raises:
    ValueError: if an array of the score, mask, bias or normalizer has an incompatible shape.
  """
  T, S = queries.shape[-2], keys.shape[-2]
  dtype = compute_dtype(queries.dtype)
  queries, keys, values = (array.astype(dtype) for array in (queries, keys, values))

  def as_dtype(leaf: Any) -> Any:
    return jnp.asarray(leaf, dtype) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else leaf

  score, normalizer = jax.tree.map(as_dtype, (options.score, options.normalizer))
  options = dataclasses.replace(options, score=score, normalizer=normalizer)
  leading = broadcast_leading(queries, keys, values, names="queries, keys and values")
  shape = scores_shape(score, leading, T, S)
  check_components(options, shape)
  options = at_one_index(options, shape)
  if options.dropout is not None:
    dropout = options.dropout.of_rows(shape[:-2], T if length is None else length)
    options = dataclasses.replace(options, dropout=dropout)
  t, s = (jnp.arange(T), jnp.arange(S)) if positions is None else positions
  queries, nonfinite_queries = _features(score, "query_features", queries)
  keys, nonfinite_keys = _features(score, "key_features", keys)
  nonfinite_keys = jnp.logical_or(*same_rank(nonfinite_keys, has_nonfinite_sum(values)))
  return Inputs(options, queries, keys, values, t, s, nonfinite_queries, nonfinite_keys), shape


def _features(score: Score, method: str, vectors: jax.Array) -> tuple[Any, jax.Array]:
  """Returns the features of vectors [... X H], and which vectors or features are not finite, [... X]."""

  leaves, structure = jax.tree.flatten(score)

  def at_index(leaves: list[jax.Array], vectors: jax.Array) -> tuple[Any, jax.Array]:
    cleaned = zero_nonfinite(vectors)
    features = getattr(jax.tree.unflatten(structure, leaves), method)(cleaned)
    nonfinite = has_nonfinite_sum(vectors)
    for leaf in jax.tree.leaves(features):
      if np.ndim(leaf) != 2 or leaf.shape[0] not in (1, vectors.shape[0]):
        raise ValueError(
          f"{type(score).__name__}.{method} must return arrays whose axis -2 has size {vectors.shape[0]} or "
          f"1, got shape {np.shape(leaf)} for vectors {vectors.shape}"
        )
      if leaf is not cleaned:
        nonfinite |= any_nonfinite(leaf)
    # If the features are the vectors themselves, avoid a copy: the engines make features finite anyway.
    features = jax.tree.map(lambda leaf: vectors if leaf is cleaned else leaf, features)
    return features, nonfinite

  arrays, letters = ([jnp.asarray(leaf) for leaf in leaves], vectors), (leaf_axes(score), "XH")
  shapes = [
    array.shape[: array.ndim - len(axes)]
    for array, axes in zip(jax.tree.leaves(arrays), jax.tree.leaves(letters), strict=True)
  ]
  return map_leading_axes(at_index, arrays, letters, jnp.broadcast_shapes(*shapes))
