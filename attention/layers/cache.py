"""Keys and values of earlier tokens, kept for decoding; masks and biases for queries that come after them."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attention import masks
from attention.arrays.checks import check_size
from attention.arrays.pytrees import register_pytree
from attention.arrays.shapes import same_rank, with_rank
from attention.engines.bias import BiasLike
from attention.masks import Array, Mask, as_mask


class KVCache(NamedTuple):
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


def empty_cache(keys: jax.Array, values: jax.Array, max_length: int) -> KVCache:
  """Returns a cache of S = max_length slots for keys and values like these, [... N T H].

  Raises:
    ValueError: if there would be no slot.
  """
  S = check_size("max_length", max_length)
  keys, values = (jnp.zeros((*new.shape[:-2], S, new.shape[-1]), new.dtype) for new in (keys, values))
  return KVCache(keys, values, jnp.zeros(keys.shape[:-3], jnp.int32))


def next_positions(cache: KVCache, inputs: jax.Array) -> jax.Array:
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


def write(cache: KVCache, keys: jax.Array, values: jax.Array, positions: jax.Array) -> KVCache:
  """Returns the cache with the keys and values [... N T H] of the next tokens, at positions [... T].

  Tokens beyond the last slot are dropped, but counted in the length. See `nan_on_overflow`.

  Raises:
    ValueError: if keys and values are not like those of the cache, or it is known that there is no room.
  """
  T, S = keys.shape[-2], cache.keys.shape[-2]
  for name, slots, new in (("keys", cache.keys, keys), ("values", cache.values, values)):
    allowed = (*new.shape[:-2], S, new.shape[-1])
    if slots.dtype != new.dtype or slots.shape != allowed:
      got = f"{slots.dtype} {slots.shape}"
      raise ValueError(f"cache.{name} must be {new.dtype} {allowed} for these queries, got {got}")
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
  keys, values = put(cache.keys, keys, positions), put(cache.values, values, positions)
  return KVCache(keys, values, cache.length + T)


def nan_on_overflow(cache: KVCache, array: jax.Array) -> jax.Array:
  """Returns an array with leading axes [...], NaN for sequences [...] of more tokens than there are slots."""
  is_full = cache.length > cache.keys.shape[-2]
  return jnp.where(jnp.expand_dims(is_full, tuple(range(is_full.ndim, array.ndim))), jnp.nan, array)


def mask_after(before: KVCache, after: KVCache, mask: Mask | Array | None) -> Mask:
  """Returns which of the slots the queries may attend to that `after` has and `before` has not.

  Args:
    before: the cache without the queries.
    after: the cache with them.
    mask: for [... N T S]. Its rules count positions from the first token in the cache, its arrays are of the
      T queries and S slots.
  """
  # Bounds may be larger than numbers of a short integer type.
  starts, lengths = before.length.astype(jnp.int32), after.length.astype(jnp.int32)
  written = masks.Lengths(source=lengths[..., None], target=None)
  return written if mask is None else written & _mask_from(as_mask(mask), starts)


def bias_after(before: KVCache, bias: BiasLike | None) -> BiasLike | None:
  """Returns the bias for queries that come after a cache's tokens; a function is given their positions."""
  if not callable(bias):
    return bias
  return lambda t, s: _for_each(before.length, lambda t: bias(t, s), t)


def _mask_from(mask: Mask, start: jax.Array) -> Mask:
  """Returns a mask for queries at 0, 1, ... as one for queries at start, start + 1, ..."""
  per_head = start[..., None]
  match mask:
    case masks.FromArray() | masks.Segments():
      return mask
    case masks.Band(before, after):
      return masks.Band(_sum(before, -per_head), _sum(after, per_head))
    case masks.Lengths(source, target):
      return masks.Lengths(source, _sum(target, -per_head))
    case masks.And(first, second):
      return masks.And(_mask_from(first, start), _mask_from(second, start))
    case masks.Not(inner):
      return masks.Not(_mask_from(inner, start))
  return _From(mask, start)


def _sum(bound: int | Array | None, change: jax.Array) -> jax.Array | None:
  """Returns a bound [...], if there is one, plus integers [...]; bounds beyond 2^30 count as 2^30."""
  if bound is None:
    return None
  bound = jnp.clip(jnp.asarray(bound), -(2**30), 2**30).astype(change.dtype)
  bound, change = same_rank(bound, change)
  return bound + change


@register_pytree
@dataclasses.dataclass(frozen=True)
class _From(Mask):
  """A user's mask for queries that begin at `start` [...]; its tiles have axes [T S] or [N T S]."""

  mask: Mask
  start: jax.Array

  def mask_mod(self, t, s):
    return _for_each(self.start, lambda t: self.mask.mask_mod(t, s), t)


def _for_each(start: jax.Array, rule: Callable[[jax.Array], jax.Array], t: jax.Array) -> jax.Array:
  """Returns rule(t + start) for each start [...]: [... N T S], or [... 1 T S] where heads do not differ."""

  def from_one(start: jax.Array) -> jax.Array:
    terms = jnp.asarray(rule(t + start.astype(t.dtype)))
    return with_rank(terms, max(terms.ndim, 3))

  for _ in range(start.ndim):
    from_one = jax.vmap(from_one)
  return from_one(start)
