"""Arrays from what users give, their ranks, and broadcasting."""

from typing import Any

import jax
import jax.numpy as jnp


def as_array(name: str, given: Any, allowed: str = "an array") -> jax.Array:
  """Returns what is given as an array, or raises ValueError that says what is allowed.

  An array stays untouched, for outside of `jax.jit` even `jnp.asarray` takes its time.
  """
  if isinstance(given, jax.Array):
    return given
  try:
    if not isinstance(given, str):  # which NumPy takes for the name of a type
      return jnp.asarray(given)
  except (TypeError, ValueError):
    pass
  raise ValueError(f"{name} must be {allowed}, got {given!r}")


def with_rank(array: jax.Array, rank: int) -> jax.Array:
  """Returns the array with axes of size 1 put in front until it has the given rank."""
  return jnp.expand_dims(array, tuple(range(rank - array.ndim)))


def same_rank(*arrays: jax.Array) -> list[jax.Array]:
  """Returns the arrays with axes of size 1 put in front until all have the largest rank."""
  rank = max(array.ndim for array in arrays)
  return [with_rank(array, rank) for array in arrays]


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


def check_rank(name: str, array: jax.Array, axes: str) -> None:
  """Raises ValueError unless the array has at least the named axes, such as "[... T H]"."""
  rank = len(axes.strip("[]").replace("...", "").split())
  if array.ndim < rank:
    raise ValueError(f"{name} must have axes {axes}, got shape {array.shape}")
