"""How an attention is cut into tiles, decided before its numbers are known."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from attention.arrays import sharding
from attention.arrays.pytrees import leaf_axes
from attention.arrays.shapes import assumed, assumed_product, is_known
from attention.arrays.sharding import matmul_precision
from attention.engines.attention_inputs import VECTORS, Inputs, one_pair
from attention.masks import from_array

# Pairs that are computed together. On a CPU: large enough for products at full speed. On accelerators: enough
# to fill the device; 256 MiB per float32 array.
PAIRS_ON_CPU = 2**19
PAIRS_IN_PARALLEL = 2**26


@dataclasses.dataclass(frozen=True)
class Blocks:
  """A cut of `length` positions into `count` blocks of `size`; the last may reach beyond the end."""

  length: int
  count: int
  size: int

  @property
  def padding(self) -> int:
    """By how many positions the last block reaches beyond the end."""
    return self.count * self.size - self.length


def even_blocks(length: int, max_size: int, num_segments: int = 1) -> Blocks:
  """Returns as few blocks as possible of at most `max_size` positions, of nearly equal size.

  If the length is symbolic, all blocks have the largest size. Where the positions are those of several equal
  parts that do not follow each other, no block has positions of two.

  >>> even_blocks(10, 4)
  Blocks(length=10, count=3, size=4)
  >>> even_blocks(12, 5, num_segments=2)
  Blocks(length=12, count=4, size=3)
  """
  if not is_known(length):
    return Blocks(length, -(-length // max_size), max_size)
  if num_segments > 1:
    size = max(size for size in range(1, max_size + 1) if length // num_segments % size == 0)
    return Blocks(length, length // size, size)
  count = math.ceil(length / max_size)
  return Blocks(length, count, math.ceil(length / count))


@dataclasses.dataclass(frozen=True, eq=False)  # to JAX, pytrees of two classes may be equal
class TilingPlan:
  """How an attention is cut into tiles: its arrays, sizes, loops and precision.

  Attributes:
    structure: the pytree of the Inputs, whose leaves are cut.
    axes: the own axes of each leaf, as `leaf_axes` returns them.
    are_vectors: which leaves are features or values.
    has_mask: whether there is a mask.
    looped: the leading axes over which there is a loop.
    leading: those that a tile has: all, where these may be spread over devices or an array cannot be cut
      along them, and elsewhere none.
    queries: the blocks of queries.
    keys: the blocks of keys that a block of queries meets: of all keys, or of one window.
    windows: the first key of the window of each block of queries; None if each block meets all keys.
    num_keys: S.
    ring: the axis of a device mesh along which the keys go from device to device; None for none.
    precision: of matrix products, kept here because derivatives are traced after `attend` has returned.
    query_blocks_at_once: how many blocks of queries are worth computing together.
    at_once: how many indices of the looped axes.
  """

  structure: Any
  axes: list[str]
  are_vectors: list[bool]
  has_mask: bool
  looped: tuple[int, ...]
  leading: tuple[int, ...]
  queries: Blocks
  keys: Blocks
  windows: tuple[int, ...] | None
  num_keys: int
  ring: str | None
  precision: str
  query_blocks_at_once: int
  at_once: int

  def inputs(self, arrays: list[Any]) -> Inputs:
    """Returns the Inputs that have these leaves."""
    return jax.tree.unflatten(self.structure, arrays)

  def finite(self, arrays: list[Any], tangents: list[Any]) -> list[Any]:
    """Returns the arrays, or their tangents, with zeros where features or values are not finite."""
    return [
      jnp.where(jnp.isfinite(array), tangent, jnp.zeros_like(tangent))
      if is_vector and tangent is not None
      else tangent
      for is_vector, array, tangent in zip(self.are_vectors, arrays, tangents, strict=True)
    ]


def make_tiling_plan(
  inputs: Inputs,
  shape: tuple[int, ...],
  block_sizes: tuple[int, int] | None,
  ring: str | None,
  num_segments: int = 1,
) -> tuple[TilingPlan, list[jax.Array]]:
  """Returns the plan for scores of this shape, [... T S], and the arrays that are cut.

  Args:
    inputs: from `prepare`, as is the shape.
    shape: of the scores.
    block_sizes: the largest tile; None to choose it.
    ring: the axis of a device mesh, or None.
    num_segments: how many parts of a sequence the queries and keys are.
  """
  *axes, T, S = shape
  has_leading_axes = tile_has_leading_axes(inputs) or sharding.leading_axes_may_be_spread()
  looped, leading = ((), tuple(axes)) if has_leading_axes else (tuple(axes), ())
  num_leading = assumed_product(leading)
  band = (None, None) if inputs.mask is None or ring is not None else inputs.mask.band()
  sizes = block_sizes or default_block_sizes(assumed(T), assumed(S), inputs.mask is not None, num_leading)
  # A window that is not worth cutting is a mask like any other.
  queries, keys, windows = _windows(T, S, band, num_leading, block_sizes) or (
    even_blocks(T, sizes[0], num_segments),
    even_blocks(S, sizes[1], num_segments),
    None,
  )
  if keys.padding != 0:
    # Where an array of booleans is cut beyond its end, it is filled up with False.
    end = from_array(jnp.ones((1, S), bool))
    inputs = dataclasses.replace(inputs, mask=end if inputs.mask is None else inputs.mask & end)
  # On a CPU blocks of queries come one after the other: each can leave out the tiles that are empty for it.
  one_by_one, pairs = sharding.is_cpu(), assumed_product((*leading, queries.size, keys.size))
  blocks_at_once = 1 if one_by_one else max(1, PAIRS_IN_PARALLEL // pairs)
  together = pairs * min(blocks_at_once, assumed(queries.count))
  leaves, structure = jax.tree_util.tree_flatten_with_path(inputs)
  plan = TilingPlan(
    structure=structure,
    axes=leaf_axes(inputs),
    are_vectors=[path[0].name in VECTORS for path, _ in leaves],
    has_mask=inputs.mask is not None,
    looped=looped,
    leading=leading,
    queries=queries,
    keys=keys,
    windows=windows,
    num_keys=S,
    ring=ring,
    precision=matmul_precision(),
    query_blocks_at_once=blocks_at_once,
    at_once=max(1, (PAIRS_ON_CPU if one_by_one else PAIRS_IN_PARALLEL) // together),
  )
  return plan, [jnp.asarray(leaf) for _, leaf in leaves]


def tile_has_leading_axes(inputs: Inputs) -> bool:
  """Returns whether a tile still has leading axes after every array is cut to one index of its own.

  That is so if an array does not name its axes, or if a score, mask or bias brings leading axes of its own.

  Raises:
    ValueError: if a score, mask or bias closes over a traced array, which would get no derivative.
  """
  leaves, structure = jax.tree.flatten(inputs)
  are_named = not any("?" in own for own in leaf_axes(inputs))

  def scores_and_allowed(leaves: list[Any]) -> Any:
    whole = jax.tree.unflatten(structure, leaves)
    return one_pair(whole, all_leading_axes=not are_named).scores_and_allowed()

  jaxpr, tile = jax.make_jaxpr(scores_and_allowed, return_shape=True)(leaves)
  consts = jaxpr.consts
  if any(isinstance(each, jax.core.Tracer) and jnp.issubdtype(each.dtype, jnp.floating) for each in consts):
    raise ValueError(
      "a score, mask or bias must hold the traced arrays that it calculates with as fields, got one that "
      "closes over them, to which blockwise would give no gradient; a bias that is a plain function may"
    )
  return not are_named or any(array.ndim > 2 for array in jax.tree.leaves(tile))


def default_block_sizes(T: int, S: int, has_mask: bool, num_leading: int) -> tuple[int, int]:
  """Returns the largest number of queries and keys of a tile, measured to be fast.

  Args:
    T: the number of queries.
    S: the number of keys.
    has_mask: whether there is a mask.
    num_leading: how many indices of leading axes a tile has.
  """
  # Measured on a CPU: large products run at full speed, tiles of 4 to 8 MiB stay in its last cache.
  if has_mask:  # smaller tiles are more often empty or full
    sizes = 512, 512
  elif S <= 4096:  # a block of queries meets all keys at once
    sizes = 2**21 // max(S, 2048), max(S, 2048)
  else:
    sizes = 1024, 1024
  pairs = min(sizes[0], T) * min(sizes[1], S) * num_leading
  most_pairs = math.prod(sizes) if sharding.is_cpu() else max(math.prod(sizes), PAIRS_IN_PARALLEL)
  side = max(1, math.isqrt(pairs // most_pairs))
  return max(16, sizes[0] // side), max(16, sizes[1] // side)


def _windows(
  T: int,
  S: int,
  band: tuple[int | None, int | None],
  num_leading: int,
  block_sizes: tuple[int, int] | None,
) -> tuple[Blocks, Blocks, tuple[int, ...]] | None:
  """Returns blocks of queries, blocks of a window of keys, and where the window of each block starts.

  None if the mask leaves no narrow band of keys, or windows would not be faster.
  """
  before, after = band
  if before is None or after is None or not (is_known(T) and is_known(S)):
    return None
  width = before + after + 1
  # A block of queries meets its own keys and those of the band around them: in small blocks few of these are
  # beyond the band of a query, in large ones few are met by many blocks.
  most_queries = max(128, min(width, 512), min(width // 4, 2048))
  most_pairs = 2**21 if sharding.is_cpu() else PAIRS_IN_PARALLEL
  most_keys = max(16, min(2**21, most_pairs // max(num_leading, 1)) // most_queries)
  if block_sizes is not None:
    most_queries, most_keys = block_sizes
  queries = even_blocks(T, most_queries)
  size = width + queries.size - 1
  if size > 256:
    size = math.ceil(size / 64) * 64  # products of round sizes are faster
  # A key is copied for each window that it is in, so these must not be much longer than the blocks.
  if not 0 < size <= min(S // 2, 8 * queries.size):
    return None
  starts = (min(max(i * queries.size - before, 0), S - size) for i in range(queries.count))
  return queries, even_blocks(size, most_keys), tuple(starts)
