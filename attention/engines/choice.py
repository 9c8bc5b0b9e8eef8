"""Which implementation is the fastest for some inputs."""

import jax

from attention.arrays import sharding
from attention.arrays.shapes import assumed_product, broadcast_leading
from attention.arrays.sharding import is_explicitly_sharded

# Up to so many scores are stored: 64 MiB in float32.
MAX_DENSE_SCORES = 2**24
# Below this many scores for one index of the leading axes, tiles are too small for a CPU to be worth a loop.
MIN_TILED_SCORES = 2**16


def fastest(queries: jax.Array, keys: jax.Array, values: jax.Array, return_weights: bool) -> str:
  """Returns the implementation that was measured to be the fastest, or "blockwise" for very many scores.

  `jax.nn.dot_product_attention(implementation="cudnn")` is not among them: it has no forward mode, so
  neither `jvp` nor Hessian-vector products, which are promised.
  """
  if is_explicitly_sharded(queries, keys, values):
    return "dense"  # "blockwise" cannot cut the arrays
  scores = assumed_product((queries.shape[-2], keys.shape[-2]))
  leading = broadcast_leading(queries, keys, values, names="queries, keys and values")
  if assumed_product(leading) * scores > MAX_DENSE_SCORES:
    return "blockwise"  # weights are then made by themselves, and not at all under jit if nobody reads them
  if return_weights:
    return "dense"  # all scores are stored anyway
  return "blockwise" if sharding.is_cpu() and scores >= MIN_TILED_SCORES else "dense"
