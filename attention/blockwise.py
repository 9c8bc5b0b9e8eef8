"""The same attention in memory that grows with T + S, in every derivative: one tile of pairs at a time.

A block of queries meets one block of keys after the other. What a query has found so far is a weighted sum,
the sum of the weights, and the largest score, by which all exponentials are shifted (Milakov and Gimelshein
2018, arXiv:1805.02867). Nothing of a tile is kept: derivatives calculate it again from the logsumexp (Rabe
and Staats 2021, arXiv:2112.05682; Dao et al. 2022, arXiv:2205.14135). There is one rule of differentiation,
that of forward mode; JAX transposes it for gradients and differentiates it for second derivatives:

    d logsumexp[t] = sum over s of weights[t, s] d scores[t, s]
    d context[t] = sum over s of weights[t, s] (d scores[t, s] values[s] + d values[s])
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
from attention.finite import Features, features_of, finite, nan_where
from attention.masks import Mask, lengths
from attention.scores import Score
from attention.shapes import HasAxes, axes_of, matmul_precision, varying_like, with_rank
from attention.tiles import Arrays, Blocks, any_at_all, cut, even_blocks, join, one_by_one, over, over_leading


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
  features = features_of(score, queries, keys, values)
  pairs = jax.eval_shape(lambda: scores_and_allowed(score, features, mask, bias))[0].shape
  T, S = pairs[-2:]
  if 0 in (*pairs, values.shape[-1]):
    attended = dense(
      score, queries, keys, values, mask=mask, bias=bias, dropout_rate=dropout_rate, dropout_rng=dropout_rng
    )
    return attended._replace(weights=None)
  sizes = default_block_sizes(T, S, mask) if block_sizes is None else block_sizes
  query_blocks, key_blocks = map(even_blocks, (T, S), sizes)
  rules = Operands(mask=_with_end(mask, key_blocks), bias=_bias_operand(bias, query_blocks, key_blocks))
  spoiled = _spoiled(rules, features, pairs, query_blocks, key_blocks)
  operands = rules._replace(
    score=score,
    query_features=features.queries,
    key_features=features.keys,
    values=values,
    rows=dropout.rows(pairs[:-1]) if dropout_rate > 0.0 else None,
    seeds=dropout.seeds(dropout_rng) if dropout_rng is not None and dropout_rate > 0.0 else None,
  )
  plan, arrays = _plan(operands, pairs[:-2], query_blocks, key_blocks, dropout_rate)
  spoil = [nan_where(bad, values.dtype) for bad in spoiled]
  # Inside shard_map, what is the same on all devices gets its gradients by a sum over them. That must not
  # happen within a loop, of which each device may take other turns.
  arrays, spoil = varying_like((arrays, spoil), (arrays, spoil))
  context, shift, log_total = _attention(plan, arrays, spoil)
  return Attended(context, None, shift + log_total)


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
    mask: who may attend to whom.
    bias: a function of two index tiles.
    rows: a number for each query that no other has, for the dropout, [... T].
    seeds: of the dropout.
  """

  score: Any = None
  query_features: Any = None
  key_features: Any = None
  values: Any = None
  mask: Any = None
  bias: Any = None
  rows: Any = None
  seeds: Any = None

  def axes(self) -> list[str | None]:
    """Returns the own axes of each array."""
    own: dict[str, list[str | None]] = {
      "score": axes_of(self.score),
      "query_features": ["TX"] * len(jax.tree.leaves(self.query_features)),
      "key_features": ["SX"] * len(jax.tree.leaves(self.key_features)),
      "values": ["SD"],
      "mask": axes_of(self.mask),
      "bias": axes_of(self.bias),
      "rows": ["T"],
      "seeds": [None],
    }
    return [axes for name in self._fields if getattr(self, name) is not None for axes in own[name]]

  def can_be_cut(self) -> bool:
    """Whether everything that may have leading axes names its own."""
    if isinstance(self.bias, _FunctionBias):
      return not self.bias.has_leading_axes and self._replace(bias=None).can_be_cut()
    rules = self.score, self.mask, self.bias
    arrays = [array for rule in rules for array in jax.tree.leaves(rule)]
    axes = [own for rule in rules for own in axes_of(rule)]
    return all(own is not None or jnp.ndim(array) == 0 for own, array in zip(axes, arrays, strict=True))


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
  """What queries have found in the keys so far.

  Attributes:
    largest: the largest score, [... T 1].
    total: sum of exp(score - largest), [... T 1].
    context: sum of exp(score - largest) value, [... T D].
    attends: whether a key was allowed, be its score what it may, [... T 1].
  """

  largest: jax.Array
  total: jax.Array
  context: jax.Array
  attends: jax.Array


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _attention(plan: Plan, arrays: Arrays, spoil: Arrays) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns context [... T D], and the logsumexp as the sum of two numbers [... T].

  These are the largest score, or 0 if there is none, and the logarithm of the sum of exp(score - largest).
  Derivatives need the two apart: a logsumexp of 1e4 is off by 1e-3 in float32, and the weights with it.

  Args:
    plan: what is known before the numbers are.
    arrays: those of the Operands.
    spoil: NaN for queries that attend to something not finite, else 0, [... T]: by scores, by any of it.
  """
  axes = (*plan.axes, "T", "T")

  def at_index(arrays: Arrays):
    function = functools.partial(_attend_block, plan)
    return _over_query_blocks(plan, function, ("TD", "T", "T"), _finite(plan, arrays), axes)

  with jax.default_matmul_precision(plan.precision):
    return over_leading(at_index, [*arrays, *spoil], axes, plan.leading, plan.kept)


def _attention_tangent(plan: Plan, primals, tangents):
  """The rule of the module's docstring, linear in the tangents; those that are known to be 0 are left out."""
  arrays, spoil = primals
  context, shift, log_total = _attention(plan, arrays, [jnp.zeros_like(array) for array in spoil])
  # Queries that are empty or overflow have no weights and no tangents.
  has_weights = jnp.isfinite(log_total)
  residuals = [
    jnp.where(has_weights[..., None], context, 0),
    shift,
    jnp.where(has_weights, log_total, jnp.inf),
  ]
  moving = [i for i, tangent in enumerate(tangents[0]) if not _is_zero(tangent)]
  axes = (*plan.axes, "TD", "T", "T", *(plan.axes[i] for i in moving))

  @_recomputed
  def at_index(arrays: Arrays):
    function = functools.partial(_differentiate_block, plan, moving, axes)
    return _over_query_blocks(plan, function, ("TD", "T"), _finite(plan, arrays, moving), axes)

  operands = [*arrays, *residuals, *(tangents[0][i] for i in moving)]
  with jax.default_matmul_precision(plan.precision):
    d_context, d_logsumexp = over_leading(at_index, operands, axes, plan.leading, plan.kept)
  results = context + spoil[1][..., None], shift, log_total + spoil[0]
  return results, (d_context, jnp.zeros_like(shift), d_logsumexp)


_attention.defjvp(_attention_tangent, symbolic_zeros=True)


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


def _attend_block(plan: Plan, t: jax.Array, arrays: Arrays) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns what the queries of one block find: context [... T D], shift and log total [... T]."""

  def step(some_are_masked: bool, s: jax.Array, here: Arrays, found: Found) -> Found:
    operands = plan.operands(here)
    scores, allowed = _scores(operands, t, s, some_are_masked)
    largest = jnp.maximum(found.largest, jnp.max(scores, axis=-1, keepdims=True))
    shift = jnp.where(jnp.isfinite(largest), largest, 0)
    weights = jnp.exp(scores - shift)
    rescale = jnp.exp(found.largest - shift)
    context = jnp.einsum("...TS,...SD->...TD", _drop(plan, operands, s, weights), operands.values)
    return Found(
      largest,
      found.total * rescale + jnp.sum(weights, axis=-1, keepdims=True),
      found.context * rescale + context,
      found.attends | (True if allowed is None else jnp.any(allowed, axis=-1, keepdims=True)),
    )

  *operands, spoil_logsumexp, spoil_context = arrays
  values = plan.operands(operands).values
  rows = (*plan.tile_leading, t.shape[0])
  nothing = Found(
    jnp.full((*rows, 1), -jnp.inf, values.dtype),
    jnp.zeros((*rows, 1), values.dtype),
    jnp.zeros((*rows, values.shape[-1]), values.dtype),
    jnp.zeros((*rows, 1), bool),
  )
  nothing = varying_like(nothing, arrays)
  found = _over_key_blocks(plan, step, t, operands, plan.axes, nothing)
  # A query that attends, but only to scores of -inf or to one of inf or NaN, has overflowed.
  has_shift = jnp.isfinite(found.largest)
  spoil = nan_where(found.attends & ~has_shift, values.dtype)
  shift = jnp.where(has_shift, found.largest, 0)
  log_total = jnp.log(found.total) + spoil
  context = found.context / jnp.where(found.total == 0, 1, found.total) + spoil
  return context + spoil_context[..., None], shift[..., 0], log_total[..., 0] + spoil_logsumexp


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
    arrays: those of the operands, the three residuals, and the tangents.
  """
  count = len(plan.axes)

  def step(some_are_masked: bool, s: jax.Array, here: Arrays, carry):
    return _recomputed(functools.partial(differentiate_tile, some_are_masked))(s, here, carry)

  def differentiate_tile(some_are_masked: bool, s: jax.Array, here: Arrays, carry):
    primals, tangents = here[:count], here[count + 3 :]
    shift, log_total = (residual[..., None] for residual in here[count + 1 : count + 3])

    def scores_and_values(*moved):
      changed = dict(zip(moving, moved, strict=True))
      operands = plan.operands([changed.get(i, array) for i, array in enumerate(primals)])
      return _scores(operands, t, s, some_are_masked)[0], operands.values

    (scores, values), (d_scores, d_values) = jax.jvp(
      scores_and_values, tuple(primals[i] for i in moving), tuple(tangents)
    )
    weights = jnp.exp(jnp.where(log_total < jnp.inf, scores - shift - log_total, -jnp.inf))
    kept = _drop(plan, plan.operands(primals), s, weights)
    d_context = jnp.einsum("...TS,...SD->...TD", kept * d_scores, values)
    d_context += jnp.einsum("...TS,...SD->...TD", kept, d_values)
    return carry[0] + d_context, carry[1] + jnp.sum(weights * d_scores, axis=-1)

  @_recomputed
  def over_keys(arrays: Arrays):
    context, shift = arrays[count : count + 2]
    nothing = varying_like((jnp.zeros_like(context), jnp.zeros_like(shift)), arrays)
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

  blocks, put = cut(arrays, axes, "T", plan.queries)
  if plan.queries.count == 1:
    return function(_positions(plan.queries, 0)[:, None], put([block[0] for block in blocks]))
  results = over(
    lambda i_and_block: function(_positions(plan.queries, i_and_block[0])[:, None], put(i_and_block[1])),
    (jnp.arange(plan.queries.count), blocks),
  )
  return tuple(join(result, own, "T", plan.queries) for result, own in zip(results, result_axes, strict=True))


def _over_key_blocks(
  plan: Plan,
  step: Callable[[bool, jax.Array, Arrays, Any], Any],
  t: jax.Array,
  arrays: Arrays,
  axes: Sequence[str | None],
  carry: Any,
) -> Any:
  """Returns the carry after `step(some_are_masked, s, arrays, carry)` for each block of keys not empty."""
  blocks, put = cut(arrays, axes, "S", plan.keys, last=True)

  def at_block(carry, j_and_block):
    s, here = _positions(plan.keys, j_and_block[0])[None, :], put(j_and_block[1])
    mask = plan.operands(here).mask
    if mask is None or not one_by_one():
      return step(mask is not None, s, here, carry), None
    some, every = mask.outline(t, s)
    choice = any_at_all(some).astype(jnp.int32) + (~any_at_all(~every)).astype(jnp.int32)
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


def _scores(
  operands: Operands, t: jax.Array, s: jax.Array, some_are_masked: bool
) -> tuple[jax.Array, jax.Array | None]:
  """Returns the scores of a tile, -inf for pairs that may not attend, and which may; None for all."""
  dtype = operands.values.dtype
  scores = operands.score.tile(operands.query_features, operands.key_features).astype(dtype)
  terms, allowed = _bias_and_allowed(operands, t, s, some_are_masked)
  if terms is not None:
    scores, terms = _same_rank(scores, terms.astype(dtype))
    scores += terms
  if allowed is not None:
    scores, allowed = _same_rank(scores, allowed)
    scores = jnp.where(allowed, scores, -jnp.inf)
  return scores, allowed


def _bias_and_allowed(
  operands: Operands, t: jax.Array, s: jax.Array, some_are_masked: bool
) -> tuple[jax.Array | None, jax.Array | None]:
  """Returns the bias of a tile and which of its pairs may attend, None for no bias and for all pairs."""
  terms = None if operands.bias is None else jnp.asarray(operands.bias(t, s))
  allowed = None if terms is None else terms != -jnp.inf
  if some_are_masked:
    tile = operands.mask.tile(t, s)
    allowed = tile if allowed is None else functools.reduce(jnp.logical_and, _same_rank(allowed, tile))
  return terms, allowed


def _drop(plan: Plan, operands: Operands, s: jax.Array, weights: jax.Array) -> jax.Array:
  """Returns the weights of a tile after dropout."""
  if operands.seeds is None:
    return weights
  rows = operands.rows[..., None]
  columns = with_rank(s.astype(jnp.uint32), rows.ndim)
  return dropout.drop(operands.seeds, plan.dropout_rate, rows, columns, weights)


def _spoiled(
  rules: Operands, features: Features, pairs: tuple[int, ...], queries: Blocks, keys: Blocks
) -> tuple[jax.Array, jax.Array]:
  """Returns for which queries [... T] the scores, and the context, come from something that is not finite.

  These are the queries that attend to it. Who attends to what is only asked where there is something.
  """
  bad_queries, bad_keys, bad_values = (
    with_rank(bad, len(pairs) - 1) for bad in (features.bad_queries, features.bad_keys, features.bad_values)
  )
  if rules.mask is None and rules.bias is None:
    bad_scores = bad_queries | jnp.any(bad_keys, axis=-1, keepdims=True)
    bad_context = bad_scores | jnp.any(bad_values, axis=-1, keepdims=True)
    return jnp.broadcast_to(bad_scores, pairs[:-1]), jnp.broadcast_to(bad_context, pairs[:-1])
  plan, arrays = _plan(rules, pairs[:-2], queries, keys, 0.0)
  flags = [*map(jax.lax.stop_gradient, arrays), bad_keys, bad_values]
  axes = (*plan.axes, "S", "S")

  def ask():
    def at_index(flags: Arrays):
      return _over_query_blocks(plan, functools.partial(_attends_to, plan), ("T", "T", "T"), flags, axes)

    return over_leading(at_index, flags, axes, plan.leading, plan.kept)

  def no_need():
    return varying_like((jnp.zeros(pairs[:-1], bool),) * 3, flags)

  is_needed = any_at_all(bad_queries) | any_at_all(bad_keys) | any_at_all(bad_values)
  to_any, to_bad_keys, to_bad_values = jax.lax.cond(is_needed, ask, no_need)
  bad_scores = to_bad_keys | (to_any & bad_queries)
  return bad_scores, bad_scores | to_bad_values


def _attends_to(plan: Plan, t: jax.Array, arrays: Arrays) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns which queries of a block may attend to any key, to a bad key, to a bad value, [... T]."""

  def step(some_are_masked: bool, s: jax.Array, here: Arrays, carry):
    flags = here[-2:]
    everything = jnp.ones((1,) * (plan.kept + 2), bool)
    _, allowed = _bias_and_allowed(plan.operands(here), t, s, some_are_masked)
    everything, allowed = _same_rank(everything, everything if allowed is None else allowed)
    found = allowed & everything, *(allowed & flag[..., None, :] for flag in flags)
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
