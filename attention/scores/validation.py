"""Validation and conversion of the arguments of score functions."""

import jax
import jax.numpy as jnp

from attention.arrays.checks import as_array, as_real, check_rank
from attention.arrays.dtypes import compute_dtype
from attention.arrays.shapes import broadcast_leading, with_rank


def scaled(vectors: jax.Array, scale: jax.Array | float, name: str = "scale") -> jax.Array:
  """Returns vectors [... T H] times a scale: a number, or an array [...] with leading axes such as heads."""
  factors = per_score(name, scale, vectors)
  broadcast_leading(vectors, factors, names=f"queries and {name} [... 1 1]")
  rank = max(vectors.ndim, factors.ndim)
  return with_rank(vectors, rank) * with_rank(factors, rank)


def per_score(name: str, numbers: jax.Array | float, arrays: jax.Array) -> jax.Array:
  """Returns an array [...] of leading axes, such as heads, as [... 1 1] in the dtype of `arrays` [... X Y].

  Raises:
    ValueError: if it is not numeric, or already has axes of size 1 for X and Y.
  """
  numbers = as_real(name, numbers).astype(arrays.dtype)
  if numbers.ndim > arrays.ndim - 2 and numbers.ndim > 1 and numbers.shape[-2:] == (1, 1):
    raise ValueError(
      f"{name} must be a number or an array of leading axes, such as [N] for heads, without axes T and S, "
      f"got shape {numbers.shape}"
    )
  return numbers[..., None, None]


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
