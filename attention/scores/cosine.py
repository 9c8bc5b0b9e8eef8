"""Cosine scores, scale * cosine(query, key)."""

import dataclasses

import jax
import jax.numpy as jnp

from attention.arrays.checks import as_compute_dtype, as_real
from attention.arrays.named_axes import register_pytree
from attention.scores.base import Score
from attention.scores.dot_product import dot_product_scores


def cosine_scores(queries: jax.Array, keys: jax.Array) -> jax.Array:
  """Returns the cosine similarity of every query and key.

      scores[t, s] = queries[t] . keys[s] / (|queries[t]| |keys[s]|)

  A zero vector scores 0. So does a vector whose values are all subnormal (below 1e-38 in float32), since XLA
  flushes them to zero.

  Args:
    queries: [... T H].
    keys: [... S H].

  Returns:
    Scores in [-1, 1], [... T S], at least float32.

  Raises:
    ValueError: if widths, leading axes or dtypes are incompatible.

  References:
    Graves et al. 2014, arXiv:1410.5401, equation 6.

  >>> cosine_scores(jnp.array([[3.0, 4.0]]), jnp.array([[1.0, 0.0], [0.0, 0.0]])).round(3).tolist()
  [[0.6000000238418579, 0.0]]
  """
  queries, keys = as_compute_dtype(queries=queries, keys=keys)
  return dot_product_scores(_unit(queries), _unit(keys))


@register_pytree
@dataclasses.dataclass(frozen=True)
class Cosine(Score):
  """`cosine_scores` times a scale: a number, or an array [...] with leading axes such as heads."""

  axes = {"scale": ""}
  scale: jax.Array | float = 1.0

  def query_features(self, queries):
    return _unit(queries) * as_real("scale", self.scale).astype(queries.dtype)

  def key_features(self, keys):
    return _unit(keys)

  def scores(self, query_features, key_features):
    return dot_product_scores(query_features, key_features)


def _unit(vectors: jax.Array) -> jax.Array:
  """Returns vectors divided by their norm. Zero vectors are unchanged and have zero gradient."""
  # Scaling by the largest value keeps the squares of very large and very small vectors in range. It does not
  # change the direction, so stopping its gradient loses nothing. Its reciprocal must stay in range, too.
  largest = jax.lax.stop_gradient(jnp.max(jnp.abs(vectors), axis=-1, keepdims=True, initial=0.0))
  is_zero = largest == 0
  smallest = 100 * float(jnp.finfo(vectors.dtype).tiny)
  vectors = vectors / jnp.where(is_zero, 1, jnp.clip(largest, smallest, 1 / smallest))
  squared = jnp.sum(vectors**2, axis=-1, keepdims=True)
  return jnp.where(is_zero, 0, vectors / jnp.sqrt(jnp.where(is_zero, 1, squared)))
