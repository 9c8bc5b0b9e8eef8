"""The largest logits."""

import jax
import jax.numpy as jnp

from attention.arrays import device
from attention.arrays.shapes import assumed_product, is_known

_CHUNK_SIZE = 32
_FEW_LOGITS = 2**16  # for fewer, one search is as fast


def top_k(logits: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
  """Returns `jax.lax.top_k` of logits [... V]: values and tokens [... K], largest first.

  On CPUs, it is faster to find the k chunks of logits with the largest maxima first, which contain the k
  largest logits: of equal maxima and of equal logits, the first count as larger. The order of zeros of
  different signs, and of NaN, is not specified.
  """
  *leading, V = logits.shape
  is_faster = device.is_cpu() and is_known(V) and assumed_product(logits.shape) >= _FEW_LOGITS
  num_chunks = -(-V // _CHUNK_SIZE)
  if not is_faster or num_chunks <= 4 * k:  # most chunks may hold one of the k
    values, tokens = jax.lax.top_k(logits, k)
    return values, tokens
  padding = [(0, 0)] * len(leading) + [(0, num_chunks * _CHUNK_SIZE - V)]
  chunks = jnp.pad(logits, padding, constant_values=-jnp.inf).reshape(*leading, num_chunks, _CHUNK_SIZE)
  best = jnp.sort(jax.lax.top_k(jnp.max(chunks, axis=-1), k)[1], axis=-1)
  candidates = jnp.take_along_axis(chunks, best[..., None], axis=-2).reshape(*leading, k * _CHUNK_SIZE)
  values, indices = jax.lax.top_k(candidates, k)
  chunk, offset = indices // _CHUNK_SIZE, indices % _CHUNK_SIZE
  return values, jnp.take_along_axis(best, chunk, axis=-1) * _CHUNK_SIZE + offset
