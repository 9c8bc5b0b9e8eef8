"""Shapes and dtypes: the few rules that masks, scores and engines share."""

from collections.abc import Callable

import jax
import jax.numpy as jnp


def with_rank(array: jax.Array, rank: int) -> jax.Array:
  """Returns the array with axes of size 1 put in front until it has the given rank."""
  return jnp.expand_dims(array, tuple(range(rank - array.ndim)))


def broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
  """Whether an array of `shape` can be broadcast to `target` and adds no axis to it."""
  trailing = target[len(target) - len(shape) :]
  return len(shape) <= len(target) and all(
    size in (1, wanted) for size, wanted in zip(shape, trailing, strict=True)
  )


def broadcast_leading(*arrays: jax.Array, names: str) -> tuple[int, ...]:
  """Returns the broadcast of all axes but the last two; `names` is for the error."""
  shapes = [array.shape[:-2] for array in arrays]
  try:
    return jnp.broadcast_shapes(*shapes)
  except ValueError:
    got = ", ".join(str(array.shape) for array in arrays)
    raise ValueError(f"leading axes of {names} must broadcast, got shapes {got}") from None


def compute_dtype(dtype: jnp.dtype) -> jnp.dtype:
  """Returns the dtype for scores, softmax and sums: float32, or float64 for float64."""
  return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)


def matmul_precision() -> str:
  """Returns the precision of products: full, unless the user has set one.

  By default a GPU rounds float32 factors to 10 bits and a TPU to 8. Products that start from half-precision
  inputs are no exception: the softmax's weights and projected queries are float32 numbers of their own.
  """
  return jax.config.jax_default_matmul_precision or "highest"  # type: ignore[attr-defined]


def check_rank(name: str, array: jax.Array, axes: str) -> None:
  """Raises ValueError unless the array has at least the named axes, such as "[... T H]"."""
  rank = len(axes.strip("[]").replace("...", "").split())
  if array.ndim < rank:
    raise ValueError(f"{name} must have axes {axes}, got shape {array.shape}")


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
  return jnp.where(finite, outputs, jnp.nan)
