"""Masks from functions of positions."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention.arrays.closure_conversion import Closure, at_pairs, closure
from attention.arrays.named_axes import register_pytree
from attention.masks.base import BlockSummary, Mask


@register_pytree
@dataclasses.dataclass(frozen=True)
class FromFunction(Mask):
  """See `from_function`."""

  allows: Closure
  block_masks: Closure | None

  def mask_mod(self, t, s):
    return at_pairs(self._allows, t, s)

  def _allows(self, t: jax.Array, s: jax.Array) -> jax.Array:
    """Returns whether the query at one position may attend to the key at another, booleans [...]."""
    allowed = _booleans("function", self.allows(t[None, None], s[None, None]))
    if any(size != 1 for size in allowed.shape[-2:]):
      raise ValueError(
        "function must return booleans that broadcast to [... T S], "
        f"got shape {allowed.shape} for T=1 query position and S=1 key position"
      )
    return allowed.reshape(allowed.shape[:-2])

  def block_summary(self, t, s):
    if self.block_masks is None:
      return super().block_summary(t, s)
    row = jax.vmap(self._summary, in_axes=(None, 0))
    ends = [tuple(end.reshape(-1) for end in pair) for pair in (t, s)]
    is_any, is_all = jax.vmap(row, in_axes=(0, None))(*ends)  # [I J], possibly with leading axes behind
    return BlockSummary(is_any.any(range(2, is_any.ndim)), is_all.all(range(2, is_all.ndim)))

  def _summary(self, t: tuple[Any, Any], s: tuple[Any, Any]) -> BlockSummary:
    """Returns the summary of one tile, booleans [...]."""
    summary = self.block_masks(t, s)  # type: ignore[misc]
    if not isinstance(summary, tuple) or len(summary) != 2:
      raise ValueError(f"block_summary must return a pair, (any, all), got {summary!r}")
    return BlockSummary(*(_booleans("block_summary", flag) for flag in summary))


def from_function(
  function: Callable[[jax.Array, jax.Array], jax.Array],
  block_summary: Callable[[Any, Any], tuple[Any, Any]] | None = None,
) -> Mask:
  """Returns a mask from a function of positions.

  For example, a table of which documents may attend to which:

  >>> documents, may_attend = jnp.array([0, 0, 1]), jnp.array([[True, True], [False, True]])
  >>> mask = from_function(lambda t, s: may_attend[documents[t], documents[s]])
  >>> mask.materialize(3, 3).astype(int).tolist()
  [[1, 1, 1], [1, 1, 1], [0, 0, 1]]

  Args:
    function: takes query positions [T 1] and key positions [1 S], integers, and returns whether the query may
      attend to the key, booleans broadcastable to [... T S]. It is traced with T = S = 1 under `jax.vmap`, so
      it must index by t and s and not depend on their shapes. It may close over JAX arrays, traced ones too.
      The last tile repeats the last position.
    block_summary: returns whether a tile is empty or full; "blockwise" skips empty tiles on CPUs. It takes
      two pairs: the first and the last query position, and the first and the last key position. It returns
      two booleans [...]: whether any pair of the tile may be allowed, and whether all pairs are. For s <= t
      it is `lambda t, s: (s[0] <= t[1], s[1] <= t[0])`. Default: unknown.

  `jax.jit` compares masks that are its arguments by their functions: a new function compiles again, and a
  function that closes over traced arrays compiles at every call.

  Inside `jax.shard_map`, traced arrays that the function closes over must vary over devices as queries and
  keys do (`jax.lax.pcast`). In `ring_attention`, positions refer to the whole sequence, so arrays that are
  indexed by position must cover the whole sequence.

  Raises:
    ValueError: if an argument is not a function, or returns an invalid result.
  """
  for name, argument in (("function", function), ("block_summary", block_summary)):
    if not callable(argument) and not (name == "block_summary" and argument is None):
      got = "an array; use from_array(array)" if hasattr(argument, "dtype") else repr(argument)
      raise ValueError(f"{name} must be a function of query and key positions, got {got}")
  pair = jnp.zeros((1, 1), int)
  ends = pair[0, 0], pair[0, 0]
  mask = FromFunction(Closure({}, function), None if block_summary is None else Closure({}, block_summary))
  jax.eval_shape(
    lambda: (mask.mask_mod(pair, pair), mask.block_summary((pair, pair), (pair, pair)))
  )  # checks results
  of_tile = None if block_summary is None else closure(block_summary, ends, ends)
  # A mask has no derivative.
  return jax.tree.map(jax.lax.stop_gradient, FromFunction(closure(function, pair, pair), of_tile))


def _booleans(name: str, result: Any) -> jax.Array:
  """Returns the result of a user-defined function as an array, or raises ValueError unless it is boolean."""
  is_array = isinstance(result, bool) or hasattr(result, "dtype")
  if not is_array or jnp.asarray(result).dtype != jnp.bool_:
    got = getattr(result, "dtype", repr(result))
    raise ValueError(f"{name} must return booleans (True = may attend), got {got}")
  return jnp.asarray(result)
