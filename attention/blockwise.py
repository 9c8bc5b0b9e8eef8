"""The same attention in memory that grows with T + S, in every derivative: one tile of pairs at a time.

A block of queries meets one block of keys after the other. What a query has found so far is a weighted sum,
the sum of the weights, and the largest score, by which all exponentials are shifted (Milakov and Gimelshein
2018, arXiv:1805.02867). Nothing of a tile is kept: derivatives calculate it again from the logsumexp (Rabe and
Staats 2021, arXiv:2112.05682; Dao et al. 2022, arXiv:2205.14135). There is one rule of differentiation, that of
forward mode; JAX transposes it for gradients and differentiates it for second derivatives:

    d logsumexp[t] = sum over s of weights[t, s] d scores[t, s]
    d context[t]   = sum over s of weights[t, s] (d scores[t, s] values[s] + d values[s])
                     - context[t] d logsumexp[t]

The engine knows a score by its features and its `tile`, a mask by its `tile` and `outline`, a bias by the
tile that it gives. Along which axes it may cut their arrays, they say themselves (`HasAxes`).
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention import dropout
from attention.dense import Attended, Bias, dense, scores_and_allowed
from attention.finite import Finite, finite_features, nan_where
from attention.masks import Mask, lengths
from attention.scores import Score
from attention.shapes import HasAxes, axes_of, matmul_precision, varying_like, with_rank
from attention.tiles import Arrays, Blocks, cut, even_blocks, join, over_leading


def blockwise(
  score: Score,
  queries: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  *,
  mask: Mask | None,
  bias: Bias | None,
  dropout_rate: float,
  dropout_rng: jax.Array | None,
  block_sizes: tuple[int, int] | None = None,
) -> Attended:
  """Returns what `dense` returns, without the weights.

  Args:
    score: how well a key fits a query.
    queries: [... T H], float32 or float64, as are keys and values.
    keys: [... S H].
    values: [... S D].
    mask: who may attend to whom; None for everyone to everyone.
    bias: added to the scores; None for none.
    dropout_rate: probability of dropping a weight.
    dropout_rng: needed where the rate is not 0.
    block_sizes: how many queries and keys a tile has at the most; None for what is fast.
  """
  finite = finite_features(score, queries, keys, values)
  pairs = jax.eval_shape(lambda: scores_and_allowed(score, finite, mask, bias))[0].shape
  T, S = pairs[-2:]
  if 0 in (*pairs, values.shape[-1]):
    attended = dense(
      score, queries, keys, values, mask=mask, bias=bias, dropout_rate=dropout_rate, dropout_rng=dropout_rng
    )
    return attended._replace(weights=None)
  sizes = default_block_sizes(T, S, mask) if block_sizes is None else block_sizes
  query_blocks, key_blocks = map(even_blocks, (T, S), sizes)
  has_dropout = dropout_rate > 0.0 and dropout_rng is not None
  operands = Operands(
    score,
    finite.query_features,
    finite.key_features,
    finite.values,
    _with_end(mask, key_blocks),
    _bias_operand(bias, query_blocks, key_blocks),
    dropout.rows(pairs[:-1]) if has_dropout else None,
    dropout.seeds(dropout_rng) if has_dropout else None,
  )
  plan, arrays = _plan(operands, pairs[:-2], query_blocks, key_blocks, dropout_rate)
  context, logsumexp = _attention(plan, arrays)
  bad_scores, bad_context = _spoiled(operands, finite, plan, logsumexp)
  return Attended(
    context + nan_where(bad_context)[..., None].astype(context.dtype),
    None,
    logsumexp + nan_where(bad_scores).astype(logsumexp.dtype),
  )


def default_block_sizes(T: int, S: int, mask: Mask | None) -> tuple[int, int]:
  """Returns how many queries and keys a tile should have at the most."""
  # Measured on a CPU: large products run at full speed, tiles of 8 MiB stay in its last cache. With a mask,
  # smaller tiles are more often empty or full.
  return (512, 512) if mask is not None else (512, 4096)


class Operands(NamedTuple):
  """What tiles are made of; a pytree whose arrays are cut by their axes.

  Attributes:
    score: its parameters.
    query_features: arrays [... T X].
    key_features: arrays [... S X].
    values: [... S D].
    mask: or None.
    bias: a function of two index tiles, or None.
    rows: a number for each query that no other has, for the dropout, [... T]; or None.
    seeds: of the dropout, or None.
  """

  score: Any
  query_features: Any
  key_features: Any
  values: Any
  mask: Any
  bias: Any
  rows: Any
  seeds: Any

  def axes(self) -> list[str | None]:
    """Returns the own axes of each array."""
    score, mask, bias = (axes_of(rule) for rule in (self.score, self.mask, self.bias))
    query_features = ["TX"] * len(jax.tree.leaves(self.query_features))
    key_features = ["SX"] * len(jax.tree.leaves(self.key_features))
    rest = [["SD"], mask, bias, ["T"], [None]]
    present = [self.values, self.mask, self.bias, self.rows, self.seeds]
    flat = [own for axes, operand in zip(rest, present, strict=True) if operand is not None for own in axes]
    return [*score, *query_features, *key_features, *flat]

  def can_be_cut(self) -> bool:
    """Whether all arrays that may have leading axes say so."""
    if isinstance(self.bias, _FunctionBias):
      return not self.bias.has_leading_axes and self._replace(bias=None).can_be_cut()
    rules = self.score, self.mask, self.bias
    return all(
      own is not None or jnp.ndim(array) == 0
      for rule in rules
      for own, array in zip(axes_of(rule), jax.tree.leaves(rule), strict=True)
    )


@dataclasses.dataclass(frozen=True)
class Plan:
  """All that is known of an attention before its numbers are.

  Attributes:
    structure: of the Operands.
    axes: the own axes of each of their arrays.
    leading: the leading axes of the result.
    kept: how many of the last of them a tile has too, because something in it cannot be cut along them.
    queries: the blocks of queries.
    keys: the blocks of keys.
    dropout_rate: probability of dropping a weight.
    precision: of the products.
  """

  structure: Any
  axes: tuple[str | None, ...]
  leading: tuple[int, ...]
  kept: int
  queries: Blocks
  keys: Blocks
  dropout_rate: float
  precision: str

  def operands(self, arrays: Arrays) -> Operands:
    """Returns the operands that begin a list of arrays."""
    return jax.tree.unflatten(self.structure, arrays[: len(self.axes)])

  @property
  def tile_leading(self) -> tuple[int, ...]:
    """The leading axes of a tile."""
    return self.leading[len(self.leading) - self.kept :]


def _plan(
  operands: Operands, leading: tuple[int, ...], queries: Blocks, keys: Blocks, dropout_rate: float
) -> tuple[Plan, Arrays]:
  """Returns the plan, and the arrays of the operands with all leading axes."""
  arrays, structure = jax.tree.flatten(operands)
  axes = tuple(operands.axes())
  arrays = [jnp.asarray(array) for array in arrays]
  arrays = [
    array if own is None else with_rank(array, len(leading) + len(own))
    for array, own in zip(arrays, axes, strict=True)
  ]
  kept = 0 if operands.can_be_cut() else len(leading)
  return Plan(structure, axes, leading, kept, queries, keys, dropout_rate, matmul_precision()), arrays


class Found(NamedTuple):
  """What queries have found in the keys so far: sum of exp(score - largest) values, and without the values."""

  largest: jax.Array  # [... T 1]
  total: jax.Array  # [... T 1]
  context: jax.Array  # [... T D]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _attention(plan: Plan, arrays: Arrays) -> tuple[jax.Array, jax.Array]:
  """Returns context [... T D] and logsumexp [... T]; NaN for queries some of whose scores overflowed."""
  with jax.default_matmul_precision(plan.precision):
    return _over_query_blocks(plan, functools.partial(_attend_block, plan), ("TD", "T"), arrays, plan.axes)


def _attention_tangent(plan: Plan, primals, tangents):
  """The rule of the module's docstring, linear in the tangents; those that are known to be 0 are left out."""
  (arrays,), (tangents,) = primals, tangents
  context, logsumexp = _attention(plan, arrays)
  # Queries without a finite logsumexp, empty or overflowing, have no weights and no tangents.
  has_weights = jnp.isfinite(logsumexp)
  residuals = [jnp.where(has_weights[..., None], context, 0), jnp.where(has_weights, logsumexp, jnp.inf)]
  moving = [i for i, tangent in enumerate(tangents) if not _is_zero(tangent)]
  axes = (*plan.axes, "TD", "T", *(plan.axes[i] for i in moving))
  function = functools.partial(_differentiate_block, plan, moving, axes)
  arrays = [*arrays, *residuals, *(tangents[i] for i in moving)]
  with jax.default_matmul_precision(plan.precision):
    return (context, logsumexp), _over_query_blocks(plan, function, ("TD", "T"), arrays, axes)


_attention.defjvp(_attention_tangent, symbolic_zeros=True)


def _is_zero(tangent: Any) -> bool:
  return isinstance(tangent, jax.custom_derivatives.SymbolicZero) or tangent.dtype == jax.dtypes.float0


def _attend_block(plan: Plan, t: jax.Array, arrays: Arrays) -> tuple[jax.Array, jax.Array]:
  """Returns what the queries of one block find, context [... T D] and logsumexp [... T]."""

  def step(some_are_masked: bool, s: jax.Array, here: Arrays, found: Found) -> Found:
    operands = plan.operands(here)
    scores = _scores(operands, t, s, some_are_masked)
    largest = jnp.maximum(found.largest, jnp.max(scores, axis=-1, keepdims=True))
    shift = jnp.where(jnp.isfinite(largest), largest, 0)
    weights = jnp.exp(scores - shift)
    rescale = jnp.exp(found.largest - shift)
    context = jnp.einsum("...TS,...SD->...TD", _drop(plan, operands, s, weights), operands.values)
    return Found(
      largest,
      found.total * rescale + jnp.sum(weights, axis=-1, keepdims=True),
      found.context * rescale + context,
    )

  values = plan.operands(arrays).values
  rows = (*plan.tile_leading, t.shape[0])
  nothing = Found(
    jnp.full((*rows, 1), -jnp.inf, values.dtype),
    jnp.zeros((*rows, 1), values.dtype),
    jnp.zeros((*rows, values.shape[-1]), values.dtype),
  )
  nothing = varying_like(nothing, arrays)
  largest, total, context = _over_key_blocks(plan, step, t, arrays, plan.axes, nothing)
  logsumexp = (jnp.log(total) + jnp.where(jnp.isfinite(largest), largest, 0))[..., 0]
  logsumexp = jnp.where(logsumexp == jnp.inf, jnp.nan, logsumexp)
  context /= jnp.where(total == 0, 1, total)
  return context + nan_where(jnp.isnan(logsumexp))[..., None].astype(context.dtype), logsumexp


# For functions whose derivative calculates them again, and keeps nothing but their arguments.
_recomputed = functools.partial(
  jax.checkpoint, policy=jax.checkpoint_policies.nothing_saveable, prevent_cse=False
)


def _differentiate_block(
  plan: Plan, moving: Sequence[int], axes: Sequence[str | None], t: jax.Array, arrays: Arrays
) -> tuple[jax.Array, jax.Array]:
  """Returns the tangents of context [... T D] and logsumexp [... T] of one block of queries.

  Args:
    plan: the plan.
    moving: which of the operands' arrays have a tangent.
    axes: of the arrays.
    t: positions of the queries.
    arrays: those of the operands, context, logsumexp, and the tangents.
  """
  count = len(plan.axes)

  def step(some_are_masked: bool, s: jax.Array, here: Arrays, carry):
    return _recomputed(functools.partial(differentiate_tile, some_are_masked))(s, here, carry)

  def differentiate_tile(some_are_masked: bool, s: jax.Array, here: Arrays, carry):
    primals, logsumexp, tangents = here[:count], here[count + 1][..., None], here[count + 2 :]

    def scores_and_values(*moved):
      changed = dict(zip(moving, moved, strict=True))
      operands = plan.operands([changed.get(i, array) for i, array in enumerate(primals)])
      return _scores(operands, t, s, some_are_masked), operands.values

    (scores, values), (d_scores, d_values) = jax.jvp(
      scores_and_values, tuple(primals[i] for i in moving), tuple(tangents)
    )
    weights = jnp.exp(jnp.where(logsumexp < jnp.inf, scores - logsumexp, -jnp.inf))
    kept = _drop(plan, plan.operands(primals), s, weights)
    d_context = jnp.einsum("...TS,...SD->...TD", kept * d_scores, values)
    d_context += jnp.einsum("...TS,...SD->...TD", kept, d_values)
    return carry[0] + d_context, carry[1] + jnp.sum(weights * d_scores, axis=-1)

  @_recomputed
  def over_keys(arrays: Arrays):
    context, logsumexp = arrays[count : count + 2]
    nothing = varying_like((jnp.zeros_like(context), jnp.zeros_like(logsumexp)), arrays)
    d_context, d_logsumexp = _over_key_blocks(plan, step, t, arrays, axes, nothing)
    return d_context - context * d_logsumexp[..., None], d_logsumexp

  return over_keys(arrays)


def _over_query_blocks(
  plan: Plan,
  function: Callable[[jax.Array, Arrays], tuple[jax.Array, ...]],
  result_axes: tuple[str, ...],
  arrays: Arrays,
  axes: Sequence[str | None],
) -> Any:
  """Returns the results of `function(t, arrays)` for all queries, from those of each block of queries."""

  def at_index(arrays: Arrays):
    blocks, put = cut(arrays, axes, "T", plan.queries)
    if plan.queries.count == 1:
      return function(_positions(plan.queries, 0)[:, None], put([block[0] for block in blocks]))
    results = jax.lax.map(
      lambda i_and_block: function(_positions(plan.queries, i_and_block[0])[:, None], put(i_and_block[1])),
      (jnp.arange(plan.queries.count), blocks),
    )
    return tuple(
      join(result, own, "T", plan.queries) for result, own in zip(results, result_axes, strict=True)
    )

  return over_leading(at_index, arrays, axes, plan.leading, plan.kept)


def _over_key_blocks(
  plan: Plan,
  step: Callable[[bool, jax.Array, Arrays, Any], Any],
  t: jax.Array,
  arrays: Arrays,
  axes: Sequence[str | None],
  carry: Any,
) -> Any:
  """Returns the carry after `step(some_are_masked, s, arrays, carry)` for each block of keys but empty ones."""
  blocks, put = cut(arrays, axes, "S", plan.keys, last=True)

  def at_block(carry, j_and_block):
    s, here = _positions(plan.keys, j_and_block[0])[None, :], put(j_and_block[1])
    mask = plan.operands(here).mask
    if mask is None:
      return step(False, s, here, carry), None
    some, every = mask.outline(t, s)
    choice = jnp.any(some).astype(jnp.int32) + jnp.all(every).astype(jnp.int32)
    cases = [
      lambda here, carry: carry,
      lambda here, carry: step(True, s, here, carry),
      lambda here, carry: step(False, s, here, carry),
    ]
    return jax.lax.switch(choice, cases, here, carry), None

  if plan.keys.count == 1:
    here = put([block[0] for block in blocks])
    return step(plan.operands(here).mask is not None, _positions(plan.keys, 0)[None, :], here, carry)
  return jax.lax.scan(at_block, carry, (jnp.arange(plan.keys.count), blocks))[0]


def _positions(blocks: Blocks, i: jax.Array | int) -> jax.Array:
  """Returns the positions of the i-th block."""
  return i * blocks.size + jnp.arange(blocks.size)


def _scores(operands: Operands, t: jax.Array, s: jax.Array, some_are_masked: bool) -> jax.Array:
  """Returns the scores of a tile with their bias, -inf for pairs that may not attend."""
  dtype = operands.values.dtype
  scores = operands.score.tile(operands.query_features, operands.key_features).astype(dtype)
  if operands.bias is not None:
    scores, terms = _same_rank(scores, jnp.asarray(operands.bias(t, s)).astype(dtype))
    scores = jnp.where(terms == -jnp.inf, -jnp.inf, scores + terms)
  if some_are_masked:
    scores, allowed = _same_rank(scores, operands.mask.tile(t, s))
    scores = jnp.where(allowed, scores, -jnp.inf)
  return scores


def _drop(plan: Plan, operands: Operands, s: jax.Array, weights: jax.Array) -> jax.Array:
  """Returns the weights of a tile after dropout."""
  if operands.seeds is None:
    return weights
  rows = operands.rows[..., None]
  columns = with_rank(s.astype(jnp.uint32), rows.ndim)
  return dropout.drop(operands.seeds, plan.dropout_rate, rows, columns, weights)


def _spoiled(
  operands: Operands, finite: Finite, plan: Plan, logsumexp: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns for which queries [... T] the scores, and the context, come from something that is not finite.

  These are the queries that attend to it. Who attends to what is only asked where there is something.
  """
  rank = len(plan.leading) + 1
  bad_queries, bad_keys, bad_values = (
    with_rank(bad, rank) for bad in (finite.bad_queries, finite.bad_keys, finite.bad_values)
  )
  nothing_found = logsumexp == -jnp.inf
  if operands.mask is None and operands.bias is None:
    bad_scores = bad_queries | jnp.any(bad_keys, axis=-1, keepdims=True) | nothing_found
    return bad_scores, bad_scores | jnp.any(bad_values, axis=-1, keepdims=True)
  rules = Operands(None, None, None, None, operands.mask, operands.bias, None, None)
  rules_plan, arrays = _plan(rules, plan.leading, plan.queries, plan.keys, 0.0)
  flags = [*map(jax.lax.stop_gradient, arrays), bad_keys, bad_values]

  def ask():
    function = functools.partial(_attends_to, rules_plan)
    axes = (*rules_plan.axes, "S", "S")
    return _over_query_blocks(rules_plan, function, ("T", "T", "T"), flags, axes)

  def no_need():
    return varying_like((jnp.zeros(logsumexp.shape, bool),) * 3, flags)

  is_needed = functools.reduce(
    jnp.logical_or, map(jnp.any, (bad_queries, bad_keys, bad_values, nothing_found))
  )
  to_any, to_bad_keys, to_bad_values = jax.lax.cond(is_needed, ask, no_need)
  bad_scores = to_bad_keys | (to_any & (bad_queries | nothing_found))
  return bad_scores, bad_scores | to_bad_values


def _attends_to(plan: Plan, t: jax.Array, arrays: Arrays) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns which queries of a block may attend to any key, to a bad key, to a bad value, booleans [... T]."""

  def step(some_are_masked: bool, s: jax.Array, here: Arrays, carry):
    operands, flags = plan.operands(here), here[-2:]
    allowed = jnp.ones((1,) * (plan.kept + 2), bool)
    if operands.bias is not None:
      allowed, terms = _same_rank(allowed, jnp.asarray(operands.bias(t, s)))
      allowed &= terms != -jnp.inf
    if some_are_masked:
      allowed, tile = _same_rank(allowed, operands.mask.tile(t, s))
      allowed &= tile
    found = [allowed, *(allowed & flag[..., None, :] for flag in flags)]
    return tuple(one | jnp.any(two, axis=-1) for one, two in zip(carry, found, strict=True))

  nothing = varying_like((jnp.zeros((*plan.tile_leading, t.shape[0]), bool),) * 3, arrays)
  return _over_key_blocks(plan, step, t, arrays, (*plan.axes, "S", "S"), nothing)


def _with_end(mask: Mask | None, keys: Blocks) -> Mask | None:
  """Returns the mask without what the last block of keys has beyond the end."""
  if not keys.overlap:
    return mask
  end = lengths(source=keys.length)
  return end if mask is None else mask & end


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _ArrayBias(HasAxes):
  """An array [... T S] as a function of two index tiles."""

  axes = {"array": "TS"}
  array: jax.Array

  def __call__(self, t, s):
    return self.array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _FunctionBias(HasAxes):
  """A function of two index tiles, and the arrays that it closed over."""

  arrays: list[jax.Array]
  function: Callable[..., jax.Array] = dataclasses.field(metadata={"static": True})
  has_leading_axes: bool = dataclasses.field(metadata={"static": True})

  def __call__(self, t, s):
    return self.function(t, s, *self.arrays)


def _bias_operand(bias: Bias | None, queries: Blocks, keys: Blocks) -> Any:
  """Returns the bias as a pytree that is a function of two index tiles."""
  if bias is None or isinstance(bias, HasAxes):
    return bias
  if not callable(bias):
    array = jnp.asarray(bias)
    return _ArrayBias(with_rank(array, max(array.ndim, 2)))
  t, s = _positions(queries, 0)[:, None], _positions(keys, 0)[None, :]
  function, arrays = jax.closure_convert(lambda t, s: jnp.asarray(bias(t, s)), t, s)
  leading = jax.eval_shape(function, t, s, *arrays).shape[:-2]
  return _FunctionBias(arrays, function, any(size > 1 for size in leading))


def _same_rank(*arrays: jax.Array) -> list[jax.Array]:
  rank = max(array.ndim for array in arrays)
  return [with_rank(array, rank) for array in arrays]
