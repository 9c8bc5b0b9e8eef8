"""The choice of implementation."""

import jax

from attention.arrays import device
from attention.arrays.shapes import assumed_product, broadcast_leading
from attention.arrays.sharding import is_explicitly_sharded

# Maximum number of scores that "auto" stores: 64 MiB in float32.
MAX_DENSE_SCORES = 2**24
# Minimum number of scores per index of the leading axes for which a loop over tiles is faster on a CPU.
MIN_TILED_SCORES = 2**16


def choose_implementation(
  queries: jax.Array, keys: jax.Array, values: jax.Array, return_weights: bool
) -> str:
  """Returns the implementation that was measured to be fastest, or "blockwise" for many scores.

  `jax.nn.dot_product_attention(implementation="cudnn")` is not used: it does not support forward mode, so
  neither `jvp` nor Hessian-vector products.
  """
  if is_explicitly_sharded(queries, keys, values):
    return "dense"  # "blockwise" cannot cut the arrays
  scores = assumed_product((queries.shape[-2], keys.shape[-2]))
  leading = broadcast_leading(queries, keys, values, names="queries, keys and values")
  if assumed_product(leading) * scores > MAX_DENSE_SCORES:
    return "blockwise"  # computes weights separately; under jit, not at all if they are unused
  if return_weights:
    return "dense"  # stores all scores anyway
  return "blockwise" if device.is_cpu() and scores >= MIN_TILED_SCORES else "dense"
