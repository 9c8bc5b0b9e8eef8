"""The contract of all normalizers; test_option_transformations.py has their derivatives."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import BLOCK_SIZES, DIMS, FLOAT32, GRADIENTS, draw, expected, random_like, replaced
from helpers import reference

import attention

B, T, S = DIMS["BTS"]
RNG = np.random.default_rng(7)
BEFORE = RNG.dirichlet(np.ones(S), size=(B, T))
CENTERS = RNG.uniform(0, S - 1, size=(B, T))
SINK = RNG.normal(size=B)

# Normalizers, and their formulas for one row in float64.
NORMALIZERS = {
  "sink": (attention.Softmax(np.float32(SINK)), reference.softmax_with_sink(SINK)),
  "sparsemax": (attention.Sparsemax(), reference.entmax(2.0)),
  "entmax15": (attention.Entmax15(), reference.entmax(1.5)),
  "sigmoid": (attention.Sigmoid(), reference.sigmoid),
  "sigmoid_less_log_keys": (attention.Sigmoid(subtract_log_length=True), reference.sigmoid_less_log_keys),
  "softpick": (attention.Softpick(), reference.softpick),
  "stick_breaking": (attention.StickBreaking(), reference.stick_breaking),
  "local": (attention.GaussianWindow(np.float32(CENTERS), 1.5), reference.local(CENTERS, 1.5)),
  "monotonic": (attention.Monotonic(np.float32(BEFORE)), reference.monotonic(BEFORE)),
}
# "blockwise" does not support `Monotonic`.
on_engines = pytest.mark.parametrize(
  ("name", "implementation"),
  [
    *((name, "dense") for name in NORMALIZERS),
    *((name, "blockwise") for name in NORMALIZERS if name != "monotonic"),
  ],
)
each_engine = pytest.mark.parametrize("implementation", ["dense", "blockwise"])


def draw_inputs():
  """Returns Inputs whose scores differ by several units, so that sparse weights have zeros."""
  inputs = draw("scaled_dot_product", bias="BTS")
  return inputs._replace(bias=2 * inputs.bias)


def draw_mask():
  """Returns a mask whose row 1 of batch 1 is empty."""
  mask = np.random.default_rng(3).random((B, T, S)) < 0.7
  mask[1, 1], mask[0, 0] = False, True
  return mask


def attend(inputs, normalizer, **options):
  """Returns context and weights."""
  score, queries, keys, values, bias = inputs
  options = {"bias": bias, "return_weights": True, "block_sizes": BLOCK_SIZES} | options
  result = attention.attend(score, queries, keys, values, normalizer=normalizer, **options)
  return result.context, result.weights


@functools.partial(jax.jit, static_argnames="implementation")
def results_and_gradients(inputs, normalizer, mask, implementation):
  """Returns the results and the gradients of a loss, with the same shapes in all tests."""
  results, pull = jax.vjp(
    lambda inputs: attend(inputs, normalizer, mask=mask, implementation=implementation), inputs
  )
  return results, pull(random_like(jax.tree.map(jax.typeof, results)))[0]


# Scores (1, 0, -1): the softmax is e^z / (e + 1 + 1/e); sparsemax: threshold 0, weights (1, 0, 0);
# entmax15 of halves (1/2, 0, -1/2): (1/2 - t)^2 + t^2 = 1, t = (1 - sqrt(7)) / 4 = -0.41144, and
# (0.91144^2, 0.41144^2, 0); sigmoid: 1 / (1 + 1/e), 1/2, 1 / (1 + e);
# sink: e / (e + 1 + 1/e + e^2), and so on; softpick: (e - 1) / (e - 1 + 1 - 1/e) = 1 / (1 + 1/e);
# stick_breaking from the last key: p3, p2 (1 - p3), p1 (1 - p2) (1 - p3);
# less log 3: 1 / (1 + 3/e), 1/4, 1 / (1 + 3e); monotonic from the first key: p1,
# (1 - p1) p2, (1 - p1)(1 - p2) p3; local around key 1 with deviation 1: times exp(-1/2), 1, exp(-1/2).
HAND_VALUES = {
  "softmax": (attention.Softmax(), [0.66524096, 0.24472847, 0.09003057]),
  "sink": (attention.Softmax(sink=2.0), [0.23688282, 0.08714432, 0.03205860]),
  "off_by_one": (attention.Softmax(sink=0.0), [0.53444665, 0.19661193, 0.07232949]),
  "softpick": (attention.Softpick(), [0.73105803, 0.0, 0.0]),
  "stick_breaking": (attention.StickBreaking(), [0.26722332, 0.36552929, 0.26894142]),
  "sparsemax": (attention.Sparsemax(), [1.0, 0.0, 0.0]),
  "entmax15": (attention.Entmax15(), [0.83071891, 0.16928109, 0.0]),
  "sigmoid": (attention.Sigmoid(), [0.73105858, 0.5, 0.26894142]),
  "sigmoid_less_log_keys": (attention.Sigmoid(subtract_log_length=True), [0.47536689, 0.25, 0.10923178]),
  "monotonic": (attention.Monotonic(np.float32([[1.0, 0.0, 0.0]])), [0.73105858, 0.13447071, 0.03616437]),
  "hard": (attention.Monotonic(np.float32([[0.0, 1.0, 0.0]]), hard=True), [0.0, 1.0, 0.0]),
  "local": (attention.GaussianWindow(np.float32([1.0]), 1.0), [0.40348918, 0.24472847, 0.05460630]),
}


@pytest.mark.parametrize(("normalizer", "weights"), HAND_VALUES.values(), ids=HAND_VALUES)
def test_weights_match_hand_values(normalizer, weights):
  queries, keys = np.float32([[1.0]]), np.float32([[1.0], [0.0], [-1.0]])
  result = attention.attend(
    attention.ScaledDotProduct(1.0), queries, keys, keys, normalizer=normalizer, return_weights=True
  )
  np.testing.assert_allclose(result.weights, [weights], **FLOAT32)
  np.testing.assert_allclose(result.context, [[weights[0] - weights[2]]], **FLOAT32)


@on_engines
def test_results_match_loops(name, implementation):
  inputs, mask = draw_inputs(), draw_mask()
  normalizer, formula = NORMALIZERS[name]
  actual, _ = results_and_gradients(inputs, normalizer, mask, implementation)
  context, weights, _ = expected("scaled_dot_product", inputs, mask=mask, normalize=formula)
  chex.assert_trees_all_close(actual, (context, weights), **FLOAT32)
  # Sparse weights must have zeros; otherwise this does not test the threshold.
  assert np.any(weights[mask] == 0) == (name in ("sparsemax", "entmax15", "softpick"))


@pytest.mark.parametrize("name", [name for name in NORMALIZERS if name != "monotonic"])
def test_blockwise_gradients_equal_dense(name):
  inputs, mask, normalizer = draw_inputs(), draw_mask(), NORMALIZERS[name][0]
  blockwise, dense = (
    results_and_gradients(inputs, normalizer, mask, implementation)[1]
    for implementation in ("blockwise", "dense")
  )
  chex.assert_trees_all_close(blockwise, dense, **GRADIENTS)


@on_engines
def test_masked_keys_never_leak(name, implementation):
  inputs, mask = draw_inputs(), draw_mask()
  mask[:, :, 2] = False
  results, slopes = results_and_gradients(inputs, NORMALIZERS[name][0], mask, implementation)
  chex.assert_tree_all_finite((results, slopes))
  assert not np.any(results[0][1, 1]) and not np.any(results[1][1, 1])
  assert not np.any(slopes.queries[1, 1]) and not np.any(slopes.keys[:, 2])
  for bad in (np.nan, np.inf):
    corrupted = inputs._replace(
      keys=replaced(inputs.keys, np.s_[:, 2], bad), values=replaced(inputs.values, np.s_[:, 2], bad)
    )
    actual = results_and_gradients(corrupted, NORMALIZERS[name][0], mask, implementation)
    chex.assert_trees_all_equal(actual, (results, slopes))


@on_engines
def test_attended_nan_makes_rows_nan(name, implementation):
  inputs, mask = draw_inputs(), np.ones((B, T, S), bool)
  mask[0, 0, 2] = False
  corrupted = inputs._replace(keys=replaced(inputs.keys, (0, 2), np.nan))
  (context, weights), slopes = results_and_gradients(corrupted, NORMALIZERS[name][0], mask, implementation)
  assert np.all(np.isnan(context[0, 1:])) and np.all(np.isnan(weights[0, 1:]))
  chex.assert_tree_all_finite((context[0, 0], context[1], weights[1], slopes))
  assert not np.any(slopes.queries[0, 1:])


@on_engines
def test_scores_of_ten_thousand_are_exact(name, implementation):
  inputs, mask = draw_inputs(), draw_mask()
  inputs = inputs._replace(bias=1e4 * np.round(inputs.bias))  # exact in float32
  normalizer, formula = NORMALIZERS[name]
  actual, slopes = results_and_gradients(inputs, normalizer, mask, implementation)
  context, weights, _ = expected("scaled_dot_product", inputs, mask=mask, normalize=formula)
  # A score of 1e4 is rounded to 1e-3.
  chex.assert_trees_all_close(actual, (context, weights), rtol=2e-3, atol=2e-3)
  chex.assert_tree_all_finite(slopes)


@pytest.mark.parametrize("name", ["entmax15", "monotonic", "local"])
def test_half_precision_computes_in_float32(name):
  inputs = draw_inputs()
  halves = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), inputs)
  context, weights = attend(halves, NORMALIZERS[name][0], implementation="dense")
  assert context.dtype == weights.dtype == jnp.bfloat16
  exact = attend(jax.tree.map(np.float32, halves), NORMALIZERS[name][0], implementation="dense")
  chex.assert_trees_all_close((context, weights), exact, rtol=2**-7, atol=1e-5)


@each_engine
def test_softpick_of_small_scores(implementation):
  # (e^x - 1) / (sum of |e^x - 1| + epsilon) of x = 1e-6 (1, 2, -1) and epsilon = 1e-6: 1 / 5, 2 / 5, 0.
  keys = np.float32([[1e-6], [2e-6], [-1e-6]])
  context = attention.attend(
    attention.ScaledDotProduct(1.0),
    np.ones((1, 1), np.float32),
    keys,
    np.eye(3, dtype=np.float32),
    normalizer=attention.Softpick(),
    implementation=implementation,
    block_sizes=(1, 2),
  )
  np.testing.assert_allclose(context, [[0.2, 0.4, 0]], rtol=3e-6)


@each_engine
def test_softpick_slope_at_zero(implementation):
  # At a score of 0, the slope lies between the slopes on both sides.
  def context(score):
    keys = jnp.stack([jnp.ones(1), score[None]])
    values = jnp.array([[1.0], [5.0]])
    options = {"normalizer": attention.Softpick(), "implementation": implementation}
    return attention.attend(attention.ScaledDotProduct(), jnp.ones((1, 1)), keys, values, **options)[0, 0]

  slopes = jax.jit(jax.vmap(jax.grad(context)))(jnp.array([-1e-3, 0.0, 1e-3], jnp.float32))
  assert min(slopes[0], slopes[2]) - 1e-2 <= slopes[1] <= max(slopes[0], slopes[2]) + 1e-2


def test_grouped_heads_have_separate_rows():
  rng = np.random.default_rng(0)
  queries = rng.normal(size=(B, 6, T, 4)).astype(np.float32)
  keys = rng.normal(size=(B, 2, S, 4)).astype(np.float32)
  monotonic = attention.Monotonic(rng.dirichlet(np.ones(S), size=(B, 6, T)).astype(np.float32))
  shared = attention.attend_heads(queries, keys, keys, normalizer=monotonic)
  repeated = np.repeat(keys, 3, axis=1)
  alone = attention.attend_heads(queries, repeated, repeated, normalizer=monotonic)
  chex.assert_trees_all_close(shared, alone, **FLOAT32)


def test_hard_monotonic_stops_at_first_key():
  scores = np.float32([[-3.0, 2.0, -1.0, 5.0, -2.0]])
  keys = np.eye(S, dtype=np.float32)
  for start, stop in ((0, 1), (1, 1), (2, 3), (3, 3), (4, None)):
    before = np.eye(S, dtype=np.float32)[start][None]
    normalizer = attention.Monotonic(before, hard=True)
    result = attention.attend(attention.ScaledDotProduct(1.0), scores, keys, keys, normalizer=normalizer)
    np.testing.assert_array_equal(result[0], np.zeros(S) if stop is None else np.eye(S)[stop])


def test_sigmoid_counts_allowed_keys():
  queries, keys = np.zeros((3, 1), np.float32), np.zeros((4, 1), np.float32)
  mask = np.array([[True] * 4, [True, False, True, False], [False, False, False, True]])
  result = attention.attend(
    attention.ScaledDotProduct(),
    queries,
    keys,
    keys,
    mask=mask,
    normalizer=attention.Sigmoid(subtract_log_length=True),
    return_weights=True,
  )
  # Scores of 0 minus log n: 1 / (1 + n) each.
  np.testing.assert_allclose(result.weights, mask / (1 + mask.sum(axis=-1, keepdims=True)), rtol=1e-6)


@each_engine
def test_explicit_softmax_equals_the_default(implementation):
  vectors = draw_inputs()[1:4]
  options = {"return_logsumexp": True, "implementation": implementation}
  default = attention.attend(attention.ScaledDotProduct(), *vectors, **options)
  named = attention.attend(attention.ScaledDotProduct(), *vectors, normalizer=attention.Softmax(), **options)
  chex.assert_trees_all_equal(default, named)


@each_engine
def test_logsumexp_contains_the_sink(implementation):
  vectors, mask = draw_inputs()[1:4], draw_mask()
  options = {"mask": mask, "implementation": implementation, "return_logsumexp": True}
  score = attention.ScaledDotProduct()
  plain = attention.attend(score, *vectors, **options).logsumexp
  actual = attention.attend(score, *vectors, normalizer=NORMALIZERS["sink"][0], **options).logsumexp
  desired = np.where(np.isfinite(plain), np.logaddexp(plain, SINK[:, None]), -np.inf)
  chex.assert_trees_all_close(actual, desired, **FLOAT32)


@each_engine
@pytest.mark.parametrize("normalizer", [attention.Softmax(), attention.Sparsemax(), attention.Entmax15()])
def test_lowest_scores_are_equal_scores(normalizer, implementation):
  vectors = np.ones((2, 2), np.float32), np.float32([[1, 0], [2, 1], [-1, 3]]), np.float32([[1], [2], [6]])
  bias = replaced(np.zeros((2, 3), np.float32), 1, np.finfo(np.float32).min)
  options = {"normalizer": normalizer, "implementation": implementation, "block_sizes": BLOCK_SIZES}

  def attend(bias):
    return attention.attend(attention.ScaledDotProduct(1.0), *vectors, bias=bias, **options)[1]

  np.testing.assert_allclose(attend(bias), [3.0], rtol=4e-6)
  # The values minus their mean, 3, times the derivative of a weight: 1/3, 1 and 1/sqrt(3).
  slopes = jax.jit(jax.grad(lambda bias: attend(bias).sum()))(bias)[1]
  factor = {attention.Softmax: 1 / 3, attention.Sparsemax: 1, attention.Entmax15: 3**-0.5}[type(normalizer)]
  np.testing.assert_allclose(slopes, factor * np.array([-2, -1, 3]), rtol=1e-5)


@each_engine
@pytest.mark.parametrize("sink", [np.inf, np.nan])
def test_non_finite_sinks_give_nan(implementation, sink):
  vectors = jnp.ones((3, 2)), jnp.ones((5, 2)), jnp.ones((5, 7))

  @jax.jit
  def context(sink):
    options = {"normalizer": attention.Softmax(sink), "implementation": implementation}
    return attention.attend(attention.ScaledDotProduct(), *vectors, **options)

  assert np.isnan(context(np.float32(sink))).all()


@each_engine
@pytest.mark.parametrize(
  "normalizer", [attention.Sparsemax(), attention.Entmax15(), attention.StickBreaking(), attention.Sigmoid()]
)
def test_no_keys_give_zeros(normalizer, implementation):
  queries, keys = np.ones((B, T, 7), np.float32), np.ones((B, 0, 7), np.float32)

  def context(queries):
    return attention.scaled_dot_product_attention(
      queries, keys, keys[..., :5], normalizer=normalizer, implementation=implementation
    )

  np.testing.assert_array_equal(context(queries), np.zeros((B, T, 5)))
  np.testing.assert_array_equal(jax.grad(lambda queries: jnp.sum(context(queries)))(queries), 0 * queries)
