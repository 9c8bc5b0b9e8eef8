"""A mask that is given as a function of positions."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention.arrays.closure_conversion import Closure, at_pairs, closure
from attention.arrays.pytrees import register_pytree
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
    known = self.block_masks((t[0, 0], t[-1, 0]), (s[0, 0], s[0, -1]))
    if not isinstance(known, tuple) or len(known) != 2:
      raise ValueError(f"block_summary must return a pair, (any, all), got {known!r}")
    return BlockSummary(*(_booleans("block_summary", each) for each in known))


def from_function(
  function: Callable[[jax.Array, jax.Array], jax.Array],
  block_summary: Callable[[Any, Any], tuple[Any, Any]] | None = None,
) -> Mask:
  """A mask given by a function of positions.

  Here each position has a document, and a table says which document may attend to which:

  >>> documents, may_attend = jnp.array([0, 0, 1]), jnp.array([[True, True], [False, True]])
  >>> mask = from_function(lambda t, s: may_attend[documents[t], documents[s]])
  >>> mask.materialize(3, 3).astype(int).tolist()
  [[1, 1, 1], [1, 1, 1], [0, 0, 1]]

  Args:
    function: takes query positions [T 1] and key positions [1 S], integers, and returns whether the query may
      attend to the key, booleans that broadcast to [... T S]. It is called with T = S = 1 under `jax.vmap`,
      so its result must depend on t and s, not on their shapes. It may look them up in JAX arrays, traced
      ones too. A last tile repeats the last position.
    block_summary: what is known of a whole tile; "blockwise" on a CPU skips those that are empty. It takes
      two pairs (not the positions of a tile, as `Mask.block_summary`): the first and the last query position,
      and the first and the last key position. It returns two booleans [...]: whether any pair of the tile may
      be allowed, and whether all pairs are. None if nothing is known. For s <= t it is
      `lambda t, s: (s[0] <= t[1], s[1] <= t[0])`.

  `jax.jit` compares masks that are its arguments by their functions: for a new function it compiles again,
  and for one that closes over traced arrays at every call.

  Inside `jax.shard_map`, traced arrays that are closed over must differ between devices as the queries and
  keys do (`jax.lax.pcast`). In `ring_attention` positions count from the start of the whole sequence, so
  arrays that are looked up are those of the whole sequence.

  Raises:
    ValueError: if an argument is not a function, or does not return what it should.
  """
  for name, given in (("function", function), ("block_summary", block_summary)):
    if not callable(given) and not (name == "block_summary" and given is None):
      got = "an array, which is from_array(array)" if hasattr(given, "dtype") else repr(given)
      raise ValueError(f"{name} must be a function of query and key positions, got {got}")
  pair = jnp.zeros((1, 1), int)
  ends = pair[0, 0], pair[0, 0]
  mask = FromFunction(Closure({}, function), None if block_summary is None else Closure({}, block_summary))
  jax.eval_shape(
    lambda: (mask.mask_mod(pair, pair), mask.block_summary(pair, pair))
  )  # which checks the results
  of_tile = None if block_summary is None else closure(block_summary, ends, ends)
  # Which pairs may attend has no derivative.
  return jax.tree.map(jax.lax.stop_gradient, FromFunction(closure(function, pair, pair), of_tile))


def _booleans(name: str, result: Any) -> jax.Array:
  """Returns what a user's function has returned as an array, or raises ValueError unless it is boolean."""
  is_array = isinstance(result, bool) or hasattr(result, "dtype")
  if not is_array or jnp.asarray(result).dtype != jnp.bool_:
    got = getattr(result, "dtype", repr(result))
    raise ValueError(f"{name} must return booleans, True = may attend, got {got}")
  return jnp.asarray(result)
