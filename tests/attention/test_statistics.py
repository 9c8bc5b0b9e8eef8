"""Statistics of rows: reference, derivatives, empty and non-finite rows, memory."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention
from attention import masks

CLOSE = {"rtol": 4e-6, "atol": 4e-6}

T, S, H = 3, 5, 11
MASK = np.array([[0, 0, 0, 0, 0], [1, 0, 1, 1, 0], [0, 1, 1, 1, 1]], bool)
RNG = np.random.default_rng(0)
ARRAYS = tuple(RNG.normal(size=shape).astype(np.float32) for shape in ((T, H), (S, H), (T, S)))


def statistics(score, queries, keys, bias, **options):
  return attention.row_statistics(score, queries, keys, bias=bias, block_sizes=(2, 2), **options)


def formula(scores_of, queries, keys, bias, mask):
  """Returns the largest score and the entropy of each row, from an array of all scores."""
  scores = jnp.where(mask, scores_of(queries, keys) + bias, -jnp.inf)
  is_empty = ~np.any(mask, axis=-1)
  log_weights = jnp.where(mask, jax.nn.log_softmax(jnp.where(mask, scores, -1e30)), 0)
  entropy = -jnp.sum(jnp.where(mask, jnp.exp(log_weights) * log_weights, 0), axis=-1)
  return jnp.max(scores, axis=-1), jnp.where(is_empty, 0, entropy)


@pytest.mark.parametrize(
  ("score", "scores_of", "implementation"),
  [
    (attention.ScaledDotProduct(0.3), lambda q, k: 0.3 * q @ k.T, "dense"),
    (
      attention.Additive(np.full(H, 0.4, np.float32)),
      lambda q, k: 0.4 * jnp.sum(jnp.tanh(q[:, None] + k[None]), axis=-1),
      "blockwise",
    ),
  ],
  ids=["dot_product", "additive"],
)
def test_statistics_match_formula(score, scores_of, implementation):
  def both_passes(function):
    def loss(arrays):
      max_score, entropy = function(*arrays)
      factors = jnp.arange(1.0, T + 1)
      finite = jnp.where(jnp.isfinite(max_score), max_score, 0)
      return jnp.sum(factors * finite) + jnp.sum(factors**2 * entropy), (max_score, entropy)

    return jax.jvp(jax.grad(loss, has_aux=True), (ARRAYS,), (ARRAYS,))

  @jax.jit
  def run():
    ours = functools.partial(statistics, score, mask=MASK, implementation=implementation)
    return both_passes(ours), both_passes(functools.partial(formula, scores_of, mask=MASK))

  actual, desired = run()
  for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


of_product = functools.partial(attention.row_statistics, attention.ScaledDotProduct(1.0))
each_engine = pytest.mark.parametrize("implementation", ["dense", "blockwise"])


@each_engine
def test_entropy_by_hand(implementation):
  options = {"implementation": implementation, "block_sizes": (1, 2)}
  actual = of_product(np.float32([[1.0]]), np.float32([[0.0], [0.0], [-1e4]]), **options)
  assert actual.max_score.tolist() == [0.0]
  np.testing.assert_allclose(actual.entropy, [np.log(2)], **CLOSE)


@each_engine
def test_derivative_of_the_maximum(implementation):
  @jax.jit
  @jax.vmap
  @jax.grad
  def derivative(keys):
    options = {"implementation": implementation, "block_sizes": (1, 2)}
    return of_product(jnp.ones((1, 1)), keys[:, None], **options).max_score[0]

  # In the first row, the first of equal scores.
  keys = jnp.array([[1.0, 0.0, 1.0], [1e-7, 2e-7, 3e-7], [1e4, 1e4 + 0.005, 0.0]])
  np.testing.assert_array_equal(derivative(keys), [[1, 0, 0], [0, 0, 1], [0, 1, 0]])


@each_engine
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_masked_and_attended_nan(implementation, value):
  queries, keys, bias = ARRAYS
  mask = MASK.copy()
  mask[1:, 2] = False, True

  @jax.jit
  @functools.partial(jax.grad, has_aux=True)
  def run(keys):
    score = attention.ScaledDotProduct()
    result = statistics(score, queries, keys, bias, mask=mask, implementation=implementation)
    return jnp.sum(result.entropy[:2]), result

  corrupted = keys.copy()
  corrupted[2] = value
  (_, clean), (slopes, actual) = run(keys), run(corrupted)
  chex.assert_trees_all_equal(*(jax.tree.map(lambda rows: rows[:2], result) for result in (actual, clean)))
  assert np.isnan(actual.max_score[2]) and np.isnan(actual.entropy[2])
  assert actual.max_score[0] == -np.inf and actual.entropy[0] == 0
  chex.assert_tree_all_finite(slopes)


def test_vmap_and_memory():
  rng = np.random.default_rng(0)
  queries, keys = rng.normal(size=(2, 3, 37, 8)).astype(np.float32)
  options = {"mask": masks.causal(), "implementation": "blockwise", "block_sizes": (8, 16)}
  run = functools.partial(of_product, **options)
  chex.assert_trees_all_close(jax.vmap(run)(queries, keys), run(queries, keys), **CLOSE)
  vectors = np.ones((2048, 8), np.float32)

  def loss(vectors):
    options = {"implementation": "blockwise", "block_sizes": (64, 64)}
    return sum(map(jnp.sum, of_product(vectors, vectors, **options)))

  program = jax.jit(jax.grad(loss)).lower(vectors).compile()
  assert program.memory_analysis().temp_size_in_bytes < 2048 * 2048


@each_engine
def test_half_precision_gives_float32(implementation):
  score = attention.ScaledDotProduct(0.25)
  halves = [jnp.asarray(array, jnp.bfloat16) for array in ARRAYS]
  actual = statistics(score, *halves, mask=MASK, implementation=implementation)
  assert actual.max_score.dtype == actual.entropy.dtype == jnp.float32
  exact = formula(lambda q, k: 0.25 * q @ k.T, *(half.astype(jnp.float32) for half in halves), MASK)
  chex.assert_trees_all_close(tuple(actual), exact, rtol=1e-5, atol=1e-5)


@each_engine
def test_queries_without_keys_are_empty(implementation):
  max_score, entropy = of_product(jnp.ones((3, 4)), jnp.ones((0, 4)), implementation=implementation)
  assert max_score.tolist() == [-np.inf] * 3 and entropy.tolist() == [0] * 3
