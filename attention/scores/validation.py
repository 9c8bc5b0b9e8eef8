"""Validation and conversion of the arguments of score functions."""

import jax
import jax.numpy as jnp

from attention.arrays.checks import as_array, check_rank
from attention.arrays.dtypes import compute_dtype


def floating(**arrays: jax.Array) -> list[jax.Array]:
  """Returns two named arrays of vectors in at least float32, or raises ValueError."""
  arrays = {name: as_array(name, array) for name, array in arrays.items()}
  for (name, array), axes in zip(arrays.items(), ("[... T H]", "[... S H]"), strict=True):
    check_rank(name, array, axes)
    if not jnp.issubdtype(array.dtype, jnp.floating):
      raise ValueError(f"{name} must be floating-point, got {array.dtype}")
  dtypes = {array.dtype for array in arrays.values()}
  if len(dtypes) > 1:
    got = ", ".join(f"{name} {array.dtype}" for name, array in arrays.items())
    raise ValueError(f"{' and '.join(arrays)} must have one dtype, got {got}")
  return [array.astype(compute_dtype(array.dtype)) for array in arrays.values()]


def check_width(name: str, array: jax.Array, width: int, allowed: str) -> None:
  if array.shape[-1] != width:
    raise ValueError(f"{name} must have {allowed} ({width}), got shape {array.shape}")
