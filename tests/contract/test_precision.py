"""Precision, and results that are exactly equal."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DIMS, FLOAT32, FLOAT64, SCORES, Inputs, attend, attend_fully, draw, expected, replaced

import attention

pytestmark = pytest.mark.slow

EPSILON = float(np.finfo(np.float32).eps)

each_engine = pytest.mark.parametrize("implementation", ["dense", "blockwise"])


def test_float16_scores_may_exceed_its_range():
  # 300 * 300 = 90000 > 65504, the largest float16; so is the sum of the values before division.
  vectors = (
    np.full(shape, size, np.float16) for shape, size in [((1, 2), 300), ((5, 2), 300), ((5, 3), 6e4)]
  )
  context, _, logsumexp = attend_fully(Inputs(attention.ScaledDotProduct(np.float32(1)), *vectors))
  np.testing.assert_array_equal(context, np.full((1, 3), 60000, np.float16))
  np.testing.assert_allclose(logsumexp, [2 * 300 * 300 + np.log(5)], rtol=2 * EPSILON)


# Each score of (1, 2^-5) and (1, 2^-5). Neither 1 + 2^-10 nor its tanh is a bfloat16.
SCORE_FUNCTIONS = {
  "dot_product": (attention.dot_product_scores, 1 + 2.0**-10),
  "additive": (
    lambda q, k: attention.additive_scores(q, k, np.float32([1, 1])),
    np.tanh(2.0) + np.tanh(2.0**-4),
  ),
  "bilinear": (lambda q, k: attention.bilinear_scores(q, k, np.float32([[1, 0], [0, 1]])), 1 + 2.0**-10),
  "cosine": (attention.cosine_scores, 1.0),
}


@pytest.mark.parametrize(("function", "exact"), SCORE_FUNCTIONS.values(), ids=SCORE_FUNCTIONS)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_score_functions_return_float32(function, exact, dtype):
  vectors = np.asarray([[1.0, 2.0**-5]]).astype(dtype)
  scores = function(vectors, vectors)
  assert scores.dtype == jnp.float32
  np.testing.assert_allclose(scores, [[exact]], rtol=4 * EPSILON)


@pytest.mark.parametrize("kind", ["user_defined", "additive"])
@each_engine
@pytest.mark.usefixtures("float64")
def test_parameters_may_be_more_precise(kind, implementation):
  inputs, precise = draw(kind), draw(kind, dtype=np.float64)
  inputs = inputs._replace(score=precise.score, bias=precise.bias)
  actual = attend_fully(inputs, implementation=implementation)
  assert [array.dtype for array in actual] == [np.float32] * 3
  chex.assert_trees_all_close(actual, expected(kind, inputs), **FLOAT32)


@pytest.mark.parametrize("kind", SCORES)
@each_engine
@pytest.mark.usefixtures("float64")
def test_float64_is_float64_throughout(kind, implementation):
  # Float32 parameters do not make the computation float32.
  inputs = draw(kind, dtype=np.float64)._replace(score=draw(kind).score)
  actual = attend_fully(inputs, implementation=implementation)
  assert [array.dtype for array in actual] == [np.float64] * 3
  chex.assert_trees_all_close(actual, expected(kind, inputs), **FLOAT64)


@jax.tree_util.register_static
class Coarse(attention.Score):
  """A user-defined score that is computed in half precision."""

  def scores(self, query_features, key_features):
    half = query_features.astype(jnp.bfloat16), key_features.astype(jnp.bfloat16)
    return jnp.einsum("...TH,...SH->...TS", *half)


@each_engine
def test_softmax_of_half_scores_is_float32(implementation):
  # Products of small integers are exact, so the compiler may omit the rounding of scores.
  _, queries, keys, values, _ = draw("cosine", "TH", "SH", "SD")
  queries, keys = np.round(2 * queries), np.round(2 * keys)
  output = attend_fully(Inputs(Coarse(), queries, keys, values), implementation=implementation)
  scores = np.float64(queries) @ np.float64(keys.T)
  scores = np.float64(jnp.asarray(scores, jnp.bfloat16))
  desired = np.exp(scores - np.log(np.sum(np.exp(scores), axis=-1, keepdims=True)))
  np.testing.assert_allclose(output.weights, desired, **FLOAT32)
  np.testing.assert_allclose(output.context, desired @ values, **FLOAT32)
  assert output.logsumexp.dtype == np.float32


def multi_head(q, k, v):
  weights = attention.MultiHeadWeights(*[k.T[:, None]] * 3, k.T[:, None].transpose(1, 2, 0))
  return attention.multi_head_attention(q, k, weights)


PRODUCTS = {
  "scaled_dot_product": attention.scaled_dot_product_attention,
  "blockwise": lambda *vectors: attention.scaled_dot_product_attention(*vectors, implementation="blockwise"),
  "additive": lambda *vectors: attention.additive_attention(*vectors, jnp.ones(11)),
  "bilinear": lambda *vectors: attention.bilinear_attention(*vectors, jnp.eye(11)),
  "cosine": attention.cosine_attention,
  "additive_scores": lambda q, k, v: attention.additive_scores(q[:1], k, jnp.ones(11)),
  "dot_product_scores": lambda q, k, v: attention.dot_product_scores(q, k),
  "bilinear_scores": lambda q, k, v: attention.bilinear_scores(q, k, jnp.eye(11)),
  "cosine_scores": lambda q, k, v: attention.cosine_scores(q, k),
  "location_features": lambda q, k, v: attention.location_features(q, k),
  "multi_head": multi_head,
}


@pytest.mark.parametrize("function", PRODUCTS.values(), ids=PRODUCTS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_products_ask_for_full_precision(function, dtype):
  # Otherwise, GPUs and TPUs round factors to 10 or 8 bits, forward and backward.
  def loss(vectors):
    return jnp.sum(function(*vectors) ** 2)

  vectors = draw("cosine", "TH", "SH", "SD", dtype=dtype)[1:4]
  text = jax.jit(jax.value_and_grad(loss)).lower(vectors).as_text()
  products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
  assert products
  assert [line for line in products if "precision = [HIGHEST, HIGHEST]" not in line] == []


# Exactness.


@pytest.mark.parametrize("kind", ["scaled_dot_product", "user_defined", "bilinear"])
@each_engine
def test_scores_of_ten_thousand_are_exact(kind, implementation):
  # Integers, so that every score is exact in float32. Keys come in pairs, which share their weight, and in
  # neighbors, whose scores differ by less than 50.
  rng = np.random.default_rng(0)
  queries = rng.integers(-50, 50, size=(3, 11))
  keys = np.concatenate([queries, queries, queries + np.eye(1, 11, 4), -queries])
  assert np.max(np.abs(queries @ keys.T)) > 8000
  parameter = np.eye(11, dtype=np.float32) if kind == "bilinear" else np.float32(1)
  vectors = np.float32(queries), np.float32(keys), np.float32(rng.normal(size=(12, 13)))
  inputs = Inputs(SCORES[kind].score(parameter), *vectors)
  actual = attend_fully(inputs, implementation=implementation)
  chex.assert_trees_all_close(actual, expected(kind, inputs), **FLOAT32)


@each_engine
def test_cosine_scale_of_ten_thousand(implementation):
  # Cosines are -1/2, 0, 1/2 or nearly 1, up to rounding, which the scale multiplies by 1e4. The best keys of
  # the second query differ by less than 1e-4, so both have a weight.
  queries = np.float32([[1, 0, 0, 0], [1, 1, 1, 1]])
  keys = np.float32([[1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0.98], [-1, 1, -1, 1]])
  inputs = Inputs(attention.Cosine(np.float32(1e4)), queries, keys, 2 * keys)
  actual = attend_fully(inputs, implementation=implementation)
  chex.assert_trees_all_close(actual, expected("cosine", inputs), rtol=4 * EPSILON, atol=5e-3)


@pytest.mark.parametrize("size", [1e-34, 1e-20, 1e20, 1e34])
@each_engine
def test_cosine_ignores_vector_length(size, implementation):
  # The squares of these are 0 or infinity in float32.
  inputs = draw("cosine")
  given = inputs._replace(queries=inputs.queries * np.float32(size), keys=inputs.keys / np.float32(size))
  actual = attend_fully(given, implementation=implementation)
  chex.assert_trees_all_close(actual, expected("cosine", inputs), **FLOAT32)


@pytest.mark.usefixtures("float64")
def test_float64_cosine_ignores_vector_length():
  inputs = draw("cosine", dtype=np.float64)
  for size in (1e-300, 1e300):
    actual = attend_fully(inputs._replace(queries=inputs.queries * size, keys=inputs.keys / size))
    chex.assert_trees_all_close(actual, expected("cosine", inputs), **FLOAT64)


@each_engine
def test_zero_vectors_have_cosine_zero(implementation):
  inputs = draw("cosine")
  inputs = inputs._replace(
    queries=replaced(inputs.queries, np.s_[:, 1], 0.0), keys=replaced(inputs.keys, np.s_[:, 2], 0.0)
  )
  actual = attend_fully(inputs, implementation=implementation)
  chex.assert_trees_all_close(actual, expected("cosine", inputs), **FLOAT32)
  scores = attention.cosine_scores(inputs.queries, inputs.keys)
  assert not np.any(scores[:, 1]) and not np.any(scores[..., 2])
  # They have no gradients.
  slopes = jax.grad(lambda inputs: jnp.sum(attend(inputs, implementation=implementation) ** 2))(inputs)
  assert not np.any(slopes.queries[:, 1]) and not np.any(slopes.keys[:, 2])
  chex.assert_tree_all_finite(slopes)


@pytest.mark.parametrize("size", [10, 45, 100, 10_000])
@pytest.mark.parametrize("factor", [1, 10_000])
@each_engine
def test_additive_scores_of_any_size(size, factor, implementation):
  # Multiples of 1/8, small enough that every sum of a query and a key is exact in float32. Some sums cancel
  # to between -2 and 2, others saturate the tanh.
  rng = np.random.default_rng(0)
  signs = rng.choice([-1, 1], size=DIMS["H"])
  sides = np.array([[-1], [-1], [-1], [1], [0]])
  queries, keys = (rng.integers(-8, 9, size=DIMS[axes]) / 8 for axes in ("TH", "SH"))
  _, _, _, values, _ = draw("additive", "TH", "SH", "SD")
  score = attention.Additive(np.float32(factor * rng.uniform(0.2, 0.6, size=11)))
  inputs = Inputs(score, np.float32(queries + size * signs), np.float32(keys + size * signs * sides), values)
  actual = attend_fully(inputs, implementation=implementation)
  # Rounding of the tanh and of its sum, times the largest possible score.
  tolerance = 4e-6 + 4 * EPSILON * np.sum(score.score_vector)
  chex.assert_trees_all_close(actual, expected("additive", inputs), rtol=4e-6, atol=tolerance)


@each_engine
def test_tiny_weights_keep_relative_precision(implementation):
  # Scores (0, -80): the second weight is e^-80 = 1.8e-35, up to rounding of the exponent.
  vectors = np.float32([[1.0]]), np.float32([[0.0], [-80.0]]), np.float32([[0.0], [1.0]])
  inputs = Inputs(attention.ScaledDotProduct(1.0), *vectors)
  context, weights, _ = attend_fully(inputs, implementation=implementation)
  np.testing.assert_allclose(weights, [[1.0, np.exp(-80.0)]], rtol=80 * EPSILON)
  np.testing.assert_allclose(context, [[np.exp(-80.0)]], rtol=80 * EPSILON)


@pytest.mark.parametrize("kind", SCORES)
@each_engine
def test_gradients_of_huge_scores_are_finite(kind, implementation):
  inputs = draw(kind)
  inputs = inputs._replace(score=jax.tree.map(lambda array: np.float32(1e4) * array, inputs.score))

  def total(inputs):
    _, _, logsumexp = attend_fully(inputs, implementation=implementation)
    return jnp.sum(logsumexp), logsumexp

  slopes, logsumexp = jax.grad(total, has_aux=True)(inputs)
  chex.assert_tree_all_finite(slopes)
  # The gradient of the logsumexp with respect to the bias is the weights, whose rows sum to one. Blockwise
  # computes the scores twice: a weight has an error of the rounding of its score.
  rounding = 4e-6 + 2 * EPSILON * np.max(np.abs(logsumexp))
  np.testing.assert_allclose(np.sum(slopes.bias, axis=-1), np.full(DIMS.T, 2.0), atol=rounding)


def test_gradients_of_rounded_scores_are_bounded():
  # Scores of 1e8 are rounded to 8, so that a recomputed score may be larger than the stored logsumexp.
  rng = np.random.default_rng(0)
  vectors = rng.normal(size=(3, 37, 8)).astype(np.float32)

  def loss(queries, implementation):
    options = {"implementation": implementation, "block_sizes": (5, 7)}
    return jnp.sum(attention.scaled_dot_product_attention(queries, *vectors[1:], **options))

  gradient = jax.jit(jax.grad(loss), static_argnums=1)
  dense, blockwise = (gradient(1e8 * vectors[0], name) for name in ("dense", "blockwise"))
  chex.assert_tree_all_finite(dense)
  np.testing.assert_allclose(blockwise, dense, atol=1e-4)
