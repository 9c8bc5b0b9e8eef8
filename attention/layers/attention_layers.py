"""Flax layers for attention with a single head."""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention.arrays.checks import check_number, check_size
from attention.arrays.dtypes import compute_dtype
from attention.arrays.masking import zero_nonfinite
from attention.arrays.shapes import broadcast_leading, check_pairs, with_rank
from attention.biases.base import BiasLike
from attention.engines.dense import AttentionOutput
from attention.functional import attend
from attention.layers.projections import Projection, kernel_init
from attention.masks import Array, Mask, as_mask
from attention.normalizers.base import Normalizer
from attention.normalizers.gaussian_window import GaussianWindow
from attention.scores import Additive, Bilinear, Cosine, ScaledDotProduct, Score

# Projected keys [... S H] and values [... S D].
KeysValues: TypeAlias = tuple[jax.Array, jax.Array]


class SingleHeadAttention(nn.Module, kw_only=True):
  """Base class of layers with a single head. Subclasses define the projections and the score.

  Attributes:
    implementation, normalizer: as in `attend`.
  """

  implementation: str = "auto"
  normalizer: Normalizer | None = None

  def project_queries(self, queries: jax.Array) -> jax.Array:
    """Projects queries [... T H] for the score."""
    return queries

  def project_keys(self, keys: jax.Array) -> jax.Array:
    """Projects keys [... S K] for the score."""
    return keys

  def score(self, queries: jax.Array, keys: jax.Array) -> Score:
    """Returns the score function for projected queries and keys."""
    raise NotImplementedError(f"{type(self).__name__} must define score(queries, keys)")

  def __call__(
    self,
    inputs_q: jax.Array,
    inputs_k: jax.Array,
    inputs_v: jax.Array | None = None,
    *,
    mask: Mask | Array | None = None,
    bias: BiasLike | None = None,
    return_weights: bool = False,
  ) -> Any:
    """Computes attention from `inputs_q` to `inputs_k` and `inputs_v`.

    Args:
      inputs_q: queries before projection, [... T H].
      inputs_k: keys before projection, [... S K].
      inputs_v: values, [... S D]; they are not projected. Default: inputs_k.
      mask: broadcastable to [... T S].
      bias: broadcastable to [... T S].
      return_weights: also return the weights.

    Returns:
      The context, [... T D]. With `return_weights`, a tuple of the context and the weights [... T S].
    """
    return self.attend_with_kv(
      inputs_q, self.project_kv(inputs_k, inputs_v), mask=mask, bias=bias, return_weights=return_weights
    )

  def project_kv(self, inputs_k: jax.Array, inputs_v: jax.Array | None = None) -> KeysValues:
    """Returns projected keys and values, which do not depend on the queries."""
    return self.project_keys(inputs_k), inputs_k if inputs_v is None else inputs_v

  def attend_with_kv(
    self,
    inputs_q: jax.Array,
    keys_values: KeysValues,
    *,
    mask: Mask | Array | None = None,
    bias: BiasLike | None = None,
    return_weights: bool = False,
  ) -> Any:
    """Computes `__call__` with keys and values from `project_kv`."""
    queries = self.project_queries(inputs_q)
    options = {"mask": mask, "bias": bias, "normalizer": self.normalizer, "return_weights": return_weights}
    return self._attend(self.score(queries, keys_values[0]), queries, keys_values, **options)

  def _attend(self, score: Score, queries: jax.Array, keys_values: KeysValues, **options: Any) -> Any:
    """Returns the context, or a tuple of the context and the weights; options as in `attend`."""
    output = attend(score, queries, *keys_values, implementation=self.implementation, **options)
    return (output.context, output.weights) if isinstance(output, AttentionOutput) else output


class ProjectedAttention(SingleHeadAttention):
  """Base class of layers that project queries and keys to the same width.

  Attributes:
    features: width of projected queries and keys.
  """

  features: int

  def setup(self):
    check_size("features", self.features)
    self.query = Projection(self.features)
    self.key = Projection(self.features)

  def project_queries(self, queries):
    return self.query(queries)

  def project_keys(self, keys):
    return self.key(keys)


class AdditiveAttention(ProjectedAttention):
  """Additive attention, with W_a (query), U_a (key) and v_a (score_vector) as parameters.

  Attributes:
    features: A, the width of the hidden layer.
    implementation, normalizer: as in `attend`.

  References:
    Bahdanau et al. 2015, arXiv:1409.0473, A.1.2.
  """

  def setup(self):
    super().setup()
    init = nn.initializers.normal(self.features**-0.5)
    self.score_vector = self.param("score_vector", init, (self.features,), jnp.float32)

  def score(self, queries, keys):
    return Additive(self.score_vector)


class DotProductAttention(ProjectedAttention):
  """Scaled dot-product attention with projected queries and keys. Values are not projected.

  Attributes:
    features: H, the width of projected queries and keys.
    scale: factor of the scores. Default: 1 / sqrt(H).
    implementation, normalizer: as in `attend`.
  """

  scale: float | None = None

  def score(self, queries, keys):
    return ScaledDotProduct(self.scale)


class CosineAttention(ProjectedAttention):
  """Attention with the cosine of projected queries and keys, times a trained scale. Values are not projected.

  Attributes:
    features: H, the width of projected queries and keys. The initial scale is sqrt(H).
    implementation, normalizer: as in `attend`.

  References:
    Graves et al. 2014, arXiv:1410.5401, section 3.3.1.
  """

  def setup(self):
    super().setup()
    self.scale = self.param("scale", nn.initializers.constant(self.features**0.5), (), jnp.float32)

  def score(self, queries, keys):
    return Cosine(self.scale)


class BilinearAttention(SingleHeadAttention):
  """Bilinear attention with a matrix [H K], for queries and keys of any widths.

  Attributes:
    implementation, normalizer: as in `attend`.

  References:
    Luong et al. 2015, arXiv:1508.04025, section 3.1, "general".
  """

  @nn.compact
  def score(self, queries, keys):
    return Bilinear(self.param("matrix", kernel_init, (queries.shape[-1], keys.shape[-1]), jnp.float32))


class LocalAttention(SingleHeadAttention):
  """Local bilinear attention around a predicted position ("local-p").

      center = length sigmoid(position_vector . tanh(W query))
      weights[s] = softmax(scores of keys in the window)[s] exp(-(s - center)^2 / (2 sigma^2))

  The window extends `window_radius` to both sides of the center, and sigma is half of that. The weights sum
  to less than 1. The length of the source is the number of keys that the mask allows for the query.

  Attributes:
    window_radius: D of the paper, in positions; positive.
    implementation: as in `attend`.
    normalizer: must be None.

  Raises:
    ValueError: if `window_radius` is not positive, or a normalizer is given.

  References:
    Luong et al. 2015, arXiv:1508.04025, section 3.2.
  """

  window_radius: float = 5.0

  @nn.compact
  def attend_with_kv(self, inputs_q, keys_values, *, mask=None, bias=None, return_weights=False):
    check_number("window_radius", self.window_radius, "above 0", lambda number: number > 0)
    if self.normalizer is not None:
      raise ValueError(f"normalizer must be None for local attention, got {self.normalizer!r}")
    queries, keys = inputs_q, keys_values[0]
    T, S = queries.shape[-2], keys.shape[-2]
    allowed = jnp.ones((T, S), bool) if mask is None else as_mask(mask).materialize(T, S)
    check_pairs("mask", allowed.shape, (*broadcast_leading(queries, keys, names="queries and keys"), T, S))
    # Positions are computed in at least float32, since bfloat16 cannot represent odd integers above 256.
    # Queries with NaN are replaced by zeros; the NaN reaches the result through the scores.
    precise = zero_nonfinite(queries).astype(compute_dtype(queries.dtype))
    hidden = jnp.tanh(Projection(queries.shape[-1], name="position")(precise))
    init = nn.initializers.normal(hidden.shape[-1] ** -0.5)
    vector = self.param("position_vector", init, hidden.shape[-1:], jnp.float32)
    fraction = jax.nn.sigmoid(jnp.einsum("...TH,H->...T", hidden, vector.astype(hidden.dtype)))
    lengths = jnp.sum(allowed, axis=-1).astype(fraction.dtype)
    centers = fraction * with_rank(lengths, fraction.ndim)
    positions = with_rank(jnp.arange(S, dtype=centers.dtype), centers.ndim + 1)
    in_window = jnp.abs(positions - centers[..., None]) <= self.window_radius
    matrix = self.param("matrix", kernel_init, (queries.shape[-1], keys.shape[-1]), jnp.float32)
    normalizer = GaussianWindow(centers, self.window_radius / 2)
    options = {"mask": as_mask(allowed) & in_window, "bias": bias, "normalizer": normalizer}
    return self._attend(Bilinear(matrix), queries, keys_values, return_weights=return_weights, **options)
