"""Additive scores, score_vector . tanh(query + key)."""

import dataclasses

import jax

from attention.arrays import device, sharding
from attention.arrays.leading_axes import map_leading_axes
from attention.arrays.checks import as_real, check_rank
from attention.arrays.eager_jit import eager_jit
from attention.arrays.named_axes import register_pytree
from attention.arrays.shapes import assumed_product, broadcast_leading, with_rank
from attention.arrays.sharding import match_vma
from attention.scores.additive_kernel import sums_of_tanh
from attention.scores.base import Score
from attention.scores.validation import check_width, floating

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
  return _scores(queries, keys, score_vector)


def _scores(queries: jax.Array, keys: jax.Array, score_vector: jax.Array) -> jax.Array:
  """Computes `additive_scores`; not compiled separately inside a tile of "blockwise"."""
  queries, keys = floating(queries=queries, keys=keys)
  score_vector = as_real("score_vector", score_vector)
  check_rank("score_vector", score_vector, "[... A]")
  check_width("keys", keys, queries.shape[-1], "the width of the queries")
  check_width("score_vector", score_vector, queries.shape[-1], "the width of the queries")
  vectors = score_vector.astype(queries.dtype)[..., None, :]
  leading = broadcast_leading(queries, keys, vectors, names="queries, keys and score_vector")
  queries, keys, vectors = match_vma((queries, keys, vectors), (queries, keys, vectors))
  pairs = queries.shape[-2], keys.shape[-2]
  rank = len(leading) + 2
  arrays = [with_rank(array, rank) for array in (queries, keys, vectors)]

  # On a CPU, compute as many leading axes together as fit in the cache.
  kept = 0 if device.is_cpu() and not sharding.leading_axes_may_be_sharded() else len(leading)
  while kept < len(leading) and assumed_product((*leading[-1 - kept :], *pairs)) <= CACHED_PAIRS:
    kept += 1
  looped = leading[: len(leading) - kept]
  return map_leading_axes(lambda arrays: sums_of_tanh(*arrays), arrays, [kept + 2] * 3, looped)


@register_pytree
@dataclasses.dataclass(frozen=True)
class Additive(Score):
  """Additive scores with a score vector, [A] or [... A]; see `additive_scores`.

  On CPUs, one formula is chosen for all pairs, by the largest value of each unit. A key with values above
  about 10 can therefore change the last bits of other scores, even if it is masked.
  """

  axes = {"score_vector": "A"}
  score_vector: jax.Array

  def scores(self, query_features, key_features):
    return _scores(query_features, key_features, self.score_vector)
