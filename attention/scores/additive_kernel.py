"""Sums of additive attention, score_vector . tanh(query + key), without an array [T S A].

No tanh is computed for a pair of query and key. With

    r = 1 / (1 + exp(2 query) exp(2 key))

tanh(query + key) is 1 - 2 r, and its derivative is 4 (r - r^2). Each query and each key is exponentiated
once. In the sums, four units share a division, since u / a + v / b = (u b + v a) / (a b). This requires that
the product of four divisors does not overflow, and that 1 - 2 r is not close to 0; otherwise tanh is computed
directly.

Each loop runs along one axis and adds to a matrix over the other two: along the units A for the sums, along
the keys or queries for the gradients. A step takes several rows, each as a separate array, since only then
XLA fuses the step into one fast pass over the matrix.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from attention.arrays.dtypes import matmul_precision
from attention.arrays.leading_axes import rematerialized, unvmap_any
from attention.arrays.shapes import assumed_product, is_known
from attention.arrays.sharding import match_vma

# Number of rows per step; in the sums, they share a division. More would exceed the registers of a CPU.
ROWS = 4

# Up to this number of terms, loops are slower than one expression.
MAX_TERMS_WITHOUT_LOOPS = 2**13

# If |query| + |key| of any unit is always below this value, all units are computed with tanh.
MIN_FACTORED = 2**-4


def sums_of_tanh(queries: jax.Array, keys: jax.Array, score_vector: jax.Array) -> jax.Array:
  """Returns score_vector . tanh(queries[t] + keys[s]), [... T S].

  No derivative stores an array over T, S and A.

  Args:
    queries: [... T A].
    keys: [... S A].
    score_vector: [... 1 A]. All inputs have the same rank and leading axes that broadcast.
  """
  (T, A), S = queries.shape[-2:], keys.shape[-2]
  leading = jnp.broadcast_shapes(*(array.shape[:-2] for array in (queries, keys, score_vector)))
  is_small = assumed_product((*leading, T, S, A)) <= MAX_TERMS_WITHOUT_LOOPS
  if is_small or 1 in (T, S):  # a single query, as in a decoder, needs only a matrix
    return _vectorized(queries, keys, score_vector)
  return _looped(queries, keys, score_vector)


@rematerialized
def _vectorized(queries: jax.Array, keys: jax.Array, score_vector: jax.Array) -> jax.Array:
  """Computes the sums as one expression."""
  tanh = jnp.tanh(queries[..., :, None, :] + keys[..., None, :, :])
  return jnp.einsum("...TSA,...XA->...TS", tanh, score_vector, precision=matmul_precision())


@jax.custom_jvp
def _looped(queries: jax.Array, keys: jax.Array, score_vector: jax.Array) -> jax.Array:
  """Computes the sums in loops, without an array [T S A] in either pass."""
  return _by_platform(_sum, queries, keys, score_vector)


@functools.partial(_looped.defjvp, symbolic_zeros=True)
def _tangent(primals, tangents):
  """d sums[t, s] = score_vector . (1 - tanh^2)(d queries[t] + d keys[s]) + d score_vector . tanh."""
  queries, keys, score_vector = primals
  d_queries, d_keys, d_vector = (
    None if isinstance(tangent, jax.custom_derivatives.SymbolicZero) else tangent for tangent in tangents
  )
  sums = _looped(*primals)
  d_sums = jnp.zeros_like(sums)
  if d_queries is not None or d_vector is not None:
    zero = _zero_for_each_query(queries, keys)
    slope_factors = zero if d_queries is None else score_vector * d_queries + zero
    tanh_factors = zero if d_vector is None else d_vector + zero
    d_sums += jnp.swapaxes(
      _by_platform(_slopes_and_tanhs, queries, keys, jax.lax.complex(slope_factors, tanh_factors)), -1, -2
    )
  if d_keys is not None:
    d_sums += _by_platform(_slopes, keys, queries, score_vector * d_keys)
  return sums, d_sums


def _zero_for_each_query(queries: jax.Array, keys: jax.Array) -> jax.Array:
  """Returns zeros [... T A] with the leading axes of both, including those of `jax.vmap`.

  The zeros are computed from the arrays because `jnp.zeros_like` has no batch axis under `jax.vmap`. Without
  the batch axis, the loop that computes the gradient of the factors would sum over the batch at each step.
  """
  are_numbers = (queries == queries) | jnp.all(keys == keys, axis=-2, keepdims=True)
  return jnp.where(are_numbers, jnp.zeros((), queries.dtype), 0)


def _sum(formula: "Formula", queries: jax.Array, keys: jax.Array, score_vector: jax.Array) -> jax.Array:
  """Returns score_vector . tanh, [... T S], with one of the formulas."""
  # Factors of at most 1, since they are multiplied by the divisors of other terms.
  largest = jnp.max(jnp.abs(score_vector), axis=-1, keepdims=True)
  largest = jnp.where(largest == 0, 1, largest)
  x, y, factors = (
    jnp.moveaxis(array, -1, 0)
    for array in (formula.prepare(queries), formula.prepare(keys), score_vector / largest)
  )

  def step(sums, indexed_units):
    index, units = indexed_units
    one = _one(index, sums.dtype)
    terms = [(one * factor[..., None], x[..., :, None], y[..., None, :]) for x, y, factor in units]
    return sums + formula.sum_terms(terms), None

  # Computed from the arrays, because their types may contain a sharding.
  initial = jnp.zeros_like(x[0][..., :, None] + y[0][..., None, :] + factors[0][..., None])
  units = list(zip(*map(_rows, (x, y, factors)), strict=True))
  indices = jnp.arange(units[0][0].shape[0])
  sums = jax.lax.scan(step, match_vma(initial, (x, y, factors)), (indices, units))[0]
  sums *= formula.scale * largest
  return (
    sums if formula.offset == 0 else sums + formula.offset * jnp.sum(score_vector, axis=-1, keepdims=True)
  )


def _slopes(formula: "Formula", matrix: jax.Array, rows: jax.Array, factors: jax.Array) -> jax.Array:
  """Returns sum over a of (1 - tanh^2)(matrix[x, a] + rows[r, a]) factors[x, a], [... R X]."""
  return _sweep(formula, lambda value, factors: formula.slope(value) * factors, matrix, rows, factors)


def _slopes_and_tanhs(
  formula: "Formula", matrix: jax.Array, rows: jax.Array, factors: jax.Array
) -> jax.Array:
  """Returns sum over a of (1 - tanh^2) factors.real + tanh factors.imag, [... R X].

  The arguments are those of `_slopes`. The factors are one complex array, since XLA would compute the
  gradients of two arrays in two passes.
  """

  def terms(value: jax.Array, factors: jax.Array) -> jax.Array:
    return formula.slope(value) * factors.real + (formula.offset + formula.scale * value) * factors.imag

  return _sweep(formula, terms, matrix, rows, factors)


def _sweep(
  formula: "Formula",
  terms: Callable[[jax.Array, jax.Array], jax.Array],
  matrix: jax.Array,
  rows: jax.Array,
  factors: jax.Array,
) -> jax.Array:
  """Returns sum over a of terms(value of matrix[x, a] and rows[r, a], factors[x, a]), [... R X].

  It is linear in the factors. Its transpose is a loop over the rows, which adds to the gradient of the
  factors.
  """
  x, y = formula.prepare(matrix), formula.prepare(rows)

  @rematerialized
  def step(x, factors, index, rows):
    one = _one(index, x.dtype)
    # Rows do not share a division, so that a masked key changes no bit of another key's gradient.
    return [one * jnp.sum(terms(formula.value(x, row[..., None, :]), factors), axis=-1) for row in rows]

  units = _rows(jnp.moveaxis(y, -2, 0))
  indices = jnp.arange(units[0].shape[0])
  _, sums = jax.lax.scan(lambda _, row: (None, step(x, factors, *row)), None, (indices, units))
  return jnp.moveaxis(jnp.concatenate(sums)[: rows.shape[-2]], 0, -2)


def _one(index: jax.Array, dtype: jnp.dtype) -> jax.Array:
  """Returns 1, on CPUs by a matrix product that XLA cannot move out of a loop over the index.

  XLA of JAX 0.12.0.1 runs loops on a single thread if they contain no matrix product.
  """

  def product(index):
    identity = jnp.where(index >= 0, jnp.eye(8, dtype=dtype), 0)
    return jnp.matmul(identity, identity, precision="highest")[0, 0]

  return jax.lax.platform_dependent(index, cpu=product, default=lambda _: jnp.ones((), dtype))


def _rows(array: jax.Array) -> list[jax.Array]:
  """Returns an array [R ...] as up to ROWS arrays of consecutive rows, padded with zeros.

  A step of a loop takes one row of each.
  """
  length = array.shape[0]
  count = min(ROWS, max(length, 1)) if is_known(length) else ROWS
  size = -(-length // count)
  padding = [(0, count * size - length)] + [(0, 0)] * (array.ndim - 1)
  array = jnp.pad(array, padding)
  return [array[i * size : (i + 1) * size] for i in range(count)]


Term: TypeAlias = tuple[jax.Array, jax.Array, jax.Array]


class Formula(NamedTuple):
  """A formula for tanh and its derivative.

  Attributes:
    prepare: computed once for each query and key.
    value: maps prepared queries and keys to values.
    sum_terms: returns the sum of factor * value over terms (factor, prepared query, prepared key).
    scale: tanh is offset + scale * value.
    offset: see scale.
    slope: maps a value to the derivative of tanh.
  """

  prepare: Callable[[jax.Array], jax.Array]
  value: Callable[[jax.Array, jax.Array], jax.Array]
  sum_terms: Callable[[list[Term]], jax.Array]
  scale: int
  offset: int
  slope: Callable[[jax.Array], jax.Array]


def _sum_fractions(terms: list[Term]) -> jax.Array:
  """Returns the sum of factor / (1 + x y) over the terms, with one division."""
  fractions = [(factor, 1 + x * y) for factor, x, y in terms]
  while len(fractions) > 1:
    (a, b), (c, d), *others = fractions
    fractions = [*others, (a * d + c * b, b * d)]
  numerator, divisor = fractions[0]
  return numerator / divisor


FACTORED_FORMULA = Formula(
  prepare=lambda vectors: jnp.exp(2 * vectors),
  value=lambda x, y: 1 / (1 + x * y),
  sum_terms=_sum_fractions,
  scale=-2,
  offset=1,
  slope=lambda r: 4 * (r - r * r),
)
TANH_FORMULA = Formula(
  prepare=lambda vectors: vectors,
  value=lambda x, y: jnp.tanh(x + y),
  sum_terms=lambda terms: _sum_arrays([factor * jnp.tanh(x + y) for factor, x, y in terms]),
  scale=1,
  offset=0,
  slope=lambda tanh: 1 - tanh * tanh,
)


def _by_platform(
  function: Callable[..., jax.Array], queries: jax.Array, keys: jax.Array, factors: jax.Array
) -> jax.Array:
  """Returns `function(formula, queries, keys, factors)` with the formula that is fast on the platform."""

  def on_cpu(queries, keys, factors):
    largest = _sum_arrays(
      [jnp.max(jnp.abs(array), axis=range(array.ndim - 1), initial=0.0) for array in (queries, keys)]
    )
    # If all values of a unit are small, 1 - 2 r loses precision by cancellation.
    is_imprecise = (largest > 0) & (largest < MIN_FACTORED)
    use_tanh = unvmap_any(jnp.any(_may_overflow(largest)) | jnp.any(is_imprecise))
    branches = functools.partial(function, TANH_FORMULA), functools.partial(function, FACTORED_FORMULA)
    return jax.lax.cond(use_tanh, *branches, queries, keys, factors)

  return jax.lax.platform_dependent(
    queries, keys, factors, cpu=on_cpu, default=functools.partial(function, TANH_FORMULA)
  )


def _may_overflow(largest: jax.Array) -> jax.Array:
  """Returns for each step of a loop over units whether the product of its divisors may overflow.

  Args:
    largest: largest |query| + |key| of each unit, [A].
  """
  # A divisor is at most 2 exp(2 (|query| + |key|)), so the product is at most 2^ROWS exp(2 sum). The
  # numerator has ROWS terms that are not larger. The last 1 is for rounding.
  max_log = math.log(float(jnp.finfo(largest.dtype).max))
  max_sum = (max_log - ROWS * math.log(2) - math.log(ROWS)) / 2 - 1
  return ~(_sum_arrays(_rows(largest)) <= max_sum)  # also for NaN


def _sum_arrays(arrays: list[jax.Array]) -> jax.Array:
  return functools.reduce(jnp.add, arrays)
