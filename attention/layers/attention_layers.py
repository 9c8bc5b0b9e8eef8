"""Flax: attention of one head with parameters; the layers call the pure functions of this package."""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention.arrays.checks import check_number, check_size
from attention.arrays.shapes import broadcast_leading, with_rank
from attention.arrays.sharding import compute_dtype
from attention.engines.attention_inputs import check_pairs
from attention.engines.bias import BiasLike
from attention.engines.dense import AttentionOutput
from attention.engines.masking import finite
from attention.engines.normalizers import GaussianWindow
from attention.engines.softmax import Normalizer
from attention.functional import attend
from attention.layers.projections import Projection, kernel_init
from attention.masks import Array, Mask, as_mask
from attention.scores import Additive, Bilinear, Cosine, ScaledDotProduct, Score

# Projected keys [... S H], and values [... S D].
KeysValues: TypeAlias = tuple[jax.Array, jax.Array]


class SingleHeadAttention(nn.Module, kw_only=True):
  """What the layers of one head share: a subclass says how to project, and which score to use.

  Attributes:
    implementation, normalizer: as in `attend`.
  """

  implementation: str = "auto"
  normalizer: Normalizer | None = None

  def project_queries(self, queries: jax.Array) -> jax.Array:
    """Returns what the score compares, for queries [... T H]."""
    return queries

  def project_keys(self, keys: jax.Array) -> jax.Array:
    """Returns what the score compares, for keys [... S K]."""
    return keys

  def score(self, queries: jax.Array, keys: jax.Array) -> Score:
    """Returns the score for projected queries and keys."""
    raise NotImplementedError

  def __call__(
    self,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array | None = None,
    *,
    mask: Mask | Array | None = None,
    bias: BiasLike | None = None,
    return_weights: bool = False,
  ) -> Any:
    """Returns the context of the queries.

    Args:
      queries: [... T H].
      keys: [... S K].
      values: [... S D]; None for the keys.
      mask: broadcastable to [... T S].
      bias: broadcastable to [... T S].
      return_weights: whether to return a tuple of the context and the weights [... T S].

    Returns:
      The context, [... T D].
    """
    return self.attend_with_kv(
      queries, self.project_kv(keys, values), mask=mask, bias=bias, return_weights=return_weights
    )

  def project_kv(self, keys: jax.Array, values: jax.Array | None = None) -> KeysValues:
    """Returns projected keys, and values: what does not depend on the queries."""
    return self.project_keys(keys), keys if values is None else values

  def attend_with_kv(
    self,
    queries: jax.Array,
    keys_values: KeysValues,
    *,
    mask: Mask | Array | None = None,
    bias: BiasLike | None = None,
    return_weights: bool = False,
  ) -> Any:
    """Does what `__call__` does, for keys and values that `project_kv` has seen."""
    queries = self.project_queries(queries)
    options = {"mask": mask, "bias": bias, "normalizer": self.normalizer, "return_weights": return_weights}
    return self._attend(self.score(queries, keys_values[0]), queries, keys_values, **options)

  def _attend(self, score: Score, queries: jax.Array, keys_values: KeysValues, **options: Any) -> Any:
    """Returns the context, or a tuple of it and the weights; the options are those of `attend`."""
    found = attend(score, queries, *keys_values, implementation=self.implementation, **options)
    return (found.context, found.weights) if isinstance(found, AttentionOutput) else found


class ProjectedAttention(SingleHeadAttention):
  """What the layers share that project queries and keys to one width.

  Attributes:
    features: of projected queries and keys.
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
  """Additive attention: `additive_attention` with W_a (query), U_a (key) and v_a (score_vector).

  Source: Bahdanau et al. 2015, arXiv:1409.0473, A.1.2.

  Attributes:
    features: A, of the alignment model's hidden layer.
    implementation, normalizer: as in `attend`.
  """

  def setup(self):
    super().setup()
    init = nn.initializers.normal(self.features**-0.5)
    self.score_vector = self.param("score_vector", init, (self.features,), jnp.float32)

  def score(self, queries, keys):
    return Additive(self.score_vector)


class DotProductAttention(ProjectedAttention):
  """Scaled dot-product attention of projected queries and keys, over the values as they are.

  Attributes:
    features: H, to which queries and keys are projected.
    scale: factor of the scores; None for 1 / sqrt(H).
    implementation, normalizer: as in `attend`.
  """

  scale: float | None = None

  def score(self, queries, keys):
    return ScaledDotProduct(self.scale)


class CosineAttention(ProjectedAttention):
  """Attention by the cosine of projected queries and keys, times a trained scale; values as they are.

  Source: Graves et al. 2014, arXiv:1410.5401, section 3.3.1.

  Attributes:
    features: H, to which queries and keys are projected; its root is the scale at first.
    implementation, normalizer: as in `attend`.
  """

  def setup(self):
    super().setup()
    self.scale = self.param("scale", nn.initializers.constant(self.features**0.5), (), jnp.float32)

  def score(self, queries, keys):
    return Cosine(self.scale)


class BilinearAttention(SingleHeadAttention):
  """Bilinear attention: `bilinear_attention` with its matrix [H K], for any widths of queries and keys.

  Source: Luong et al. 2015, arXiv:1508.04025, section 3.1, "general".

  Attributes:
    implementation, normalizer: as in `attend`.
  """

  @nn.compact
  def score(self, queries, keys):
    return Bilinear(self.param("matrix", kernel_init, (queries.shape[-1], keys.shape[-1]), jnp.float32))


class LocalAttention(SingleHeadAttention):
  """Bilinear attention around one position, which the query predicts: "local-p".

      center = length sigmoid(position_vector . tanh(W query))
      weights[s] = softmax(scores of keys in the window)[s] exp(-(s - center)^2 / (2 sigma^2))

  The window is `window_radius` to both sides of the center, sigma half of that. The weights sum to less than
  1.

  Source: Luong et al. 2015, arXiv:1508.04025, section 3.2.

  Attributes:
    window_radius: D of the paper, in positions, above 0.
    implementation: as in `attend`.
    normalizer: None; the weights are made as above.

  Raises:
    ValueError: if `window_radius` is not above 0, or there is a normalizer.
  """

  window_radius: float = 5.0

  @nn.compact
  def attend_with_kv(self, queries, keys_values, *, mask=None, bias=None, return_weights=False):
    """Does what `__call__` does, for keys and values that `project_kv` has seen.

    A query's length, [... T], is how many keys its mask allows.
    """
    check_number("window_radius", self.window_radius, "above 0", lambda number: number > 0)
    if self.normalizer is not None:
      raise ValueError(f"normalizer must be None for local attention, got {self.normalizer!r}")
    keys = keys_values[0]
    T, S = queries.shape[-2], keys.shape[-2]
    allowed = jnp.ones((T, S), bool) if mask is None else as_mask(mask).materialize(T, S)
    check_pairs("mask", allowed.shape, (*broadcast_leading(queries, keys, names="queries and keys"), T, S))
    # Not in bfloat16, which has no odd numbers above 256. Queries with NaN get theirs from the scores.
    exact = finite(queries).astype(compute_dtype(queries.dtype))
    hidden = jnp.tanh(Projection(queries.shape[-1], name="position")(exact))
    init = nn.initializers.normal(hidden.shape[-1] ** -0.5)
    vector = self.param("position_vector", init, hidden.shape[-1:], jnp.float32)
    share = jax.nn.sigmoid(jnp.einsum("...TH,H->...T", hidden, vector.astype(hidden.dtype)))
    lengths = jnp.sum(allowed, axis=-1).astype(share.dtype)
    centers = share * with_rank(lengths, share.ndim)
    positions = with_rank(jnp.arange(S, dtype=centers.dtype), centers.ndim + 1)
    in_window = jnp.abs(positions - centers[..., None]) <= self.window_radius
    matrix = self.param("matrix", kernel_init, (queries.shape[-1], keys.shape[-1]), jnp.float32)
    normalizer = GaussianWindow(centers, self.window_radius / 2)
    options = {"mask": as_mask(allowed) & in_window, "bias": bias, "normalizer": normalizer}
    return self._attend(Bilinear(matrix), queries, keys_values, return_weights=return_weights, **options)
