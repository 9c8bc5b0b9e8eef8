"""The base class of masks, combined masks, and masks from arrays.

Engines evaluate a mask one tile at a time, and skip tiles in which no pair may attend.
"""

import dataclasses
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.checks import as_array
from attention.arrays.leading_axes import all_indices, map_leading_axes, select_index
from attention.arrays.named_axes import NamedAxes, first_index, has_user_code, leaf_axes, register_pytree
from attention.arrays.shapes import same_rank, with_rank
from attention.masks.picture import known_sizes, picture

Array: TypeAlias = jax.Array | np.ndarray


class BlockSummary(NamedTuple):
  """Whether tiles are empty, partial or full.

  Attributes:
    any: whether any pair may be allowed. If False, the tile is empty, and blockwise attention skips it.
    all: whether all pairs are allowed; `~mask` uses it.
  """

  any: Any
  all: Any = False


class Mask(NamedAxes):
  """A mask of pairs of queries and keys. Subclasses define `mask_mod`, and may define `block_summary`.

  Subclasses that hold arrays name their axes in `axes`. The methods see the arrays at one index of the
  leading axes, such as one head of one sequence; `mask_mod` sees those of a tile along "T" and "S".
  """

  __array_ufunc__ = None  # lets `array & mask` reach __rand__

  def mask_mod(self, t: jax.Array, s: jax.Array) -> jax.Array:
    """Returns which queries of a tile may attend to which keys.

    Args:
      t: query positions [T 1], consecutive integers; the last tile repeats the last position.
      s: key positions [1 S], like t.

    Returns:
      Booleans broadcastable to [T S].
    """
    raise NotImplementedError(f"{type(self).__name__} must define mask_mod(t, s)")

  def block_summary(self, t: tuple[Any, Any], s: tuple[Any, Any]) -> BlockSummary:
    """Returns which tiles are empty or full. The default, neither, is always valid.

    It is called for all tiles at once, I blocks of queries and J blocks of keys, with NumPy arrays, or for
    one tile (I = J = 1) inside `jax.jit`, so it must be elementwise in the positions.

    Args:
      t: the first and the last query position of each tile, integers [I 1] each.
      s: the first and the last key position, integers [1 J] each.

    Array fields with an axis "T" are [I 1 T], those with an axis "S" [1 J S], and those with both [I J T S],
    where T and S are the sizes of a tile.

    Returns:
      Booleans broadcastable to [I J].
    """
    return BlockSummary(any=True)

  def tile(self, t: jax.Array, s: jax.Array) -> jax.Array:
    """Returns `mask_mod(t, s)`, or raises ValueError unless it is boolean."""
    tile = jnp.asarray(self.mask_mod(t, s))
    if tile.dtype != jnp.bool_:
      raise ValueError(f"{type(self).__name__}.mask_mod must return booleans, got {tile.dtype}")
    return tile

  def materialize(self, T: int, S: int) -> jax.Array:
    """Returns the whole mask for T queries and S keys, booleans [... T S].

    Raises:
      ValueError: if an array of the mask does not broadcast to T queries and S keys.

    >>> from attention import masks
    >>> masks.causal().materialize(2, 3).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0]]
    """
    *leading, _, _ = self.full_shape(T, S)
    mask = MaskAtIndex(self, all_indices(tuple(leading))) if leading else self
    leaves, structure = jax.tree.flatten(mask)

    def at_index(leaves: list[jax.Array]) -> jax.Array:
      mask = jax.tree.unflatten(structure, leaves)
      return jnp.broadcast_to(mask.tile(jnp.arange(T)[:, None], jnp.arange(S)[None, :]), (T, S))

    arrays = ([jnp.asarray(leaf) for leaf in leaves],)
    return map_leading_axes(at_index, arrays, (leaf_axes(mask),), tuple(leading))

  def to_string(self, T: int, S: int, block_sizes: tuple[int, int] = (512, 512)) -> str:
    """Returns a picture of the mask, with the shares of allowed pairs and of computed tiles.

    Pictures have at most 32 rows and columns: for longer sequences, a cell is a block of pairs. They show the
    first index of the leading axes. Memory is about T times S bytes.

    On CPUs, "blockwise" skips tiles that `block_summary` reports empty. The others are counted as computed.
    For narrow windows of keys (see `sliding_window`), it computes less.

    `print(mask)` shows the picture for the T and S of the mask's arrays. If arrays have only one of these
    axes, T and S are equal; if none has, both are 16. Traced masks, masks that raise an error, and masks of
    more than 2^28 pairs are shown as `repr(mask)`.

    Args:
      T: number of queries.
      S: number of keys.
      block_sizes: maximum tile size. The default is that of "blockwise" on CPUs.

    Raises:
      ValueError: if an array of the mask does not broadcast to T queries and S keys.

    >>> from attention import masks
    >>> print(masks.causal().to_string(3, 4))
    T=3 queries (rows), S=4 keys (columns)
    6 of 12 pairs allowed (50.0%)
    1 of 1 tiles computed (100.0%)
    ██· · ·
    ████· ·
    ██████·
    """
    return picture(self, T, S, block_sizes)

  def __str__(self) -> str:
    try:
      T, S = known_sizes(self)
      return self.to_string(T, S) if T * S <= 2**28 else repr(self)
    except Exception:  # traced masks have no values, and user-defined ones may raise anything
      return repr(self)

  def full_shape(self, T: int, S: int) -> tuple[int, ...]:
    """Returns the shape [... T S] of the mask for T queries and S keys.

    Raises:
      ValueError: if an array of the mask does not broadcast to T queries and S keys.
    """
    sizes, shapes = {"T": T, "S": S}, []
    for (path, leaf), letters in zip(jax.tree_util.tree_leaves_with_path(self), leaf_axes(self), strict=True):
      rank = np.ndim(leaf) - len(letters)
      leading, trailing = np.shape(leaf)[:rank], np.shape(leaf)[rank:]
      if any(
        size not in (1, sizes.get(letter, size)) for letter, size in zip(letters, trailing, strict=True)
      ):
        raise ValueError(
          f"mask must be broadcastable to [... T S] with T={T}, S={S}, got "
          f"{self._describe_field(path)} of shape {np.shape(leaf)}"
        )
      shapes.append(leading)
    if has_user_code(self):
      shapes.append(jax.eval_shape(lambda: one_pair_of(self)).shape[:-2])
    try:
      return (*jnp.broadcast_shapes(*shapes), T, S)
    except ValueError:
      got = ", ".join(str((*leading, T, S)) for leading in shapes)
      raise ValueError(f"combined masks must broadcast, got shapes {got}") from None

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
    return BlockSummary(self.values.any((-2, -1)), self.values.all((-2, -1)))


@register_pytree
@dataclasses.dataclass(frozen=True)
class MaskAtIndex(Mask):
  """A mask function that returns leading axes, at one index of them."""

  axes = {"index": ""}
  mask: Mask
  index: tuple[jax.Array, ...]

  def mask_mod(self, t, s):
    return select_index(self.mask.tile(t, s), self.index)

  def block_summary(self, t, s):
    return self.mask.block_summary(t, s)


@register_pytree
@dataclasses.dataclass(frozen=True)
class And(Mask):
  """Pairs that both masks allow."""

  first: Mask
  second: Mask

  def mask_mod(self, t, s):
    return jnp.logical_and(*same_rank(self.first.tile(t, s), self.second.tile(t, s)))

  def block_summary(self, t, s):
    first, second = self.first.block_summary(t, s), self.second.block_summary(t, s)
    return BlockSummary(any=first.any & second.any, all=first.all & second.all)


@register_pytree
@dataclasses.dataclass(frozen=True)
class Not(Mask):
  """Pairs that the mask does not allow."""

  mask: Mask

  def mask_mod(self, t, s):
    return ~self.mask.tile(t, s)

  def block_summary(self, t, s):
    any_allowed, all_allowed = self.mask.block_summary(t, s)
    return BlockSummary(any=all_allowed ^ True, all=any_allowed ^ True)  # ~True is -2


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


def one_pair_of(rule: Any) -> jax.Array:
  """Returns the tile [... 1 1] of a mask or bias of the first query and key, at the first leading index."""
  position, rule = jnp.zeros((1, 1), int), first_index(rule, of_pair=True)
  return jnp.asarray(rule.tile(position, position) if isinstance(rule, Mask) else rule(position, position))
