"""Products of vectors and a kernel."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from attention.arrays.precision import matmul_precision
from attention.engines.guards import nan_where


def linear(vectors: jax.Array, kernel: jax.Array, dtype: jnp.dtype | None = None) -> jax.Array:
  """Returns vectors [... D] times a kernel [D X], [... X], in a dtype, or in theirs.

  The leading axes become one: with more of them, XLA for CPUs copies an operand of the product that is the
  kernel's gradient, and takes three times as long. Positions that are spread over devices should therefore
  meet it inside `jax.shard_map`; outside, XLA would put them together.
  """
  side_by_side = vectors.reshape(math.prod(vectors.shape[:-1]), vectors.shape[-1])
  products = jnp.einsum("ND,DX->NX", side_by_side, kernel, preferred_element_type=dtype)
  return products.reshape(*vectors.shape[:-1], kernel.shape[-1])


def project(function: Callable[[jax.Array], jax.Array], inputs: jax.Array) -> jax.Array:
  """Returns a projection of vectors [... T D] to [... T X] or [... N T X].

  A vector that holds a NaN or infinity becomes NaN, and gives no gradient: if it is masked, its zero
  gradient would be multiplied by it on the way to the projection's weights, and 0 * NaN is NaN.

  Raises:
    ValueError: if the vectors are not of a floating type.
  """
  if not jnp.issubdtype(inputs.dtype, jnp.floating):
    raise ValueError(f"queries, keys, sources and contexts must be of a floating type, got {inputs.dtype}")
  finite = jnp.all(jnp.isfinite(inputs), axis=-1, keepdims=True)
  with jax.default_matmul_precision(matmul_precision()):
    outputs = function(jnp.where(finite, inputs, 0))
  if outputs.ndim > inputs.ndim:  # [... N T X]: heads were split off
    finite = jnp.expand_dims(finite, -3)
  return jnp.where(finite, outputs, 0) + nan_where(~finite, outputs.dtype)
