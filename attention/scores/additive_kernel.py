"""The sums of additive attention, score_vector . tanh(query + key), without an array [T S A].

A pair of a query and a key costs no tanh. With

    r = 1 / (1 + exp(2 query) exp(2 key))

tanh(query + key) is 1 - 2 r and its derivative 4 (r - r^2). So each query and each key is exponentiated once,
and for the sums two reciprocals are one division: 1 / a = b / (a b) and 1 / b = a / (a b). That holds while
a b stays in the range of the floating type, and 1 - 2 r is not small; elsewhere tanh itself is taken.

Every loop walks along one axis and adds to a matrix over the other two: along the units A for the sums, along
the keys or the queries for their gradients. A step takes a few rows, each an array of its own: only then does
XLA make a single fast pass over the matrix of it.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from attention.arrays.batched_loops import rematerialized, unvmap_any
from attention.arrays.shapes import assumed_product, is_known
from attention.arrays.sharding import match_vma, matmul_precision

# How many rows a step takes; with more, a CPU runs out of registers.
ROWS = 8

# Up to so many terms, loops cost more than they gain.
FEW_TERMS = 2**13

# A unit all of whose |query| + |key| are less is calculated from tanh.
SMALL = 2**-4


def sums_of_tanh(queries: jax.Array, keys: jax.Array, score_vector: jax.Array) -> jax.Array:
  """Returns score_vector . tanh(queries[t] + keys[s]), [... T S].

  No derivative keeps anything that has all three axes T, S and A.

  Args:
    queries: [... T A].
    keys: [... S A].
    score_vector: [... 1 A]. All have the same rank, and leading axes that broadcast.
  """
  (T, A), S = queries.shape[-2:], keys.shape[-2]
  leading = jnp.broadcast_shapes(*(array.shape[:-2] for array in (queries, keys, score_vector)))
  are_few = assumed_product((*leading, T, S, A)) <= FEW_TERMS
  if are_few or 1 in (T, S):  # with one query, as in a decoder, there is a single matrix of pairs and units
    return _at_once(queries, keys, score_vector)
  return _in_loops(queries, keys, score_vector)


@rematerialized
def _at_once(queries: jax.Array, keys: jax.Array, score_vector: jax.Array) -> jax.Array:
  """Returns the sums as they are written."""
  tanh = jnp.tanh(queries[..., :, None, :] + keys[..., None, :, :])
  return jnp.einsum("...TSA,...XA->...TS", tanh, score_vector, precision=matmul_precision())


@jax.custom_jvp
def _in_loops(queries: jax.Array, keys: jax.Array, score_vector: jax.Array) -> jax.Array:
  """Returns the sums without an array [T S A], in the forward pass too."""
  return _by_platform(_sum, queries, keys, score_vector)


@functools.partial(_in_loops.defjvp, symbolic_zeros=True)
def _tangent(primals, tangents):
  """d sums[t, s] = score_vector . (1 - tanh^2)(d queries[t] + d keys[s]) + d score_vector . tanh."""
  queries, keys, score_vector = primals
  d_queries, d_keys, d_vector = (
    None if isinstance(tangent, jax.custom_derivatives.SymbolicZero) else tangent for tangent in tangents
  )
  sums = _in_loops(*primals)
  d_sums = jnp.zeros_like(sums)
  if d_queries is not None:
    d_sums += jnp.swapaxes(_by_platform(_slopes, queries, keys, score_vector * d_queries), -1, -2)
  if d_keys is not None:
    d_sums += _by_platform(_slopes, keys, queries, score_vector * d_keys)
  if d_vector is not None:
    factors = d_vector + _zero_for_each_query(queries, keys)
    d_sums += jnp.swapaxes(_by_platform(_tanhs, queries, keys, factors), -1, -2)
  return sums, d_sums


def _zero_for_each_query(queries: jax.Array, keys: jax.Array) -> jax.Array:
  """Returns zeros [... T A] with the leading axes of both, and with those that `jax.vmap` has given to them.

  The latter is why each is asked something: `jnp.zeros_like` knows of no batch. Factors without it are one
  for the whole batch, and the loop that gives their gradient would sum over the batch at each step.
  """
  are_numbers = (queries == queries) | jnp.all(keys == keys, axis=-2, keepdims=True)
  return jnp.where(are_numbers, jnp.zeros((), queries.dtype), 0)


def _sum(formula: "Formula", queries: jax.Array, keys: jax.Array, score_vector: jax.Array) -> jax.Array:
  """Returns score_vector . tanh, [... T S]."""
  x, y, factors = (
    jnp.moveaxis(array, -1, 0) for array in (formula.prepare(queries), formula.prepare(keys), score_vector)
  )

  def step(sums, units):
    pairs = [(x[..., :, None], y[..., None, :]) for x, y, _ in units]
    for (_, _, factor), value in zip(units, formula.values(pairs), strict=True):
      sums += factor[..., None] * value
    return sums, None

  # From the arrays themselves, whose types may say how they are spread over devices.
  initial = jnp.zeros_like(x[0][..., :, None] + y[0][..., None, :] + factors[0][..., None])
  units = list(zip(*map(_rows, (x, y, factors)), strict=True))
  sums = formula.scale * jax.lax.scan(step, match_vma(initial, (x, y, factors)), units)[0]
  return (
    sums if formula.offset == 0 else sums + formula.offset * jnp.sum(score_vector, axis=-1, keepdims=True)
  )


def _slopes(formula: "Formula", matrix: jax.Array, rows: jax.Array, factors: jax.Array) -> jax.Array:
  """Returns sum over a of (1 - tanh^2)(matrix[x, a] + rows[r, a]) factors[x, a], [... R X]."""
  return _sweep(formula, formula.slope, matrix, rows, factors)


def _tanhs(formula: "Formula", matrix: jax.Array, rows: jax.Array, factors: jax.Array) -> jax.Array:
  """Returns sum over a of tanh(matrix[x, a] + rows[r, a]) factors[x, a], [... R X]."""
  return _sweep(formula, lambda value: formula.offset + formula.scale * value, matrix, rows, factors)


def _sweep(
  formula: "Formula",
  function: Callable[[jax.Array], jax.Array],
  matrix: jax.Array,
  rows: jax.Array,
  factors: jax.Array,
) -> jax.Array:
  """Returns sum over a of function(value of matrix[x, a] and rows[r, a]) factors[x, a], [... R X].

  It is linear in the factors, and made for being transposed: that is one loop over the rows.
  """
  x, y = formula.prepare(matrix), jnp.moveaxis(formula.prepare(rows), -2, 0)

  @rematerialized
  def step(x, factors, rows):
    # Rows share no division: a masked key must not change even the last bit of another's gradient.
    values = [formula.values([(x, row[..., None, :])])[0] for row in rows]
    return [jnp.sum(function(value) * factors, axis=-1) for value in values]

  _, sums = jax.lax.scan(lambda _, rows: (None, step(x, factors, rows)), None, _rows(y))
  return jnp.moveaxis(jnp.concatenate(sums)[: y.shape[0]], 0, -2)


def _rows(array: jax.Array) -> list[jax.Array]:
  """Returns an array [R ...] as up to ROWS arrays of consecutive rows, filled up with zeros."""
  length = array.shape[0]
  count = min(ROWS, max(length, 1)) if is_known(length) else ROWS
  size = -(-length // count)
  padding = [(0, count * size - length)] + [(0, 0)] * (array.ndim - 1)
  array = jnp.pad(array, padding)
  return [array[i * size : (i + 1) * size] for i in range(count)]


class Formula(NamedTuple):
  """A way to calculate tanh and its derivative.

  Attributes:
    prepare: what to do once for each query and key.
    values: gives a value for each of some pairs of what was prepared.
    scale: tanh is offset + scale * value.
    offset: likewise.
    slope: gives the derivative of tanh from the value.
  """

  prepare: Callable[[jax.Array], jax.Array]
  values: Callable[[list[tuple[jax.Array, jax.Array]]], list[jax.Array]]
  scale: int
  offset: int
  slope: Callable[[jax.Array], jax.Array]


def _by_division(pairs: list[tuple[jax.Array, jax.Array]]) -> list[jax.Array]:
  """Returns r, 1 / (1 + x y), for each pair, with one division for two."""
  divisors = [1 + x * y for x, y in pairs]
  results = []
  for one, other in zip(divisors[::2], divisors[1::2], strict=False):
    inverse = 1 / (one * other)
    results += [other * inverse, one * inverse]
  return results if len(divisors) % 2 == 0 else [*results, 1 / divisors[-1]]


def _by_tanh(pairs: list[tuple[jax.Array, jax.Array]]) -> list[jax.Array]:
  """Returns tanh for each pair of a query and a key."""
  return [jnp.tanh(x + y) for x, y in pairs]


FACTORED = Formula(lambda vectors: jnp.exp(2 * vectors), _by_division, -2, 1, lambda r: 4 * (r - r * r))
DIRECT = Formula(lambda vectors: vectors, _by_tanh, 1, 0, lambda tanh: 1 - tanh * tanh)


def _by_platform(
  function: Callable[..., jax.Array], queries: jax.Array, keys: jax.Array, factors: jax.Array
) -> jax.Array:
  """Returns `function(formula, queries, keys, factors)` by the formula that suits the platform."""

  def on_cpu(queries, keys, factors):
    each = [jnp.max(jnp.abs(array), axis=range(array.ndim - 1), initial=0.0) for array in (queries, keys)]
    largest = sum(each)
    # Where all of a unit's numbers are small, 1 - 2 r would lose the digits that tell it from 0.
    is_unfit = unvmap_any((largest > _limit(queries.dtype)) | ((largest > 0) & (largest < SMALL)))
    choices = functools.partial(function, DIRECT), functools.partial(function, FACTORED)
    return jax.lax.cond(is_unfit, *choices, queries, keys, factors)

  return jax.lax.platform_dependent(
    queries, keys, factors, cpu=on_cpu, default=functools.partial(function, DIRECT)
  )


def _limit(dtype: jnp.dtype) -> float:
  """Returns how large |query| + |key| may be: the product of two exp(2 (query + key)) must not overflow."""
  return math.log(float(jnp.finfo(dtype).max)) / 4 - 1
