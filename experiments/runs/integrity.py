"""A number that tells whether arrays are what they were."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def integrity(state: Any) -> int:
  """Returns a number that any change of one element changes, and any other change but for one in 2^32.

      sum of mix(bits ^ mix(position + mix(leaf)))   modulo 2^32

  over all elements; mix is `_mix`, which maps the 32-bit numbers one to one. It is the same however the
  arrays are spread over devices, for the sum of integers does not depend on its order.

  Args:
    state: pytree of arrays.

  >>> integrity({"a": jnp.zeros(2), "b": jnp.ones(3)}) == integrity({"a": jnp.ones(2), "b": jnp.zeros(3)})
  False
  """
  sums = [_leaf_integrity(leaf, np.uint32(index)) for index, leaf in enumerate(jax.tree.leaves(state))]
  return sum(map(int, sums)) % 2**32


@jax.jit
def _leaf_integrity(leaf: jax.Array, index: jax.Array) -> jax.Array:
  words = _words(leaf)
  position = jnp.zeros((), jnp.uint32)
  for axis, size in enumerate(words.shape):
    position = position * np.uint32(size % 2**32) + jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
  return jnp.sum(_mix(words ^ _mix(position + _mix(index))), dtype=jnp.uint32)


def _words(leaf: jax.Array) -> jax.Array:
  """Returns the bits of an array as uint32; an element of 64 bits is two."""
  if leaf.dtype == jnp.bool:
    return leaf.astype(jnp.uint32)
  width = 8 * min(leaf.dtype.itemsize, 4)
  return jax.lax.bitcast_convert_type(leaf, f"uint{width}").astype(jnp.uint32)


def _mix(x: jax.Array) -> jax.Array:
  """Mixes 32 bits so that each bit of the result depends on each bit of x.

  Not the library's, on purpose: if its dropout draws otherwise one day, checkpoints must stay readable.

  Source: the constants of "lowbias32", C. Wellons, Prospecting for Hash Functions, 2018.
  """
  x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
  x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
  return x ^ (x >> np.uint32(16))
