"""Tiling plans: how attention is cut into tiles."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from attention.arrays import device, sharding
from attention.arrays.dtypes import matmul_precision
from attention.arrays.named_axes import leaf_axes
from attention.arrays.shapes import assumed, assumed_product, is_known
from attention.engines.inputs import VECTORS, Inputs, one_pair
from attention.masks import from_array

# Number of pairs that are computed together. On CPUs, enough for matrix products at full speed. On
# accelerators, enough to fill the device: 256 MiB per float32 array.
PAIRS_ON_CPU = 2**19
PAIRS_IN_PARALLEL = 2**26


@dataclasses.dataclass(frozen=True)
class Blocks:
  """`length` positions in `count` blocks of `size`; the last block may extend beyond the end."""

  length: int
  count: int
  size: int

  @property
  def padding(self) -> int:
    """Number of positions by which the last block extends beyond the end."""
    return self.count * self.size - self.length


def even_blocks(length: int, max_size: int, num_parts: int = 1) -> Blocks:
  """Returns the smallest number of blocks of at most `max_size` positions, with nearly equal sizes.

  If the length is symbolic, all blocks have size `max_size`. If the positions consist of several equally long
  parts, no block contains positions of two parts.

  >>> even_blocks(10, 4)
  Blocks(length=10, count=3, size=4)
  >>> even_blocks(12, 5, num_parts=2)
  Blocks(length=12, count=4, size=3)
  """
  if not is_known(length):
    return Blocks(length, -(-length // max_size), max_size)
  if num_parts > 1:
    size = max(size for size in range(1, max_size + 1) if length // num_parts % size == 0)
    return Blocks(length, length // size, size)
  count = math.ceil(length / max_size)
  return Blocks(length, count, math.ceil(length / count))


@dataclasses.dataclass(frozen=True, eq=False)  # treedefs of different classes may compare equal in JAX
class TilingPlan:
  """How attention is cut into tiles: arrays, sizes, loops and precision.

  Attributes:
    structure: tree structure of the Inputs, whose leaves are cut.
    axes: axis letters of each leaf, from `leaf_axes`.
    is_vector: whether each leaf contains features or values.
    has_mask: whether there is a mask.
    looped: leading axes that are looped over.
    leading: leading axes of a tile: all, if they may be sharded over devices or an array cannot be cut along
      them; otherwise none.
    queries: blocks of queries.
    keys: blocks of the keys that a block of queries attends to: all keys, or one window.
    windows: start of the window of each block of queries; None if each block attends to all keys.
    num_keys: S.
    axis_name: mesh axis along which keys are sharded, or None.
    precision: precision of matrix products, since derivatives are traced after `attend` has returned.
    query_blocks_per_step: number of query blocks that are computed together.
    indices_per_step: number of indices of the looped axes that are computed together.
  """

  structure: Any
  axes: list[str]
  is_vector: list[bool]
  has_mask: bool
  looped: tuple[int, ...]
  leading: tuple[int, ...]
  queries: Blocks
  keys: Blocks
  windows: tuple[int, ...] | None
  num_keys: int
  axis_name: str | None
  precision: str
  query_blocks_per_step: int
  indices_per_step: int

  def inputs(self, arrays: list[Any]) -> Inputs:
    """Returns the Inputs with the given leaves."""
    return jax.tree.unflatten(self.structure, arrays)

  def finite(self, arrays: list[Any], tangents: list[Any]) -> list[Any]:
    """Returns the arrays, or their tangents, with zeros where features or values are not finite."""
    return [
      jnp.where(jnp.isfinite(array), tangent, jnp.zeros_like(tangent))
      if is_vector and tangent is not None
      else tangent
      for is_vector, array, tangent in zip(self.is_vector, arrays, tangents, strict=True)
    ]


def make_tiling_plan(
  inputs: Inputs,
  shape: tuple[int, ...],
  block_sizes: tuple[int, int] | None,
  axis_name: str | None,
  num_parts: int = 1,
) -> tuple[TilingPlan, list[jax.Array]]:
  """Returns the plan for scores of the given shape, [... T S], and the arrays that it cuts.

  Args:
    inputs: from `prepare`, as is the shape.
    shape: of the scores.
    block_sizes: maximum tile size. Default: chosen for speed.
    axis_name: mesh axis along which sequences are sharded, or None.
    num_parts: number of contiguous parts that the queries and keys consist of.
  """
  *axes, T, S = shape
  has_leading_axes = tile_has_leading_axes(inputs) or sharding.leading_axes_may_be_sharded()
  looped, leading = ((), tuple(axes)) if has_leading_axes else (tuple(axes), ())
  num_leading = assumed_product(leading)
  band = (None, None) if inputs.mask is None or axis_name is not None else inputs.mask.band()
  sizes = block_sizes or default_block_sizes(assumed(T), assumed(S), inputs.mask is not None, num_leading)
  # A window that would not be faster is treated like any other mask.
  queries, keys, windows = _windows(T, S, band, num_leading, block_sizes) or (
    even_blocks(T, sizes[0], num_parts),
    even_blocks(S, sizes[1], num_parts),
    None,
  )
  if keys.padding != 0:
    # Padding of boolean arrays is False, so this mask excludes the padding.
    end = from_array(jnp.ones((1, S), bool))
    inputs = dataclasses.replace(inputs, mask=end if inputs.mask is None else inputs.mask & end)
  # On a CPU, query blocks are computed one at a time, so that each can skip its empty tiles.
  is_cpu, pairs = device.is_cpu(), assumed_product((*leading, queries.size, keys.size))
  blocks_per_step = 1 if is_cpu else max(1, PAIRS_IN_PARALLEL // pairs)
  together = pairs * min(blocks_per_step, assumed(queries.count))
  leaves, structure = jax.tree_util.tree_flatten_with_path(inputs)
  plan = TilingPlan(
    structure=structure,
    axes=leaf_axes(inputs),
    is_vector=[path[0].name in VECTORS for path, _ in leaves],
    has_mask=inputs.mask is not None,
    looped=looped,
    leading=leading,
    queries=queries,
    keys=keys,
    windows=windows,
    num_keys=S,
    axis_name=axis_name,
    precision=matmul_precision(),
    query_blocks_per_step=blocks_per_step,
    indices_per_step=max(1, (PAIRS_ON_CPU if is_cpu else PAIRS_IN_PARALLEL) // together),
  )
  return plan, [jnp.asarray(leaf) for _, leaf in leaves]


def tile_has_leading_axes(inputs: Inputs) -> bool:
  """Returns whether a tile has leading axes after all arrays are cut to one index of theirs.

  This is the case if an array does not name its axes, or if a score, mask or bias adds leading axes.

  Raises:
    ValueError: if a score, mask or bias closes over a traced array, which would get no gradient.
  """
  leaves, structure = jax.tree.flatten(inputs)
  is_named = not any("?" in letters for letters in leaf_axes(inputs))

  def scores_and_allowed(leaves: list[Any]) -> Any:
    whole = jax.tree.unflatten(structure, leaves)
    return one_pair(whole, all_leading_axes=not is_named).scores_and_allowed()

  jaxpr, tile = jax.make_jaxpr(scores_and_allowed, return_shape=True)(leaves)
  consts = jaxpr.consts
  if any(
    isinstance(const, jax.core.Tracer) and jnp.issubdtype(const.dtype, jnp.floating) for const in consts
  ):
    raise ValueError(
      "a score, mask or bias class must hold traced arrays as fields, got one that closes over them and "
      'would get no gradient with "blockwise"; a bias that is a plain function may close over them'
    )
  return not is_named or any(array.ndim > 2 for array in jax.tree.leaves(tile))


def default_block_sizes(T: int, S: int, has_mask: bool, num_leading: int) -> tuple[int, int]:
  """Returns the maximum number of queries and keys of a tile that was measured to be fast.

  Args:
    T: number of queries.
    S: number of keys.
    has_mask: whether there is a mask.
    num_leading: number of indices of the leading axes of a tile.
  """
  # Measured on a CPU: large products run at full speed, and tiles of 4 to 8 MiB fit in the last-level cache.
  if has_mask:  # smaller tiles are more often empty or full
    sizes = 512, 512
  elif S <= 4096:  # one block of all keys
    sizes = 2**21 // max(S, 2048), max(S, 2048)
  else:
    sizes = 1024, 1024
  pairs = min(sizes[0], T) * min(sizes[1], S) * num_leading
  most_pairs = math.prod(sizes) if device.is_cpu() else max(math.prod(sizes), PAIRS_IN_PARALLEL)
  side = max(1, math.isqrt(pairs // most_pairs))
  return max(16, sizes[0] // side), max(16, sizes[1] // side)


def _windows(
  T: int,
  S: int,
  band: tuple[int | None, int | None],
  num_leading: int,
  block_sizes: tuple[int, int] | None,
) -> tuple[Blocks, Blocks, tuple[int, ...]] | None:
  """Returns blocks of queries, blocks of a window of keys, and the start of the window of each query block.

  None if the mask is not a narrow band, or windows would not be faster.
  """
  before, after = band
  if before is None or after is None or not (is_known(T) and is_known(S)):
    return None
  width = before + after + 1
  # A window contains the keys of a query block and the band around them. In small blocks, few of them are
  # outside the band of a query; in large blocks, few of them belong to several windows.
  most_queries = max(128, min(width, 512), min(width // 4, 2048))
  most_pairs = 2**21 if device.is_cpu() else PAIRS_IN_PARALLEL
  most_keys = max(16, min(2**21, most_pairs // max(num_leading, 1)) // most_queries)
  if block_sizes is not None:
    most_queries, most_keys = block_sizes
  queries = even_blocks(T, most_queries)
  size = width + queries.size - 1
  if size > 256:
    size = math.ceil(size / 64) * 64  # products are faster for multiples of 64
  # Each window copies its keys, so windows must not be much longer than the query blocks.
  if not 0 < size <= min(S // 2, 8 * queries.size):
    return None
  starts = (min(max(i * queries.size - before, 0), S - size) for i in range(queries.count))
  return queries, even_blocks(size, most_keys), tuple(starts)
