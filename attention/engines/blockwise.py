"""The same attention in memory that grows with T + S, in every derivative: one tile of pairs at a time.

A block of queries meets one block of keys after the other. What it carries from one to the next are the
largest score m, by which all exponentials are shifted, the total l of the exponentials, and the sums of which
the results are means (online softmax: Milakov and Gimelshein 2018, arXiv:1805.02867). Nothing of a tile is
kept: derivatives calculate it again from the logsumexp (Rabe and Staats 2021, arXiv:2112.05682; Dao et al.
2022, arXiv:2205.14135). There is one rule of differentiation, that of forward mode; JAX transposes it for
gradients and differentiates it for second derivatives. With P = exp(S - logsumexp):

    d logsumexp[t] = sum over s of P[t, s] dS[t, s]
    d context[t] = sum over s of P[t, s] (dS[t, s] values[s] + d values[s]) - context[t] d logsumexp[t]

The engine uses a score's features and `tile`, a mask's `tile` and `block_mask`, and the tiles of a bias.
Leading axes are a loop around it; tiles.py has those over blocks and devices.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from attention.arrays.devices import are_spread_by_type, varying_like
from attention.arrays.loops import over_leading
from attention.arrays.recomputing import recomputed
from attention.engines.dense import Attended, dense
from attention.engines.guards import (
  has_weights,
  is_broken,
  is_empty,
  lowest,
  masked_scores,
  shift_of,
  where,
)
from attention.engines.inputs import Inputs
from attention.engines.plan import Plan, plan_for
from attention.engines.tiles import Arrays, over_devices, over_key_blocks, over_query_blocks

Tree = TypeVar("Tree")


class Sums(NamedTuple):
  """Sums over the keys, linear in the weights.

  To carry another statistic, add a field, what it starts from, and its formula: the mean score of a row, for
  example, is the sum of weights times scores, and the entropy is the logsumexp minus that.

  Attributes:
    context: sum of weights (after dropout) times values, [... T D].
  """

  context: jax.Array

  @classmethod
  def zeros(cls, rows: tuple[int, ...], values: jax.Array) -> "Sums":
    """Returns the sums of rows [... T] of queries over no keys."""
    return cls(context=jnp.zeros((*rows, values.shape[-1]), values.dtype))

  @classmethod
  def of(cls, inputs: Inputs, weights: jax.Array, scores: jax.Array, values: jax.Array) -> "Sums":
    """Returns the sums over the keys of a tile, from weights and scores [... T S] and values [... S D]."""
    return cls(context=jnp.einsum("...TS,...SD->...TD", inputs.drop(weights), values))


class OnlineSoftmax(NamedTuple):
  """What queries carry from one block of keys to the next.

  Attributes:
    largest: the largest masked score so far, [... T 1].
    total: sum of exp(score - largest), [... T 1].
    sums: those with the weights exp(score - largest).
  """

  largest: jax.Array
  total: jax.Array
  sums: Sums

  @classmethod
  def start(cls, rows: tuple[int, ...], values: jax.Array) -> "OnlineSoftmax":
    """Returns the carry of rows [... T] of queries before the first key."""
    zeros = jnp.zeros((*rows, 1), values.dtype)
    return cls(jnp.full_like(zeros, lowest(values.dtype)), zeros, Sums.zeros(rows, values))

  def rescaled(self, largest: jax.Array) -> "OnlineSoftmax":
    """Returns the same carry, shifted by another largest score."""
    factor = jnp.exp(self.largest - shift_of(largest))
    return OnlineSoftmax(largest, self.total * factor, jax.tree.map(lambda sum: sum * factor, self.sums))

  def updated(self, scores: jax.Array, inputs: Inputs) -> "OnlineSoftmax":
    """Returns the carry after a tile with these masked scores [... T S]."""
    largest = jnp.maximum(self.largest, jnp.max(scores, axis=-1, keepdims=True))
    weights = jnp.exp(scores - shift_of(largest))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    return self.rescaled(largest).plus(
      OnlineSoftmax(largest, total, Sums.of(inputs, weights, scores, inputs.values))
    )

  def plus(self, other: "OnlineSoftmax") -> "OnlineSoftmax":
    """Returns the sum of two carries with the same largest score."""
    return OnlineSoftmax(self.largest, *jax.tree.map(jnp.add, self[1:], other[1:]))

  def joined(self, other: "OnlineSoftmax") -> "OnlineSoftmax":
    """Returns the carry over both sets of keys, for the same queries."""
    largest = jnp.maximum(self.largest, other.largest)
    return self.rescaled(largest).plus(other.rescaled(largest))

  def results(self) -> "Results":
    """Returns the results, NaN for broken rows."""
    nan = where(is_broken(self.largest), "nan", jnp.zeros_like(self.total))
    total = jnp.where(self.total == 0, 1, self.total)
    means = jax.tree.map(lambda sum: sum / total + nan, self.sums)
    return Results(means, self.largest, jnp.log(total) + nan)


class Results(NamedTuple):
  """The results of attention, one row for each query.

  The logsumexp is `shift_of(largest) + log_total`. Derivatives need the two apart: a logsumexp of 1e4 is off
  by 1e-3 in float32, and the weights with it.

  Attributes:
    means: the sums divided by the total of the weights.
    largest: the largest masked score, [... T 1].
    log_total: logarithm of the sum of exp(score - shift), [... T 1]; 0 for empty rows, NaN for broken ones.
  """

  means: Sums
  largest: jax.Array
  log_total: jax.Array

  def zero_if_broken(self) -> "Results":
    """Returns the same with means and log_total of 0 for broken rows."""
    means, log_total = jax.tree.map(
      lambda array: jnp.where(is_broken(self.largest), 0, array), (self.means, self.log_total)
    )
    return Results(means, self.largest, log_total)

  def weights(self, scores: jax.Array) -> jax.Array:
    """Returns the weights P that gave these results, from masked scores [... T S]."""
    exponents = scores - shift_of(self.largest) - self.log_total
    return jnp.exp(jnp.where(has_weights(self.largest), exponents, lowest(scores.dtype)))


def blockwise(
  inputs: Inputs,
  shape: tuple[int, ...],
  *,
  block_sizes: tuple[int, int] | None = None,
  ring: str | None = None,
  parts: int = 1,
  return_logsumexp: bool,
) -> Attended:
  """Returns what `dense` returns, without the weights.

  Weighted sums are divided by their total at the end, so values near the largest number may overflow.

  Args:
    inputs: from `prepare`, as is the shape.
    shape: of the scores, [... T S].
    block_sizes: how many queries and keys a tile has at most; None for what is fast.
    ring: the axis of a device mesh along which queries and keys are spread; None if all are here.
    parts: how many parts of the whole sequences, equal in length and each in order, these are.
    return_logsumexp: as in `dense`.

  Raises:
    ValueError: if the arrays cannot be cut.
  """
  if are_spread_by_type(*jax.tree.leaves((inputs.queries, inputs.keys, inputs.values))):
    raise ValueError(
      "arrays that are spread over a mesh of AxisType.Explicit cannot be cut by `blockwise`: "
      "call it inside jax.shard_map, or make the mesh with AxisType.Auto"
    )
  if 0 in shape or (inputs.values.shape[-1] == 0 and ring is None):
    return dense(inputs, shape, return_logsumexp=return_logsumexp)._replace(weights=None)
  plan, arrays = plan_for(inputs, shape, block_sizes, ring, parts)
  # Inside shard_map, what is the same on all devices gets its gradients by a sum over them. That must not
  # happen within a loop, of which each device may take other turns.
  arrays = varying_like(arrays, arrays)
  results = flash_attention(plan, arrays)
  if not return_logsumexp:
    return Attended(results.means.context)
  logsumexp = shift_of(results.largest) + results.log_total
  logsumexp = where(is_empty(results.largest), "-inf", logsumexp)
  return Attended(results.means.context, logsumexp=logsumexp[..., 0])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def flash_attention(plan: Plan, arrays: Arrays) -> Results:
  """Returns the results of all queries over all keys."""

  def over_keys(arrays: Arrays) -> OnlineSoftmax:
    def step(carry: OnlineSoftmax, arrays: Arrays, some_are_masked: bool) -> OnlineSoftmax:
      tile = plan.inputs(arrays).with_mask_if(some_are_masked)
      return carry.updated(masked_scores(*tile.scores_and_allowed(), tile.broken_pairs()), tile)

    start = OnlineSoftmax.start((*plan.leading, plan.queries.size), plan.inputs(arrays).values)
    return over_key_blocks(plan, step, varying_like(start, arrays), arrays, plan.axes, plan.block_mask)

  def over_queries(arrays: Arrays) -> Any:
    # Each block of queries is finished while it is in the cache, unless there are more keys elsewhere.
    of_block = over_keys if plan.ring else lambda arrays: over_keys(arrays).results()
    return over_query_blocks(plan, of_block, plan.finite(arrays, arrays), plan.axes)

  with jax.default_matmul_precision(plan.precision):
    rows = *plan.looped, *plan.leading, plan.queries.length
    nothing = OnlineSoftmax.start(rows, plan.inputs(arrays).values)
    of_keys_here = functools.partial(_over_leading_axes, plan, over_queries, plan.axes)
    found = over_devices(plan, of_keys_here, OnlineSoftmax.joined, nothing, arrays, plan.axes)
  return found.results() if isinstance(found, OnlineSoftmax) else found


@functools.partial(flash_attention.defjvp, symbolic_zeros=True)
def _rule(plan: Plan, primals, tangents) -> tuple[Results, Results]:
  """The rule of the file's docstring, linear in the tangents. None stands for those known to be 0."""
  (arrays,), (tangents,) = primals, tangents
  tangents = [None if _is_zero(tangent) else tangent for tangent in tangents]
  results = flash_attention(plan, arrays)
  rows, structure = jax.tree.flatten(results)
  axes = (*plan.axes, *plan.axes, *["TX"] * len(rows))  # of the arrays, their tangents, and the results

  def parts(cut: Arrays) -> tuple[Arrays, Arrays, Results]:
    n = len(plan.axes)
    return cut[:n], cut[n : 2 * n], jax.tree.unflatten(structure, cut[2 * n :])

  def zeros(results: Results) -> tuple[jax.Array, Sums]:
    return jax.tree.map(jnp.zeros_like, (results.log_total, results.means))

  @recomputed
  def over_keys(cut: Arrays) -> tuple[jax.Array, Sums]:
    def step(carry: Any, cut: Arrays, some_are_masked: bool) -> Any:
      found = recomputed(lambda cut: _differentiate_tile(plan, *parts(cut), some_are_masked))(cut)
      return _add(carry, found)

    *_, results = parts(cut)
    start = varying_like(zeros(results), cut)
    d_logsumexp, d_sums = over_key_blocks(
      plan, step, start, cut, axes, lambda cut: plan.block_mask(parts(cut)[0])
    )
    d_means = jax.tree.map(lambda d_sum, mean: d_sum - mean * d_logsumexp, d_sums, results.means)
    # This is for gradients: NaN from above must not reach a row without weights.
    return jax.tree.map(lambda d: jnp.where(has_weights(results.largest), d, 0), (d_logsumexp, d_means))

  @recomputed
  def over_queries(cut: Arrays) -> tuple[jax.Array, Sums]:
    arrays, tangents, results = parts(cut)
    rows = jax.tree.leaves(results.zero_if_broken())
    cut = [*plan.finite(arrays, arrays), *plan.finite(arrays, tangents), *rows]
    return over_query_blocks(plan, over_keys, cut, axes)

  cut = [*arrays, *tangents, *rows]
  with jax.default_matmul_precision(plan.precision):
    of_keys_here = functools.partial(_over_leading_axes, plan, over_queries, axes)
    d_logsumexp, d_means = over_devices(plan, of_keys_here, _add, zeros(results), cut, axes)
  return results, Results(d_means, jnp.zeros_like(results.largest), d_logsumexp)


def _over_leading_axes(
  plan: Plan, function: Callable[[Arrays], Tree], axes: Sequence[str | None], arrays: Arrays
) -> Tree:
  """Returns the function's results at each index of the leading axes that a tile does not have."""
  # Within the rule: JAX's derivative of this loop would store what is the same at all indices.
  there = [i for i, array in enumerate(arrays) if array is not None]

  def at_index(here: Arrays) -> Tree:
    by_place = dict(zip(there, here, strict=True))
    return function([by_place.get(i) for i in range(len(arrays))])

  own_ranks = [len(axes[i] or "") for i in there]  # a tile has either no leading axes, or all
  return over_leading(at_index, [arrays[i] for i in there], own_ranks, plan.looped, plan.at_once)


def _differentiate_tile(
  plan: Plan, arrays: Arrays, tangents: Arrays, results: Results, some_are_masked: bool
) -> tuple[jax.Array, Sums]:
  """Returns the contributions of a tile to d logsumexp [... T 1] and d sums."""
  changing = [i for i, tangent in enumerate(tangents) if tangent is not None]

  def scores_and_values(changed: Arrays) -> Any:
    now = dict(zip(changing, changed, strict=True))
    tile = plan.inputs([now.get(i, array) for i, array in enumerate(arrays)]).with_mask_if(some_are_masked)
    scores, allowed = tile.scores_and_allowed()
    return (scores, tile.values), (tile, allowed)

  (scores, values), (d_scores, d_values), (tile, allowed) = jax.jvp(
    scores_and_values, ([arrays[i] for i in changing],), ([tangents[i] for i in changing],), has_aux=True
  )
  scores = masked_scores(scores, allowed)
  weights = results.weights(scores)
  # The weight of a masked pair is 0, but its score, or the product with its value, may have overflowed.
  d_scores = d_scores if allowed is None else jnp.where(allowed, d_scores, 0)
  d_weights = weights * d_scores
  _, d_sums = jax.jvp(
    functools.partial(Sums.of, tile), (weights, scores, values), (d_weights, d_scores, d_values)
  )
  return jnp.sum(d_weights, axis=-1, keepdims=True), d_sums


def _add(one: Tree, other: Tree) -> Tree:
  return jax.tree.map(jnp.add, one, other)


def _is_zero(tangent: Any) -> bool:
  return isinstance(tangent, jax.custom_derivatives.SymbolicZero) or tangent.dtype == jax.dtypes.float0
