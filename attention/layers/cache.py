"""Keys and values of earlier tokens, kept for decoding; masks and biases for queries that come after them."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.broadcasting import same_rank, with_rank
from attention.arrays.pytrees import register_pytree
from attention.engines.bias import BiasLike
from attention.masks import Array, Band, Both, FromArray, Lengths, Mask, Not, Segments, as_mask

Found = TypeVar("Found")


class KeyValueCache(NamedTuple):
  """The keys and values of the tokens that a layer has seen so far, in the first of S slots.

  It is an ordinary pytree whose arrays all have the leading axes of the inputs first. So a beam search can
  reorder it, and each sequence of a batch has its own length. Tokens are forgotten by a smaller length: after
  prompts that were padded at their end, `cache._replace(length=prompt_lengths)` drops the padding.

  Attributes:
    keys: as the score compares them (projected, normalised, rotated), [... N S H].
    values: [... N S H].
    length: how many slots hold a token, integers [...].
  """

  keys: jax.Array
  values: jax.Array
  length: jax.Array


def empty_cache(keys: jax.Array, values: jax.Array, max_length: int) -> KeyValueCache:
  """Returns a cache of S = max_length slots for keys and values like these, [... N T H].

  Raises:
    ValueError: if there would be no slot.
  """
  if max_length < 1:
    raise ValueError(f"max_length must be at least 1, got {max_length}")

  def slots(like: jax.Array) -> jax.Array:
    return jnp.zeros((*like.shape[:-2], max_length, like.shape[-1]), like.dtype)

  return KeyValueCache(slots(keys), slots(values), jnp.zeros(keys.shape[:-3], jnp.int32))


def next_positions(cache: KeyValueCache, inputs: jax.Array) -> jax.Array:
  """Returns the positions [... T] of inputs [... T D], which come after the cache's tokens.

  Raises:
    ValueError: if the inputs are not as many sequences as the cache's.
  """
  if cache.length.shape != inputs.shape[:-2]:
    raise ValueError(
      f"a cache must be of as many sequences as the queries, {inputs.shape[:-2]}, "
      f"got cache.length {cache.length.shape}"
    )
  ahead = jnp.arange(inputs.shape[-2], dtype=cache.length.dtype)
  return cache.length[..., None] + with_rank(ahead, cache.length.ndim + 1)


def write(cache: KeyValueCache, keys: jax.Array, values: jax.Array, positions: jax.Array) -> KeyValueCache:
  """Returns the cache with the keys and values [... N T H] of the next tokens, at positions [... T].

  Tokens beyond the last slot are dropped, but counted in the length. See `nan_if_full`.

  Raises:
    ValueError: if keys and values are not like those of the cache, or it is known that there is no room.
  """
  for name, slots, new in (("keys", cache.keys, keys), ("values", cache.values, values)):
    allowed = (*new.shape[:-2], *slots.shape[-2:-1], new.shape[-1])
    if slots.dtype != new.dtype or slots.shape != allowed:
      got = f"{slots.dtype} {slots.shape}"
      raise ValueError(f"cache.{name} must be {new.dtype} {allowed} for these queries, got {got}")
  S, T = cache.keys.shape[-2], keys.shape[-2]
  is_known = not isinstance(cache.length, jax.core.Tracer)
  taken = max(np.ravel(cache.length), default=0) if is_known else 0
  if taken + T > S:
    raise ValueError(
      f"cache must have slots for all tokens, got {T} more for {S} slots, {taken} of them taken"
    )

  def put(slots: jax.Array, vectors: jax.Array, positions: jax.Array) -> jax.Array:
    return slots.at[:, positions].set(vectors, mode="drop", unique_indices=True, indices_are_sorted=True)

  for _ in range(cache.length.ndim):
    put = jax.vmap(put)
  return KeyValueCache(
    put(cache.keys, keys, positions), put(cache.values, values, positions), cache.length + T
  )


def nan_if_full(cache: KeyValueCache, found: Found) -> Found:
  """Returns arrays with leading axes [...], NaN for sequences [...] of more tokens than there are slots."""
  is_full = cache.length > cache.keys.shape[-2]

  def of_each(array: jax.Array) -> jax.Array:
    return jnp.where(jnp.expand_dims(is_full, tuple(range(is_full.ndim, array.ndim))), jnp.nan, array)

  return jax.tree.map(of_each, found)


def mask_after(before: KeyValueCache, after: KeyValueCache, mask: Mask | Array | None) -> Mask:
  """Returns which of the slots the queries may attend to that `after` has and `before` has not.

  Args:
    before: the cache without the queries.
    after: the cache with them.
    mask: for [... N T S]. Its rules count positions from the first token in the cache, its arrays are of the
      T queries and S slots.
  """
  written = Lengths(source=after.length[..., None], target=None)
  return written if mask is None else written & _mask_from(as_mask(mask), before.length)


def bias_after(before: KeyValueCache, bias: BiasLike | None) -> BiasLike | None:
  """Returns the bias for queries that come after a cache's tokens; a function is given their positions."""
  if not callable(bias):
    return bias
  return lambda t, s: _for_heads("bias", lambda t: bias(t, s), t, before.length)


def _mask_from(mask: Mask, start: jax.Array) -> Mask:
  """Returns a mask for queries at 0, 1, ... as one for queries at start, start + 1, ..."""
  per_head = start[..., None]
  match mask:
    case FromArray() | Segments():
      return mask
    case Band(before, after):
      return Band(
        None if before is None else _sum(before, -per_head), None if after is None else _sum(after, per_head)
      )
    case Lengths(source, target):
      return Lengths(source, None if target is None else _sum(target, -per_head))
    case Both(first, second):
      return Both(_mask_from(first, start), _mask_from(second, start))
    case Not(inner):
      return Not(_mask_from(inner, start))
  return _From(mask, start)


@register_pytree
@dataclasses.dataclass(frozen=True)
class _From(Mask):
  """A mask of somebody's own for queries that begin at `start` [...]."""

  mask: Mask
  start: jax.Array

  def tile(self, t, s):
    return _for_heads("mask", lambda t: self.mask.tile(t, s), t, self.start)

  def check(self, T, S):
    self.mask.check(T, S)


def _for_heads(
  name: str, rule: Callable[[jax.Array], jax.Array], t: jax.Array, start: jax.Array
) -> jax.Array:
  """Returns rule(t + start) for each start [...]: [... N T S], or [... 1 T S] where heads do not differ.

  Raises:
    ValueError: if the rule itself has leading axes besides that of the heads.
  """

  def from_one(start: jax.Array) -> jax.Array:
    found = jnp.asarray(rule(t + start.astype(t.dtype)))
    if found.ndim > 3:
      raise ValueError(
        f"with a cache, what a {name} returns for a tile of positions must have axes [T S] or [N T S], "
        f"got shape {found.shape}"
      )
    return with_rank(found, 3)

  for _ in range(start.ndim):
    from_one = jax.vmap(from_one)
  return from_one(start)


def _sum(bound: int | Array, change: jax.Array) -> jax.Array:
  """Returns a bound [...] plus integers [...], within the range of theirs: large bounds stand for none."""
  range_ = jnp.iinfo(change.dtype)
  bound = jnp.clip(jnp.asarray(bound), range_.min, range_.max).astype(change.dtype)
  bound, change = same_rank(bound, change)
  return bound + jnp.clip(change, range_.min - jnp.minimum(bound, 0), range_.max - jnp.maximum(bound, 0))
