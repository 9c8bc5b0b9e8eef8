"""Ranks, broadcasting, symbolic sizes, and hints for errors about shapes."""

import math
from collections.abc import Iterable

import jax
import jax.export
import jax.numpy as jnp

# Assumed value of a symbolic size in decisions: large, so that memory stays linear.
UNKNOWN_SIZE = 4096


def is_known(size: int) -> bool:
  """Returns whether a size is an integer, not a symbolic dimension."""
  return not jax.export.is_symbolic_dim(size)


def assumed(size: int) -> int:
  """Returns a size, or 4,096 for a symbolic one."""
  return int(size) if is_known(size) else UNKNOWN_SIZE


def assumed_product(sizes: Iterable[int]) -> int:
  """Returns the product of sizes, with 4,096 for symbolic ones."""
  return math.prod(map(assumed, sizes))


def with_rank(array: jax.Array, rank: int) -> jax.Array:
  """Returns the array with leading axes of size 1 added up to the given rank."""
  return jnp.expand_dims(array, tuple(range(rank - array.ndim)))


def same_rank(*arrays: jax.Array) -> list[jax.Array]:
  """Returns the arrays with leading axes of size 1 added up to the largest rank."""
  rank = max(array.ndim for array in arrays)
  return [with_rank(array, rank) for array in arrays]


def broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
  """Returns whether `shape` broadcasts to `target` without adding axes to it."""
  trailing = target[len(target) - len(shape) :]
  return len(shape) <= len(target) and all(
    size in (1, target_size) for size, target_size in zip(shape, trailing, strict=True)
  )


def broadcast_leading(*arrays: jax.Array, names: str) -> tuple[int, ...]:
  """Returns the broadcast shape of all axes but the last two; `names` is used in the error."""
  shapes = [array.shape[:-2] for array in arrays]
  try:
    return jnp.broadcast_shapes(*shapes)
  except ValueError:
    got = ", ".join(str(array.shape) for array in arrays)
    hint = heads_hint(*arrays) if len(arrays) == 3 else ""
    raise ValueError(f"leading axes of {names} must broadcast, got shapes {got}{hint}") from None


# A hint for shapes in the layout of other libraries.
LAYOUT = "if heads come after positions, [B T N H], use jnp.swapaxes(array, -3, -2) to get [B N T H]"


def heads_hint(queries: jax.Array, keys: jax.Array, values: jax.Array) -> str:
  """Returns a hint for an error about heads that do not broadcast."""
  if min(queries.ndim, keys.ndim, values.ndim) < 4:
    return ""
  (before, last), (keys_before, keys_last) = (array.shape[-3:-1] for array in (queries, keys))
  if before == keys_before or 1 in (before, keys_before) or keys_before != values.shape[-3]:
    return ""  # other axes do not broadcast
  hint = ""
  if keys_before and before % keys_before == 0:
    hint += f"; for {before} query heads and {keys_before} key heads, use attend_heads"
  if last == keys_last:
    hint += f"; {LAYOUT}"
  return hint


def check_pairs(name: str, got: tuple[int, ...], shape: tuple[int, ...]) -> None:
  """Raises ValueError unless the shape of a mask or bias broadcasts to the scores [... T S]."""
  if not broadcasts_to(got, shape):
    message = f"{name} must be broadcastable to [... T S] = {shape}, got shape {got}"
    lacking = len(shape) - len(got)
    if got and lacking and broadcasts_to((*got[:1], *[1] * lacking, *got[1:]), shape):
      # Lengths [B] instead of [B 1], or a mask [B S] instead of [B 1 1 S].
      axes = ", None" * lacking
      message += f"; leading axes are aligned at the right: insert axes of size 1, array[:{axes}]"
    elif 1 not in got[-2:] and broadcasts_to((*got[:-2], got[-1], got[-2]), shape):
      message += "; its last axes are queries and keys: use jnp.swapaxes(array, -1, -2)"
    elif len(got) > len(shape) and got[-3] == 1 and broadcasts_to(got[:-3] + got[-2:], shape):
      message += "; the scores have no axis for heads: omit [:, None]"
    elif len(shape) > 3 and got[-2:] == (shape[-3], shape[-3]):
      message += f"; {LAYOUT}"
    raise ValueError(message)
