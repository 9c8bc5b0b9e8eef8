"""The dtype and the precision of computations."""

import jax
import jax.numpy as jnp


def compute_dtype(dtype: jnp.dtype) -> jnp.dtype:
  """Returns the dtype of scores, softmax and sums: float64 for float64, otherwise float32."""
  return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)


def matmul_precision() -> str:
  """Returns the precision of matrix products: "highest", unless the user has set one.

  By default, GPUs round float32 factors to 10 bits and TPUs to 8. This also matters for half-precision
  inputs, since softmax weights and projected queries are float32.
  """
  return jax.config.jax_default_matmul_precision or "highest"  # type: ignore[attr-defined]
