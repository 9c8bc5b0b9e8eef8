"""Sums of additive attention, score_vector . tanh(query + key), without an array [T S A].

No tanh is computed for a pair of query and key. With

    r = 1 / (1 + exp(2 query) exp(2 key))

tanh(query + key) is 1 - 2 r, and its derivative is 4 (r - r^2). Each query and each key is exponentiated
once. In the sums, four units share a division, since u / a + v / b = (u b + v a) / (a b). This requires that
the product of four divisors does not overflow, and that 1 - 2 r is not close to 0; otherwise tanh is computed
for one query after another.

Each loop runs along one axis and adds to a matrix over the other two: along the units A for the sums, along
the keys or queries for the gradients. A step takes several rows, each as a separate array, since only then
XLA fuses the step into one fast pass over the matrix.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from attention.arrays.dtypes import matmul_precision
from attention.arrays.leading_axes import rematerialized, unvmap_any
from attention.arrays.shapes import assumed_product, is_known
from attention.arrays.sharding import match_vma

# Number of rows per step; in the sums, they share a division. More would exceed the registers of a CPU.
ROWS = 4

# Up to this number of terms, loops are slower than one expression.
MAX_TERMS_WITHOUT_LOOPS = 2**15

# If |query| + |key| of any unit is always below this value, tanh is computed.
MIN_FACTORED = 2**-4


def sums_of_tanh(queries: jax.Array, keys: jax.Array, score_vector: jax.Array) -> jax.Array:
  """Returns score_vector . tanh(queries[t] + keys[s]), [T S].

  No derivative stores an array over T, S and A.

  Args:
    queries: [T A].
    keys: [S A].
    score_vector: [A].
  """
  (T, A), S = queries.shape, keys.shape[0]
  # A single query, as in a decoder, needs only a matrix.
  if assumed_product((T, S, A)) <= MAX_TERMS_WITHOUT_LOOPS or 1 in (T, S):
    return _with_tanh(queries, keys, score_vector)
  arrays = queries, keys, score_vector
  return jax.lax.cond(
    unvmap_any(_needs_tanh(queries, keys)), _by_query, _factored, *match_vma(arrays, arrays)
  )


@rematerialized
def _with_tanh(queries: jax.Array, keys: jax.Array, score_vector: jax.Array) -> jax.Array:
  tanh = jnp.tanh(queries[:, None, :] + keys[None, :, :])
  return jnp.einsum("TSA,A->TS", tanh, score_vector, precision=matmul_precision())


def _by_query(queries: jax.Array, keys: jax.Array, score_vector: jax.Array) -> jax.Array:
  """Computes the sums of one query after another."""

  def of_query(query: jax.Array) -> jax.Array:
    return _with_tanh(query[None], keys, score_vector)[0]

  return jax.lax.map(of_query, queries)


@jax.custom_jvp
def _factored(queries: jax.Array, keys: jax.Array, score_vector: jax.Array) -> jax.Array:
  """Computes the sums with one exponential for each unit of a query or key."""
  # Factors of at most 1, since they are multiplied by the divisors of other terms.
  largest = jnp.max(jnp.abs(score_vector))
  largest = jnp.where(largest == 0, 1, largest)
  x, y, factors = jnp.exp(2 * queries.T), jnp.exp(2 * keys.T), score_vector / largest

  def step(sums: jax.Array, indexed_units: tuple[jax.Array, Any]) -> tuple[jax.Array, None]:
    index, units = indexed_units
    one = _one(index, sums.dtype)
    fractions = [(one * factor, 1 + x[:, None] * y[None, :]) for x, y, factor in units]
    while len(fractions) > 1:
      (a, b), (c, d), *others = fractions
      fractions = [*others, (a * d + c * b, b * d)]
    numerator, divisor = fractions[0]
    return sums + numerator / divisor, None

  initial = jnp.zeros((queries.shape[0], keys.shape[0]), queries.dtype)
  units = list(zip(*map(_rows, (x, y, factors)), strict=True))
  indices = jnp.arange(units[0][0].shape[0])
  sums = jax.lax.scan(step, match_vma(initial, (x, y, factors)), (indices, units))[0]
  return jnp.sum(score_vector) - 2 * largest * sums


@functools.partial(_factored.defjvp, symbolic_zeros=True)
def _tangent(primals, tangents):
  """d sums[t, s] = score_vector . (1 - tanh^2)(d queries[t] + d keys[s]) + d score_vector . tanh."""
  queries, keys, score_vector = primals
  d_queries, d_keys, d_vector = (
    None if isinstance(tangent, jax.custom_derivatives.SymbolicZero) else tangent for tangent in tangents
  )
  x, y = jnp.exp(2 * queries), jnp.exp(2 * keys)
  sums = _factored(*primals)
  d_sums = jnp.zeros_like(sums)
  if d_queries is not None or d_vector is not None:
    zero = jnp.zeros_like(queries)
    slope_factors = zero if d_queries is None else score_vector[None] * d_queries
    tanh_factors = zero if d_vector is None else zero + d_vector[None]
    # The factors are one complex array, since XLA would compute the gradients of two arrays in two passes.
    d_sums += _sweep(x, y, jax.lax.complex(slope_factors, tanh_factors)).T
  if d_keys is not None:
    d_sums += _sweep(y, x, score_vector[None] * d_keys)
  return sums, d_sums


def _sweep(x: jax.Array, y: jax.Array, factors: jax.Array) -> jax.Array:
  """Returns sum over a of (1 - tanh^2) factors.real + tanh factors.imag, [R X].

  It is linear in the factors. Its transpose is a loop over the rows, which adds to the gradient of the
  factors.

  Args:
    x: exponentials [X A].
    y: exponentials [R A], whose rows the loop visits.
    factors: [X A], real or complex.
  """

  def terms(row: jax.Array, factors: jax.Array) -> jax.Array:
    r = 1 / (1 + x * row[None])
    slopes = 4 * (r - r * r)
    if not jnp.iscomplexobj(factors):
      return slopes * factors
    return slopes * factors.real + (1 - 2 * r) * factors.imag

  @rematerialized
  def step(indexed_rows: tuple[jax.Array, list[jax.Array]]) -> list[jax.Array]:
    index, rows = indexed_rows
    one = _one(index, x.dtype)
    # Rows do not share a division, so that a masked key changes no bit of another key's gradient.
    return [one * jnp.sum(terms(row, factors), axis=-1) for row in rows]

  rows = _rows(y)
  sums = jax.lax.map(step, (jnp.arange(rows[0].shape[0]), rows))
  return jnp.concatenate(sums)[: y.shape[0]]


def _one(index: jax.Array, dtype: jnp.dtype) -> jax.Array:
  """Returns 1, on CPUs by a matrix product that XLA cannot move out of a loop over the index.

  XLA of JAX 0.12.0.1 runs loops on a single thread if they contain no matrix product: without this, gradients
  of additive attention take 1.3 to 2.1 times as long there.
  """

  def product(index: jax.Array) -> jax.Array:
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


def _needs_tanh(queries: jax.Array, keys: jax.Array) -> jax.Array:
  """Returns whether products of divisors may overflow, or 1 - 2 r of a unit may be imprecise."""
  of_queries, of_keys = (jnp.max(jnp.abs(array), axis=0, initial=0.0) for array in (queries, keys))
  largest = of_queries + of_keys  # of each unit, [A]
  # If all values of a unit are small, 1 - 2 r loses precision by cancellation.
  is_imprecise = (largest > 0) & (largest < MIN_FACTORED)
  # A divisor is at most 2 exp(2 (|query| + |key|)), so the product is at most 2^ROWS exp(2 sum). The
  # numerator has ROWS terms that are not larger. The last 1 is for rounding.
  max_log = math.log(float(jnp.finfo(largest.dtype).max))
  max_sum = (max_log - ROWS * math.log(2) - math.log(ROWS)) / 2 - 1
  is_safe = functools.reduce(jnp.add, _rows(largest)) <= max_sum  # also False for NaN
  return jnp.any(is_imprecise) | ~jnp.all(is_safe)
