"""Multi-head attention satisfies the contract: masks, empty rows, leaks, errors.

Values and gradients are tested in test_multi_head.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import reference
from helpers.fixtures import (
  DIMS,
  FLOAT32,
  assert_close,
  assert_trees_close,
  assert_trees_finite,
  replaced,
)
from test_contract_errors import assert_error_says, zeros

import attention
from attention import masks

B, T, S = DIMS["BTS"]
# Heads; widths of the queries and keys of a head, of its values, of the queries, sources and outputs.
N, H, V, D, E, F = 6, 11, 13, 7, 17, 19


def draw_weights(num_key_heads=N, biases=True, dtype=np.float32, widths=(D, E, F)):
  rng = np.random.default_rng(7)
  of_queries, of_sources, of_result = widths

  def array(*shape):
    return (0.5 * rng.normal(size=shape)).astype(dtype)

  weights = attention.MultiHeadWeights(
    query=array(of_queries, N, H),
    key=array(of_sources, num_key_heads, H),
    value=array(of_sources, num_key_heads, V),
    output=array(N, V, of_result),
  )
  if not biases:
    return weights
  return attention.MultiHeadWeights(
    weights.query,
    weights.key,
    weights.value,
    weights.output,
    query_bias=array(N, H),
    key_bias=array(num_key_heads, H),
    value_bias=array(num_key_heads, V),
    output_bias=array(of_result),
  )


def draw_inputs(dtype=np.float32):
  rng = np.random.default_rng(8)
  return (
    (0.5 * rng.normal(size=(B, T, D))).astype(dtype),
    (0.5 * rng.normal(size=(B, S, E))).astype(dtype),
  )


def fields(weights):
  """The fields in the order of the reference."""
  return [
    weights.query,
    weights.key,
    weights.value,
    weights.output,
    weights.query_bias,
    weights.key_bias,
    weights.value_bias,
    weights.output_bias,
  ]


@jax.jit
def attend_fully(queries, sources, weights, mask=None, bias=None):
  return tuple(
    attention.multi_head_attention(
      queries, sources, weights, mask=mask, bias=bias, return_weights=True, return_logsumexp=True
    )
  )


# Scores are sums of H = 11 products of sums of D = 7 and E = 17 products, and up to 10 in size.
TOLERANCE = 8 * FLOAT32


@pytest.mark.parametrize(("num_key_heads", "biases"), [(6, False), (3, True), (1, True)])
def test_multi_head_matches_reference(num_key_heads, biases):
  queries, sources = draw_inputs()
  weights = draw_weights(num_key_heads, biases)
  mask = np.random.default_rng(9).random((B, N, T, S)) < 0.7
  bias = np.random.default_rng(10).normal(size=(N, T, S))
  mask[1, 2, 1] = False
  actual = attend_fully(queries, sources, weights, mask=mask, bias=np.float32(bias))
  desired = reference.multi_head_attention(queries, sources, fields(weights), mask=mask, bias=bias)
  assert_trees_close(actual, tuple(desired), TOLERANCE)


def test_empty_rows_give_the_output_bias():
  queries, sources = draw_inputs()
  weights = draw_weights(2)
  mask = np.arange(T)[:, None] != 1

  @jax.jit
  def run(*arguments):
    context, pull = jax.vjp(
      lambda *arguments: attention.multi_head_attention(*arguments, mask=mask), *arguments
    )
    return context, pull(jnp.ones_like(context))

  context, slopes = run(queries, sources, weights)
  np.testing.assert_array_equal(context[:, 1], np.stack([weights.output_bias] * B))
  assert_trees_finite(slopes)
  np.testing.assert_array_equal(slopes[0][:, 1], np.zeros((B, D)))


def test_nan_in_padding_is_ignored():
  queries, sources = draw_inputs()
  weights = draw_weights(2)
  mask = masks.lengths(source=jnp.asarray([3, 5])[:, None])
  corrupted = replaced(sources, np.s_[0, 3:], np.nan)

  @jax.jit
  def run(queries, sources):
    context, pull = jax.vjp(
      lambda *arguments: attention.multi_head_attention(*arguments, weights, mask=mask),
      queries,
      sources,
    )
    return context, pull(context)

  allowed = np.arange(S) < np.array([3, 5])[:, None, None, None]
  desired = reference.multi_head_attention(queries, sources, fields(weights), mask=allowed)
  context, slopes = run(queries, corrupted)
  assert_close(context, desired.context, TOLERANCE)
  for one, other in zip(slopes, run(queries, sources)[1], strict=True):
    np.testing.assert_array_equal(one, other)


QUERIES, SOURCES = zeros(2, 3, 7), zeros(2, 5, 17)
GOOD = {
  "query": zeros(7, 6, 11),
  "key": zeros(17, 6, 11),
  "value": zeros(17, 6, 13),
  "output": zeros(6, 13, 19),
}
ERRORS = {
  "query_width": ({"query": zeros(23, 6, 11)}, "query D N H 7 23"),
  "key_width": ({"key": zeros(23, 6, 11)}, "key D N H 17 23"),
  "value_width": ({"value": zeros(23, 6, 13)}, "value D N H 17 23"),
  "query_rank": ({"query": zeros(7, 66)}, "query D N H 66"),
  "key_head_width": ({"key": zeros(17, 6, 23)}, "key 11 23"),
  "key_heads": ({"key": zeros(17, 4, 11), "value": zeros(17, 4, 13)}, "heads multiple 6 4"),
  "value_heads": ({"value": zeros(17, 3, 13)}, "heads key value 6 3"),
  "more_key_heads": ({"key": zeros(17, 12, 11), "value": zeros(17, 12, 13)}, "heads 6 12"),
  "output_heads": ({"output": zeros(5, 13, 19)}, "output N H D 6 5"),
  "output_head_width": ({"output": zeros(6, 23, 19)}, "output N H D 13 23"),
  "query_bias": ({"query_bias": zeros(6, 23)}, "query bias N H 6 11 23"),
  "key_bias": ({"key_bias": zeros(11)}, "key bias N H 6 11"),
  "value_bias": ({"value_bias": zeros(6, 23)}, "value bias N H 6 13 23"),
  "output_bias": ({"output_bias": zeros(23)}, "output bias D 19 23"),
}


@pytest.mark.parametrize(("changes", "words"), ERRORS.values(), ids=ERRORS)
def test_mismatched_weights_raise(changes, words):
  weights = attention.MultiHeadWeights(**(GOOD | changes))
  assert_error_says(words, attention.multi_head_attention, QUERIES, SOURCES, weights)


def test_mask_needs_a_head_axis():
  def call(queries, sources, weights):
    return attention.multi_head_attention(queries, sources, weights, mask=jnp.ones((2, 3, 5), bool))

  weights = attention.MultiHeadWeights(**GOOD)
  assert_error_says("mask T S 6 3 5 2", call, QUERIES, SOURCES, weights)


@pytest.mark.parametrize(
  ("queries", "sources", "words"),
  [
    (zeros(7), SOURCES, "inputs_q T D 7"),
    (QUERIES, zeros(17), "inputs_kv S D 17"),
    (zeros(2, 3, 7, dtype=jnp.bfloat16), SOURCES, "inputs_q inputs_kv bfloat16 float32"),
    (QUERIES, zeros(29, 5, 17), "inputs_q inputs_kv 2 29"),
    (zeros(2, 3, 7, dtype=jnp.int32), SOURCES, "inputs_q floating int32"),
    (QUERIES, zeros(2, 5, 17, dtype=jnp.int32), "inputs_kv floating int32"),
  ],
)
def test_mismatched_inputs_raise(queries, sources, words):
  weights = attention.MultiHeadWeights(**GOOD)
  assert_error_says(words, attention.multi_head_attention, queries, sources, weights)
