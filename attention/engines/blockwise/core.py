"""The context and the logsumexp of finite numbers, and their one rule of differentiation."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention.arrays.devices import varying_like
from attention.arrays.loops import Arrays, over_leading
from attention.arrays.recomputing import recomputed
from attention.engines.blockwise.plan import Plan
from attention.engines.blockwise.ring import over_parts
from attention.engines.blockwise.tile import drop, scores_of
from attention.engines.blockwise.walk import over_key_blocks, over_query_blocks
from attention.engines.finite import finite
from attention.engines.marks import is_empty, masked, nan_where, overflows, shift_of


class Found(NamedTuple):
  """What queries have found in the keys so far.

  Attributes:
    largest: the largest marked score, [... T 1].
    total: sum of exp(score - largest), [... T 1].
    context: sum of exp(score - largest) value, [... T D].
  """

  largest: jax.Array
  total: jax.Array
  context: jax.Array

  @classmethod
  def nothing(cls, rows: tuple[int, ...], values: jax.Array) -> "Found":
    """Returns what rows of queries have found in no key."""
    return cls(
      jnp.full((*rows, 1), masked(values.dtype)),
      jnp.zeros((*rows, 1), values.dtype),
      jnp.zeros((*rows, values.shape[-1]), values.dtype),
    )

  def joined(self, other: "Found") -> "Found":
    """Returns this with what the same queries have found in other keys."""
    largest = jnp.maximum(self.largest, other.largest)
    one, two = (jnp.exp(found.largest - shift_of(largest)) for found in (self, other))
    return Found(
      largest,
      self.total * one + other.total * two,
      self.context * one + other.context * two,
    )

  def results(self) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the context [... T D], and the largest score and the logarithm of the total [... T]."""
    spoil = nan_where(overflows(self.largest), self.context.dtype)
    total = jnp.where(self.total == 0, 1, self.total)
    return self.context / total + spoil, self.largest[..., 0], (jnp.log(total) + spoil)[..., 0]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def attention_core(plan: Plan, arrays: Arrays, spoil: Arrays) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns context [... T D], and what the logsumexp is the sum of, two numbers [... T].

  These are the largest marked score, of which `shift_of` is to be added, and the logarithm of the sum of
  exp(score - shift), 0 for empty rows. Derivatives need the two apart: a logsumexp of 1e4 is off by 1e-3 in
  float32, and the weights with it.

  Args:
    plan: what is known before the numbers are.
    arrays: those of the Operands.
    spoil: two arrays [... T], NaN for queries that attend to something not finite, else 0: for the logsumexp
      if it is in the scores, for the context if it is in the scores or the values.
  """
  count = len(plan.axes)
  axes = (*plan.axes, "T", "T")

  def find(arrays: Arrays) -> Found:
    return _find(plan, arrays[:count])

  def finish(found: Found, spoil: Arrays):
    context, largest, log_total = found.results()
    return context + spoil[1][..., None], largest, log_total + spoil[0]

  def at_index(arrays: Arrays):
    arrays = _finite(plan, arrays)
    if plan.ring is None:  # each block of queries is finished while it is in the cache
      finished = functools.partial(
        over_query_blocks, plan, lambda arrays: finish(find(arrays), arrays[count:])
      )
      return finished(("TD", "T", "T"), arrays, axes)
    return Found(*over_query_blocks(plan, find, ("T1", "T1", "TD"), arrays, axes))

  def find_in_part(arrays: Arrays):
    return over_leading(at_index, arrays, axes, plan.leading, plan.num_tile_axes, plan.at_once)

  def nothing() -> Found:
    rows = *plan.leading, plan.queries.length
    return Found.nothing(rows, plan.operands(arrays).values)

  with jax.default_matmul_precision(plan.precision):
    found = over_parts(plan, find_in_part, Found.joined, nothing, [*arrays, *spoil], axes)
  return found if plan.ring is None else finish(found, spoil)


def _tangent(plan: Plan, primals, tangents):
  """The rule of the package's docstring, linear in the tangents; those known to be 0 are left out."""
  arrays, spoil = primals
  context, largest, log_total = attention_core(plan, arrays, [jnp.zeros_like(array) for array in spoil])
  # Queries that are empty or overflow have no weights and no tangents.
  has_weights = jnp.isfinite(log_total) & ~is_empty(largest)
  residuals = [jnp.where(has_weights[..., None], context, 0), shift_of(largest), log_total, has_weights]
  moving = [i for i, tangent in enumerate(tangents[0]) if not _is_zero(tangent)]
  axes = (*plan.axes, "TD", "T", "T", "T", *(plan.axes[i] for i in moving))

  @recomputed
  def at_index(arrays: Arrays):
    block = functools.partial(_differentiate, plan, moving, axes)
    return over_query_blocks(plan, block, ("TD", "T"), _finite(plan, arrays, moving), axes)

  def of_part(arrays: Arrays):
    return over_leading(at_index, arrays, axes, plan.leading, plan.num_tile_axes, plan.at_once)

  def add(one, other):
    return jax.tree.map(jnp.add, one, other)

  def nothing():
    return jnp.zeros_like(context), jnp.zeros_like(largest)

  arrays = [*arrays, *residuals, *(tangents[0][i] for i in moving)]
  with jax.default_matmul_precision(plan.precision):
    d_context, d_logsumexp = over_parts(plan, of_part, add, nothing, arrays, axes)
  results = context + spoil[1][..., None], largest, log_total + spoil[0]
  return results, (d_context, jnp.zeros_like(largest), d_logsumexp)


attention_core.defjvp(_tangent, symbolic_zeros=True)


def _is_zero(tangent: Any) -> bool:
  return isinstance(tangent, jax.custom_derivatives.SymbolicZero) or tangent.dtype == jax.dtypes.float0


def _finite(plan: Plan, arrays: Arrays, moving: Sequence[int] = ()) -> Arrays:
  """Returns the arrays with zeros for what is not finite in features and values, and for its tangents.

  This is done to one index of the leading axes at a time, together with cutting it out of the whole.
  """
  arrays = list(arrays)
  vectors = [i for i, own in enumerate(plan.axes) if own in ("TX", "SX", "SD")]
  for tangent, i in enumerate(moving, start=len(arrays) - len(moving)):
    if i in vectors:
      arrays[tangent] = jnp.where(jnp.isfinite(arrays[i]), arrays[tangent], 0)
  for i in vectors:
    arrays[i] = finite(arrays[i])
  return arrays


def _find(plan: Plan, arrays: Arrays) -> Found:
  """Returns what the queries of one block find in their keys."""

  def step(some_are_masked: bool, here: Arrays, found: Found) -> Found:
    operands = plan.operands(here)
    scores = scores_of(operands, some_are_masked)
    largest = jnp.maximum(found.largest, jnp.max(scores, axis=-1, keepdims=True))
    shift = shift_of(largest)
    weights = jnp.exp(scores - shift)
    rescale = jnp.exp(found.largest - shift)
    kept = drop(operands, plan.dropout_rate, weights)
    return Found(
      largest,
      found.total * rescale + jnp.sum(weights, axis=-1, keepdims=True),
      found.context * rescale + jnp.einsum("...TS,...SD->...TD", kept, operands.values),
    )

  nothing = Found.nothing((*plan.tile_leading, plan.queries.size), plan.operands(arrays).values)
  return over_key_blocks(plan, step, arrays, plan.axes, varying_like(nothing, arrays))


def _differentiate(
  plan: Plan, moving: Sequence[int], axes: Sequence[str | None], arrays: Arrays
) -> tuple[jax.Array, jax.Array]:
  """Returns the tangents of context [... T D] and logsumexp [... T] of one block of queries.

  Args:
    plan: the plan.
    moving: which of the operands' arrays have a tangent.
    axes: of the arrays.
    arrays: those of the operands, the four residuals, and the tangents.
  """
  count = len(plan.axes)

  def step(some_are_masked: bool, here: Arrays, carry):
    return recomputed(functools.partial(differentiate_tile, some_are_masked))(here, carry)

  def differentiate_tile(some_are_masked: bool, here: Arrays, carry):
    primals, tangents = here[:count], here[count + 4 :]
    shift, log_total, has_weights = (residual[..., None] for residual in here[count + 1 : count + 4])

    def scores_and_values(*moved):
      changed = dict(zip(moving, moved, strict=True))
      operands = plan.operands([changed.get(i, array) for i, array in enumerate(primals)])
      return scores_of(operands, some_are_masked), operands.values

    (scores, values), (d_scores, d_values) = jax.jvp(
      scores_and_values, tuple(primals[i] for i in moving), tuple(tangents)
    )
    nothing = masked(scores.dtype)
    weights = jnp.exp(jnp.where(has_weights, scores - shift - log_total, nothing))
    kept = drop(plan.operands(primals), plan.dropout_rate, weights)
    # The weight of a masked pair is 0 already. This is for its derivatives, which large values may overflow.
    kept = jnp.where(has_weights & (scores > nothing), kept, 0)
    d_context = jnp.einsum("...TS,...SD->...TD", kept * d_scores, values)
    d_context += jnp.einsum("...TS,...SD->...TD", kept, d_values)
    return carry[0] + d_context, carry[1] + jnp.sum(weights * d_scores, axis=-1)

  @recomputed
  def over_keys(arrays: Arrays):
    context, shift, _, has_weights = arrays[count : count + 4]
    nothing = varying_like((jnp.zeros_like(context), jnp.zeros_like(shift)), arrays)
    d_context, d_logsumexp = over_key_blocks(plan, step, arrays, axes, nothing)
    d_context -= context * d_logsumexp[..., None]
    # Without weights they are zero already. This is for gradients, as in `dense`.
    return jnp.where(has_weights[..., None], d_context, 0), jnp.where(has_weights, d_logsumexp, 0)

  return over_keys(arrays)
