"""Multi-head attention satisfies the contract: masks, empty rows, leaks, errors.

Values and gradients are tested in test_multi_head.py.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DIMS, assert_error_says, replaced, shape_of

import attention
from attention import masks

B, T, S = DIMS["BTS"]
# Heads; widths of the queries and keys of a head, of its values, of the queries, sources and outputs.
N, H, V, D, E, F = 6, 11, 13, 7, 17, 19


def draw_weights():
  rng = np.random.default_rng(7)
  kernels = (D, N, H), (E, 2, H), (E, 2, V), (N, V, F)
  biases = (N, H), (2, H), (2, V), (F,)
  return attention.MultiHeadWeights(
    *(np.float32(0.5 * rng.normal(size=shape)) for shape in (*kernels, *biases))
  )


def draw_inputs():
  rng = np.random.default_rng(8)
  return (
    (0.5 * rng.normal(size=(B, T, D))).astype(np.float32),
    (0.5 * rng.normal(size=(B, S, E))).astype(np.float32),
  )


def test_empty_rows_give_the_output_bias():
  queries, sources = draw_inputs()
  weights = draw_weights()
  mask = np.arange(T)[:, None] != 1

  @jax.jit
  def run(*arguments):
    context, pull = jax.vjp(
      lambda *arguments: attention.multi_head_attention(*arguments, mask=mask), *arguments
    )
    return context, pull(jnp.ones_like(context))

  context, slopes = run(queries, sources, weights)
  np.testing.assert_array_equal(context[:, 1], np.stack([weights.output_bias] * B))
  chex.assert_tree_all_finite(slopes)
  np.testing.assert_array_equal(slopes[0][:, 1], np.zeros((B, D)))


def test_nan_in_padding_is_ignored():
  queries, sources = draw_inputs()
  mask = masks.lengths(source=jnp.asarray([3, 5])[:, None])

  @jax.jit
  def run(queries, sources):
    context, pull = jax.vjp(
      lambda *arguments: attention.multi_head_attention(*arguments, draw_weights(), mask=mask),
      queries,
      sources,
    )
    return context, pull(context)

  corrupted = replaced(sources, np.s_[0, 3:], np.nan)
  chex.assert_trees_all_equal(run(queries, corrupted), run(queries, sources))


QUERIES, SOURCES = shape_of(2, 3, 7), shape_of(2, 5, 17)
GOOD = {
  "query": shape_of(7, 6, 11),
  "key": shape_of(17, 6, 11),
  "value": shape_of(17, 6, 13),
  "output": shape_of(6, 13, 19),
}
ERRORS = [
  ("query D N H 7 23", {"query": shape_of(23, 6, 11)}),
  ("key D N H 17 23", {"key": shape_of(23, 6, 11)}),
  ("value D N H 17 23", {"value": shape_of(23, 6, 13)}),
  ("query D N H 66", {"query": shape_of(7, 66)}),
  ("keys 11 23", {"key": shape_of(17, 6, 23)}),
  ("heads multiple 6 4", {"key": shape_of(17, 4, 11), "value": shape_of(17, 4, 13)}),
  ("heads keys values 6 3", {"value": shape_of(17, 3, 13)}),
  ("heads 6 12", {"key": shape_of(17, 12, 11), "value": shape_of(17, 12, 13)}),
  ("output N H D 6 5", {"output": shape_of(5, 13, 19)}),
  ("output N H D 13 23", {"output": shape_of(6, 23, 19)}),
  ("query bias N H 6 11 23", {"query_bias": shape_of(6, 23)}),
  ("key bias N H 6 11", {"key_bias": shape_of(11)}),
  ("value bias N H 6 13 23", {"value_bias": shape_of(6, 23)}),
  ("output bias D 19 23", {"output_bias": shape_of(23)}),
]


@pytest.mark.parametrize(("words", "changes"), ERRORS)
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
    (shape_of(7), SOURCES, "inputs_q T D 7"),
    (QUERIES, shape_of(17), "inputs_kv S D 17"),
    (shape_of(2, 3, 7, dtype=jnp.bfloat16), SOURCES, "inputs_q inputs_kv bfloat16 float32"),
    (QUERIES, shape_of(29, 5, 17), "inputs_q inputs_kv 2 29"),
    (shape_of(2, 3, 7, dtype=jnp.int32), SOURCES, "inputs_q floating int32"),
    (QUERIES, shape_of(2, 5, 17, dtype=jnp.int32), "inputs_kv floating int32"),
  ],
)
def test_mismatched_inputs_raise(queries, sources, words):
  weights = attention.MultiHeadWeights(**GOOD)
  assert_error_says(words, attention.multi_head_attention, queries, sources, weights)
