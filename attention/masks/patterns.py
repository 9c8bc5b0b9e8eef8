"""Masks of positions: causal, sliding windows, padding, packed sequences."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.checks import as_integers, check_numbers, check_rank, check_size
from attention.arrays.named_axes import register_pytree
from attention.masks.base import Array, BlockSummary, Mask


@jax.tree_util.register_static
class StaticInt(int):
  """An integer that is part of a tree's structure, so that it is known inside `jax.jit`."""


@register_pytree
@dataclasses.dataclass(frozen=True)
class Band(Mask):
  """-before <= s - t <= after, where None means no bound; see `causal` and `sliding_window`.

  Python integers are static; arrays are leaves.
  """

  axes = {"before": "", "after": ""}
  before: int | Array | None
  after: int | Array | None

  def __post_init__(self):
    for name in ("before", "after"):
      if isinstance(getattr(self, name), int):
        object.__setattr__(self, name, StaticInt(getattr(self, name)))

  def mask_mod(self, t, s):
    # Bounds are neither negated nor added to positions, since either may overflow.
    allowed = jnp.ones((1, 1), bool)
    if self.before is not None:
      allowed &= t - s <= self.before
    if self.after is not None:
      allowed &= s - t <= self.after
    return allowed

  def block_summary(self, t, s):
    nearest, farthest = s[0] - t[1], s[1] - t[0]  # the least and the largest s - t of a tile
    is_any, is_all = True, True
    if self.before is not None:
      is_any, is_all = is_any & (-farthest <= self.before), is_all & (-nearest <= self.before)
    if self.after is not None:
      is_any, is_all = is_any & (nearest <= self.after), is_all & (farthest <= self.after)
    return BlockSummary(is_any, is_all)


def causal(offset: int | Array = 0) -> Mask:
  """Each query may attend to its position and earlier ones: s <= t + offset.

  Args:
    offset: number of keys before the first query, an integer or integers [...]. With a cache of S - T earlier
      keys, offset = S - T.

  Raises:
    ValueError: if the offset is not an integer.
  """
  # An offset other than 0 is an array, so that a growing cache does not recompile for each length.
  offset = _bound("offset", offset)
  return Band(None, 0 if isinstance(offset, int) and offset == 0 else jnp.asarray(offset))


def sliding_window(before: int | Array, after: int | Array) -> Mask:
  """Each query may attend to neighboring keys: t - before <= s <= t + after.

  If both bounds are Python integers, "blockwise" computes only keys near the window, at a cost of T times the
  window. This applies to windows of at most about S / 4 keys. Otherwise, CPUs skip empty tiles, as for any
  mask.

  Args:
    before: number of keys before the query's position, an integer or integers [...]; may be negative, which
      moves the window. Python integers are static under `jax.jit`: a new value compiles again.
    after: number of keys after the query's position, like before.

  Raises:
    ValueError: if a bound is not an integer.

  >>> sliding_window(1, 0).materialize(3, 3).astype(int).tolist()
  [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
  """
  return Band(_bound("before", before), _bound("after", after))


@register_pytree
@dataclasses.dataclass(frozen=True)
class Lengths(Mask):
  """s < source and t < target, where None means no limit; see `lengths` and `prefix`."""

  axes = {"source": "", "target": ""}
  source: int | Array | None
  target: int | Array | None

  def mask_mod(self, t, s):
    allowed = jnp.ones((1, 1), bool)
    if self.source is not None:
      allowed &= s < self.source
    if self.target is not None:
      allowed &= t < self.target
    return allowed

  def block_summary(self, t, s):
    is_any, is_all = True, True
    if self.source is not None:
      is_any, is_all = is_any & (s[0] < self.source), is_all & (s[1] < self.source)
    if self.target is not None:
      is_any, is_all = is_any & (t[0] < self.target), is_all & (t[1] < self.target)
    return BlockSummary(is_any, is_all)


def prefix(length: int | Array) -> Mask:
  """All queries may attend to the first keys: s < length.

  `causal() | prefix(length)` is the mask of a prefix language model.

  Args:
    length: an integer, or integers [...].

  Raises:
    ValueError: if the length is not an integer.

  References:
    Raffel et al. 2020, arXiv:1910.10683, section 3.2.1.
  """
  return Lengths(source=_bound("length", length), target=None)


def lengths(*, source: int | Array | None = None, target: int | Array | None = None) -> Mask:
  """Masks padding: s < source and t < target.

  For scores with heads, [B N T S], pass lengths [B 1], `lengths[:, None]`: leading axes are aligned at the
  right.

  Args:
    source: number of valid keys, an integer or integers [...]. Default: all.
    target: number of valid queries, like source. Rows of other queries are fully masked.

  Raises:
    ValueError: if neither is given, or one is not an integer.

  >>> lengths(source=jnp.array([1, 2])).materialize(1, 3).astype(int).tolist()
  [[[1, 0, 0]], [[1, 1, 0]]]
  """
  if source is None and target is None:
    raise ValueError("at least one of source and target must be given, got neither")
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

  def _describe_field(self, path):
    return f"{path[0].name} of masks.segments (`total` of masks.packed)"

  def mask_mod(self, t, s):
    return jnp.asarray(self.target)[:, None] == jnp.asarray(self.source)[None, :]

  def block_summary(self, t, s):
    first_target, last_target = self.target.min(-1), self.target.max(-1)
    first_source, last_source = self.source.min(-1), self.source.max(-1)
    return BlockSummary(
      (first_target <= last_source) & (first_source <= last_target),
      (first_target == last_source) & (first_source == last_target),
    )


def segments(target: Array, source: Array) -> Mask:
  """Each query may attend to the keys of its segment, for several sequences packed into one row.

  Combined with `causal()` or `sliding_window(before, after)` by `&`, each segment has that mask. For a prefix
  of each segment, use the positions within segments. A packed prefix language model, where the first document
  has a prefix of two tokens and the second of one:

  >>> from attention import positions
  >>> documents, prefixes = jnp.array([0, 0, 0, 1, 1]), jnp.array([2, 1])
  >>> in_prefix = positions.segment_positions(documents) < prefixes[documents]
  >>> mask = segments(documents, documents) & (causal() | in_prefix)
  >>> mask.materialize(5, 5).astype(int).tolist()
  [[1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]]

  Here `in_prefix` is an array of keys, [S]. With batch and heads, [B N T S], pass `documents[:, None]` and
  `in_prefix[:, None, None]`.

  Args:
    target: segment of each query, integers [... T].
    source: segment of each key, integers [... S].

  Raises:
    ValueError: if an argument is not an integer array.

  >>> segments(jnp.array([0, 1]), jnp.array([0, 0, 1])).materialize(2, 3).astype(int).tolist()
  [[1, 1, 0], [0, 0, 1]]
  """
  target, source = as_integers("target", target), as_integers("source", source)
  check_rank("target", target, "[... T]")
  check_rank("source", source, "[... S]")
  return Segments(target, source)


def packed(lengths: Array, total: int) -> Mask:
  """Each query may attend to its document, for documents that follow each other in one row without padding.

  Use `positions.packed` for positions within each document, and `&` for further masks, such as `causal()`.

  Args:
    lengths: length of each document, integers of at least 0, [... D]. Positions after the last document are
      fully masked. For vectors with heads, pass lengths[:, None].
    total: number of positions. Documents are cut off there.

  Raises:
    ValueError: if the lengths are not integers, or known lengths are negative.

  >>> packed(jnp.array([2, 1]), 4).materialize(4, 4).astype(int).tolist()
  [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
  """
  ids = document_ids(lengths, total)
  end = jnp.sum(ids < jnp.shape(lengths)[-1], axis=-1)
  return segments(ids, ids) & Lengths(source=end, target=end)


def document_ids(lengths: Array, total: int) -> jax.Array:
  """Returns the index of the document of each position, [... T]; D after the last document.

  Args:
    lengths: length of each document, integers [... D].
    total: number of positions, T.
  """
  check_numbers("lengths", lengths, "at least 0", lambda lengths: lengths >= 0)
  lengths = as_integers("lengths", lengths).astype(int)  # sums of small integers would wrap around
  check_rank("lengths", lengths, "[... D]")
  T = check_size("total", total, least=0)

  def count_ends(ends: jax.Array) -> jax.Array:
    return jnp.cumsum(jnp.zeros(T, int).at[ends].add(1, mode="drop"))

  return jnp.vectorize(count_ends, signature="(d)->(t)")(jnp.cumsum(lengths, axis=-1))


def _bound(name: str, value: int | Array) -> int | Array:
  """Returns a bound of positions as an int or an integer array, or raises ValueError."""
  bound = as_integers(name, value)
  if isinstance(value, (int, np.integer)):
    return int(value)  # static under `jax.jit`
  # Differences of unsigned or small integers would wrap around.
  if jnp.issubdtype(bound.dtype, jnp.unsignedinteger):
    bound = jnp.minimum(bound, jnp.iinfo(jnp.int32).max)
  return bound if bound.dtype in (jnp.int32, jnp.int64) else bound.astype(jnp.int32)
