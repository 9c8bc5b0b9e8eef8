"""Plans of blockwise attention: the sizes of tiles, and which tiles are computed."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays import device, sharding
from attention.arrays.blocks import Blocks, even_blocks, in_blocks
from attention.arrays.dtypes import matmul_precision
from attention.arrays.leading_axes import rematerialized
from attention.arrays.named_axes import leaf_axes
from attention.arrays.shapes import assumed, assumed_product, is_known
from attention.engines.inputs import Inputs
from attention.masks import BlockSummary, Mask
from attention.masks.base import MaskAtIndex

# Number of pairs that are computed together. On CPUs, enough for matrix products at full speed. On
# accelerators, enough to fill the device: 256 MiB per float32 array.
PAIRS_ON_CPU = 2**19
PAIRS_IN_PARALLEL = 2**26


@dataclasses.dataclass(frozen=True, eq=False)  # treedefs of different classes may compare equal in JAX
class Plan:
  """How attention is cut into tiles.

  Attributes:
    structure: tree structure of the Inputs. The engine works on their leaves, since user-defined classes may
      only accept arrays.
    letters: axis letters of the arrays that the loops cut: first of the leaves, from `leaf_axes`, but "-" for
      "T" or "S" where a leaf broadcasts.
    leading: leading axes.
    per_step: number of indices of the leading axes to compute together; None: all.
    queries: blocks of queries.
    query_blocks_per_step: number of query blocks to compute together.
    keys: blocks of the keys that a block of queries attends to: all keys, or one window.
    windows: start of the window of each block of queries; None if each block attends to all keys.
    skips_tiles: whether empty tiles are skipped.
    is_differentiated: whether JAX differentiates the loops. Derivatives then recompute each tile, and keys
      and values are stored transposed, in the order in which a CPU multiplies them in derivatives.
    axis_name: mesh axis along which keys are sharded, or None.
    precision: precision of matrix products, since derivatives are traced after `attend` has returned.
  """

  structure: Any
  letters: tuple[Any, ...]
  leading: tuple[int, ...]
  per_step: int | None
  queries: Blocks
  query_blocks_per_step: int
  keys: Blocks
  windows: tuple[int, ...] | None
  skips_tiles: bool
  is_differentiated: bool
  axis_name: str | None
  precision: str

  def inputs(self, leaves: list[Any]) -> Inputs:
    """Returns the Inputs with the given leaves."""
    return jax.tree.unflatten(self.structure, leaves)

  def with_letters(self, *letters: Any) -> "Plan":
    """Returns a plan for loops that cut more arrays."""
    return dataclasses.replace(self, letters=(*self.letters, *letters))

  def recomputed(self, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function whose derivatives recompute it, if there are any."""
    return rematerialized(function) if self.is_differentiated else function


def make_plan(
  inputs: Inputs,
  shape: tuple[int, ...],
  block_sizes: tuple[int, int] | None,
  axis_name: str | None = None,
  num_parts: int = 1,
) -> tuple[Plan, list[jax.Array]]:
  """Returns the plan for scores of the given shape, [... T S], and the arrays that it cuts.

  Args:
    inputs: from `prepare`, as is the shape.
    shape: of the scores.
    block_sizes: maximum tile size. Default: chosen for speed.
    axis_name: mesh axis along which sequences are sharded, or None.
    num_parts: number of contiguous parts that the queries and keys consist of.
  """
  *leading, T, S = shape
  mask, is_cpu = inputs.options.mask, device.is_cpu()
  may_be_sharded = sharding.leading_axes_may_be_sharded()
  together = assumed_product(leading) if may_be_sharded else 1
  blocks: Any = None
  if mask is not None and axis_name is None and is_known(T) and is_known(S):
    blocks = find_windows(mask, T, S, together, block_sizes)
  if blocks is None:
    sizes = block_sizes or default_block_sizes(assumed(T), assumed(S), mask is not None, together)
    blocks = even_blocks(T, sizes[0], num_parts), even_blocks(S, sizes[1], num_parts), None
  queries, keys, windows = blocks
  # All devices must take the same branch, so tiles are not skipped where leading axes may be sharded.
  skips_tiles = mask is not None and keys.count != 1 and is_cpu and not may_be_sharded
  if skips_tiles and windows is None and axis_name is None and is_known(T) and is_known(S):
    tiles = known_tiles(mask, queries, keys)  # type: ignore[arg-type]
    skips_tiles = tiles is None or not tiles.all()
  if keys.padding != 0:
    inputs = dataclasses.replace(inputs, is_key=jnp.ones(S, bool))  # the padding of a boolean array is False
  # On a CPU, query blocks are computed one at a time, so that each can skip its empty tiles.
  pairs = assumed_product((together, queries.size, keys.size))
  blocks_per_step = 1 if is_cpu else max(1, PAIRS_IN_PARALLEL // pairs)
  pairs *= min(blocks_per_step, assumed(queries.count))
  most_pairs = PAIRS_ON_CPU if is_cpu else PAIRS_IN_PARALLEL

  def cut_axes(leaf: Any, letters: str) -> str:
    sizes = zip(letters, np.shape(leaf)[np.ndim(leaf) - len(letters) :], strict=True)
    lengths = {"T": T, "S": S}
    return "".join(letter if size == lengths.get(letter, size) else "-" for letter, size in sizes)

  leaves, structure = jax.tree.flatten(inputs)
  plan = Plan(
    structure=structure,
    letters=(list(map(cut_axes, leaves, leaf_axes(inputs))),),
    leading=tuple(leading),
    per_step=None if may_be_sharded else max(1, round(most_pairs / pairs)),
    queries=queries,
    query_blocks_per_step=blocks_per_step,
    keys=keys,
    windows=windows,
    skips_tiles=skips_tiles,
    is_differentiated=True,
    axis_name=axis_name,
    precision=matmul_precision(),
  )
  return plan, [jnp.asarray(leaf) for leaf in leaves]


def default_block_sizes(T: int, S: int, has_mask: bool, num_leading: int) -> tuple[int, int]:
  """Returns the maximum number of queries and keys of a tile that was measured to be fast.

  Args:
    T: number of queries.
    S: number of keys.
    has_mask: whether there is a mask.
    num_leading: number of indices of the leading axes of a tile.
  """
  # Measured on a CPU: large products run at full speed, and tiles of 4 to 8 MiB fit in the last-level cache.
  if has_mask:  # smaller tiles are more often empty
    sizes = 512, 512
  elif S <= 4096:  # one block of all keys
    sizes = 2**21 // max(S, 2048), max(S, 2048)
  else:
    sizes = 1024, 1024
  pairs = min(sizes[0], T) * min(sizes[1], S) * num_leading
  most_pairs = math.prod(sizes) if device.is_cpu() else max(math.prod(sizes), PAIRS_IN_PARALLEL)
  side = max(1, math.isqrt(pairs // most_pairs))
  return max(16, sizes[0] // side), max(16, sizes[1] // side)


def is_nonempty(tile: Inputs) -> jax.Array:
  """Returns whether a tile may have an allowed pair, a boolean."""

  def as_one_block(leaf: jax.Array, letters: str) -> jax.Array:
    """Returns an array with axes [I J] before its own, if it has an axis T or S."""
    return leaf[None, None] if {"T", "S"} & set(letters) else leaf

  leaves, structure = jax.tree.flatten(tile.options.mask)
  mask: Any = jax.tree.unflatten(structure, map(as_one_block, leaves, leaf_axes(tile.options.mask)))
  return jnp.any(jnp.asarray(any_allowed(mask, tile.t[None], tile.s[None])))


def any_allowed(mask: Mask, t: Any, s: Any) -> Any:
  """Returns which tiles may have an allowed pair, booleans broadcastable to [I J].

  Args:
    mask: with array fields as in `Mask.block_summary`.
    t: query positions of each block of queries, or only the first and the last, [I T].
    s: key positions of each block of keys, like t, [J S].
  """
  summary = mask.block_summary((t[:, :1], t[:, -1:]), (s[:, 0][None], s[:, -1][None]))
  if not isinstance(summary, BlockSummary):
    raise ValueError(f"{type(mask).__name__}.block_summary must return a BlockSummary, got {summary!r}")
  return summary.any


def known_tiles(mask: Mask, queries: Blocks, keys: Blocks) -> np.ndarray | None:
  """Returns which tiles may have an allowed pair, booleans [I J] for I blocks of queries and J of keys.

  None if that is not known while tracing, or differs between indices of the leading axes.
  """
  if isinstance(mask, MaskAtIndex):
    mask = mask.mask  # whose summary holds for all indices
  leaves, letters = jax.tree.leaves(mask), leaf_axes(mask)
  if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
    return None
  if any(np.ndim(leaf) > len(axes) for leaf, axes in zip(leaves, letters, strict=True)):
    return None
  is_any = any_allowed(in_blocks(mask, queries, keys), queries.ends, keys.ends)
  if isinstance(is_any, jax.core.Tracer):
    return None
  return np.broadcast_to(np.asarray(is_any), (queries.count, keys.count))


def find_windows(
  mask: Mask, T: int, S: int, num_leading: int, block_sizes: tuple[int, int] | None
) -> tuple[Blocks, Blocks, tuple[int, ...]] | None:
  """Returns blocks of queries, blocks of a window of keys, and the start of the window of each query block.

  None if the mask is not known to allow a narrow window only, or windows would not be faster.
  """
  # The first and the last key of each `unit` queries, a multiple of `unit`; at most 2^20 tiles are asked.
  unit = max(1, min(64, S // 8, *(block_sizes or ())), math.isqrt(T * S // 2**20))
  rows, columns = Blocks(T, -(-T // unit), unit), Blocks(S, -(-S // unit), unit)
  tiles = known_tiles(mask, rows, columns)
  if tiles is None:
    return None
  is_nonempty = tiles.any(axis=1)
  first = np.where(is_nonempty, tiles.argmax(axis=1), columns.count)
  end = np.where(is_nonempty, columns.count - tiles[:, ::-1].argmax(axis=1), 0)
  width = max(unit, int((end - first).max()) * unit - unit)
  # In small blocks, few keys are outside the window of a query; in large blocks, few of them belong to
  # several windows.
  most_queries = max(128, min(width, 512), min(width // 4, 2048))
  most_pairs = 2**21 if device.is_cpu() else PAIRS_IN_PARALLEL
  most_keys = max(16, min(2**21, most_pairs // max(num_leading, 1)) // most_queries)
  if block_sizes is not None:
    most_queries, most_keys = block_sizes
  queries = even_blocks(T, most_queries)
  spans = [
    slice(i * queries.size // unit, -(-min((i + 1) * queries.size, T) // unit)) for i in range(queries.count)
  ]
  starts = [int(first[span].min()) * unit for span in spans]
  size = max(int(end[span].max()) * unit - start for span, start in zip(spans, starts, strict=True))
  # Each window copies its keys, so windows must not be much longer than the query blocks.
  if not 0 < size <= min(S // 2, 8 * queries.size):
    return None
  keys = even_blocks(size, most_keys)
  keys = dataclasses.replace(keys, length=keys.count * keys.size)  # no padding, which would be masked
  return queries, keys, tuple(min(start, S - keys.length) for start in starts)
