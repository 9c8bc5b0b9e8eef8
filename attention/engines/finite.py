"""What is not finite: taken out before an engine calculates, put back where a query attended to it.

A NaN in a key that some query may not attend to must not reach that query, forward or backward, and
0 * NaN is NaN. So the engines calculate with finite numbers only, and make the queries that did attend to
something not finite NaN at the end.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.shapes import with_rank
from attention.scores.score import Score


class Features(NamedTuple):
  """What an engine calculates with, and where it is not finite.

  The features are those of finite queries and keys, so that they have finite derivatives. They may hold what
  is not finite all the same, where they overflowed or are the queries and keys themselves.

  Attributes:
    queries: a pytree of arrays [... T X].
    keys: a pytree of arrays [... S X].
    values: [... S D].
    bad_queries: which queries or their features are not finite, booleans [... T].
    bad_keys: likewise, [... S].
    bad_values: which values are not finite, [... S].
  """

  queries: Any
  keys: Any
  values: jax.Array
  bad_queries: jax.Array
  bad_keys: jax.Array
  bad_values: jax.Array


def features_of(score: Score, queries: jax.Array, keys: jax.Array, values: jax.Array) -> Features:
  """Returns the features of queries [... T H] and keys [... S H], and the values [... S D].

  Raises:
    ValueError: if the score's features are no arrays of as many queries or keys.
  """
  query_features, bad_queries = _features(score.query_features, queries)
  key_features, bad_keys = _features(score.key_features, keys)
  return Features(query_features, key_features, values, bad_queries, bad_keys, _is_bad(values))


def finite(tree: Any) -> Any:
  """Returns a pytree of arrays with zeros in the place of NaN and infinity."""

  def clean(array):
    is_floating = jnp.issubdtype(array.dtype, jnp.floating)
    return jnp.where(jnp.isfinite(array), array, 0) if is_floating else array

  return jax.tree.map(clean, tree)


def _features(function: Callable[[jax.Array], Any], vectors: jax.Array) -> tuple[Any, jax.Array]:
  """Returns the features of vectors [... X H], and which are not finite, [... X]."""
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
  return jax.tree.unflatten(structure, leaves), functools.reduce(_either, map(_is_bad, distinct))


def _is_bad(vectors: jax.Array) -> jax.Array:
  """Returns which vectors [... X H] hold something that is not finite, [... X]."""
  return ~jnp.all(jnp.isfinite(vectors), axis=-1)


def _either(one: jax.Array, other: jax.Array) -> jax.Array:
  rank = max(one.ndim, other.ndim)
  return with_rank(one, rank) | with_rank(other, rank)
