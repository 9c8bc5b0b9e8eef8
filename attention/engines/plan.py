"""How an attention is cut into tiles, decided before its numbers are known."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays import devices
from attention.arrays.axes import HasAxes, names_its_axes
from attention.arrays.closures import closure
from attention.arrays.devices import varying_like
from attention.arrays.precision import matmul_precision
from attention.arrays.symbolic import assumed, assumed_product, is_known
from attention.engines.blocks import Blocks, Windows, even_blocks
from attention.engines.inputs import Inputs
from attention.engines.operands import Form
from attention.masks import Band, from_array

# How many pairs are worked on together. On a CPU so many make products large enough to run at full speed;
# elsewhere so many keep the device busy, and take 256 MiB for each array of them in float32.
PAIRS_ON_CPU = 2**19
PAIRS_IN_PARALLEL = 2**26


@dataclasses.dataclass(frozen=True)
class Plan:
  """All that is known of an attention before its numbers are: sizes, cuts, precision.

  Attributes:
    leading: the leading axes of the result.
    queries: the blocks of queries.
    windows: which keys each block of queries meets; None for all.
    keys: the blocks of these.
    ring: the axis of a device mesh along which the keys go from device to device; None for none.
    precision: of the products; derivatives are traced after `attend` has left its own precision.
    num_tile_axes: how many of the last leading axes a tile has too: all, where these may be spread over
      devices or an array cannot be cut along them, and elsewhere none.
  """

  leading: tuple[int, ...]
  queries: Blocks
  windows: Windows | None
  keys: Blocks
  ring: str | None
  precision: str
  num_tile_axes: int

  @property
  def pairs(self) -> int:
    """How many pairs a tile has."""
    return assumed_product((*self.tile_leading, self.queries.size, self.keys.size))

  @property
  def query_blocks_at_once(self) -> int:
    """At how many blocks of queries it is good to work together."""
    # One after the other, each can leave out the tiles that are empty for it.
    return 1 if devices.runs_sequentially() else max(1, PAIRS_IN_PARALLEL // self.pairs)

  @property
  def at_once(self) -> int:
    """At how many indices of the leading axes it is good to work together."""
    together = self.pairs * min(self.query_blocks_at_once, assumed(self.queries.count))
    return max(1, (PAIRS_ON_CPU if devices.runs_sequentially() else PAIRS_IN_PARALLEL) // together)

  @property
  def tile_leading(self) -> tuple[int, ...]:
    """The leading axes of a tile."""
    return self.leading[len(self.leading) - self.num_tile_axes :]


def plan_for(
  inputs: Inputs,
  shape: tuple[int, ...],
  block_sizes: tuple[int, int] | None,
  ring: str | None,
  parts: int = 1,
) -> Plan:
  """Returns the plan for scores of this shape, [... T S], of so many parts of a sequence (see `Blocks`)."""
  *leading, T, S = shape
  has_leading_axes = devices.leading_axes_may_be_spread() or tiles_have_leading_axes(inputs)
  num_tile_axes = len(leading) if has_leading_axes else 0
  band = Band() if inputs.mask is None or ring is not None else inputs.mask.band()
  tile_leading = assumed_product(leading) if num_tile_axes else 1
  windows = None
  for limit in (band, Band()):  # a window that is not worth cutting is a mask like any other
    if windows is None:
      default = default_block_sizes(assumed(T), assumed(S), inputs.mask is not None, limit, tile_leading)
      largest = default if block_sizes is None else block_sizes
      queries = even_blocks(T, largest[0], parts)
      windows = _windows(queries, S, limit)
  keys = even_blocks(S if windows is None else windows.size, largest[1], parts)
  return Plan(tuple(leading), queries, windows, keys, ring, matmul_precision(), num_tile_axes)


def tiles_have_leading_axes(inputs: Inputs) -> bool:
  """Whether a tile has leading axes, even if all arrays are cut to one index of theirs.

  So it is if an array does not name its axes, or if a score, mask or bias brings leading axes of its own.
  """
  if not all(map(names_its_axes, (inputs.score, inputs.mask, inputs.bias))):
    return True
  bias = inputs.bias if _is_function(inputs.bias) else None
  inputs = inputs if bias is None else dataclasses.replace(inputs, bias=None)

  def one_pair():
    form = Form.of(inputs, *(array.shape[-1] for array in (inputs.t, inputs.s)))
    num_leading = max(np.ndim(leaf) for leaf in jax.tree.leaves(inputs))
    first = jax.tree.map(lambda array: array[(0,) * num_leading], form.sort(inputs, num_leading))
    first = first._replace(
      queries=jax.tree.map(lambda array: array[:1], first.queries),
      keys=jax.tree.map(lambda array: array[:1], first.keys),
      pairs=jax.tree.map(lambda array: array[:1, :1], first.pairs),
    )
    tile = form.restore(first)
    terms = None if bias is None else jnp.asarray(bias(*tile.positions()))
    return *tile.scores_and_allowed(), terms

  return any(tile.ndim > 2 for tile in jax.tree.leaves(jax.eval_shape(one_pair)))


def default_block_sizes(T: int, S: int, has_mask: bool, band: Band, tile_leading: int) -> tuple[int, int]:
  """Returns how many queries and keys a tile should have at most.

  Args:
    T: the number of queries.
    S: the number of keys.
    has_mask: whether there is a mask.
    band: what it leaves, if it leaves only a band.
    tile_leading: how many indices of leading axes a tile has.
  """
  # Measured on a CPU: large products run at full speed, tiles of 4 to 8 MiB stay in its last cache.
  if band.width is not None:
    # A block of queries meets its own keys and those of the band around them: in small blocks few of these
    # are beyond the band of a query, in large ones few are met by many blocks.
    queries = max(128, min(band.width, 512), min(band.width // 4, 2048))
    keys = 2**21 // queries
    return queries, max(16, min(keys, largest_tile(queries * keys) // queries // max(tile_leading, 1)))
  if has_mask:  # smaller tiles are more often empty or full
    sizes = 512, 512
  elif S <= 4096:  # a block of queries meets all keys at once
    sizes = 2**21 // max(S, 2048), max(S, 2048)
  else:
    sizes = 1024, 1024
  pairs = min(sizes[0], T) * min(sizes[1], S) * tile_leading
  side = max(1, math.isqrt(pairs // largest_tile(math.prod(sizes))))
  return max(16, sizes[0] // side), max(16, sizes[1] // side)


def largest_tile(alone: int) -> int:
  """Returns the largest number of pairs of a tile with leading axes; `alone` is that of one without."""
  return alone if devices.runs_sequentially() else max(alone, PAIRS_IN_PARALLEL)


def _windows(queries: Blocks, S: int, band: Band) -> Windows | None:
  """Returns the keys that a block of queries meets, if the mask leaves only a band, and it is narrow."""
  if band.width is None or band.before is None or not (is_known(queries.length) and is_known(S)):
    return None
  size = band.width + queries.size - 1
  if size > 256:
    size = math.ceil(size / 64) * 64  # products of round sizes are faster
  # A key is copied for each window that it is in, so these must not be much longer than the blocks.
  if not 0 < size <= min(S // 2, 8 * queries.size):
    return None
  starts = (min(max(i * queries.size - band.before, 0), S - size) for i in range(queries.count))
  return Windows(size, tuple(starts))


def rules_for(plan: Plan, inputs: Inputs) -> Inputs:
  """Returns the inputs with a mask and a bias that can be cut as planned.

  Raises:
    ValueError: as `closure`, for a bias that is a function.
  """
  mask, bias = inputs.mask, inputs.bias
  if plan.keys.beyond_end != 0:
    # Where an array of booleans is cut beyond its end, it is filled up with False.
    end = from_array(jnp.ones((1, inputs.s.shape[-1]), bool))
    mask = end if mask is None else mask & end
  if _is_function(bias):
    t, s = inputs.t[: plan.queries.size, None], inputs.s[None, : plan.keys.size]
    bias = closure(bias, *varying_like((t, s), dataclasses.replace(inputs, bias=None)))
  return dataclasses.replace(inputs, mask=mask, bias=bias)


def _is_function(bias: Any) -> bool:
  """Whether a bias is a function that may have closed over arrays."""
  return callable(bias) and not isinstance(bias, HasAxes)
