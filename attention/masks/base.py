"""The base class of masks, combined masks, and masks from arrays.

Engines evaluate a mask one tile at a time: first whether any or all of its pairs may attend, to skip tiles,
then which pairs may attend.
"""

import dataclasses
import functools
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.checks import as_array
from attention.arrays.named_axes import NamedAxes, leaf_axes, register_pytree
from attention.arrays.shapes import same_rank, with_rank

Array: TypeAlias = jax.Array | np.ndarray


class BlockSummary(NamedTuple):
  """Whether a tile is empty, partial or full, booleans [...].

  Attributes:
    any: whether any pair may be allowed. If False, the tile is empty.
    all: whether all pairs are allowed. If True, the tile is full.
  """

  any: jax.Array
  all: jax.Array


class Mask(NamedAxes):
  """A mask of pairs of queries and keys. Subclasses define `mask_mod`.

  Subclasses that hold arrays name their axes in `axes`: arrays with an axis "T" or "S" are cut to the tile
  before `mask_mod` and `block_summary` are called.
  """

  __array_ufunc__ = None  # lets `array & mask` reach __rand__

  def mask_mod(self, t: jax.Array, s: jax.Array) -> jax.Array:
    """Returns which queries of a tile may attend to which keys.

    Args:
      t: query positions [T 1], consecutive integers; the last tile repeats the last position.
      s: key positions [1 S], like t.

    Returns:
      Booleans broadcastable to [... T S].
    """
    raise NotImplementedError(f"{type(self).__name__} must define mask_mod(t, s)")

  def block_summary(self, t: jax.Array, s: jax.Array) -> BlockSummary:
    """Returns whether a tile is empty or full. The default, neither, is always valid."""
    return BlockSummary(jnp.ones((), bool), jnp.zeros((), bool))

  def band(self) -> tuple[int | None, int | None]:
    """Returns how far (before, after) its position a query may attend; None if unbounded.

    Inside `jax.jit`, only static fields have known bounds.
    """
    return None, None

  def materialize(self, T: int, S: int) -> jax.Array:
    """Returns the whole mask for T queries and S keys, booleans [... T S].

    Raises:
      ValueError: if an array of the mask does not broadcast to T queries and S keys.

    >>> from attention import masks
    >>> masks.causal().materialize(2, 3).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0]]
    """
    sizes = {"T": T, "S": S}
    for (path, leaf), letters in zip(jax.tree_util.tree_leaves_with_path(self), leaf_axes(self), strict=True):
      shape = np.shape(leaf)[np.ndim(leaf) - len(letters) :]
      if any(size not in (1, sizes.get(letter, size)) for letter, size in zip(letters, shape, strict=True)):
        raise ValueError(
          f"mask must be broadcastable to [... T S] with T={T}, S={S}, got "
          f"{self._describe_field(path)} of shape {np.shape(leaf)}"
        )
    tile = tile_of(self, jnp.arange(T)[:, None], jnp.arange(S)[None, :])
    return jnp.broadcast_to(tile, (*tile.shape[:-2], T, S))

  def _describe_field(self, path: tuple[Any, ...]) -> str:
    """Returns the name of an array of the mask, with the class that holds it, for errors."""
    inner = getattr(self, getattr(path[0], "name", ""), None)
    if isinstance(inner, Mask):
      return inner._describe_field(path[1:])
    return f"{type(self).__name__}{jax.tree_util.keystr(path)}"

  def __bool__(self) -> bool:
    raise ValueError("masks must be combined with &, | and ~, not with `and`, `or` and `not`")

  def __and__(self, other: "Mask | Array") -> "Mask":
    return And(self, as_mask(other))

  def __or__(self, other: "Mask | Array") -> "Mask":
    return ~(~self & ~as_mask(other))

  def __rand__(self, other: Array) -> "Mask":
    return as_mask(other) & self

  def __ror__(self, other: Array) -> "Mask":
    return as_mask(other) | self

  def __invert__(self) -> "Mask":
    return Not(self)


@register_pytree
@dataclasses.dataclass(frozen=True)
class FromArray(Mask):
  """See `from_array`."""

  axes = {"values": "TS"}
  values: Array

  def mask_mod(self, t, s):
    return jnp.asarray(self.values)

  def block_summary(self, t, s):
    values = jnp.asarray(self.values)
    return BlockSummary(jnp.any(values, axis=(-2, -1)), jnp.all(values, axis=(-2, -1)))


@register_pytree
@dataclasses.dataclass(frozen=True)
class And(Mask):
  """Pairs that both masks allow."""

  first: Mask
  second: Mask

  def mask_mod(self, t, s):
    return all_of(tile_of(self.first, t, s), tile_of(self.second, t, s))

  def block_summary(self, t, s):
    first, second = self.first.block_summary(t, s), self.second.block_summary(t, s)
    return BlockSummary(any=all_of(first.any, second.any), all=all_of(first.all, second.all))

  def band(self):
    bounds = zip(self.first.band(), self.second.band(), strict=True)
    before, after = (min((bound for bound in pair if bound is not None), default=None) for pair in bounds)
    return before, after


@register_pytree
@dataclasses.dataclass(frozen=True)
class Not(Mask):
  """Pairs that the mask does not allow."""

  mask: Mask

  def mask_mod(self, t, s):
    return ~tile_of(self.mask, t, s)

  def block_summary(self, t, s):
    any_allowed, all_allowed = self.mask.block_summary(t, s)
    return BlockSummary(any=~all_allowed, all=~any_allowed)


def from_array(array: Array) -> Mask:
  """Returns a mask from a boolean array.

  Args:
    array: booleans broadcastable to [... T S]. True means "may attend".

  Raises:
    ValueError: if the array is not boolean.
  """
  array = as_array("mask", array, "a mask such as causal(), or a boolean array")
  if array.dtype != jnp.bool_:
    raise ValueError(
      f"mask must be boolean (True = may attend), got {array.dtype}; for 0 and 1, as in Flax, use "
      "`mask > 0`; for terms added to the scores use `bias`"
    )
  return FromArray(with_rank(array, max(array.ndim, 2)))


def as_mask(mask: Mask | Array) -> Mask:
  """Returns a mask unchanged, and an array as `from_array(array)`."""
  if isinstance(mask, Mask):
    return mask
  if callable(mask):
    raise ValueError(
      "mask must be a mask such as causal(), or a boolean array, "
      f"got {mask!r}; for a function of positions, use from_function(function)"
    )
  return from_array(mask)


def tile_of(mask: Mask, t: jax.Array, s: jax.Array) -> jax.Array:
  """Returns the tile of a mask, or raises ValueError unless it is boolean."""
  tile = jnp.asarray(mask.mask_mod(t, s))
  if tile.dtype != jnp.bool_:
    raise ValueError(f"{type(mask).__name__}.mask_mod must return booleans, got {tile.dtype}")
  return tile


def all_of(*arrays: jax.Array) -> jax.Array:
  """Returns the logical and of boolean arrays that broadcast."""
  return functools.reduce(jnp.logical_and, aligned(*arrays))


def aligned(*arrays: jax.Array) -> list[jax.Array]:
  """Returns the arrays with the same rank, or raises ValueError unless they broadcast."""
  shapes = [array.shape for array in arrays]
  try:
    jnp.broadcast_shapes(*shapes)
  except ValueError:
    got = ", ".join(map(str, shapes))
    raise ValueError(f"combined masks must broadcast, got shapes {got}") from None
  return same_rank(*arrays)
