"""Pictures of masks as text."""

from typing import Any

import jax
import numpy as np

from attention.arrays.blocks import even_blocks, in_blocks
from attention.arrays.checks import check_size
from attention.arrays.named_axes import first_index, leaf_axes


def picture(mask: Any, T: int, S: int, block_sizes: tuple[int, int]) -> str:
  """Returns the text of `Mask.to_string`."""
  *leading, T, S = mask.full_shape(check_size("T", T), check_size("S", S))
  mask = first_index(mask)
  with jax.ensure_compile_time_eval():  # known masks are also printed inside jax.jit
    allowed = np.asarray(jax.jit(lambda: mask.materialize(T, S))())
  allowed = allowed.reshape(-1, T, S)[0]  # a mask function may return leading axes
  tiles = computed_tiles(mask, T, S, tuple(check_size("block_sizes", size) for size in block_sizes))
  lines = [
    f"T={T} queries (rows), S={S} keys (columns)",
    f"{allowed.sum():,} of {T * S:,} pairs allowed ({allowed.mean():.1%})",
    f"{tiles.sum():,} of {tiles.size:,} tiles computed ({tiles.mean():.1%})",
  ]
  if leading:
    lines.append(f"first index of the leading axes {tuple(leading)}")
  size = -(-max(T, S) // 32)
  if size > 1:
    lines.append(f"each cell: all (██), some (░░) or none (·) of {size} x {size} pairs")
  is_any, is_all = (
    reduction.reduceat(reduction.reduceat(allowed, range(0, T, size), 0), range(0, S, size), 1)
    for reduction in (np.logical_or, np.logical_and)
  )
  cells = np.where(is_all, "██", np.where(is_any, "░░", "· "))
  return "\n".join([*lines, *("".join(row).rstrip() for row in cells)])


def computed_tiles(mask: Any, T: int, S: int, block_sizes: tuple[int, int]) -> np.ndarray:
  """Returns which tiles `block_summary` does not report empty, booleans [I J], without leading axes."""
  queries, keys = even_blocks(T, block_sizes[0]), even_blocks(S, block_sizes[1])
  t, s = tuple(queries.ends.T[:, :, None]), tuple(keys.ends.T[:, None, :])  # [I 1] and [1 J] each
  is_any = np.asarray(in_blocks(mask, queries, keys).block_summary(t, s).any)
  return np.broadcast_to(is_any, (queries.count, keys.count))


def known_sizes(mask: Any, default: int = 16) -> tuple[int, int]:
  """Returns T and S of the arrays of a mask. If only one is known, both are equal."""
  sizes: dict[str, int] = {}
  for leaf, letters in zip(jax.tree.leaves(mask), leaf_axes(mask), strict=True):
    shape = np.shape(leaf)[np.ndim(leaf) - len(letters) :]
    sizes |= {letter: size for letter, size in zip(letters, shape, strict=True) if size > 1}
  T = sizes.get("T", sizes.get("S", default))
  return T, sizes.get("S", T)
