"""Points 5 and 6 of the contract: precision and exactness."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.fixtures import (
  DIMS,
  EPSILON,
  FEW,
  FLOAT32,
  FLOAT64,
  SCORES,
  always,
  assert_close,
  assert_trees_close,
  assert_trees_finite,
  draw,
  draw_saturated,
  engines,
  expected,
  few_kinds,
  gradients,
  in_turn,
  mostly_blockwise,
  replaced,
  results,
)

import attention

# Half a unit in the last place, relative: the rounding of a float32 result. Exactness must also hold for the
# formula that is fast for many scores.
pytestmark = pytest.mark.usefixtures("additive_in_loops")

HALF_ULP = {jnp.bfloat16: 2.0**-8, jnp.float16: 2.0**-11}


@pytest.mark.parametrize(
  ("kind", "dtype"),
  always(
    *((kind, jnp.bfloat16) for kind in FEW),
    of=[*((kind, jnp.bfloat16) for kind in SCORES), ("scaled_dot_product", jnp.float16)],
  ),
)
@engines
def test_half_precision_is_rounded_once(kind, dtype, implementation):
  inputs = draw(kind, "BNTH", "BNSH", "BNSD", bias="NTS")
  halved = jax.tree.map(lambda array: array.astype(dtype), inputs)
  # Parameters and biases stay in float32; they may be more precise than the inputs.
  halved = halved._replace(parameters=inputs.parameters, bias=inputs.bias)
  context, weights, logsumexp = results(
    kind, halved, implementation=implementation, alone=dtype == jnp.float16
  )
  desired = expected(kind, halved)
  assert (context.dtype, weights.dtype, logsumexp.dtype) == (dtype, dtype, jnp.float32)
  for actual, exact in [(context, desired.context), (weights, desired.weights)]:
    error = np.abs(np.asarray(actual).astype(np.float64) - exact)
    # Results are of order one, so the tolerance is that of float32 plus one rounding.
    assert np.all(error <= HALF_ULP[dtype] * np.abs(exact) + FLOAT32)
  assert_close(logsumexp, desired.logsumexp, FLOAT32)


def test_float16_scores_may_exceed_its_range():
  # 300 * 300 = 90000 > 65504, the largest float16; so is the sum of the values before division.
  inputs = draw("scaled_dot_product")._replace(
    queries=np.full((1, 2), 300, np.float16),
    keys=np.full((5, 2), 300, np.float16),
    values=np.full((5, 3), 60000, np.float16),
    parameters={"scale": np.float32(1)},
  )
  context, _, logsumexp = results("scaled_dot_product", inputs, alone=True)
  np.testing.assert_array_equal(context, np.full((1, 3), 60000, np.float16))
  assert_close(logsumexp, [2 * 300 * 300 + np.log(5)], 2 * EPSILON)


# Each score of (1, 2^-5) and (1, 2^-5). Neither 1 + 2^-10 nor its tanh is a bfloat16.
SCORE_FUNCTIONS = {
  "dot_product": (attention.dot_product_scores, 1 + 2.0**-10),
  "additive": (
    lambda q, k: attention.additive_scores(q, k, np.float32([1, 1])),
    np.tanh(2.0) + np.tanh(2.0**-4),
  ),
  "bilinear": (
    lambda q, k: attention.bilinear_scores(q, k, np.float32([[1, 0], [0, 1]])),
    1 + 2.0**-10,
  ),
  "cosine": (attention.cosine_scores, 1.0),
}


@pytest.mark.parametrize(("function", "exact"), SCORE_FUNCTIONS.values(), ids=SCORE_FUNCTIONS)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_score_functions_return_at_least_float32(function, exact, dtype):
  vectors = np.asarray([[1.0, 2.0**-5]]).astype(dtype)
  scores = jax.jit(function)(vectors, vectors)
  assert scores.dtype == jnp.float32
  assert_close(scores, [[exact]], 4 * EPSILON)


@in_turn(kind=["user_defined", "additive"])
def test_parameters_may_be_more_precise(kind, implementation, float64):
  inputs = draw(kind, bias="TS", dtype=np.float32)
  inputs = inputs._replace(
    parameters=jax.tree.map(lambda array: array.astype(np.float64), inputs.parameters),
    bias=inputs.bias.astype(np.float64),
  )
  actual = results(kind, inputs, implementation=implementation, alone=True)
  assert [array.dtype for array in actual] == [np.float32] * 3
  assert_trees_close(actual, tuple(expected(kind, inputs)), FLOAT32)


@in_turn(kind=FEW)
def test_float64_is_float64_throughout(kind, implementation, float64):
  # Float32 parameters do not make the computation float32.
  inputs = draw(kind, bias="TS", dtype=np.float64)
  inputs = inputs._replace(parameters=jax.tree.map(lambda array: array.astype(np.float32), inputs.parameters))
  actual = results(kind, inputs, implementation=implementation, alone=True)
  assert [array.dtype for array in actual] == [np.float64] * 3
  assert_trees_close(actual, tuple(expected(kind, inputs)), FLOAT64)


@jax.tree_util.register_static
class Coarse(attention.Score):
  """A user-defined score that is computed in half precision."""

  def scores(self, query_features, key_features):
    half = query_features.astype(jnp.bfloat16), key_features.astype(jnp.bfloat16)
    return jnp.einsum("...TH,...SH->...TS", *half)


@mostly_blockwise
def test_softmax_of_half_scores_is_float32(implementation):
  # Products of small integers are exact, so the compiler may omit the rounding of scores.
  inputs = draw("scaled_dot_product")
  queries, keys = (np.round(2 * array) for array in inputs[:2])
  inputs = inputs._replace(queries=queries, keys=keys)
  context, weights, logsumexp = attention.attend(
    Coarse(), *inputs[:3], return_weights=True, return_logsumexp=True, implementation=implementation
  )
  scores = np.float64(Coarse().scores(*map(jnp.asarray, inputs[:2])))
  desired = np.exp(scores - np.log(np.sum(np.exp(scores), axis=-1, keepdims=True)))
  assert_close(weights, desired, FLOAT32)
  assert_close(context, desired @ inputs.values, FLOAT32)
  assert logsumexp.dtype == np.float32


def multi_head(inputs):
  kernel = inputs.keys.T[:, None]
  weights = attention.MultiHeadWeights(kernel, kernel, kernel, kernel.transpose(1, 2, 0))
  return attention.multi_head_attention(inputs.queries, inputs.keys, weights)


PRODUCTS = {
  "scaled_dot_product": lambda i: attention.scaled_dot_product_attention(*i[:3]),
  "additive": lambda i: attention.additive_attention(*i[:3], jnp.ones(11)),
  "bilinear": lambda i: attention.bilinear_attention(*i[:3], jnp.eye(11)),
  "cosine": lambda i: attention.cosine_attention(*i[:3]),
  "additive_scores": lambda i: attention.additive_scores(i[0][:1], i[1], jnp.ones(11)),
  "dot_product_scores": lambda i: attention.dot_product_scores(*i[:2]),
  "bilinear_scores": lambda i: attention.bilinear_scores(*i[:2], jnp.eye(11)),
  "cosine_scores": lambda i: attention.cosine_scores(*i[:2]),
  "multi_head": multi_head,
}


@pytest.mark.parametrize(
  ("function", "dtype"),
  always(
    *((name, jnp.float32) for name in PRODUCTS),
    *((name, jnp.bfloat16) for name in ("scaled_dot_product", "additive", "multi_head")),
    of=list(itertools.product(PRODUCTS, (jnp.float32, jnp.float16, jnp.bfloat16))),
  ),
)
def test_products_ask_for_full_precision(function, dtype):
  # Otherwise, GPUs and TPUs round factors to 10 or 8 bits, forward and backward.
  def loss(inputs):
    return jnp.sum(PRODUCTS[function](inputs) ** 2)

  text = jax.jit(jax.value_and_grad(loss)).lower(draw("cosine", dtype=dtype)).as_text()
  products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
  assert products
  assert [line for line in products if "precision = [HIGHEST, HIGHEST]" not in line] == []


# Point 6: exactness.


@in_turn(kind=["scaled_dot_product", "user_defined", "bilinear"])
def test_scores_of_ten_thousand_stay_exact(kind, implementation):
  # Integers, so that every score is exact in float32. Keys come in pairs, which share their weight, and in
  # neighbors, whose scores differ by less than 50.
  rng = np.random.default_rng(0)
  queries = rng.integers(-50, 50, size=(3, 11))
  keys = np.concatenate([queries, queries, queries + np.eye(1, 11, 4), -queries])
  assert np.max(np.abs(queries @ keys.T)) > 8000
  inputs = draw(kind)._replace(
    queries=np.float32(queries),
    keys=np.float32(keys),
    values=np.float32(rng.normal(size=(12, 13))),
    parameters={
      name: np.eye(11, dtype=np.float32) if axes else np.float32(1)
      for name, axes in SCORES[kind].parameters.items()
    },
  )
  actual = results(kind, inputs, implementation=implementation, alone=True)
  assert_trees_close(actual, tuple(expected(kind, inputs)), FLOAT32)


@engines
def test_cosine_scale_of_ten_thousand(implementation):
  # Norms 1 and 2: cosines are -1/2, 0, 1/2 or 1 up to rounding, which the scale multiplies by 1e4.
  queries = np.float32([[1, 0, 0, 0], [1, 1, 1, 1]])
  keys = np.float32([[1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 1], [-1, 1, -1, 1]])
  inputs = draw("cosine")._replace(
    queries=queries, keys=keys, values=2 * keys, parameters={"scale": np.float32(1e4)}
  )
  actual = results("cosine", inputs, implementation=implementation, alone=True)
  assert_trees_close(actual, tuple(expected("cosine", inputs)), 4 * 1e4 * EPSILON)


@pytest.mark.parametrize("size", [1e-34, 1e-20, 1e20, 1e34])
@engines
def test_cosine_ignores_vector_length(size, implementation):
  # The squares of these are 0 or infinity in float32.
  inputs = draw("cosine")
  long, short = inputs.queries * np.float32(size), inputs.keys / np.float32(size)
  actual = results("cosine", inputs._replace(queries=long, keys=short), implementation=implementation)
  assert_trees_close(actual, tuple(expected("cosine", inputs)), FLOAT32)


@pytest.mark.parametrize("size", [1e-300, 1e300])
@engines
def test_float64_cosine_ignores_vector_length(size, implementation, float64):
  inputs = draw("cosine", dtype=np.float64)
  long, short = inputs.queries * size, inputs.keys / size
  actual = results(
    "cosine", inputs._replace(queries=long, keys=short), implementation=implementation, alone=True
  )
  assert_trees_close(actual, tuple(expected("cosine", inputs)), FLOAT64)


@engines
def test_zero_vectors_have_cosine_zero(implementation):
  inputs = draw("cosine")
  inputs = inputs._replace(queries=replaced(inputs.queries, 1, 0.0), keys=replaced(inputs.keys, 2, 0.0))
  actual = results("cosine", inputs, implementation=implementation)
  assert_trees_close(actual, tuple(expected("cosine", inputs)), FLOAT32)
  assert_close(actual[1][1], np.full(5, 1 / 5), FLOAT32)
  scores = jax.jit(attention.cosine_scores)(inputs.queries, inputs.keys)
  np.testing.assert_array_equal(scores[1], np.zeros(5))
  np.testing.assert_array_equal(scores[:, 2], np.zeros(3))


@pytest.mark.parametrize("size", [10, 45, 100, 10_000])
@pytest.mark.parametrize("factor", [1, 10_000])
@engines
def test_additive_scores_of_any_size(size, factor, implementation):
  inputs = draw_saturated(size, factor)
  actual = results("additive", inputs, implementation=implementation)
  # Rounding of the tanh and of its sum, times the largest possible score.
  tolerance = FLOAT32 + 4 * EPSILON * np.sum(inputs.parameters["score_vector"])
  assert_trees_close(actual, tuple(expected("additive", inputs)), tolerance)


@engines
def test_tiny_weights_keep_relative_precision(implementation):
  # Scores (0, -80): the second weight is e^-80 = 1.8e-35, up to rounding of the exponent.
  inputs = draw("scaled_dot_product")._replace(
    queries=np.float32([[1.0]]),
    keys=np.float32([[0.0], [-80.0]]),
    values=np.float32([[0.0], [1.0]]),
    parameters={"scale": np.float32(1)},
  )
  context, weights, _ = results("scaled_dot_product", inputs, implementation=implementation, alone=True)
  np.testing.assert_allclose(weights, [[1.0, np.exp(-80.0)]], rtol=80 * EPSILON)
  np.testing.assert_allclose(context, [[np.exp(-80.0)]], rtol=80 * EPSILON)


@few_kinds
@engines
def test_gradients_of_huge_scores_are_finite(kind, implementation):
  inputs = draw(kind, "BTH", "BSH", "BSD", bias="TS")
  inputs = inputs._replace(parameters=jax.tree.map(lambda array: np.float32(1e4) * array, inputs.parameters))
  # The loss is the sum of the logsumexps. Its gradient with respect to the bias is the weights, whose rows
  # sum to one.
  only_logsumexp = tuple(
    np.full(array.shape, factor)
    for factor, array in zip((0.0, 0.0, 1.0), expected(kind, inputs), strict=True)
  )
  mask = np.ones(DIMS["BTS"], bool)
  slopes = gradients(kind, inputs, only_logsumexp, mask=mask, implementation=implementation)
  assert_trees_finite(slopes)
  # Blockwise computes the scores twice: a weight has an error of the rounding of its score.
  largest = np.max(np.abs(expected(kind, inputs, mask=mask).logsumexp))
  rounding = 2 * EPSILON * largest if implementation == "blockwise" else 0.0
  assert_close(np.sum(slopes.bias, axis=-1), np.full(3, 2.0), FLOAT32 + rounding)


def test_gradients_of_rounded_scores_are_bounded():
  # Scores of 1e8 are rounded to 8, so that a recomputed score may be larger than the stored logsumexp.
  rng = np.random.default_rng(0)
  vectors = rng.normal(size=(3, 37, 8)).astype(np.float32)

  def loss(queries, implementation):
    options = {"implementation": implementation, "block_sizes": (5, 7)}
    return jnp.sum(attention.scaled_dot_product_attention(queries, *vectors[1:], **options))

  gradient = jax.jit(jax.grad(loss), static_argnums=1)
  dense, blockwise = (gradient(1e8 * vectors[0], name) for name in ("dense", "blockwise"))
  np.testing.assert_allclose(blockwise, dense, atol=1e-4)
