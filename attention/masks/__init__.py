"""Who may attend to whom.

A mask says, for the query at position t and the key at position s, whether t may attend to s. It is
boolean, True = may attend; there is no other polarity. Masks are values: small pytrees that are joined
by `&`, `|` and `~`, and go through `jax.jit` as arguments. One of your own is a function of positions
(`from_function`), or a class that also says how its arrays are cut (see `Mask`).

Arrays inside a mask have leading axes that broadcast like any other: lengths [B] make a mask [B T S].
With heads, [B N T S], pass `lengths[:, None]`.
"""

import jax.numpy as jnp
import numpy as np

from attention.arrays.broadcasting import check_rank
from attention.arrays.numbers import as_integers
from attention.masks.functions import FromFunction, from_function
from attention.masks.rules import (
  Array,
  Band,
  BlockMask,
  Both,
  Causal,
  Either,
  FromArray,
  Lengths,
  Mask,
  Not,
  Segments,
  SlidingWindow,
  as_mask,
  from_array,
)

__all__ = [  # noqa: RUF022 (in reading order)
  "causal",
  "sliding_window",
  "prefix",
  "lengths",
  "segments",
  "from_array",
  "from_function",
  "as_mask",
  "Mask",
  "BlockMask",
  "Band",
  "Array",
  "Causal",
  "SlidingWindow",
  "Lengths",
  "Segments",
  "FromArray",
  "FromFunction",
  "Both",
  "Either",
  "Not",
]


def causal(offset: int | Array = 0) -> Mask:
  """Each query may attend to its own position and those before: s <= t + offset.

  Args:
    offset: how many further keys come before the first query, an integer or integers [...]. With a
      cache of S - T earlier keys, offset = S - T.

  Raises:
    ValueError: if the offset is not of an integer type.
  """
  return Causal(_bound("offset", offset))


def sliding_window(before: int | Array, after: int | Array) -> Mask:
  """Each query may attend to its neighbours: t - before <= s <= t + after.

  Args:
    before: how far back, an integer or integers [...]. Plain numbers are static for `jax.jit`: others are
      another program. Where both are, "blockwise" does not even visit the keys beyond: attention costs T
      times the window, not T times S, if the window is less than a quarter of S and of 14,000 keys, and small
      blocks are not asked for. Otherwise only a CPU skips what is empty, as with any mask.
    after: how far ahead, likewise.

  Raises:
    ValueError: if a bound is not of an integer type.

  >>> sliding_window(1, 0).array(3, 3).astype(int).tolist()
  [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
  """
  return SlidingWindow(_bound("before", before), _bound("after", after))


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

  >>> lengths(source=jnp.array([1, 2])).array(1, 3).astype(int).tolist()
  [[[1, 0, 0]], [[1, 1, 0]]]
  """
  if source is None and target is None:
    raise ValueError("lengths needs source=, target=, or both, got neither")
  return Lengths(
    source=None if source is None else _bound("source", source),
    target=None if target is None else _bound("target", target),
  )


def segments(target: Array, source: Array) -> Mask:
  """Each query may attend to the keys of its own segment (several sequences packed in one row).

  Joined by `&` with `causal()` or `sliding_window(before, after)`, each segment has that mask. A prefix of
  each segment is found by the positions within segments. In this packed prefix language model the first
  document has a prefix of two tokens, the second of one:

  >>> from attention import positions
  >>> documents, prefixes = jnp.array([0, 0, 0, 1, 1]), jnp.array([2, 1])
  >>> in_prefix = positions.within_segments(documents) < prefixes[documents]
  >>> mask = segments(documents, documents) & (causal() | in_prefix)
  >>> mask.array(5, 5).astype(int).tolist()
  [[1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]]

  Here `in_prefix` is an array of keys, [S]. With a batch and heads, [B N T S], `documents` [B S] become
  `documents[:, None]` and `in_prefix` [B S] becomes `in_prefix[:, None, None]`.

  Args:
    target: segment of each query, integers [... T].
    source: segment of each key, integers [... S].

  Raises:
    ValueError: if an argument is not of an integer type, or has no axis.

  >>> segments(jnp.array([0, 1]), jnp.array([0, 0, 1])).array(2, 3).astype(int).tolist()
  [[1, 1, 0], [0, 0, 1]]
  """
  target, source = as_integers("target", target), as_integers("source", source)
  check_rank("target", target, "[... T]")
  check_rank("source", source, "[... S]")
  return Segments(target, source)


def _bound(name: str, value: int | Array) -> int | Array:
  """Returns a bound of positions, or raises ValueError unless it is of an integer type that JAX can hold."""
  bound = as_integers(name, value)
  if isinstance(value, (int, np.integer)):
    return int(value)  # a plain number is known to `jax.jit`
  # Differences of unsigned or short integers would wrap around.
  if jnp.issubdtype(bound.dtype, jnp.unsignedinteger):
    bound = jnp.minimum(bound, jnp.iinfo(jnp.int32).max)
  return bound if bound.dtype in (jnp.int32, jnp.int64) else bound.astype(jnp.int32)
