"""What is known of an attention before its numbers are: what it is made of, and how it is cut."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.extend.core
import jax.numpy as jnp

from attention.arrays import devices
from attention.arrays.axes import HasAxes, axes_of, names_its_axes
from attention.arrays.devices import varying, varying_like
from attention.arrays.loops import Arrays
from attention.arrays.precision import matmul_precision
from attention.arrays.shapes import with_rank
from attention.engines.blockwise.blocks import Blocks, Windows, even_blocks
from attention.engines.dense import BiasLike
from attention.masks import Band, Mask, from_array

# How many pairs are worked on together. On a CPU so many make products large enough to run at full speed;
# elsewhere so many keep the device busy, and take 256 MiB for each array of them in float32.
PAIRS_ON_CPU = 2**19
PAIRS_IN_PARALLEL = 2**26


class Operands(NamedTuple):
  """What tiles are made of; a pytree whose arrays are cut by their axes. None is for what is not there.

  Attributes:
    score: its parameters.
    query_features: arrays [... T X].
    key_features: arrays [... S X].
    values: [... S D].
    mask: who may attend to whom.
    bias: a function of two index tiles.
    rows: a number for each query that no other has, for the dropout, [... T].
    seeds: of the dropout.
    query_positions: consecutive integers [T].
    key_positions: likewise, [S].
  """

  score: Any = None
  query_features: Any = None
  key_features: Any = None
  values: Any = None
  mask: Any = None
  bias: Any = None
  rows: Any = None
  seeds: Any = None
  query_positions: Any = None
  key_positions: Any = None

  def positions(self) -> tuple[jax.Array, jax.Array]:
    """Returns the positions of a tile's queries [T 1] and keys [1 S], beyond the end too."""
    t, s = (held.reshape(-1) for held in (self.query_positions, self.key_positions))
    return (t[0] + jnp.arange(t.size))[:, None], (s[0] + jnp.arange(s.size))[None, :]

  def axes(self) -> list[str | None]:
    """Returns the own axes of each array."""
    own: dict[str, list[str | None]] = {
      "score": axes_of(self.score),
      "query_features": ["TX"] * len(jax.tree.leaves(self.query_features)),
      "key_features": ["SX"] * len(jax.tree.leaves(self.key_features)),
      "values": ["SD"],
      "mask": axes_of(self.mask),
      "bias": axes_of(self.bias),
      "rows": ["T"],
      "seeds": [None],
      "query_positions": ["T"],
      "key_positions": ["S"],
    }
    there = [name for name in self._fields if getattr(self, name) is not None]
    return [axes for name in there for axes in own[name]]

  def tiles_have_leading_axes(self) -> bool:
    """Whether one tile has leading axes, even if all arrays are cut to one index of theirs.

    So it is if an array does not name its axes, or if a score, mask or bias brings leading axes of its own.
    """
    if not all(map(names_its_axes, (self.score, self.mask, self.bias))):
      return True

    held = self._replace(bias=None) if _is_function(self.bias) else self

    def one_pair():
      arrays, structure = jax.tree.flatten(held)
      firsts = [_first(array, own) for array, own in zip(arrays, held.axes(), strict=True)]
      cut = jax.tree.unflatten(structure, firsts)
      bias = self.bias if cut.bias is None else cut.bias
      t, s = varying_like((jnp.zeros((1, 1), int),) * 2, arrays)
      return (
        cut.score.tile(cut.query_features, cut.key_features),
        None if bias is None else jnp.asarray(bias(t, s)),
        None if cut.mask is None else cut.mask.tile(t, s),
      )

    return any(tile.ndim > 2 for tile in jax.tree.leaves(jax.eval_shape(one_pair)))


def _is_function(bias: Any) -> bool:
  """Whether a bias is a function that may have closed over arrays."""
  return callable(bias) and not isinstance(bias, HasAxes)


def _first(array: Any, own: str | None) -> jax.Array:
  """Returns an array at the first index of its leading axes, its first query and its first key."""
  array = jnp.asarray(array)
  if own is None:
    return array
  for axis, letter in zip(range(-len(own), 0), own, strict=True):
    array = jax.lax.slice_in_dim(array, 0, 1, axis=axis) if letter in "TS" else array
  return array[(0,) * (array.ndim - len(own))]


@dataclasses.dataclass(frozen=True)
class Plan:
  """All that is known of an attention before its numbers are.

  Attributes:
    leading: the leading axes of the result.
    queries: the blocks of queries.
    windows: which keys each block of queries meets; None for all.
    keys: the blocks of these.
    ring: the axis of a device mesh along which the keys go from device to device; None for none.
    dropout_rate: probability of dropping a weight.
    precision: of the products.
    structure: of the Operands.
    axes: the own axes of each of their arrays.
    num_tile_axes: how many of the last leading axes a tile has too: all, where these may be spread over
      devices or an array cannot be cut along them, and elsewhere none.
  """

  leading: tuple[int, ...]
  queries: Blocks
  windows: Windows | None
  keys: Blocks
  ring: str | None
  dropout_rate: float
  precision: str
  structure: Any = None
  axes: tuple[str | None, ...] = ()
  num_tile_axes: int = 0

  def of(self, operands: Operands) -> tuple["Plan", Arrays]:
    """Returns the plan for these operands, and their arrays with all leading axes."""
    arrays, structure = jax.tree.flatten(operands)
    axes = tuple(operands.axes())
    arrays = [jnp.asarray(array) for array in arrays]
    arrays = [
      array if own is None else with_rank(array, len(self.leading) + len(own))
      for array, own in zip(arrays, axes, strict=True)
    ]
    return dataclasses.replace(self, structure=structure, axes=axes), arrays

  def operands(self, arrays: Arrays) -> Operands:
    """Returns the operands that begin a list of arrays."""
    return jax.tree.unflatten(self.structure, arrays[: len(self.axes)])

  @property
  def pairs(self) -> int:
    """How many pairs a tile has."""
    return math.prod((*self.tile_leading, self.queries.size, self.keys.size))

  @property
  def query_blocks_at_once(self) -> int:
    """At how many blocks of queries it is good to work together."""
    # One after the other, each can leave out the tiles that are empty for it.
    return 1 if devices.runs_sequentially() else max(1, PAIRS_IN_PARALLEL // self.pairs)

  @property
  def at_once(self) -> int:
    """At how many indices of the leading axes it is good to work together."""
    together = self.pairs * min(self.query_blocks_at_once, self.queries.count)
    return max(1, (PAIRS_ON_CPU if devices.runs_sequentially() else PAIRS_IN_PARALLEL) // together)

  @property
  def tile_leading(self) -> tuple[int, ...]:
    """The leading axes of a tile."""
    return self.leading[len(self.leading) - self.num_tile_axes :]


def plan_for(
  pairs: tuple[int, ...],
  operands: Operands,
  block_sizes: tuple[int, int] | None,
  ring: str | None,
  dropout_rate: float,
) -> Plan:
  """Returns the plan for scores of shape [... T S], from operands whose bias may still be any function."""
  *leading, T, S = pairs
  has_leading_axes = devices.leading_axes_may_be_spread() or operands.tiles_have_leading_axes()
  num_tile_axes = len(leading) if has_leading_axes else 0
  band = Band() if operands.mask is None or ring is not None else operands.mask.band()
  tile_leading = math.prod(leading) if num_tile_axes else 1
  windows = None
  for limit in (band, Band()):  # a window that is not worth cutting is a mask like any other
    if windows is None:
      default = default_block_sizes(T, S, operands.mask is not None, limit, tile_leading)
      largest = default if block_sizes is None else block_sizes
      queries = even_blocks(T, largest[0])
      windows = _windows(queries, S, limit)
  keys = even_blocks(S if windows is None else windows.size, largest[1])
  return Plan(
    leading=tuple(leading),
    queries=queries,
    windows=windows,
    keys=keys,
    ring=ring,
    dropout_rate=dropout_rate,
    precision=matmul_precision(),
    num_tile_axes=num_tile_axes,
  )


def default_block_sizes(T: int, S: int, has_mask: bool, band: Band, tile_leading: int) -> tuple[int, int]:
  """Returns how many queries and keys a tile should have at the most.

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
    queries = min(max(band.width // 2, 128), 2048)
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
  """Returns how many pairs a tile with leading axes may have, where one without them has so many."""
  return alone if devices.runs_sequentially() else max(alone, PAIRS_IN_PARALLEL)


def _windows(queries: Blocks, S: int, band: Band) -> Windows | None:
  """Returns the keys that a block of queries meets, if the mask leaves only a band, and it is narrow."""
  if band.width is None or band.before is None:
    return None
  size = band.width + queries.size - 1
  # A key is copied for each window that it is in, so these must not be much longer than the blocks.
  if not 0 < size <= min(S // 2, 8 * queries.size):
    return None
  starts = (min(max(i * queries.size - band.before, 0), S - size) for i in range(queries.count))
  return Windows(S, size, tuple(starts))


def mask_operand(mask: Mask | None, S: int, keys: Blocks) -> Mask | None:
  """Returns the mask without what the last block of keys has beyond the end."""
  if not keys.beyond_end:
    return mask
  # Where an array of booleans is cut beyond its end, it is filled up with False.
  end = from_array(jnp.ones((1, S), bool))
  return end if mask is None else mask & end


def bias_operand(bias: BiasLike | None) -> Any:
  """Returns a bias that is a pytree and a function of two index tiles, or just a function."""
  if bias is None or callable(bias):
    return bias
  array = jnp.asarray(bias)
  return _ArrayBias(with_rank(array, max(array.ndim, 2)))


def function_operand(bias: Any, queries: Blocks, keys: Blocks, lengths: tuple[int, int], like: Any) -> Any:
  """Returns a function as a pytree that holds the arrays it closed over; any other bias as it is.

  Args:
    bias: a bias, or None.
    queries: the blocks of queries.
    keys: the blocks of keys.
    lengths: how many positions of queries and keys there are; the function is not asked for others.
    like: arrays that differ from device to device as the positions will, inside `jax.shard_map`.

  Raises:
    ValueError: if the positions differ from device to device but an array closed over does not.
  """
  if not _is_function(bias):
    return bias
  t, s = varying_like((jnp.arange(queries.size)[:, None], jnp.arange(keys.size)[None, :]), like)
  # `jax.closure_convert` would leave out integers, which would then leak out of the rule of differentiation.
  closed = jax.make_jaxpr(lambda t, s: jnp.asarray(bias(t, s)))(t, s)
  arrays = [jnp.asarray(array) for array in closed.consts]
  if any(varying(t) - varying(array) for array in arrays):
    raise ValueError(
      "inside shard_map a bias function must close over arrays that differ from device to device, "
      'jax.lax.pcast(array, axis_name, to="varying"); or be a `positions.Bias` that holds them'
    )
  return _FunctionBias(arrays, closed.jaxpr, lengths)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _ArrayBias(HasAxes):
  """An array [... T S] as a function of two index tiles."""

  axes = {"array": "TS"}
  array: jax.Array

  def __call__(self, t, s):
    return self.array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _FunctionBias(HasAxes):
  """A function of two index tiles, and the arrays that it closed over."""

  arrays: list[jax.Array]
  program: jax.extend.core.Jaxpr = dataclasses.field(metadata={"static": True})
  lengths: tuple[int, int] = dataclasses.field(metadata={"static": True})

  def __call__(self, t, s):
    # A block may reach beyond the end, where the function may not be defined.
    T, S = self.lengths
    function = jax.extend.core.jaxpr_as_fun(jax.extend.core.ClosedJaxpr(self.program, self.arrays))
    return function(jnp.minimum(t, T - 1), jnp.minimum(s, S - 1))[0]
