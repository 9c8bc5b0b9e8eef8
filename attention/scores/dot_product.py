"""Dot-product scores, scale * query . key."""

import dataclasses

import jax
import jax.numpy as jnp

from attention.arrays.pytrees import register_pytree
from attention.arrays.shapes import broadcast_leading
from attention.arrays.sharding import matmul_precision
from attention.scores.score import Score
from attention.scores.validation import check_width, floating, scaled


def dot_product_scores(queries: jax.Array, keys: jax.Array) -> jax.Array:
  """Returns how well every key fits every query.

      scores[t, s] = queries[t] . keys[s]

  Source: Luong et al. 2015, arXiv:1508.04025, section 3.1, "dot"; Vaswani et al. 2017,
  arXiv:1706.03762, section 3.2.1, before the scaling.

  Args:
    queries: [... T H].
    keys: [... S H].

  Returns:
    Scores, not probabilities, [... T S], at least float32.

  Raises:
    ValueError: if widths, leading axes or dtypes do not fit.

  >>> dot_product_scores(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0], [0.0, 1.0]])).tolist()
  [[11.0, 2.0]]
  """
  queries, keys = floating(queries=queries, keys=keys)
  check_width("keys", keys, queries.shape[-1], "the width of the queries")
  broadcast_leading(queries, keys, names="queries and keys")
  return ScaledDotProduct(1.0).scores(queries, keys)


@register_pytree
@dataclasses.dataclass(frozen=True)
class ScaledDotProduct(Score):
  """`dot_product_scores` times a scale: a number, or numbers [...] that broadcast (one for each head).

  None is the paper's 1 / sqrt(H), H the width of the queries.

  Source: Vaswani et al. 2017, arXiv:1706.03762, equation 1.
  """

  axes = {"scale": ""}
  scale: jax.Array | float | None = None

  def query_features(self, queries):
    return queries * max(queries.shape[-1], 1) ** -0.5 if self.scale is None else scaled(queries, self.scale)

  def scores(self, query_features, key_features):
    check_width("keys", key_features, query_features.shape[-1], "the width of the queries")
    return jnp.einsum("...TH,...SH->...TS", query_features, key_features, precision=matmul_precision())
