"""A cache of keys and values for decoding, and masks and biases for queries that are appended to it."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attention import masks
from attention.arrays.checks import check_size
from attention.arrays.named_axes import NamedAxes, register_pytree
from attention.arrays.shapes import broadcasts_to, same_rank, with_rank
from attention.biases.base import BiasLike, as_bias
from attention.masks import Array, Mask, as_mask


class KVCache(NamedTuple):
  """The keys and values of past tokens, in the first of S slots.

  A cache is a pytree whose arrays start with the leading axes of the inputs, so a beam search can reorder it,
  and each sequence of a batch has its own length. To remove tokens, reduce the length: after prompts with
  padding at the end, `cache._replace(length=prompt_lengths)` drops the padding.

  Attributes:
    keys: projected keys, after normalization and position_fn, [... N S H].
    values: [... N S H].
    length: number of slots in use, integers [...].
  """

  keys: jax.Array
  values: jax.Array
  length: jax.Array


def empty_cache(keys: jax.Array, values: jax.Array, max_length: int) -> KVCache:
  """Returns an empty cache with S = max_length slots, for keys and values with these shapes, [... N T H].

  Raises:
    ValueError: if max_length is less than 1.
  """
  S = check_size("max_length", max_length)
  keys, values = (jnp.zeros((*new.shape[:-2], S, new.shape[-1]), new.dtype) for new in (keys, values))
  return KVCache(keys, values, jnp.zeros(keys.shape[:-3], jnp.int32))


def next_positions(cache: KVCache, inputs: jax.Array) -> jax.Array:
  """Returns the positions [... T] of inputs [... T D] that are appended to the cache.

  Raises:
    ValueError: if the inputs and the cache have a different number of sequences.
  """
  if not jnp.issubdtype(cache.length.dtype, jnp.integer):
    raise ValueError(f"cache.length must be integers, got {cache.length.dtype}")
  if cache.length.shape != inputs.shape[:-2]:
    raise ValueError(
      f"cache must have the leading axes of the inputs, {inputs.shape[:-2]}, "
      f"got cache.length of shape {cache.length.shape}"
    )
  ahead = jnp.arange(inputs.shape[-2], dtype=cache.length.dtype)
  return cache.length[..., None] + with_rank(ahead, cache.length.ndim + 1)


def write(cache: KVCache, keys: jax.Array, values: jax.Array, positions: jax.Array) -> KVCache:
  """Returns the cache with keys and values [... N T H] of new tokens written at positions [... T].

  Tokens beyond the last slot are dropped, but counted in the length; see `nan_on_overflow`.

  Raises:
    ValueError: if keys and values do not match the cache, or a known length exceeds the slots.
  """
  T, S = keys.shape[-2], cache.keys.shape[-2]
  for name, slots, new in (("keys", cache.keys, keys), ("values", cache.values, values)):
    allowed = (*new.shape[:-2], S, new.shape[-1])
    if slots.dtype != new.dtype or slots.shape != allowed:
      got = f"{slots.dtype} {slots.shape}"
      raise ValueError(f"cache.{name} must be {new.dtype} {allowed} for these inputs, got {got}")
  is_known = not isinstance(cache.length, jax.core.Tracer)
  lengths = np.ravel(cache.length) if is_known else np.zeros(1, int)
  length = max(lengths, default=0)
  if min(lengths, default=0) < 0 or length > S:
    raise ValueError(f"cache.length must be from 0 to {S}, the number of slots, got {lengths.tolist()}")
  if length + T > S:
    raise ValueError(
      f"cache is full: {T} new token{'s' * (T != 1)}, but only {S - length} of {S} slots are free"
    )

  def put(slots: jax.Array, vectors: jax.Array, positions: jax.Array) -> jax.Array:
    return slots.at[:, positions].set(vectors, mode="drop", unique_indices=True, indices_are_sorted=True)

  for _ in range(cache.length.ndim):
    put = jax.vmap(put)
  keys, values = put(cache.keys, keys, positions), put(cache.values, values, positions)
  return KVCache(keys, values, cache.length + T)


def nan_on_overflow(cache: KVCache, array: jax.Array) -> jax.Array:
  """Returns the array with NaN for sequences [...] that have more tokens than the cache has slots."""
  is_full = cache.length > cache.keys.shape[-2]
  return jnp.where(jnp.expand_dims(is_full, tuple(range(is_full.ndim, array.ndim))), jnp.nan, array)


def mask_after(before: KVCache, after: KVCache, mask: Mask | Array | None, shape: tuple[int, ...]) -> Mask:
  """Returns the mask of queries that were appended to a cache: all slots in use, restricted by `mask`.

  Args:
    before: the cache before the queries were written.
    after: the cache after.
    mask: for [... N T S]. Masks of positions count from the first token in the cache; arrays are for the T
      queries and S slots.
    shape: of the scores, [... N T S].

  Raises:
    ValueError: if an array of the mask does not fit the queries and slots.
  """
  # Bounds may overflow a small integer dtype.
  starts, lengths = before.length.astype(jnp.int32), after.length.astype(jnp.int32)
  written = masks.Lengths(source=lengths[..., None], target=None)
  return written if mask is None else written & mask_from(as_mask(mask), starts, shape)


def bias_from(bias: BiasLike | None, start: jax.Array, shape: tuple[int, ...]) -> BiasLike | None:
  """Returns a bias for queries at positions start, start + 1, ... from a bias for positions 0, 1, ...

  Args:
    bias: a function of positions in the sequence, or an array for the T queries and S slots.
    start: integers [...].
    shape: of the scores, [... N T S].

  Raises:
    ValueError: if the bias is an array that does not broadcast to the shape of the scores.
  """
  if bias is None:
    return None
  if not callable(bias):
    _check_slots("bias", np.shape(bias), shape)
    return bias
  return _BiasFrom(as_bias(bias), start[..., None])


def _check_slots(name: str, got: tuple[int, ...], shape: tuple[int, ...], axes: str = "[... N T S]") -> None:
  """Raises ValueError unless the shape of an array broadcasts to that of the scores of a cache."""
  if not broadcasts_to(got, shape):
    raise ValueError(
      f"{name} must be broadcastable to {axes} = {shape}, where T counts the new tokens and S the slots of "
      f"the cache, got shape {got}"
    )


def mask_from(mask: Mask, start: jax.Array, shape: tuple[int, ...]) -> Mask:
  """Returns a mask for queries at positions start, start + 1, ... from a mask for positions 0, 1, ...

  See `bias_from`.
  """
  per_head = start[..., None]
  match mask:
    case masks.FromArray(values):
      _check_slots("mask", np.shape(values), shape)
      return mask
    case masks.Segments(target, source):
      for name, array, size, axis in (("target", target, shape[-2], "T"), ("source", source, shape[-1], "S")):
        name = f"{name} of masks.segments (`total` of masks.packed)"
        _check_slots(name, np.shape(array), (*shape[:-2], size), f"[... N {axis}]")
      return mask
    case masks.Band(before, after):
      return masks.Band(_sum(before, -per_head), _sum(after, per_head))
    case masks.Lengths(source, target):
      return masks.Lengths(source, _sum(target, -per_head))
    case masks.And(first, second):
      return masks.And(mask_from(first, start, shape), mask_from(second, start, shape))
    case masks.Not(inner):
      return masks.Not(mask_from(inner, start, shape))
  return _From(mask, per_head)


def _sum(bound: int | Array | None, change: jax.Array) -> jax.Array | None:
  """Returns a bound [...] plus integers [...], or None. Bounds are clipped to 2^30."""
  if bound is None:
    return None
  bound = jnp.clip(jnp.asarray(bound), -(2**30), 2**30).astype(change.dtype)
  bound, change = same_rank(bound, change)
  return bound + change


@register_pytree
@dataclasses.dataclass(frozen=True)
class _From(Mask):
  """A user-defined mask for queries from position `start`."""

  axes = {"start": ""}
  mask: Mask
  start: jax.Array

  def mask_mod(self, t, s):
    return self.mask.mask_mod(t + self.start.astype(t.dtype), s)


@register_pytree
@dataclasses.dataclass(frozen=True)
class _BiasFrom(NamedAxes):
  """A bias for queries from position `start`."""

  axes = {"start": ""}
  bias: Any
  start: jax.Array

  def __call__(self, t, s):
    return self.bias(t + self.start.astype(t.dtype), s)
