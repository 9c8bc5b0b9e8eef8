"""What a mask is, and the rules that masks are made of.

A rule is asked for one tile of pairs at a time: which of its pairs may attend, and before that whether any or
all of them may, so that whole tiles are skipped.
"""

import dataclasses
from typing import NamedTuple, TypeAlias, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.axes import HasAxes
from attention.arrays.broadcasting import as_array, broadcasts_to, same_rank, with_rank
from attention.arrays.pytrees import register_pytree

Array: TypeAlias = jax.Array | np.ndarray


class BlockMask(NamedTuple):
  """Whether a tile is empty, partial or full, known without looking at its pairs, booleans [...].

  Attributes:
    some: whether a pair may be allowed. False only if none is.
    every: whether all pairs are allowed. True only if they are.
  """

  some: jax.Array
  every: jax.Array


class Band(NamedTuple):
  """The diagonal band that a mask allows nothing outside of: -before <= s - t <= after; None for no bound."""

  before: int | None = None
  after: int | None = None

  @property
  def width(self) -> int | None:
    """How many keys are in the band of a query; None if that is unknown."""
    return None if self.before is None or self.after is None else self.before + self.after + 1


class Mask(HasAxes):
  """A rule that says which pairs of query and key may attend. Subclasses define `tile`.

  Those that hold something of a given number of positions define `check` too, and name the axes of their
  arrays in `axes`: what has an axis "T" or "S" is cut to the tile before `tile` and `block_mask` are called.
  """

  __array_ufunc__ = None  # lets `array & mask` reach __rand__

  def tile(self, t: jax.Array, s: jax.Array) -> jax.Array:
    """Returns whether each query of a tile may attend to each key.

    Args:
      t: query positions, consecutive integers [T 1]; the last tile repeats the last position.
      s: key positions, likewise, [1 S].

    Returns:
      Booleans that broadcast to [... T S].
    """
    raise NotImplementedError(f"{type(self).__name__} must define tile(t, s)")

  def block_mask(self, t: jax.Array, s: jax.Array) -> BlockMask:
    """Returns what is known of a whole tile; to know nothing, as here, is always right."""
    return BlockMask(jnp.ones((), bool), jnp.zeros((), bool))

  def band(self) -> Band:
    """Returns how far from its position a query may attend at most, as far as static fields say.

    Inside `jax.jit`, where other fields are traced, nothing follows from them.
    """
    return Band()

  def check(self, T: int, S: int) -> None:
    """Raises ValueError unless the mask is one for T queries and S keys."""

  def array(self, T: int, S: int) -> jax.Array:
    """Returns the whole mask for T queries and S keys, booleans [... T S].

    Raises:
      ValueError: if the mask is not one for T queries and S keys.

    >>> Causal(0).array(2, 3).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0]]
    """
    self.check(T, S)
    tile = _tile(self, jnp.arange(T)[:, None], jnp.arange(S)[None, :])
    return jnp.broadcast_to(tile, (*tile.shape[:-2], T, S))

  def __bool__(self) -> bool:
    raise ValueError("masks are joined by &, | and ~; `and`, `or` and `not` would lose one of them")

  def __and__(self, other: "Mask | Array") -> "Mask":
    return Both(self, as_mask(other))

  def __or__(self, other: "Mask | Array") -> "Mask":
    return Either(self, as_mask(other))

  def __rand__(self, other: Array) -> "Mask":
    return as_mask(other) & self

  def __ror__(self, other: Array) -> "Mask":
    return as_mask(other) | self

  def __invert__(self) -> "Mask":
    return Not(self)


@dataclass_transform(frozen_default=True)
def _pytree(cls):
  """Makes a mask a frozen dataclass whose fields are pytree leaves, unless they are marked as static."""
  return register_pytree(dataclasses.dataclass(frozen=True)(cls))


class _OfBounds(Mask):
  """A mask whose known bounds are no leaves: what is a leaf has no number inside `jax.jit`, and no `band`."""

  @staticmethod
  def is_known(bound: int | Array) -> bool:
    """Whether a bound is known inside `jax.jit`; another number is another program then."""
    return isinstance(bound, int)

  def tree_flatten_with_keys(self):
    bounds = vars(self)
    known = tuple((name, bound) for name, bound in bounds.items() if self.is_known(bound))
    names = tuple(name for name in bounds if name not in dict(known))
    return [(jax.tree_util.GetAttrKey(name), bounds[name]) for name in names], (names, known)

  @classmethod
  def tree_unflatten(cls, known, leaves):
    names, numbers = known
    return cls(**dict(zip(names, leaves, strict=True)), **dict(numbers))


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class Causal(_OfBounds):
  """See `causal`."""

  axes = {"offset": ""}
  offset: int | Array

  @staticmethod
  def is_known(bound):
    return isinstance(bound, int) and bound == 0  # others grow with a cache: no program for each

  def tile(self, t, s):
    distance, offset = _same_rank(s - t, _per_pair(self.offset))
    return distance <= offset  # not s <= t + offset, which may overflow

  def block_mask(self, t, s):
    nearest, farthest = _distances(t, s)
    return BlockMask(nearest <= self.offset, farthest <= self.offset)

  def band(self):
    return Band(after=_known(self.offset))


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class SlidingWindow(_OfBounds):
  """See `sliding_window`."""

  axes = {"before": "", "after": ""}
  before: int | Array
  after: int | Array

  def tile(self, t, s):
    before, after = _per_pair(self.before), _per_pair(self.after)
    distance, before, after = _same_rank(s - t, before, after)
    return (-distance <= before) & (distance <= after)  # the bounds are not negated: that may overflow

  def block_mask(self, t, s):
    nearest, farthest = _distances(t, s)
    before, after = jnp.asarray(self.before), jnp.asarray(self.after)
    return BlockMask((-farthest <= before) & (nearest <= after), (-nearest <= before) & (farthest <= after))

  def band(self):
    return Band(_known(self.before), _known(self.after))


@_pytree
class Lengths(Mask):
  """See `lengths` and `prefix`."""

  axes = {"source": "", "target": ""}
  source: int | Array | None
  target: int | Array | None

  def tile(self, t, s):
    allowed = jnp.ones((1, 1), bool)
    if self.source is not None:
      allowed, s, source = _same_rank(allowed, s, _per_pair(self.source))
      allowed &= s < source
    if self.target is not None:
      allowed, t, target = _same_rank(allowed, t, _per_pair(self.target))
      allowed &= t < target
    return allowed

  def block_mask(self, t, s):
    some = every = jnp.ones((), bool)
    for positions, length in ((s[0], self.source), (t[:, 0], self.target)):
      if length is not None:
        some, here = _same_rank(some, positions[0] < jnp.asarray(length))
        every, throughout = _same_rank(every, positions[-1] < jnp.asarray(length))
        some, every = some & here, every & throughout
    return BlockMask(some, every)


@_pytree
class Segments(Mask):
  """See `segments`."""

  axes = {"target": "T", "source": "S"}
  target: Array
  source: Array

  def tile(self, t, s):
    target, source = _same_rank(
      jnp.asarray(self.target)[..., :, None], jnp.asarray(self.source)[..., None, :]
    )
    return target == source

  def block_mask(self, t, s):
    ends = [
      end(jnp.asarray(ids), axis=-1) for ids in (self.target, self.source) for end in (jnp.min, jnp.max)
    ]
    first_target, last_target, first_source, last_source = _same_rank(*ends)
    return BlockMask(
      (first_target <= last_source) & (first_source <= last_target),
      (first_target == last_source) & (first_source == last_target),
    )

  def check(self, T, S):
    for name, ids, size in (("target", self.target, T), ("source", self.source, S)):
      if jnp.shape(ids)[-1] != size:
        raise ValueError(f"segments' {name} must have {size} positions, got shape {jnp.shape(ids)}")


@_pytree
class FromArray(Mask):
  """See `from_array`."""

  axes = {"values": "TS"}
  values: Array

  def tile(self, t, s):
    return jnp.asarray(self.values)

  def block_mask(self, t, s):
    values = jnp.asarray(self.values)
    return BlockMask(jnp.any(values, axis=(-2, -1)), jnp.all(values, axis=(-2, -1)))

  def check(self, T, S):
    shape = jnp.shape(self.values)
    if not broadcasts_to(shape[-2:], (T, S)):
      raise ValueError(f"mask must be broadcastable to [... T S] with T={T}, S={S}, got shape {shape}")


@_pytree
class Both(Mask):
  """The pairs that both masks allow."""

  first: Mask
  second: Mask

  def tile(self, t, s):
    first, second = _same_rank(_tile(self.first, t, s), _tile(self.second, t, s))
    return first & second

  def block_mask(self, t, s):
    first, second = self.first.block_mask(t, s), self.second.block_mask(t, s)
    return BlockMask(*(jnp.logical_and(*_same_rank(*pair)) for pair in zip(first, second, strict=True)))

  def band(self):
    bounds = zip(self.first.band(), self.second.band(), strict=True)
    return Band(*(min((bound for bound in pair if bound is not None), default=None) for pair in bounds))

  def check(self, T, S):
    self.first.check(T, S)
    self.second.check(T, S)


@_pytree
class Either(Mask):
  """The pairs that at least one of the masks allows."""

  first: Mask
  second: Mask

  def tile(self, t, s):
    first, second = _same_rank(_tile(self.first, t, s), _tile(self.second, t, s))
    return first | second

  def block_mask(self, t, s):
    first, second = self.first.block_mask(t, s), self.second.block_mask(t, s)
    return BlockMask(*(jnp.logical_or(*_same_rank(*pair)) for pair in zip(first, second, strict=True)))

  def band(self):
    bounds = zip(self.first.band(), self.second.band(), strict=True)
    return Band(*(None if one is None or two is None else max(one, two) for one, two in bounds))

  def check(self, T, S):
    self.first.check(T, S)
    self.second.check(T, S)


@_pytree
class Not(Mask):
  """The pairs that the mask does not allow."""

  mask: Mask

  def tile(self, t, s):
    return ~_tile(self.mask, t, s)

  def block_mask(self, t, s):
    some, every = self.mask.block_mask(t, s)
    return BlockMask(~every, ~some)

  def check(self, T, S):
    self.mask.check(T, S)


def from_array(array: Array) -> Mask:
  """A mask given in full.

  Args:
    array: booleans that broadcast to [... T S], True = may attend.

  Raises:
    ValueError: if the array is not boolean.
  """
  array = as_array("mask", array, "a mask such as causal(), or a boolean array")
  if array.dtype != jnp.bool_:
    raise ValueError(
      f"mask must be boolean, True = may attend, got {array.dtype}; additive terms are the `bias` argument"
    )
  return FromArray(with_rank(array, max(array.ndim, 2)))


def as_mask(mask: Mask | Array) -> Mask:
  """Returns a mask as it is and an array as `from_array` of it."""
  if isinstance(mask, Mask):
    return mask
  if callable(mask):
    raise ValueError(
      "mask must be a mask such as causal(), or a boolean array, "
      f"got {mask!r}; a function of positions is from_function(function)"
    )
  return from_array(mask)


def _known(bound: int | Array) -> int | None:
  """Returns a bound that is a plain number, None for an array."""
  return bound if isinstance(bound, int) else None


def _tile(mask: Mask, t: jax.Array, s: jax.Array) -> jax.Array:
  """Returns a mask's tile, or raises ValueError unless it is boolean."""
  tile = jnp.asarray(mask.tile(t, s))
  if tile.dtype != jnp.bool_:
    raise ValueError(f"{type(mask).__name__}.tile must return booleans, got {tile.dtype}")
  return tile


def _distances(t: jax.Array, s: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns the smallest and the largest s - t of a tile."""
  return s[0, 0] - t[-1, 0], s[0, -1] - t[0, 0]


def _per_pair(value) -> jax.Array:
  """Gives an array [...] the two axes [... 1 1] of a tile."""
  return jnp.asarray(value)[..., None, None]


def _same_rank(*arrays: jax.Array) -> list[jax.Array]:
  """Returns the arrays with one rank, or raises ValueError unless they broadcast."""
  shapes = [array.shape for array in arrays]
  try:
    jnp.broadcast_shapes(*shapes)
  except ValueError:
    got = ", ".join(map(str, shapes))
    raise ValueError(f"masks that are joined must broadcast, got shapes {got}") from None
  return same_rank(*arrays)
