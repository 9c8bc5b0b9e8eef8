"""Dot-product scores, scale * query . key."""

import dataclasses

import jax

from attention.arrays.checks import as_compute_dtype, as_real, check_width
from attention.arrays.named_axes import register_pytree
from attention.arrays.products import dot_products
from attention.arrays.shapes import broadcast_leading
from attention.scores.base import Score


def dot_product_scores(queries: jax.Array, keys: jax.Array) -> jax.Array:
  """Returns dot-product attention scores, without scaling.

      scores[t, s] = queries[t] . keys[s]

  Args:
    queries: [... T H].
    keys: [... S H].

  Returns:
    Unnormalized scores, [... T S], at least float32.

  Raises:
    ValueError: if widths, leading axes or dtypes are incompatible.

  References:
    Luong et al. 2015, arXiv:1508.04025, section 3.1, "dot"; Vaswani et al. 2017, arXiv:1706.03762, section
    3.2.1.

  >>> import jax.numpy as jnp
  >>> dot_product_scores(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0], [0.0, 1.0]])).tolist()
  [[11.0, 2.0]]
  """
  queries, keys = as_compute_dtype(queries=queries, keys=keys)
  check_width("keys", keys, queries.shape[-1], "the width of the queries")
  broadcast_leading(queries, keys, names="queries and keys")
  return ScaledDotProduct(1.0).scores(queries, keys)


@register_pytree
@dataclasses.dataclass(frozen=True)
class ScaledDotProduct(Score):
  """`dot_product_scores` times a scale: a number, or an array [...] with leading axes such as heads.

  The default scale is 1 / sqrt(H), where H is the width of the queries.

  References:
    Vaswani et al. 2017, arXiv:1706.03762, equation 1.
  """

  axes = {"scale": ""}
  scale: jax.Array | float | None = None

  def query_features(self, queries):
    return queries if self.scale is None else queries * as_real("scale", self.scale).astype(queries.dtype)

  def scores(self, query_features, key_features):
    H = query_features.shape[-1]
    check_width("keys", key_features, H, "the width of the queries")
    products = dot_products(query_features, key_features)
    # As a number, the scale multiplies the products: unlike an array, it needs no gradient.
    return products if self.scale is not None else products * max(H, 1) ** -0.5
