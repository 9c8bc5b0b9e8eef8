"""The types and the precision to compute in."""

import jax
import jax.numpy as jnp


def compute_dtype(dtype: jnp.dtype) -> jnp.dtype:
  """Returns the dtype for scores, softmax and sums: float32, or float64 for float64."""
  return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)


def matmul_precision() -> str:
  """Returns the precision of products: full, unless the user has set one.

  By default a GPU rounds float32 factors to 10 bits and a TPU to 8. Products that start from half-precision
  inputs are no exception: the softmax's weights and projected queries are float32 numbers of their own.
  """
  return jax.config.jax_default_matmul_precision or "highest"  # type: ignore[attr-defined]
