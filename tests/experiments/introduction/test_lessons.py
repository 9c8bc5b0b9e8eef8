"""The first four lessons against NumPy."""

import types

import jax
import numpy as np
import pytest

from experiments.introduction import heads_from_config, masked_attention, self_attention, soft_lookup

pytestmark = pytest.mark.slow


def close(actual, expected, tolerance=2e-5):
  np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def attend(queries, keys, values):
  """softmax(Q K^T / sqrt(d_k)) V and the weights (Vaswani et al. 2017, eq. 1)."""
  scores = queries @ np.swapaxes(keys, -1, -2) / np.sqrt(keys.shape[-1])
  exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
  weights = exponentials / exponentials.sum(axis=-1, keepdims=True)
  return weights @ values, weights


def run(system, *arguments, static=()):
  results = jax.jit(system, static_argnums=static)(jax.random.key(3, impl="unsafe_rbg"), *arguments)
  return types.SimpleNamespace(**jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), results))


def test_one_head_is_the_formula():
  one = run(self_attention.one_head)
  np.testing.assert_array_equal(one.inputs, [one.embedding[token] for token in (2, 6, 8, 3, 1)])
  close(one.queries, one.inputs @ one.query_kernel)
  close(one.keys, one.inputs @ one.key_kernel)
  close(one.values, one.inputs @ one.value_kernel)
  context, weights = attend(one.queries, one.keys, one.values)
  close(one.weights, weights)
  close(one.context, context)
  a, v = weights[0], one.values
  close(one.z_1, a[0] * v[0] + a[1] * v[1] + a[2] * v[2] + a[3] * v[3] + a[4] * v[4])


def test_four_heads_are_four_single_heads():
  inputs = np.random.default_rng(0).normal(size=(5, 16)).astype(np.float32)
  four = run(self_attention.four_heads, inputs)
  kernels = zip(four.query_kernel, four.key_kernel, four.value_kernel, strict=True)
  heads = [attend(inputs @ query, inputs @ key, inputs @ value) for query, key, value in kernels]
  close(four.weights, [weights for _, weights in heads])
  close(four.contexts, [context for context, _ in heads])
  close(four.concatenated, np.concatenate([context for context, _ in heads], axis=-1))
  close(four.result, four.concatenated @ four.output_kernel)


def test_stacked_heads_are_single_heads():
  config = heads_from_config.HeadsConfig(hidden_size=15, num_attention_heads=5)
  both = run(heads_from_config.heads_from_config, config, 7, static=(1, 2))
  heads = []
  for n in range(5):
    head = both.params[f"head_{n}"]
    assert np.abs(head["query"]["bias"]).min() > 0
    names = "query", "key", "value"
    heads.append(attend(*(both.inputs @ head[name]["kernel"] + head[name]["bias"] for name in names))[0])
  output = both.params["output"]
  expected = np.concatenate(heads, axis=-1) @ output["kernel"] + output["bias"]
  assert expected.shape == (1, 7, 15)
  close(both.one_by_one, expected)
  close(both.stacked, expected)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_soft_lookup_finds_the_query(place):
  # Scores (10, 1, 1), not scaled: the softmax is (e^9, 1, 1) / (e^9 + 2).
  query, expected = [1.0, 1.0, 1.0], np.full(3, 1 / (np.exp(9) + 2))
  query[place], expected[place] = 10.0, np.exp(9) / (np.exp(9) + 2)
  context, weights = soft_lookup.soft_lookup(query)
  close(weights, [expected], 1e-6)
  close(context, [expected], 1e-6)


def test_masked_keys_are_deleted_keys():
  masked = run(masked_attention.masked_attention)
  context, weights = attend(masked.queries, masked.keys, masked.values)
  assert context.shape == (1, 3, 16)
  close(masked.context, context)
  close(masked.weights, weights)
  np.testing.assert_array_equal(masked.mask, [[[1, 1, 1, 0]]])
  context, weights = attend(masked.queries, masked.keys[:, :3], masked.values[:, :3])
  close(masked.masked_context, context)
  close(masked.masked_weights[..., :3], weights)
  np.testing.assert_array_equal(masked.masked_weights[..., 3], np.zeros((1, 3)))
