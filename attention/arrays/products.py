"""The two matrix products of attention, with fast gradients for few pairs on a CPU.

XLA for CPUs is slow at products of small transposed matrices. With 16 queries and 16 keys, the gradients of
keys and values take half the time if the array [T S] is first transposed in memory; with more than 1,024
pairs, that no longer helps.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from attention.arrays import device
from attention.arrays.dtypes import matmul_precision
from attention.arrays.shapes import assumed_product

MAX_FEW_PAIRS = 1024


def dot_products(queries: jax.Array, keys: jax.Array) -> jax.Array:
  """Returns the dot products [... T S] of queries [... T H] and keys [... S H]."""
  is_fast = _are_few(queries.shape[-2], keys.shape[-2])
  return (_few_dot_products if is_fast else _dot_products)(queries, keys, matmul_precision())


def weighted_sums(weights: jax.Array, values: jax.Array) -> jax.Array:
  """Returns the sums [... T D] of values [... S D] with weights [... T S]."""
  is_fast = _are_few(*weights.shape[-2:])
  return (_few_weighted_sums if is_fast else _weighted_sums)(weights, values, matmul_precision())


def is_zero_tangent(tangent: Any) -> bool:
  """Returns whether a tangent in a rule of `jax.custom_jvp` is known to be zero."""
  return isinstance(tangent, jax.custom_derivatives.SymbolicZero) or tangent.dtype == jax.dtypes.float0


def _are_few(T: int, S: int) -> bool:
  return device.is_cpu() and assumed_product((T, S)) <= MAX_FEW_PAIRS


def _dot_products(queries: jax.Array, keys: jax.Array, precision: str) -> jax.Array:
  return jnp.einsum("...TH,...SH->...TS", queries, keys, precision=precision)


def _weighted_sums(weights: jax.Array, values: jax.Array, precision: str) -> jax.Array:
  return jnp.einsum("...TS,...SD->...TD", weights, values, precision=precision)


_few_dot_products = jax.custom_jvp(_dot_products, nondiff_argnums=(2,))
_few_weighted_sums = jax.custom_jvp(_weighted_sums, nondiff_argnums=(2,))


@functools.partial(_few_dot_products.defjvp, symbolic_zeros=True)
def _dot_products_jvp(precision: str, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
  (queries, keys), (d_queries, d_keys) = primals, tangents
  terms = []
  if not is_zero_tangent(d_queries):
    terms.append(_dot_products(d_queries, keys, precision))
  if not is_zero_tangent(d_keys):
    # In gradients, the barrier comes after the transposition, which XLA would undo without it.
    products = jax.lax.optimization_barrier(_dot_products(d_keys, queries, precision))
    terms.append(jnp.swapaxes(products, -1, -2))
  return _dot_products(queries, keys, precision), functools.reduce(jnp.add, terms)


@functools.partial(_few_weighted_sums.defjvp, symbolic_zeros=True)
def _weighted_sums_jvp(precision: str, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
  (weights, values), (d_weights, d_values) = primals, tangents
  terms = []
  if not is_zero_tangent(d_weights):
    terms.append(_weighted_sums(d_weights, values, precision))
  if not is_zero_tangent(d_values):
    transposed = jax.lax.optimization_barrier(jnp.swapaxes(weights, -1, -2))
    terms.append(jnp.einsum("...ST,...SD->...TD", transposed, d_values, precision=precision))
  return _weighted_sums(weights, values, precision), functools.reduce(jnp.add, terms)
