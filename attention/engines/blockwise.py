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

The engine uses the features and `scores` of a score, `mask_mod` and `block_summary` of a mask, and the tiles
of a bias. The loops are in tiles.py.
"""

import dataclasses
import functools
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from attention.arrays.masking import finish_rows, is_valid_row, mask_value, masked_scores, softmax_shift
from attention.arrays.named_axes import combine
from attention.arrays.shapes import with_rank
from attention.arrays.sharding import is_explicitly_sharded, match_vma
from attention.engines.dense import AttentionOutput, dense
from attention.engines.in_passes import attend_to_keys, in_passes
from attention.engines.inputs import Inputs
from attention.engines.loops import Operands, merge_key_blocks, nonzero_tangents, over_tiles
from attention.engines.plan import TilingPlan, make_tiling_plan
from attention.normalizers.softmax import Softmax

Tree = TypeVar("Tree")


class OnlineSoftmax(NamedTuple):
  """The running sums of a block of queries over blocks of keys.

  Attributes:
    row_max: the largest score after masking so far, [... T 1].
    denominator: sum of the weights exp(score - row_max), [... T 1].
    context: sum of weights (after dropout) times values, [... T D].
  """

  row_max: jax.Array
  denominator: jax.Array
  context: jax.Array

  def merge(self, other: "OnlineSoftmax") -> "OnlineSoftmax":
    """Merges the sums over two sets of keys, for the same queries."""
    row_max = jnp.maximum(self.row_max, other.row_max)
    first, second = (jnp.exp(sums.row_max - softmax_shift(row_max)) for sums in (self, other))
    denominator = self.denominator * first + other.denominator * second
    return OnlineSoftmax(row_max, denominator, self.context * first + other.context * second)

  def results(self) -> "BlockResults":
    denominator = jnp.where(is_valid_row(self.row_max), self.denominator, 1)
    return BlockResults(
      finish_rows(self.row_max, self.context / denominator), self.row_max, jnp.log(denominator)
    )


class BlockResults(NamedTuple):
  """The results of attention, one row per query.

  The logsumexp is `softmax_shift(row_max) + log_denominator`. Derivatives use the two terms separately: in
  float32, a logsumexp of 1e4 has an error of 1e-3, which the weights would inherit.

  Attributes:
    context: [... T D]; 0 in empty rows, NaN in non-finite rows.
    row_max: the largest score after masking, [... T 1].
    log_denominator: logarithm of the sum of exp(score - shift), [... T 1]; 0 in empty and non-finite rows.
  """

  context: jax.Array
  row_max: jax.Array
  log_denominator: jax.Array

  def with_sink(self, sink: jax.Array) -> "BlockResults":
    """Returns the results with one more key, with the given scores [... T 1] and a value of zero."""
    excess = softmax_shift(self.row_max) - sink + self.log_denominator
    context = jnp.where(is_valid_row(self.row_max), self.context, 0) * jax.nn.sigmoid(excess)
    return BlockResults(
      finish_rows(self.row_max, context), self.row_max, self.log_denominator + jax.nn.softplus(-excess)
    )


def blockwise(
  inputs: Inputs,
  shape: tuple[int, ...],
  *,
  block_sizes: tuple[int, int] | None = None,
  axis_name: str | None = None,
  num_parts: int = 1,
  return_logsumexp: bool,
) -> AttentionOutput:
  """Computes the same as `dense`, without weights.

  Weighted sums are divided by the denominator at the end, so values near the largest float may overflow.

  Args:
    inputs: from `prepare`, as is the shape.
    shape: of the scores, [... T S].
    block_sizes: maximum tile size, (queries, keys). Default: chosen for speed.
    axis_name: the mesh axis along which queries and keys are sharded, or None.
    num_parts: number of contiguous parts of the sequence in this shard, of equal length; 2 for zigzag.
    return_logsumexp: as in `dense`.

  Raises:
    ValueError: if the arrays cannot be cut into tiles.
  """
  if is_explicitly_sharded(*jax.tree.leaves((inputs.queries, inputs.keys, inputs.values))):
    raise ValueError(
      '"blockwise" does not support arrays that are sharded over a mesh with AxisType.Explicit: '
      "call it inside jax.shard_map, or use a mesh with AxisType.Auto"
    )
  if 0 in shape or (inputs.values.shape[-1] == 0 and axis_name is None):
    return dense(inputs, shape, return_logsumexp=return_logsumexp)._replace(weights=None)
  normalizer = inputs.normalizer
  is_softmax = type(normalizer) is Softmax  # a subclass may compute other weights
  inputs = dataclasses.replace(inputs, normalizer=None) if is_softmax else inputs
  plan, arrays = make_tiling_plan(inputs, shape, block_sizes, axis_name, num_parts)
  # Inside shard_map, gradients of replicated arrays are summed over devices. This must not happen inside a
  # loop, since devices may run different numbers of iterations.
  arrays = match_vma(arrays, arrays)
  if not is_softmax:
    return AttentionOutput(in_passes(attend_to_keys, plan, arrays))
  results = flash_attention(plan, arrays)
  if normalizer.sink is not None:
    results = results.with_sink(normalizer.sink_scores(results.row_max))
  if not return_logsumexp:
    return AttentionOutput(results.context)
  logsumexp = finish_rows(results.row_max, softmax_shift(results.row_max) + results.log_denominator, "-inf")
  return AttentionOutput(results.context, logsumexp=logsumexp[..., 0])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def flash_attention(plan: TilingPlan, arrays: list[jax.Array]) -> BlockResults:
  """Computes the results of all queries over all keys."""

  def initial(operands: Operands, leading: tuple[int, ...]) -> OnlineSoftmax:
    tile = plan.inputs(operands.arrays)
    rows, dtype = (*leading, tile.t.shape[0]), tile.values.dtype
    row_max = jnp.full((*rows, 1), mask_value(dtype))
    return OnlineSoftmax(row_max, jnp.zeros_like(row_max), jnp.zeros((*rows, tile.values.shape[-1]), dtype))

  def attend_to_keys(operands: Operands) -> Any:
    carry = merge_key_blocks(
      plan, tile_fn, OnlineSoftmax.merge, initial(operands, plan.leading), operands, axes
    )
    # Finish each block of queries while it is in the cache, unless other devices hold more keys.
    return carry.results() if plan.axis_name is None else carry

  tile_fn = functools.partial(_attend_to_tile, plan)
  none = [None] * len(arrays)
  operands, axes = Operands(arrays, none, None), Operands(plan.axes, none, None)
  sums_or_results = over_tiles(
    plan,
    attend_to_keys,
    operands,
    axes,
    OnlineSoftmax.merge,
    initial(operands, (*plan.looped, *plan.leading)) if plan.axis_name is not None else None,
  )
  return sums_or_results if plan.axis_name is None else sums_or_results.results()


def _attend_to_tile(
  plan: TilingPlan, arrays: list[Any], tangents: Any, results: Any, use_mask: bool
) -> OnlineSoftmax:
  """Returns the sums of one tile."""
  tile = plan.inputs(arrays)
  # nonfinite_pairs has the leading axes of queries, keys and values, so the masked scores have them too.
  scores = masked_scores(*tile.scores_and_allowed(use_mask), tile.nonfinite_pairs())
  row_max = jnp.max(scores, axis=-1, keepdims=True)
  weights = jnp.exp(scores - softmax_shift(row_max))
  context = jnp.einsum("...TS,...SD->...TD", tile.drop(weights), tile.values)
  return OnlineSoftmax(row_max, jnp.sum(weights, axis=-1, keepdims=True), context)


@functools.partial(flash_attention.defjvp, symbolic_zeros=True)
def _jvp_rule(plan: TilingPlan, primals, tangents) -> tuple[BlockResults, BlockResults]:
  """The rule in the docstring of this file, linear in the tangents. None stands for a zero tangent."""
  (arrays,), (tangents,) = primals, tangents
  tangents, tangent_axes = nonzero_tangents(plan, tangents)
  results = flash_attention(plan, arrays)

  def initial(operands: Operands, leading: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    return jax.tree.map(jnp.zeros_like, (operands.results.log_denominator, operands.results.context))

  def add(first: Tree, second: Tree) -> Tree:
    return jax.tree.map(jnp.add, first, second)

  def differentiate_keys(operands: Operands) -> tuple[jax.Array, jax.Array]:
    d_logsumexp, d_context = merge_key_blocks(
      plan, tile_fn, add, initial(operands, plan.leading), operands, axes
    )
    is_valid = is_valid_row(operands.results.row_max)  # NaN of other rows must not reach derivatives
    context = jnp.where(is_valid, operands.results.context, 0)
    return d_logsumexp, jnp.where(is_valid, d_context - context * d_logsumexp, 0)

  tile_fn = functools.partial(_differentiate_tile, plan)
  axes = Operands(plan.axes, tangent_axes, jax.tree.map(lambda rows: "TX", results))
  operands = Operands(arrays, tangents, results)
  zeros = initial(operands, ()) if plan.axis_name is not None else None
  d_logsumexp, d_context = over_tiles(plan, differentiate_keys, operands, axes, add, zeros)
  # Only the sum of shift and log_denominator is used, so the whole tangent is that of log_denominator.
  return results, BlockResults(d_context, jnp.zeros_like(results.row_max), d_logsumexp)


def _differentiate_tile(
  plan: TilingPlan, arrays: list[Any], tangents: list[Any], results: BlockResults, use_mask: bool
) -> tuple[jax.Array, jax.Array]:
  """Returns the terms of a tile in the two sums of the docstring of this file, [... T 1] and [... T D]."""
  differentiated = [
    None if tangent is None else array for array, tangent in zip(arrays, tangents, strict=True)
  ]

  def scores_and_values(differentiated: list[Any]) -> Any:
    tile = plan.inputs(combine(differentiated, arrays))
    scores, allowed = tile.scores_and_allowed(use_mask)
    # Rows have all leading axes of a tile; scores may have fewer.
    scores = jnp.broadcast_to(scores, jnp.broadcast_shapes(scores.shape, results.row_max.shape))
    return (scores, tile.values), (tile, allowed if allowed is None else with_rank(allowed, scores.ndim))

  (scores, values), (d_scores, d_values), (tile, allowed) = jax.jvp(
    scores_and_values, (differentiated,), (tangents,), has_aux=True
  )
  exponents = masked_scores(scores, allowed) - softmax_shift(results.row_max) - results.log_denominator
  # For huge scores, rounding errors of the exponents may be large.
  exponents = jnp.where(exponents > 0, 0, exponents)
  weights = jnp.exp(jnp.where(is_valid_row(results.row_max), exponents, mask_value(scores.dtype)))
  # The weight of a masked pair is 0, but the derivative of its score may overflow.
  d_scores = d_scores if allowed is None else jnp.where(allowed, d_scores, 0)
  weighted_sum = functools.partial(jnp.einsum, "...TS,...SD->...TD")
  weighted = weights * d_scores
  d_context = weighted_sum(tile.drop(weighted), values) + weighted_sum(tile.drop(weights), d_values)
  return jnp.sum(weighted, axis=-1, keepdims=True), d_context
