"""One tile of pairs: its scores, who may attend, what is dropped."""

import functools

import jax
import jax.numpy as jnp

from attention.arrays.shapes import same_rank, with_rank
from attention.engines import dropout
from attention.engines.blockwise.plan import Operands
from attention.engines.marks import is_minus_infinity, marked


def scores_of(operands: Operands, some_are_masked: bool) -> jax.Array:
  """Returns the scores of a tile of pairs, marked."""
  dtype = operands.values.dtype
  scores = operands.score.tile(operands.query_features, operands.key_features).astype(dtype)
  terms, allowed = bias_and_allowed(operands, dtype, some_are_masked)
  if terms is not None:
    scores, terms = same_rank(scores, terms)
    scores += terms
  if allowed is not None:
    scores, allowed = same_rank(scores, allowed)
  return marked(scores, allowed)


def bias_and_allowed(
  operands: Operands, dtype: jnp.dtype, some_are_masked: bool
) -> tuple[jax.Array | None, jax.Array | None]:
  """Returns the bias of a tile and which of its pairs may attend, None for no bias and for all pairs."""
  t, s = operands.positions()
  terms = allowed = None
  if operands.bias is not None:
    terms = jnp.asarray(operands.bias(t, s)).astype(dtype)
    allowed = ~is_minus_infinity(terms)  # what becomes -inf in the dtype of the scores masks a pair too
    terms = jnp.where(allowed, terms, 0)
  if some_are_masked:
    tile = operands.mask.tile(t, s)
    allowed = tile if allowed is None else functools.reduce(jnp.logical_and, same_rank(allowed, tile))
  return terms, allowed


def drop(operands: Operands, rate: float, weights: jax.Array) -> jax.Array:
  """Returns the weights of a tile after dropout."""
  if operands.seeds is None:
    return weights
  rows = operands.rows[..., None]
  columns = with_rank(operands.positions()[1].astype(jnp.uint32), rows.ndim)
  return dropout.drop(operands.seeds, rate, rows, columns, weights)
