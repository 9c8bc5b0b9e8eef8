"""Statistics of rows: reference, derivatives, empty and non-finite rows, memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import reference
from helpers.fixtures import (
  BLOCK_SIZES,
  DIMS,
  ENGINES,
  FLOAT32,
  SCORES,
  assert_close,
  assert_trees_close,
  assert_trees_finite,
  draw,
  replaced,
)

import attention
from attention import masks

T, S = DIMS["TS"]
MASK = np.array([[0, 0, 0, 0, 0], [1, 0, 1, 1, 0], [0, 1, 1, 1, 1]], bool)
engines = pytest.mark.parametrize("implementation", ENGINES)


def statistics(kind, inputs, **options):
  return attention.row_statistics(
    SCORES[kind].score(**inputs.parameters),
    inputs.queries,
    inputs.keys,
    bias=inputs.bias,
    block_sizes=BLOCK_SIZES,
    **options,
  )


def expected(kind, inputs, mask):
  result = reference.attend(
    SCORES[kind].pair_score, *inputs[:3], bias=inputs.bias, mask=mask, **inputs.parameters
  )
  scores = reference.scores(SCORES[kind].pair_score, *inputs[:2], **inputs.parameters) + inputs.bias
  weights = np.where(result.weights > 0, result.weights, 1)
  return np.max(np.where(mask, scores, -np.inf), axis=-1), -np.sum(weights * np.log(weights), axis=-1)


@pytest.mark.parametrize("kind", ["scaled_dot_product", "additive"])
@engines
def test_statistics_match_reference(kind, implementation):
  inputs = draw(kind, bias="TS")
  for mask in (MASK, np.ones((T, S), bool)):
    actual = jax.jit(lambda mask: statistics(kind, inputs, mask=mask, implementation=implementation))(mask)
    assert_trees_close(tuple(actual), expected(kind, inputs, mask), FLOAT32)


@engines
def test_hand_values(implementation):
  queries, keys = np.float32([[1.0]]), np.float32([[0.0], [0.0], [-1e4]])
  actual = attention.row_statistics(
    attention.ScaledDotProduct(1.0), queries, keys, implementation=implementation, block_sizes=(1, 2)
  )
  assert actual.max_score.tolist() == [0.0]
  assert_close(actual.entropy, [np.log(2)], FLOAT32)


@engines
def test_derivatives_match_differences(implementation, float64):
  inputs = draw("scaled_dot_product", bias="TS", dtype=np.float64)
  rng = np.random.default_rng(2)
  factors = rng.normal(size=(2, T))

  def loss(queries, keys, bias):
    result = statistics(
      "scaled_dot_product",
      inputs._replace(queries=queries, keys=keys, bias=bias),
      mask=MASK,
      implementation=implementation,
    )
    finite = (jnp.where(jnp.isfinite(rows), rows, 0) for rows in result)
    return sum(jnp.sum(rows * factor) for rows, factor in zip(finite, factors, strict=True))

  arguments = inputs.queries, inputs.keys, inputs.bias
  gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
  direction = tuple(rng.normal(size=np.shape(argument)) for argument in arguments)
  step = 1e-6

  def moved(step):
    return tuple(argument + step * along for argument, along in zip(arguments, direction, strict=True))

  slope = sum(np.sum(one * other) for one, other in zip(gradient(*arguments), direction, strict=True))
  desired = (loss(*moved(step)) - loss(*moved(-step))) / (2 * step)
  np.testing.assert_allclose(slope, desired, rtol=1e-6)
  second = jax.jvp(gradient, arguments, direction)[1]
  ahead, behind = gradient(*moved(step)), gradient(*moved(-step))
  differences = jax.tree.map(lambda one, other: (one - other) / (2 * step), ahead, behind)
  assert_trees_close(second, differences, 1e-6)


@engines
@pytest.mark.parametrize(
  ("keys", "gradient"),
  [
    ([1.0, 0.0, 1.0], [1, 0, 0]),  # the first of equal scores
    ([1e-7, 2e-7, 3e-7], [0, 0, 1]),
    ([1e4, 1e4 + 0.005, 0.0], [0, 1, 0]),
  ],
)
def test_derivative_of_the_maximum(implementation, keys, gradient):
  def largest(keys):
    return attention.row_statistics(
      attention.ScaledDotProduct(1.0),
      jnp.ones((1, 1)),
      keys[:, None],
      implementation=implementation,
      block_sizes=(1, 2),
    ).max_score[0]

  np.testing.assert_array_equal(jax.grad(largest)(jnp.array(keys)), gradient)


@engines
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_masked_and_attended_nan(implementation, value):
  inputs = draw("scaled_dot_product", bias="TS")
  mask = MASK.copy()
  mask[1:, 2] = False, True

  def run(keys):
    result = statistics(
      "scaled_dot_product", inputs._replace(keys=keys), mask=mask, implementation=implementation
    )
    return result, jnp.sum(result.entropy[:2])

  spoilt = replaced(inputs.keys, np.s_[2], value)
  clean, actual = run(inputs.keys)[0], run(spoilt)[0]
  assert_trees_close([rows[:2] for rows in actual], [rows[:2] for rows in clean], 0)
  assert np.all(np.isnan(actual.max_score[2])) and np.all(np.isnan(actual.entropy[2]))
  assert np.all(actual.max_score[0] == -np.inf) and np.all(actual.entropy[0] == 0)
  assert_trees_finite(jax.grad(lambda keys: run(keys)[1])(spoilt))


def test_vmap_and_memory():
  rng = np.random.default_rng(0)
  queries, keys = rng.normal(size=(2, 3, 37, 8)).astype(np.float32)
  score = attention.ScaledDotProduct()

  def run(queries, keys):
    return attention.row_statistics(
      score, queries, keys, mask=masks.causal(), implementation="blockwise", block_sizes=(8, 16)
    )

  assert_trees_close(jax.vmap(run)(queries, keys), run(queries, keys), FLOAT32)
  vectors = np.ones((2048, 8), np.float32)

  def loss(vectors):
    options = {"implementation": "blockwise", "block_sizes": (64, 64)}
    return sum(map(jnp.sum, attention.row_statistics(score, vectors, vectors, **options)))

  program = jax.jit(jax.grad(loss)).lower(vectors).compile()
  assert program.memory_analysis().temp_size_in_bytes < 2048 * 2048


@engines
def test_half_precision_gives_float32(implementation):
  inputs = jax.tree.map(lambda array: jnp.asarray(array, jnp.bfloat16), draw("scaled_dot_product", bias="TS"))
  actual = statistics("scaled_dot_product", inputs, mask=MASK, implementation=implementation)
  assert actual.max_score.dtype == actual.entropy.dtype == jnp.float32
  exact = jax.tree.map(lambda array: np.asarray(array, np.float64), inputs)
  assert_trees_close(tuple(actual), expected("scaled_dot_product", exact, MASK), FLOAT32)


@engines
def test_queries_without_keys_are_empty(implementation):
  max_score, entropy = attention.row_statistics(
    attention.ScaledDotProduct(), jnp.ones((3, 4)), jnp.ones((0, 4)), implementation=implementation
  )
  assert max_score.tolist() == [-np.inf] * 3 and entropy.tolist() == [0] * 3
