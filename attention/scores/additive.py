"""Additive scores, score_vector . tanh(query + key)."""

import dataclasses

import jax

from attention.arrays import device, sharding
from attention.arrays.checks import as_compute_dtype, as_real, check_rank, check_width
from attention.arrays.eager_jit import eager_jit
from attention.arrays.leading_axes import map_leading_axes
from attention.arrays.named_axes import register_pytree
from attention.arrays.shapes import assumed_product, broadcast_leading
from attention.scores.additive_kernel import sums_of_tanh
from attention.scores.base import Score

# Maximum number of pairs that are computed together, so that they stay in the cache of a CPU.
CACHED_PAIRS = 2**19


@eager_jit
def additive_scores(queries: jax.Array, keys: jax.Array, score_vector: jax.Array) -> jax.Array:
  """Returns additive (Bahdanau) attention scores.

      scores[t, s] = score_vector . tanh(queries[t] + keys[s])

  Args:
    queries: projected queries (decoder states), [... T A].
    keys: projected keys (encoder states), [... S A].
    score_vector: [A], or [... A] with leading axes that broadcast, such as heads.

  Returns:
    Unnormalized scores, [... T S], at least float32.

  Raises:
    ValueError: if widths, leading axes or dtypes are incompatible.

  References:
    Bahdanau et al. 2015, arXiv:1409.0473, A.1.2; `score_vector` is the paper's v_a. The projections W_a and
    U_a belong to the layer.

  >>> additive_scores(jax.numpy.zeros((1, 2)), jax.numpy.zeros((3, 2)), jax.numpy.ones(2)).tolist()
  [[0.0, 0.0, 0.0]]
  """
  queries, keys = as_compute_dtype(queries=queries, keys=keys)
  score_vector = as_real("score_vector", score_vector).astype(queries.dtype)
  check_rank("score_vector", score_vector, "[... A]")
  vectors = score_vector[..., None, :]
  leading = broadcast_leading(queries, keys, vectors, names="queries, keys and score_vector")

  def at_index(queries: jax.Array, keys: jax.Array, score_vector: jax.Array) -> jax.Array:
    return Additive(score_vector).scores(queries, keys)

  # On a CPU, compute as many indices together as fit in the cache.
  in_loop = device.is_cpu() and not sharding.leading_axes_may_be_sharded()
  pairs = assumed_product((queries.shape[-2], keys.shape[-2]))
  per_step = max(1, CACHED_PAIRS // max(pairs, 1)) if in_loop else None
  arrays = queries, keys, score_vector
  return map_leading_axes(at_index, arrays, ("TX", "SX", "A"), leading, per_step)


@register_pytree
@dataclasses.dataclass(frozen=True)
class Additive(Score):
  """Additive scores with a score vector, [A] or [... A]; see `additive_scores`.

  One formula is chosen for all pairs of a tile, by the largest value of each unit. A key with values above
  about 10 can therefore change the last bits of other scores, even if it is masked.
  """

  axes = {"score_vector": "A"}
  score_vector: jax.Array

  def scores(self, query_features, key_features):
    score_vector, width = as_real("score_vector", self.score_vector), query_features.shape[-1]
    check_rank("score_vector", score_vector, "[... A]")
    check_width("keys", key_features, width, "the width of the queries")
    check_width("score_vector", score_vector, width, "the width of the queries")
    score_vector = score_vector.astype(query_features.dtype)
    return sums_of_tanh(query_features, key_features, score_vector)
