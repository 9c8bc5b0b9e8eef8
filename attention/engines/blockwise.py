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
Leading axes, windows and devices are loops around it (loops.py).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from attention.arrays.devices import are_spread_by_type, varying_like
from attention.arrays.recomputing import recomputed
from attention.engines.dense import Attended, dense
from attention.engines.guards import (
  has_weights,
  is_broken,
  is_empty,
  lowest,
  masked_scores,
  minus_infinity_where,
  nan_where,
  shift_of,
)
from attention.engines.inputs import Inputs
from attention.engines.loops import over_devices, over_key_blocks, over_leading_axes, over_query_blocks
from attention.engines.operands import Form, Operands
from attention.engines.plan import Plan, plan_for, rules_for

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
    nan = nan_where(is_broken(self.largest), self.total.dtype)
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
  plan = plan_for(inputs, shape, block_sizes, ring, parts)
  inputs = rules_for(plan, inputs)
  form = Form.of(inputs, *shape[-2:])
  operands = form.sort(inputs, len(plan.leading))
  _check_closed_over(form, operands, len(plan.leading))
  # Inside shard_map, what is the same on all devices gets its gradients by a sum over them. That must not
  # happen within a loop, of which each device may take other turns.
  results = online_attention(plan, form, varying_like(operands, operands))
  if not return_logsumexp:
    return Attended(results.means.context)
  logsumexp = shift_of(results.largest) + results.log_total
  logsumexp = minus_infinity_where(is_empty(results.largest), logsumexp)
  return Attended(results.means.context, logsumexp=logsumexp[..., 0])


def _check_closed_over(form: Form, operands: Operands, num_leading: int) -> None:
  """Raises ValueError if a score, mask or bias closes over a traced array, which would get no derivative."""

  def one_pair(x: Operands) -> Any:
    def first(arrays: Any, *axes: int) -> Any:
      for axis in axes:
        arrays = jax.tree.map(lambda array, axis=axis: jax.lax.slice_in_dim(array, 0, 1, axis=axis), arrays)
      return arrays

    queries, keys = first(x.queries, num_leading), first(x.keys, num_leading)
    pairs = first(x.pairs, num_leading, num_leading + 1)
    return form.restore(Operands(queries, keys, pairs, x.shared)).scores_and_allowed()

  consts = jax.make_jaxpr(one_pair)(operands).consts
  if any(isinstance(each, jax.core.Tracer) and jnp.issubdtype(each.dtype, jnp.floating) for each in consts):
    raise ValueError(
      "a score, mask or bias must hold the traced arrays that it calculates with as fields, got one that "
      "closes over them, to which blockwise would give no gradient; a bias that is a plain function may"
    )


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def online_attention(plan: Plan, form: Form, operands: Operands) -> Results:
  """Returns the results of all queries over all keys."""

  def over_keys(x: Operands) -> OnlineSoftmax:
    def step(carry: OnlineSoftmax, x: Operands, some_are_masked: bool) -> OnlineSoftmax:
      tile = form.restore(x).with_mask_if(some_are_masked)
      return carry.updated(masked_scores(*tile.scores_and_allowed(), tile.broken_pairs()), tile)

    start = OnlineSoftmax.start((*plan.tile_leading, plan.queries.size), form.restore(x).values)
    return over_key_blocks(plan, step, varying_like(start, x), x, form.block_mask if form.has_mask else None)

  def at_index(x: Operands) -> Any:
    # Each block of queries is finished while it is in the cache, unless there are more keys elsewhere.
    block = over_keys if plan.ring else lambda x: over_keys(x).results()
    return over_query_blocks(plan, block, form.finite(x, x))

  start = OnlineSoftmax.start((*plan.leading, plan.queries.length), form.restore(operands).values)
  with jax.default_matmul_precision(plan.precision):
    of_keys_here = functools.partial(over_leading_axes, plan, at_index)
    found = over_devices(plan.ring, of_keys_here, OnlineSoftmax.joined, start, operands)
  return found.results() if isinstance(found, OnlineSoftmax) else found


def _rule(plan: Plan, form: Form, primals, tangents) -> tuple[Results, Results]:
  """The rule of the file's docstring, linear in the tangents. None stands for those known to be 0."""
  (operands,) = primals
  perturbed = jax.tree.map(lambda tangent: None if _is_zero(tangent) else tangent, tangents[0])
  results = online_attention(plan, form, operands)
  block_mask = (lambda x: form.block_mask(_unzipped(x)[0])) if form.has_mask else None

  @recomputed
  def of_block(x: Operands) -> tuple[jax.Array, Sums]:
    def step(carry, x: Operands, some_are_masked: bool):
      found = recomputed(lambda x: _differentiate_tile(form, x, some_are_masked))(x)
      return _add(carry, found)

    *_, results = _unzipped(x)
    start = jax.tree.map(jnp.zeros_like, (results.log_total, results.means))
    d_logsumexp, d_sums = over_key_blocks(plan, step, varying_like(start, x), x, block_mask)
    d_means = jax.tree.map(lambda d_sum, mean: d_sum - mean * d_logsumexp, d_sums, results.means)
    # This is for gradients: NaN from above must not reach a row without weights.
    return jax.tree.map(lambda d: jnp.where(has_weights(results.largest), d, 0), (d_logsumexp, d_means))

  @recomputed
  def at_index(x: Operands) -> tuple[jax.Array, Sums]:
    x, dx, results = _unzipped(x)
    x = _zipped(form.finite(x, x), form.finite(x, dx), results)
    return over_query_blocks(plan, of_block, x)

  x = _zipped(operands, perturbed, results.zero_if_broken())
  start = jax.tree.map(jnp.zeros_like, (results.log_total, results.means))
  with jax.default_matmul_precision(plan.precision):
    of_keys_here = functools.partial(over_leading_axes, plan, at_index)
    d_logsumexp, d_means = over_devices(plan.ring, of_keys_here, _add, start, x)
  return results, Results(d_means, jnp.zeros_like(results.largest), d_logsumexp)


online_attention.defjvp(_rule, symbolic_zeros=True)


def _differentiate_tile(form: Form, x: Operands, some_are_masked: bool) -> tuple[jax.Array, Sums]:
  """Returns the contributions of a tile to d logsumexp [... T 1] and d sums."""
  x, dx, results = _unzipped(x)

  def scores_and_values(x: Operands):
    tile = form.restore(x).with_mask_if(some_are_masked)
    scores, allowed = tile.scores_and_allowed()
    return (scores, tile.values), (tile, allowed)

  (scores, values), (d_scores, d_values), (tile, allowed) = _jvp(scores_and_values, x, dx)
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


def _zipped(operands: Operands, perturbed: Operands, results: Results) -> Operands:
  """Returns Operands whose fields are tuples: arrays, tangents and, for the queries, results."""
  x = Operands(*zip(operands, perturbed, strict=True))
  return x._replace(queries=(*x.queries, results))


def _unzipped(x: Operands) -> tuple[Operands, Operands, Results]:
  """Returns what was zipped."""
  operands, perturbed = (Operands(*(field[i] for field in x)) for i in range(2))
  return operands, perturbed, x.queries[2]


def _jvp(function: Callable[[Operands], Any], operands: Operands, perturbed: Operands) -> Any:
  """Returns `jax.jvp` of a function with auxiliary results, where None is a tangent known to be 0."""

  def of_perturbed(changed: Operands) -> Any:
    return function(_where_not_none(changed, operands))

  primals = jax.tree.map(lambda x, d: None if d is None else x, operands, perturbed)
  return jax.jvp(of_perturbed, (primals,), (perturbed,), has_aux=True)


def _where_not_none(first: Operands, second: Operands) -> Operands:
  """Returns the arrays of the first, and of the second where the first has none."""
  fields = zip(first, second, strict=True)
  return Operands(*([b if a is None else a for a, b in zip(*field, strict=True)] for field in fields))
