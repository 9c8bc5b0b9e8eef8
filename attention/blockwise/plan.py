"""What is known of an attention before its numbers are: what it is made of, and how it is cut."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention.dense import Bias
from attention.masks import Band, Mask, from_array
from attention.shapes import HasAxes, axes_of, matmul_precision, names_its_axes, with_rank
from attention.tiles import Arrays, Blocks, Windows, even_blocks

# As many pairs make products large enough to run at full speed.
PAIRS_AT_ONCE = 2**19


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

  def can_be_cut(self) -> bool:
    """Whether everything that may have leading axes names its own."""
    if isinstance(self.bias, _FunctionBias):
      return not self.bias.has_leading_axes and self._replace(bias=None).can_be_cut()
    return all(map(names_its_axes, (self.score, self.mask, self.bias)))


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
    kept: how many of the last leading axes a tile has too, because an array cannot be cut along them.
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
  kept: int = 0

  def of(self, operands: Operands) -> tuple["Plan", Arrays]:
    """Returns the plan for these operands, and their arrays with all leading axes."""
    arrays, structure = jax.tree.flatten(operands)
    axes = tuple(operands.axes())
    arrays = [jnp.asarray(array) for array in arrays]
    arrays = [
      array if own is None else with_rank(array, len(self.leading) + len(own))
      for array, own in zip(arrays, axes, strict=True)
    ]
    kept = 0 if operands.can_be_cut() else len(self.leading)
    return dataclasses.replace(self, structure=structure, axes=axes, kept=kept), arrays

  def operands(self, arrays: Arrays) -> Operands:
    """Returns the operands that begin a list of arrays."""
    return jax.tree.unflatten(self.structure, arrays[: len(self.axes)])

  @property
  def at_once(self) -> int:
    """At how many indices of the leading axes it is good to work together."""
    return max(1, PAIRS_AT_ONCE // math.prod((*self.tile_leading, self.queries.size, self.keys.size)))

  @property
  def tile_leading(self) -> tuple[int, ...]:
    """The leading axes of a tile."""
    return self.leading[len(self.leading) - self.kept :]


def plan_for(
  pairs: tuple[int, ...],
  mask: Mask | None,
  block_sizes: tuple[int, int] | None,
  ring: str | None,
  dropout_rate: float,
) -> Plan:
  """Returns the plan for scores of shape [... T S], as yet without operands."""
  *leading, T, S = pairs
  band = Band(None, None) if mask is None or ring is not None else mask.band()
  largest = default_block_sizes(mask is not None, band) if block_sizes is None else block_sizes
  queries = even_blocks(T, largest[0])
  windows = _windows(queries, S, band)
  keys = even_blocks(S if windows is None else windows.size, largest[1])
  return Plan(tuple(leading), queries, windows, keys, ring, dropout_rate, matmul_precision())


def default_block_sizes(has_mask: bool, band: Band) -> tuple[int, int]:
  """Returns how many queries and keys a tile should have at the most."""
  # Measured on a CPU: large products run at full speed, tiles of 8 MiB stay in its last cache.
  if band.width is not None:
    # A block of queries meets its own keys and those of the band around them: in small blocks few of these
    # are beyond the band of a query, in large ones few are met by many blocks.
    return min(max(band.width // 2, 128), 512), 4096
  # With a mask, smaller tiles are more often empty or full.
  return (512, 512) if has_mask else (512, 4096)


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
  if not keys.overlap:
    return mask
  # Where an array is cut beyond its end, it is filled up with zeros.
  end = from_array(jnp.ones((1, S), bool))
  return end if mask is None else mask & end


def bias_operand(bias: Bias | None, queries: Blocks, keys: Blocks) -> Any:
  """Returns the bias as a pytree that is a function of two index tiles."""
  if bias is None or isinstance(bias, HasAxes):
    return bias
  if not callable(bias):
    array = jnp.asarray(bias)
    return _ArrayBias(with_rank(array, max(array.ndim, 2)))
  t, s = jnp.arange(queries.size)[:, None], jnp.arange(keys.size)[None, :]
  function, arrays = jax.closure_convert(lambda t, s: jnp.asarray(bias(t, s)), t, s)
  leading = jax.eval_shape(function, t, s, *arrays).shape[:-2]
  return _FunctionBias(arrays, function, any(size > 1 for size in leading))


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
  function: Callable[..., jax.Array] = dataclasses.field(metadata={"static": True})
  has_leading_axes: bool = dataclasses.field(metadata={"static": True})

  def __call__(self, t, s):
    return self.function(t, s, *self.arrays)
