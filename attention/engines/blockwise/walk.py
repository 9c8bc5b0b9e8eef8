"""The order in which tiles are met: each block of queries meets one block of its keys after the other."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from attention.arrays import devices
from attention.arrays.loops import Arrays, any_at_all, over
from attention.arrays.recomputing import recomputed
from attention.engines.blockwise.blocks import cut, join
from attention.engines.blockwise.plan import Plan


def over_query_blocks(
  plan: Plan,
  function: Callable[[Arrays], Sequence[jax.Array]],
  result_axes: Sequence[str],
  arrays: Arrays,
  axes: Sequence[str | None],
) -> tuple[jax.Array, ...]:
  """Returns the results of the function for all queries, from those of each block of queries and its keys."""
  blocks, put = cut(arrays, axes, "T", plan.queries, windows=plan.windows)
  if plan.queries.count == 1:
    return tuple(function(put([block[0] for block in blocks])))
  results = over(lambda block: function(put(block)), blocks, plan.query_blocks_at_once)
  return tuple(join(result, own, "T", plan.queries) for result, own in zip(results, result_axes, strict=True))


def over_key_blocks(
  plan: Plan,
  step: Callable[[bool, Arrays, Any], Any],
  arrays: Arrays,
  axes: Sequence[str | None],
  carry: Any,
) -> Any:
  """Returns the carry after `step(some_are_masked, arrays, carry)` for each block of keys not empty."""
  blocks, put = cut(arrays, axes, "S", plan.keys, transposed=True)

  # A case of the switch hands out what its derivative needs. Recomputed as a whole, a step keeps its block
  # only, which the loop has anyway.
  @recomputed
  def at_block(carry, block):
    operands = plan.operands(put(block))
    # Devices that share the leading axes would have to agree on every tile.
    if operands.mask is None or not devices.runs_sequentially() or devices.leading_axes_may_be_spread():
      return step(operands.mask is not None, put(block), carry), None
    some, every = operands.mask.outline(*operands.positions())
    choice = any_at_all(some).astype(jnp.int32) + (~any_at_all(~every)).astype(jnp.int32)
    # Blocks go in as they are held: turned within a case, they are turned together with its products.
    cases = [
      lambda block, carry: carry,
      lambda block, carry: step(True, put(block), carry),
      lambda block, carry: step(False, put(block), carry),
    ]
    return jax.lax.switch(choice, cases, block, carry), None

  if plan.keys.count == 1:
    here = put([block[0] for block in blocks])
    return step(plan.operands(here).mask is not None, here, carry)
  return jax.lax.scan(at_block, carry, blocks)[0]
