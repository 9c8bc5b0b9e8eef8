"""Ranks, broadcasting, symbolic sizes, and hints about shapes that do not fit."""

import math
from collections.abc import Iterable

import jax
import jax.export
import jax.numpy as jnp

# What an unknown size counts as where a choice depends on it: long, so that memory stays linear.
UNKNOWN_SIZE = 4096


def is_known(size: int) -> bool:
  """Whether a size is a number, and not a symbolic dimension."""
  return not jax.export.is_symbolic_dim(size)


def assumed(size: int) -> int:
  """Returns a size, 4,096 for an unknown one."""
  return int(size) if is_known(size) else UNKNOWN_SIZE


def assumed_product(sizes: Iterable[int]) -> int:
  """Returns the product of sizes, each unknown one as 4,096."""
  return math.prod(map(assumed, sizes))


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


# What an error says where shapes look like those of other libraries.
LAYOUT = "if heads come after positions, [B T N H], put them before, [B N T H]: jnp.swapaxes(array, -3, -2)"


def ones_hint(count: int) -> str:
  """Returns a hint for lengths [B] where heads need [B N], or a mask [B S] where [B N T S] is needed."""
  return (
    f"; leading axes count from the right: put in a 1 for one that is not there, array[:{', None' * count}]"
    if count
    else ""
  )


def axes_lacking(shape: tuple[int, ...], target: tuple[int, ...]) -> int:
  """Returns how many axes of 1 behind its first make a shape broadcast to the target; 0 if none do."""
  count = len(target) - len(shape)
  with_ones = (*shape[:1], *[1] * count, *shape[1:])
  return count if shape and broadcasts_to(with_ones, target) else 0
