"""Blockwise attention: memory linear in T + S, in every derivative.

Each block of queries attends to one block of keys after another. It carries the largest score m, which is
subtracted before exponentials, the sum l of the exponentials, and the weighted sum of values (online softmax:
Milakov and Gimelshein 2018, arXiv:1805.02867). Tiles are not stored: derivatives recompute them from the
logsumexp (Rabe and Staats 2021, arXiv:2112.05682; Dao et al. 2022, arXiv:2205.14135). There is a single
differentiation rule, in forward mode; JAX transposes it for gradients, and differentiates it for second
derivatives:

    weights[t, s] = exp(scores[t, s] - logsumexp[t])
    d logsumexp[t] = sum over s of weights[t, s] d scores[t, s]
    d context[t] = sum over s of weights[t, s] (d scores[t, s] values[s] + d values[s])
                   - context[t] d logsumexp[t]

Both sums are over tiles, and `fold_tiles` computes both.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention.arrays.leading_axes import with_parts
from attention.arrays.masking import (
  finish_rows,
  is_valid_row,
  levels,
  mark_rows,
  masked_scores,
  row_maxima,
)
from attention.arrays.named_axes import first_index, has_user_code
from attention.arrays.products import is_zero_tangent
from attention.arrays.sharding import is_explicitly_sharded, match_vma
from attention.engines.dense import AttentionOutput, dense
from attention.engines.inputs import Inputs
from attention.engines.loops import fold_tiles
from attention.engines.normalized import normalized_attention
from attention.engines.plan import Plan, make_plan
from attention.normalizers.softmax import Softmax

Leaves = list[Any]


class OnlineSoftmax(NamedTuple):
  """The sums of a block of queries over some keys.

  Attributes:
    row_max: the largest score after masking, [T 1].
    denominator: sum of the weights exp(score - row_max), [T 1].
    context: sum of weights (after dropout) times values, [T D].
  """

  row_max: jax.Array
  denominator: jax.Array
  context: jax.Array


class DerivativeSums(NamedTuple):
  """The sums of a block of queries over some keys, in derivatives.

  Attributes:
    logsumexp: the derivative of the logsumexp, [T 1].
    context: sum of terms of the derivative of the context, [T D].
  """

  logsumexp: jax.Array
  context: jax.Array


class Results(NamedTuple):
  """The results of attention, one row per query.

  The logsumexp is `row_max + log_denominator`. Derivatives use the two terms separately: in float32, a
  logsumexp of 1e4 has an error of 1e-3, which the weights would inherit.

  Attributes:
    context: [... T D]; 0 in empty rows, NaN in non-finite rows.
    row_max: the largest score after masking, [... T 1].
    log_denominator: logarithm of the sum of exp(score - row_max), [... T 1].
  """

  context: jax.Array
  row_max: jax.Array
  log_denominator: jax.Array


def blockwise(
  inputs: Inputs,
  shape: tuple[int, ...],
  *,
  block_sizes: tuple[int, int] | None = None,
  axis_name: str | None = None,
  num_parts: int = 1,
) -> AttentionOutput:
  """Computes the same as `dense`, without weights.

  Weighted sums are divided by the denominator at the end, so values near the largest float may overflow.

  Args:
    inputs: from `prepare`, as is the shape.
    shape: of the scores, [... T S].
    block_sizes: maximum tile size, (queries, keys). Default: chosen for speed.
    axis_name: the mesh axis along which queries and keys are sharded, or None.
    num_parts: number of contiguous parts of the sequence in this shard, of equal length; 2 for zigzag.

  Raises:
    ValueError: if the arrays cannot be cut into tiles.
  """
  if is_explicitly_sharded(*jax.tree.leaves((inputs.queries, inputs.keys, inputs.values))):
    raise ValueError(
      '"blockwise" does not support arrays that are sharded over a mesh with AxisType.Explicit: '
      "call it inside jax.shard_map, or use a mesh with AxisType.Auto"
    )
  normalizer = inputs.options.normalizer
  if 0 in shape:
    return dense(inputs, shape)._replace(weights=None)
  plan, leaves = make_plan(inputs, shape, block_sizes, axis_name, num_parts)
  if has_user_code(inputs.options):
    _check_closures(inputs)
  # Inside shard_map, gradients of replicated arrays are summed over devices. This must not happen inside a
  # loop, since devices may run different numbers of iterations.
  leaves = match_vma(leaves, leaves)
  if type(normalizer) is not Softmax:  # a subclass may compute other weights
    return AttentionOutput(normalized_attention(plan, leaves))
  context, row_max, log_denominator = flash_attention(plan, leaves)
  if normalizer.sink is not None:
    share, added = normalizer.share(log_denominator, row_max)
    context = finish_rows(row_max, jnp.where(is_valid_row(row_max), context, 0) * share)
    log_denominator += added
  logsumexp = finish_rows(row_max, row_max + log_denominator, "-inf")[..., 0]
  return AttentionOutput(context, logsumexp=logsumexp)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def flash_attention(plan: Plan, leaves: Leaves) -> Results:
  """Computes the results of all queries over all keys."""
  values = plan.inputs(leaves).values
  dtype, D = values.dtype, values.shape[-1]

  def step(leaves: Leaves, sums: OnlineSoftmax | None) -> OnlineSoftmax:
    tile = plan.inputs(leaves)
    scores = masked_scores(*tile.scores_and_allowed(), tile.nonfinite_keys)
    row_max = row_maxima(scores)
    if sums is not None:
      row_max = jnp.maximum(row_max, sums.row_max)
    # Not 1 for masked pairs of an empty row, whose values may be huge.
    weights = jnp.exp(scores - jnp.maximum(row_max, levels(scores.dtype).minus_infinity))
    denominator = jnp.sum(weights, axis=-1, keepdims=True)
    context = jnp.einsum("TS,SD->TD", tile.drop(weights), tile.values)
    if sums is not None:
      scale = jnp.exp(sums.row_max - row_max)
      denominator += scale * sums.denominator
      context += scale * sums.context
    return OnlineSoftmax(row_max, denominator, context)

  def initial(T: int) -> OnlineSoftmax:
    row_max = jnp.full((T, 1), levels(dtype).masked)
    return OnlineSoftmax(row_max, jnp.zeros_like(row_max), jnp.zeros((T, D), dtype))

  def finish(leaves: Leaves, sums: OnlineSoftmax) -> Results:
    row_max = mark_rows(sums.row_max, plan.inputs(leaves).nonfinite_queries)
    denominator = jnp.where(sums.denominator == 0, 1, sums.denominator)
    return Results(finish_rows(row_max, sums.context / denominator), row_max, jnp.log(denominator))

  plan = dataclasses.replace(plan, is_differentiated=False)  # by JAX: the rule is used instead
  return fold_tiles(plan, step, initial, finish, (leaves,))


@functools.partial(flash_attention.defjvp, symbolic_zeros=True)
def _jvp_rule(plan: Plan, primals: Any, tangents: Any) -> tuple[Results, Results]:
  """The rule in the docstring of this file, linear in the tangents."""
  (leaves,), (tangents,) = primals, tangents
  results = flash_attention(plan, leaves)
  dtype, D = results.context.dtype, results.context.shape[-1]
  # A tangent of zero is None.
  tangents = [None if is_zero_tangent(tangent) else tangent for tangent in tangents]

  def only_varied(items: list[Any], tangents: Leaves) -> list[Any]:
    return [None if tangent is None else item for item, tangent in zip(items, tangents, strict=True)]

  def step(leaves: Leaves, tangents: Leaves, results: Results, sums: DerivativeSums | None) -> DerivativeSums:
    tile = plan.inputs(leaves)

    def scores_and_values(varied: Leaves) -> Any:
      tile = plan.inputs(with_parts(leaves, varied))
      scores, allowed = tile.scores_and_allowed()
      return (scores, tile.values), allowed

    (scores, values), (d_scores, d_values), allowed = jax.jvp(
      scores_and_values, (only_varied(leaves, tangents),), (tangents,), has_aux=True
    )
    exponents = masked_scores(scores, allowed) - results.row_max - results.log_denominator
    exponents = jnp.where(exponents > 0, 0, exponents)  # for huge scores, rounding errors may be large
    is_valid = is_valid_row(results.row_max)
    weights = jnp.exp(jnp.where(is_valid, exponents, levels(scores.dtype).masked))
    # The weight of a masked pair is 0, but the derivative of its score may overflow.
    weighted = weights * (d_scores if allowed is None else jnp.where(allowed, d_scores, 0))
    d_context = jnp.einsum("TS,SD->TD", tile.drop(weighted), values)
    d_context += jnp.einsum("TS,SD->TD", tile.drop(weights), d_values)
    terms = DerivativeSums(jnp.sum(weighted, axis=-1, keepdims=True), d_context)
    return terms if sums is None else jax.tree.map(jnp.add, sums, terms)

  def initial(T: int) -> DerivativeSums:
    return DerivativeSums(jnp.zeros((T, 1), dtype), jnp.zeros((T, D), dtype))

  def finish(leaves: Leaves, tangents: Leaves, results: Results, sums: DerivativeSums) -> DerivativeSums:
    # The sums of invalid rows are 0, but their context may be NaN, and so may an incoming gradient.
    is_valid = is_valid_row(results.row_max)
    context = jnp.where(is_valid, results.context, 0)
    return sums._replace(context=jnp.where(is_valid, sums.context - context * sums.logsumexp, 0))

  plan = plan.with_letters(only_varied(plan.letters[0], tangents), jax.tree.map(lambda rows: "TX", results))
  d_logsumexp, d_context = fold_tiles(plan, step, initial, finish, (leaves, tangents, results))
  # Only the sum of row_max and log_denominator is used, so the whole tangent is that of log_denominator.
  return results, Results(d_context, jnp.zeros_like(results.row_max), d_logsumexp)


def _check_closures(inputs: Inputs) -> None:
  """Raises ValueError if a score, mask or bias closes over a traced array, which would get no gradient."""
  jaxpr = jax.make_jaxpr(lambda inputs: first_index(inputs).scores_and_allowed())(inputs)
  if any(isinstance(c, jax.core.Tracer) and jnp.issubdtype(c.dtype, jnp.floating) for c in jaxpr.consts):
    raise ValueError(
      "a score, mask or bias class must hold traced arrays as fields, got one that closes over them and "
      'would get no gradient with "blockwise"; a bias that is a plain function may close over them'
    )
