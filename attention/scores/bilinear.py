"""Bilinear scores, query . matrix . key."""

import dataclasses

import jax
import jax.numpy as jnp

from attention.arrays.checks import as_compute_dtype, as_real, check_rank
from attention.arrays.dtypes import matmul_precision
from attention.arrays.named_axes import register_pytree
from attention.arrays.shapes import broadcast_leading
from attention.scores.base import Score
from attention.scores.dot_product import dot_product_scores


def bilinear_scores(queries: jax.Array, keys: jax.Array, matrix: jax.Array) -> jax.Array:
  """Returns bilinear attention scores.

      scores[t, s] = queries[t] . matrix . keys[s]

  Args:
    queries: [... T H].
    keys: [... S K]. The width K may differ from that of the queries.
    matrix: [H K], or [... H K] with leading axes that broadcast.

  Returns:
    Unnormalized scores, [... T S], at least float32.

  Raises:
    ValueError: if the matrix, leading axes or dtypes are incompatible.

  References:
    Luong et al. 2015, arXiv:1508.04025, section 3.1, "general"; `matrix` is the paper's W_a.

  >>> bilinear_scores(jnp.ones((1, 2)), jnp.ones((1, 3)), jnp.ones((2, 3))).tolist()
  [[6.0]]
  """
  queries, keys = as_compute_dtype(queries=queries, keys=keys)
  score = Bilinear(as_real("matrix", matrix).astype(queries.dtype))
  return score.scores(score.query_features(queries), score.key_features(keys))


@register_pytree
@dataclasses.dataclass(frozen=True)
class Bilinear(Score):
  """Bilinear scores with a matrix, [H K] or [... H K]; see `bilinear_scores`."""

  axes = {"matrix": "HK"}
  matrix: jax.Array

  def query_features(self, queries):
    matrix = self._checked_matrix(-2, queries=queries)
    broadcast_leading(queries, matrix, names="queries and matrix")
    return jnp.einsum("...TH,...HK->...TK", queries, matrix, precision=matmul_precision())

  def key_features(self, keys):
    self._checked_matrix(-1, keys=keys)
    return keys

  def _checked_matrix(self, axis: int, **named: jax.Array) -> jax.Array:
    """Returns the matrix, or raises ValueError if it does not match the width of the vectors."""
    ((name, vectors),) = named.items()
    matrix = as_real("matrix", self.matrix)
    check_rank("matrix", matrix, "[... H K]")
    if matrix.shape[axis] != vectors.shape[-1]:
      raise ValueError(
        "matrix must have axes [... H K], H the width of the queries and K that of the keys, "
        f"got matrix {matrix.shape}, {name} {vectors.shape}"
      )
    return matrix

  def scores(self, query_features, key_features):
    return dot_product_scores(query_features, key_features)
