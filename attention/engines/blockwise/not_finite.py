"""Which queries attend to something that is not finite."""

import functools

import jax
import jax.numpy as jnp

from attention.arrays.devices import varying_like
from attention.arrays.loops import Arrays, any_at_all, over_leading
from attention.arrays.shapes import same_rank, with_rank
from attention.engines.blockwise.plan import Operands, Plan
from attention.engines.blockwise.ring import over_parts
from attention.engines.blockwise.tile import bias_and_allowed
from attention.engines.blockwise.walk import over_key_blocks, over_query_blocks
from attention.engines.finite import Features


def which_attend_to_bad(plan: Plan, rules: Operands, features: Features) -> tuple[jax.Array, jax.Array]:
  """Returns for which queries [... T] the scores, and the context, come from something that is not finite.

  These are the queries that attend to it. Who attends to what is only asked where there is something.

  Args:
    plan: the plan, still without operands.
    rules: the mask, the bias, and the positions.
    features: which of them are not finite.
  """
  rows = *plan.leading, plan.queries.length
  bad_queries, bad_keys, bad_values = (
    with_rank(bad, len(rows)) for bad in (features.bad_queries, features.bad_keys, features.bad_values)
  )
  plan, arrays = plan.of(rules)
  arrays = [*map(jax.lax.stop_gradient, arrays), bad_keys, bad_values]
  axes = (*plan.axes, "S", "S")

  def ask(arrays: Arrays) -> tuple[jax.Array, ...]:
    def at_index(arrays: Arrays):
      return over_query_blocks(
        plan, functools.partial(_find, plan, features.values.dtype), ("T", "T", "T"), arrays, axes
      )

    return over_leading(at_index, arrays, axes, plan.leading, plan.num_tile_axes, plan.at_once)

  def nothing() -> tuple[jax.Array, ...]:
    return varying_like((jnp.zeros(rows, bool),) * 3, arrays)

  def ask_if_needed(arrays: Arrays) -> tuple[jax.Array, ...]:
    *_, bad_keys, bad_values = arrays
    if rules.mask is None and rules.bias is None:
      everyone = (
        jnp.ones((1,), bool),
        *(jnp.any(bad, axis=-1, keepdims=True) for bad in (bad_keys, bad_values)),
      )
      return tuple(jnp.broadcast_to(found, rows) for found in varying_like(everyone, arrays))
    is_needed = any_at_all(bad_queries) | any_at_all(bad_keys) | any_at_all(bad_values)
    return jax.lax.cond(is_needed, ask, lambda arrays: nothing(), arrays)

  def either(one, other):
    return jax.tree.map(jnp.logical_or, one, other)

  to_any, to_bad_keys, to_bad_values = over_parts(plan, ask_if_needed, either, nothing, arrays, axes)
  bad_scores = to_bad_keys | (to_any & bad_queries)
  return bad_scores, bad_scores | to_bad_values


def _find(plan: Plan, dtype: jnp.dtype, arrays: Arrays) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns which queries of a block may attend to any key, to a bad key, to a bad value, [... T]."""

  def step(some_are_masked: bool, here: Arrays, carry):
    flags = here[-2:]
    everything = jnp.ones((1,) * (plan.num_tile_axes + 2), bool)
    _, allowed = bias_and_allowed(plan.operands(here), dtype, some_are_masked)
    everything, allowed = same_rank(everything, everything if allowed is None else allowed)
    found = allowed & everything, *(allowed & flag[..., None, :] for flag in flags)
    return tuple(one | jnp.any(two, axis=-1) for one, two in zip(carry, found, strict=True))

  nothing = varying_like((jnp.zeros((*plan.tile_leading, plan.queries.size), bool),) * 3, arrays)
  return over_key_blocks(plan, step, arrays, (*plan.axes, "S", "S"), nothing)
