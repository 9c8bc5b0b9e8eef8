"""Masks by positions: causal, sliding windows, padding, packed sequences."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.checks import as_integers, check_rank
from attention.arrays.pytrees import register_pytree
from attention.masks.base import Array, BlockSummary, Mask, aligned, all_of


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class Band(Mask):
  """See `causal` and `sliding_window`: -before <= s - t <= after; None for no bound.

  Bounds that are Python integers are static: known inside `jax.jit`. Arrays are leaves.
  """

  axes = {"before": "", "after": ""}
  before: int | Array | None
  after: int | Array | None

  def mask_mod(self, t, s):
    # The bounds are neither negated nor added to positions: that may overflow.
    return _all_within(jnp.less_equal, (t - s, self.before), (s - t, self.after))

  def block_summary(self, t, s):
    nearest, farthest = s[0, 0] - t[-1, 0], s[0, -1] - t[0, 0]  # the smallest and the largest s - t
    return _block_within(jnp.less_equal, (-farthest, -nearest, self.before), (nearest, farthest, self.after))

  def band(self):
    return tuple(bound if isinstance(bound, int) else None for bound in (self.before, self.after))

  def tree_flatten_with_keys(self):
    static = {name: bound for name, bound in vars(self).items() if bound is None or isinstance(bound, int)}
    leaves = {name: bound for name, bound in vars(self).items() if name not in static}
    keys = [(jax.tree_util.GetAttrKey(name), leaf) for name, leaf in leaves.items()]
    return keys, (tuple(leaves), tuple(static.items()))

  @classmethod
  def tree_unflatten(cls, known, leaves):
    names, static = known
    return cls(**dict(zip(names, leaves, strict=True)), **dict(static))


def causal(offset: int | Array = 0) -> Mask:
  """Each query may attend to its own position and those before: s <= t + offset.

  Args:
    offset: how many further keys come before the first query, an integer or integers [...]. With a
      cache of S - T earlier keys, offset = S - T.

  Raises:
    ValueError: if the offset is not of an integer type.
  """
  # Offsets other than 0 grow with a cache: as arrays they need no program each.
  offset = _bound("offset", offset)
  return Band(None, 0 if isinstance(offset, int) and offset == 0 else jnp.asarray(offset))


def sliding_window(before: int | Array, after: int | Array) -> Mask:
  """Each query may attend to its neighbours: t - before <= s <= t + after.

  Args:
    before: how far back, an integer or integers [...]. Python integers are static for `jax.jit`: others are
      another program. Where both are, "blockwise" does not visit the keys beyond: attention costs T times the
      window, not T times S, if the window is less than a quarter of S and of 14,000 keys, and no small blocks
      are asked for; also joined to other masks by `&`, but not by `|`. Otherwise only a CPU skips tiles that
      are empty, as with any mask.
    after: how far ahead, likewise.

  Raises:
    ValueError: if a bound is not of an integer type.

  >>> sliding_window(1, 0).materialize(3, 3).astype(int).tolist()
  [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
  """
  return Band(_bound("before", before), _bound("after", after))


@register_pytree
@dataclasses.dataclass(frozen=True)
class Lengths(Mask):
  """See `lengths` and `prefix`: s < source and t < target; None for no limit."""

  axes = {"source": "", "target": ""}
  source: int | Array | None
  target: int | Array | None

  def mask_mod(self, t, s):
    return _all_within(jnp.less, (s, self.source), (t, self.target))

  def block_summary(self, t, s):
    return _block_within(jnp.less, (s[0, 0], s[0, -1], self.source), (t[0, 0], t[-1, 0], self.target))


def prefix(length: int | Array) -> Mask:
  """Every query may attend to the first keys: s < length.

  `causal() | prefix(length)` is the mask of a prefix language model (Raffel et al. 2020,
  arXiv:1910.10683, section 3.2.1).

  Args:
    length: an integer, or integers [...].

  Raises:
    ValueError: if the length is not of an integer type.
  """
  return Lengths(source=_bound("length", length), target=None)


def lengths(*, source: int | Array | None = None, target: int | Array | None = None) -> Mask:
  """Leaves out padding: s < source and t < target.

  For scores with heads, [B N T S], pass lengths [B 1], `lengths[:, None]`: leading axes count from the right.

  Args:
    source: the number of real keys, an integer or integers [...]; None for no limit.
    target: the number of real queries, likewise. A query beyond it is an empty row.

  Raises:
    ValueError: if neither is given, or one is not of an integer type.

  >>> lengths(source=jnp.array([1, 2])).materialize(1, 3).astype(int).tolist()
  [[[1, 0, 0]], [[1, 1, 0]]]
  """
  if source is None and target is None:
    raise ValueError("lengths needs source=, target=, or both, got neither")
  return Lengths(
    source=None if source is None else _bound("source", source),
    target=None if target is None else _bound("target", target),
  )


@register_pytree
@dataclasses.dataclass(frozen=True)
class Segments(Mask):
  """See `segments`."""

  axes = {"target": "T", "source": "S"}
  target: Array
  source: Array

  def mask_mod(self, t, s):
    target, source = jnp.asarray(self.target), jnp.asarray(self.source)
    return jnp.equal(*aligned(target[..., :, None], source[..., None, :]))

  def block_summary(self, t, s):
    ids = jnp.asarray(self.target), jnp.asarray(self.source)
    first_target, last_target, first_source, last_source = aligned(
      *(end(array, axis=-1) for array in ids for end in (jnp.min, jnp.max))
    )
    return BlockSummary(
      (first_target <= last_source) & (first_source <= last_target),
      (first_target == last_source) & (first_source == last_target),
    )


def segments(target: Array, source: Array) -> Mask:
  """Each query may attend to the keys of its own segment (several sequences packed in one row).

  Joined by `&` with `causal()` or `sliding_window(before, after)`, each segment has that mask. A prefix of
  each segment is found by the positions within segments. In this packed prefix language model the first
  document has a prefix of two tokens, the second of one:

  >>> from attention import positions
  >>> documents, prefixes = jnp.array([0, 0, 0, 1, 1]), jnp.array([2, 1])
  >>> in_prefix = positions.segment_positions(documents) < prefixes[documents]
  >>> mask = segments(documents, documents) & (causal() | in_prefix)
  >>> mask.materialize(5, 5).astype(int).tolist()
  [[1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]]

  Here `in_prefix` is an array of keys, [S]. With a batch and heads, [B N T S], `documents` [B S] become
  `documents[:, None]` and `in_prefix` [B S] becomes `in_prefix[:, None, None]`.

  Args:
    target: segment of each query, integers [... T].
    source: segment of each key, integers [... S].

  Raises:
    ValueError: if an argument is not of an integer type, or has no axis.

  >>> segments(jnp.array([0, 1]), jnp.array([0, 0, 1])).materialize(2, 3).astype(int).tolist()
  [[1, 1, 0], [0, 0, 1]]
  """
  target, source = as_integers("target", target), as_integers("source", source)
  check_rank("target", target, "[... T]")
  check_rank("source", source, "[... S]")
  return Segments(target, source)


def _all_within(compare: Callable[..., jax.Array], *bounded: tuple[jax.Array, Any]) -> jax.Array:
  """Returns where compare(number, bound) holds for every bound [...]. A bound of None is skipped."""
  arrays = [
    compare(*aligned(numbers, jnp.asarray(bound)[..., None, None]))
    for numbers, bound in bounded
    if bound is not None
  ]
  return all_of(jnp.ones((1, 1), bool), *arrays)


def _block_within(
  compare: Callable[..., jax.Array], *bounded: tuple[jax.Array, jax.Array, Any]
) -> BlockSummary:
  """Returns the block mask of conditions, each with its lowest number, its highest number, and its bound."""
  known = [(low, high, jnp.asarray(bound)) for low, high, bound in bounded if bound is not None]
  true = jnp.ones((), bool)
  return BlockSummary(
    any=all_of(true, *(compare(low, bound) for low, _, bound in known)),
    all=all_of(true, *(compare(high, bound) for _, high, bound in known)),
  )


def _bound(name: str, value: int | Array) -> int | Array:
  """Returns a bound of positions, or raises ValueError unless it is of an integer type that JAX can hold."""
  bound = as_integers(name, value)
  if isinstance(value, (int, np.integer)):
    return int(value)  # a plain number is known to `jax.jit`
  # Differences of unsigned or short integers would wrap around.
  if jnp.issubdtype(bound.dtype, jnp.unsignedinteger):
    bound = jnp.minimum(bound, jnp.iinfo(jnp.int32).max)
  return bound if bound.dtype in (jnp.int32, jnp.int64) else bound.astype(jnp.int32)
