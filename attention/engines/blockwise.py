"""The same attention in memory that grows with T + S, in every derivative: one tile of pairs at a time.

A block of queries meets one block of keys after the other. It carries the largest score m, by which all
exponentials are shifted, the total l of the exponentials, and the sums of which the results are means (online
softmax: Milakov and Gimelshein 2018, arXiv:1805.02867). Tiles are not stored: derivatives compute them again
from the logsumexp (Rabe and Staats 2021, arXiv:2112.05682; Dao et al. 2022, arXiv:2205.14135). There is one
rule of differentiation, that of forward mode; JAX transposes it for gradients and differentiates it for
second derivatives. With P = exp(S - logsumexp):

    d logsumexp[t] = sum over s of P[t, s] dS[t, s]
    d context[t] = sum over s of P[t, s] (dS[t, s] values[s] + d values[s]) - context[t] d logsumexp[t]

The engine uses a score's features and `scores`, a mask's `mask_mod` and `block_summary`, and the tiles of a
bias. tiles.py has the loops.
"""

import functools
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from attention.arrays.pytrees import combine
from attention.arrays.shapes import with_rank
from attention.arrays.sharding import is_explicitly_sharded, match_vma
from attention.engines.attention_inputs import Inputs
from attention.engines.dense import AttentionOutput, dense
from attention.engines.masking import finish_rows, is_valid_row, mask_value, masked_scores, softmax_shift
from attention.engines.tiles import over_tiles
from attention.engines.tiling import TilingPlan, make_tiling_plan

Tree = TypeVar("Tree")


class OnlineSoftmax(NamedTuple):
  """What queries carry from one block of keys to the next.

  To carry another statistic that is linear in the weights, add it in this file wherever `context` is. The
  entropy of a row, for example, is its logsumexp minus its mean score, which is exact for scores that are not
  large. Scores may be infinite where a pair has no weight: replace those by 0.

  Attributes:
    row_max: the largest masked score so far, [... T 1].
    denominator: sum of the weights exp(score - largest), [... T 1].
    context: sum of weights (after dropout) times values, [... T D].
  """

  row_max: jax.Array
  denominator: jax.Array
  context: jax.Array

  def merge(self, other: "OnlineSoftmax") -> "OnlineSoftmax":
    """Returns the carry over both sets of keys, for the same queries."""
    row_max = jnp.maximum(self.row_max, other.row_max)
    first, second = (jnp.exp(each.row_max - softmax_shift(row_max)) for each in (self, other))
    denominator = self.denominator * first + other.denominator * second
    return OnlineSoftmax(row_max, denominator, self.context * first + other.context * second)

  def results(self) -> "BlockResults":
    denominator = jnp.where(is_valid_row(self.row_max), self.denominator, 1)
    return BlockResults(
      finish_rows(self.row_max, self.context / denominator), self.row_max, jnp.log(denominator)
    )


class BlockResults(NamedTuple):
  """The results of attention, one row for each query.

  The logsumexp is `softmax_shift(row_max) + log_denominator`. Derivatives need the two apart: a logsumexp of
  1e4 has an error of 1e-3 in float32, and so would the weights.

  Attributes:
    context: [... T D]; 0 in empty rows, NaN in broken rows.
    row_max: the largest masked score, [... T 1].
    log_denominator: logarithm of the sum of exp(score - shift), [... T 1]; 0 in rows that are empty or
      broken.
  """

  context: jax.Array
  row_max: jax.Array
  log_denominator: jax.Array


def blockwise(
  inputs: Inputs,
  shape: tuple[int, ...],
  *,
  block_sizes: tuple[int, int] | None = None,
  ring: str | None = None,
  num_segments: int = 1,
  return_logsumexp: bool,
) -> AttentionOutput:
  """Returns what `dense` returns, without the weights.

  Weighted sums are divided by their total at the end, so values near the largest number may overflow.

  Args:
    inputs: from `prepare`, as is the shape.
    shape: of the scores, [... T S].
    block_sizes: how many queries and keys a tile has at most; None for what is fast.
    ring: the axis of a device mesh along which queries and keys are spread; None if all are here.
    num_segments: how many parts of the whole sequences, equal in length and each in order, these are.
    return_logsumexp: as in `dense`.

  Raises:
    ValueError: if the arrays cannot be cut.
  """
  if is_explicitly_sharded(*jax.tree.leaves((inputs.queries, inputs.keys, inputs.values))):
    raise ValueError(
      "arrays that are spread over a mesh of AxisType.Explicit cannot be cut by `blockwise`: "
      "call it inside jax.shard_map, or make the mesh with AxisType.Auto"
    )
  if 0 in shape or (inputs.values.shape[-1] == 0 and ring is None):
    return dense(inputs, shape, return_logsumexp=return_logsumexp)._replace(weights=None)
  plan, arrays = make_tiling_plan(inputs, shape, block_sizes, ring, num_segments)
  # Inside shard_map, arrays that are the same on all devices get their gradients by a sum over devices. That
  # must not happen within a loop, of which each device may take other turns.
  arrays = match_vma(arrays, arrays)
  results = flash_attention(plan, arrays)
  if not return_logsumexp:
    return AttentionOutput(results.context)
  logsumexp = finish_rows(results.row_max, softmax_shift(results.row_max) + results.log_denominator, "-inf")
  return AttentionOutput(results.context, logsumexp=logsumexp[..., 0])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def flash_attention(plan: TilingPlan, arrays: list[jax.Array]) -> BlockResults:
  """Returns the results of all queries over all keys."""

  def initial(cut: Any, leading: tuple[int, ...]) -> OnlineSoftmax:
    tile = plan.inputs(cut[0])
    rows, dtype = (*leading, tile.t.shape[0]), tile.values.dtype
    row_max = jnp.full((*rows, 1), mask_value(dtype))
    return OnlineSoftmax(row_max, jnp.zeros_like(row_max), jnp.zeros((*rows, tile.values.shape[-1]), dtype))

  def finish(cut: Any, carry: OnlineSoftmax) -> Any:
    # Each block of queries is finished while it is in the cache, unless there are more keys elsewhere.
    return carry.results() if plan.ring is None else carry

  tile_fn = functools.partial(_attend_to_tile, plan)
  none = [None] * len(arrays)
  found = over_tiles(
    plan, tile_fn, OnlineSoftmax.merge, initial, finish, (arrays, none, None), (plan.axes, none, None)
  )
  return found if plan.ring is None else found.results()


def _attend_to_tile(
  plan: TilingPlan, arrays: list[Any], tangents: Any, results: Any, use_mask: bool
) -> OnlineSoftmax:
  """Returns the carry of one tile."""
  tile = plan.inputs(arrays)
  # Broken pairs have the leading axes of queries, keys and values, so the scores have them too.
  scores = masked_scores(*tile.scores_and_allowed(use_mask), tile.nonfinite_pairs())
  row_max = jnp.max(scores, axis=-1, keepdims=True)
  weights = jnp.exp(scores - softmax_shift(row_max))
  context = jnp.einsum("...TS,...SD->...TD", tile.drop(weights), tile.values)
  return OnlineSoftmax(row_max, jnp.sum(weights, axis=-1, keepdims=True), context)


@functools.partial(flash_attention.defjvp, symbolic_zeros=True)
def _jvp_rule(plan: TilingPlan, primals, tangents) -> tuple[BlockResults, BlockResults]:
  """The rule of the file's docstring, linear in the tangents. None stands for those known to be 0."""
  (arrays,), (tangents,) = primals, tangents
  symbolic_zero = jax.custom_derivatives.SymbolicZero
  are_zero = [isinstance(each, symbolic_zero) or each.dtype == jax.dtypes.float0 for each in tangents]
  tangents = [None if zero else tangent for zero, tangent in zip(are_zero, tangents, strict=True)]
  tangent_axes = [None if zero else own for zero, own in zip(are_zero, plan.axes, strict=True)]
  results = flash_attention(plan, arrays)

  def initial(cut: Any, leading: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    return jax.tree.map(jnp.zeros_like, (cut[2].log_denominator, cut[2].context))

  def add(one: Tree, other: Tree) -> Tree:
    return jax.tree.map(jnp.add, one, other)

  def finish(cut: Any, totals: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    d_logsumexp, d_context = totals
    is_weighted = is_valid_row(cut[2].row_max)  # NaN in other rows must not reach derivatives
    context = jnp.where(is_weighted, cut[2].context, 0)
    return d_logsumexp, jnp.where(is_weighted, d_context - context * d_logsumexp, 0)

  tile_fn = functools.partial(_differentiate_tile, plan)
  axes = plan.axes, tangent_axes, jax.tree.map(lambda rows: "TX", results)
  d_logsumexp, d_context = over_tiles(plan, tile_fn, add, initial, finish, (arrays, tangents, results), axes)
  return results, BlockResults(d_context, jnp.zeros_like(results.row_max), d_logsumexp)


def _differentiate_tile(
  plan: TilingPlan, arrays: list[Any], tangents: list[Any], results: BlockResults, use_mask: bool
) -> tuple[jax.Array, jax.Array]:
  """Returns a tile's terms of the two sums over s in the docstring of this file, [... T 1] and [... T D]."""
  changing = [None if tangent is None else array for array, tangent in zip(arrays, tangents, strict=True)]

  def scores_and_values(changed: list[Any]) -> Any:
    tile = plan.inputs(combine(changed, arrays))
    scores, allowed = tile.scores_and_allowed(use_mask)
    # Rows have all leading axes of a tile, of which scores may lack some.
    scores = jnp.broadcast_to(scores, jnp.broadcast_shapes(scores.shape, results.row_max.shape))
    return (scores, tile.values), (tile, allowed if allowed is None else with_rank(allowed, scores.ndim))

  (scores, values), (d_scores, d_values), (tile, allowed) = jax.jvp(
    scores_and_values, (changing,), (tangents,), has_aux=True
  )
  exponents = masked_scores(scores, allowed) - softmax_shift(results.row_max) - results.log_denominator
  weights = jnp.exp(jnp.where(is_valid_row(results.row_max), exponents, mask_value(scores.dtype)))
  # The weight of a masked pair is 0, but the derivative of its score may have overflowed.
  d_scores = d_scores if allowed is None else jnp.where(allowed, d_scores, 0)
  weighted_sum = functools.partial(jnp.einsum, "...TS,...SD->...TD")
  weighted = weights * d_scores
  d_context = weighted_sum(tile.drop(weighted), values) + weighted_sum(tile.drop(weights), d_values)
  return jnp.sum(weighted, axis=-1, keepdims=True), d_context
