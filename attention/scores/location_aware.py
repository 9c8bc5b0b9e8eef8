"""Location-aware scores: additive scores that depend on previous attention weights."""

import dataclasses

import jax
import jax.numpy as jnp

from attention.arrays.checks import as_array, as_floating, check_rank, check_width
from attention.arrays.dtypes import matmul_precision
from attention.arrays.leading_axes import rematerialized
from attention.arrays.named_axes import register_pytree
from attention.scores.base import Score


def location_features(weights: jax.Array, filters: jax.Array) -> jax.Array:
  """Returns features of the previous attention weights around each key, by a convolution.

      features[t, s, c] = sum over r of filters[r, c] weights[t, s + r - R // 2]

  Args:
    weights: attention weights of the previous query, or their sum over all previous queries, [... T S].
    filters: [R C].

  Returns:
    [... T S C].

  Raises:
    ValueError: if an array has too few axes.

  References:
    Chorowski et al. 2015, arXiv:1506.07503, equation 8; `filters` are the paper's F.

  >>> location_features(jnp.array([[0.0, 1.0, 0.0, 0.0]]), jnp.array([[3.0], [2.0], [1.0]]))[..., 0].tolist()
  [[1.0, 2.0, 3.0, 0.0]]
  """
  weights, filters = as_floating("weights", weights), as_floating("filters", filters)
  check_rank("weights", weights, "[... T S]")
  check_rank("filters", filters, "[R C]")
  R, S = filters.shape[0], weights.shape[-1]
  before = R // 2
  padded = jnp.pad(weights, [(0, 0)] * (weights.ndim - 1) + [(before, R - 1 - before)])
  windows = jnp.stack([padded[..., r : r + S] for r in range(R)], axis=-1)
  return jnp.einsum("...TSR,RC->...TSC", windows, filters.astype(weights.dtype), precision=matmul_precision())


@register_pytree
@dataclasses.dataclass(frozen=True)
class LocationAware(Score):
  """Additive scores that depend on previous attention weights.

      scores[t, s] = score_vector . tanh(queries[t] + keys[s] + locations[t, s] . kernel)

  `locations` are the `location_features` of the weights of the previous query. With a single feature, the sum
  of all previous weights, this is coverage. Since the weights of a query depend on those of the previous one,
  queries are processed in a loop (see `LocationAwareAttention`).

  Attributes:
    score_vector: [A] or [... A].
    kernel: U of the paper, [C A] or [... C A].
    locations: [... T S C].

  References:
    Chorowski et al. 2015, arXiv:1506.07503, equation 9; coverage: Tu et al. 2016, arXiv:1601.04811, equation
    6, in the form of See et al. 2017, arXiv:1704.04368, equation 11.
  """

  axes = {"score_vector": "A", "kernel": "CA", "locations": "TSC"}
  score_vector: jax.Array
  kernel: jax.Array
  locations: jax.Array

  def query_features(self, queries):
    self._check(queries=queries)
    return queries

  def key_features(self, keys):
    self._check(keys=keys)
    return keys

  def scores(self, query_features, key_features):
    pairs, got = (query_features.shape[-2], key_features.shape[-2]), jnp.shape(self.locations)
    if got[-3:-1] != pairs:
      raise ValueError(f"locations must have axes [... T S C] with T, S = {pairs}, got shape {got}")
    return _scores(query_features, key_features, self.score_vector, self.kernel, self.locations)

  def _check(self, **named: jax.Array) -> None:
    """Raises ValueError if the widths of the vectors and of the arrays of the score are incompatible."""
    ((name, vectors),) = named.items()
    score_vector, kernel = as_array("score_vector", self.score_vector), as_array("kernel", self.kernel)
    check_rank("kernel", kernel, "[... C A]")
    check_width("score_vector", score_vector, vectors.shape[-1], f"the width of the {name}")
    check_width("kernel", kernel, vectors.shape[-1], f"the width of the {name}")
    check_width("locations", as_array("locations", self.locations), kernel.shape[-2], "C of the kernel")


@rematerialized
def _scores(
  queries: jax.Array, keys: jax.Array, score_vector: jax.Array, kernel: jax.Array, locations: jax.Array
) -> jax.Array:
  """Computes the scores of a tile; derivatives store no array [T S A]."""
  projected = jnp.einsum("TSC,CA->TSA", locations, kernel, precision=matmul_precision())
  tanh = jnp.tanh(queries[:, None, :] + keys[None, :, :] + projected)
  return jnp.einsum("TSA,A->TS", tanh, score_vector, precision=matmul_precision())
