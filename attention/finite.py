"""What is not finite: taken out before an engine calculates, put back where a query attended to it.

A NaN in a key that some query may not attend to must not reach that query, forward or backward, and
0 * NaN is NaN. So the engines calculate with finite numbers only, and make the queries that did attend to
something not finite NaN at the end.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention.scores import Score
from attention.shapes import with_rank


class Finite(NamedTuple):
  """The features and values of an attention without what was not finite, and where that was.

  Attributes:
    query_features: a pytree of arrays [... T X].
    key_features: a pytree of arrays [... S X].
    values: [... S D].
    bad_queries: which queries held something not finite, or have features that overflowed, [... T].
    bad_keys: likewise, [... S].
    bad_values: which values held something not finite, [... S].
  """

  query_features: Any
  key_features: Any
  values: jax.Array
  bad_queries: jax.Array
  bad_keys: jax.Array
  bad_values: jax.Array


def finite_features(score: Score, queries: jax.Array, keys: jax.Array, values: jax.Array) -> Finite:
  """Returns the features of queries [... T H] and keys [... S H], and the values [... S D]."""
  queries, bad_queries = _without_nonfinite(queries)
  keys, bad_keys = _without_nonfinite(keys)
  values, bad_values = _without_nonfinite(values)
  query_features, overflowing_queries = _features(score.query_features(queries))
  key_features, overflowing_keys = _features(score.key_features(keys))
  return Finite(
    query_features,
    key_features,
    values,
    _either(bad_queries, overflowing_queries),
    _either(bad_keys, overflowing_keys),
    bad_values,
  )


def nan_where(condition: jax.Array) -> jax.Array:
  """Returns NaN where the condition holds and 0 elsewhere."""
  return jnp.where(condition, jnp.nan, 0.0)


def _without_nonfinite(vectors: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns the vectors [... X H] with zeros for NaN and infinity, and which had any, [... X]."""
  finite = jnp.isfinite(vectors)
  return jnp.where(finite, vectors, 0), ~jnp.all(finite, axis=-1)


def _features(features: Any) -> tuple[Any, jax.Array]:
  """Returns a pytree of features [... X H] without what is not finite, and which vectors had any, [... X].

  The inputs are finite, so this is what overflowed; an empty row must not pay for it with 0 * inf.
  """
  leaves, structure = jax.tree.flatten(features)
  cleaned, bad = zip(*map(_without_nonfinite, leaves), strict=True)
  return jax.tree.unflatten(structure, cleaned), functools.reduce(_either, bad)


def _either(one: jax.Array, other: jax.Array) -> jax.Array:
  rank = max(one.ndim, other.ndim)
  return with_rank(one, rank) | with_rank(other, rank)
