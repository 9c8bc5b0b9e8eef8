"""The oracle of all other tests, "dense", has the values of the papers.

Values are compared with loops over all pairs in float64, derivatives with finite differences.
"""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DIMS, FLOAT32, SCORES, Inputs, attend, attend_fully, draw, expected
from helpers import reference
from jax.test_util import check_grads

import attention

B, T, S = DIMS["BTS"]
# Row 0 is empty.
ALLOWED = np.array([[0, 0, 0, 0, 0], [1, 0, 1, 1, 0], [0, 1, 1, 1, 1]], bool)

# By hand: parameter, one query, two keys, and the first key's score, which is 1 less than the other's.
# scaled_dot_product: (1/2)(6) + 3(-1) = 0; (1/2)(2) + 3(0) = 1. additive: tanh(0) = 0 and tanh(ln(3) / 2) =
# (3 - 1) / (3 + 1) = 1/2, times 2. bilinear: (1, 2) ((0, 1), (2, 0)) = (4, 1); (4, 1) . (1, -4) = 0;
# (4, 1) . (0, 1) = 1. cosine: 90 and 0 degrees. user_defined: squared distances 9 and 0, times -1/9.
HAND_VALUES = {
  "scaled_dot_product": (1.0, [[0.5, 3.0]], [[6.0, -1.0], [2.0, 0.0]], 0),
  "additive": ([2.0, 7.0], [[0.0, 5.0]], [[0.0, -5.0], [np.log(3) / 2, -5.0]], 0),
  "bilinear": ([[0.0, 1.0], [2.0, 0.0]], [[1.0, 2.0]], [[1.0, -4.0], [0.0, 1.0]], 0),
  "cosine": (1.0, [[3.0, 4.0]], [[-8.0, 6.0], [0.6, 0.8]], 0),
  "user_defined": (1 / 9, [[1.0, 2.0]], [[1.0, -1.0], [1.0, 2.0]], -1),
}


@pytest.mark.parametrize("kind", HAND_VALUES)
@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_weights_match_hand_values(kind, implementation):
  parameter, queries, keys, lowest = map(np.float32, HAND_VALUES[kind])
  values = np.float32([[10.0, 1.0, 0.0], [20.0, 1.0, -1.0]])
  inputs = Inputs(SCORES[kind].score(parameter), queries, keys, values)
  context, weights, logsumexp = attend_fully(inputs, implementation=implementation)
  # 1 / (1 + e) = 0.268941421, e / (1 + e) = 0.731058579, ln(1 + e) = 1.313261688.
  np.testing.assert_allclose(weights, [[0.268941421, 0.731058579]], rtol=1e-6)
  np.testing.assert_allclose(context, [[17.31058579, 1.0, -0.731058579]], rtol=1e-6)
  np.testing.assert_allclose(logsumexp, [1.313261688 + lowest], rtol=3e-6)


@pytest.mark.parametrize("kind", SCORES)
def test_dense_matches_loops(kind):
  inputs = draw(kind)
  mask = np.random.default_rng(2).random((B, T, S)) < 0.7
  mask[1, 1] = False
  actual = attend_fully(inputs, mask=mask, implementation="dense")
  chex.assert_trees_all_close(actual, expected(kind, inputs, mask=mask), **FLOAT32)


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_gradients_match_hand_values(implementation):
  # Scores (0, 1) and values (10, 20): with the weights p = 1 / (1 + e) and q = e / (1 + e), the gradient of
  # the logsumexp is (p, q), that of the context p q (10 - 20, 20 - 10).
  vectors = np.float32([[1.0]]), np.float32([[0.0], [1.0]]), np.float32([[10.0], [20.0]])

  def results(bias):
    inputs = Inputs(attention.ScaledDotProduct(1.0), *vectors, bias)
    context, _, logsumexp = attend_fully(inputs, implementation=implementation)
    return context[0, 0], logsumexp[0]

  of_context, of_logsumexp = jax.jit(jax.jacrev(results))(np.zeros((1, 2), np.float32))
  np.testing.assert_allclose(of_context, [[-1.966119332, 1.966119332]], rtol=4e-6)
  np.testing.assert_allclose(of_logsumexp, [[0.268941421, 0.731058579]], rtol=4e-6)


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.usefixtures("float64")
def test_gradients_match_differences(kind):
  # test_derivatives.py has second derivatives.
  inputs = draw(kind, "TH", "SH", "SD", dtype=np.float64)

  @jax.jit
  def results(inputs):
    context, weights, logsumexp = attend_fully(inputs, mask=ALLOWED, implementation="dense")
    return context, weights, logsumexp[1:]

  chex.assert_trees_all_close(results(inputs)[0], expected(kind, inputs, mask=ALLOWED).context, rtol=1e-12)
  check_grads(results, (inputs,), order=1, modes=["fwd", "rev"], rtol=1e-5)


NAMED_FUNCTIONS = {
  "scaled_dot_product": attention.scaled_dot_product_attention,
  "additive": attention.additive_attention,
  "bilinear": attention.bilinear_attention,
  "cosine": attention.cosine_attention,
}


@pytest.mark.parametrize("kind", NAMED_FUNCTIONS)
def test_named_functions_equal_attend(kind):
  inputs = draw(kind)
  score, *vectors, bias = inputs
  options = {"mask": attention.masks.causal(1), "dropout_rate": 0.5, "dropout_rng": jax.random.key(0)}
  options |= {"return_weights": True, "return_logsumexp": True, "implementation": "dense"}
  actual = NAMED_FUNCTIONS[kind](*vectors, **vars(score), bias=bias, **options)
  chex.assert_trees_all_equal(actual, attend(inputs, **options))


def test_default_scales():
  for kind, scale in (("scaled_dot_product", 1 / np.sqrt(11)), ("cosine", 1.0)):
    _, *vectors, _ = inputs = draw(kind, bias=None)
    desired = expected(kind, inputs._replace(score=SCORES[kind].score(scale))).context
    chex.assert_trees_all_close(NAMED_FUNCTIONS[kind](*vectors), desired, **FLOAT32)
    chex.assert_trees_all_close(attention.attend(SCORES[kind].score(), *vectors), desired, **FLOAT32)


SCORE_FUNCTIONS = {
  "scaled_dot_product": attention.dot_product_scores,
  "additive": attention.additive_scores,
  "bilinear": attention.bilinear_scores,
  "cosine": attention.cosine_scores,
}


@pytest.mark.parametrize("kind", SCORE_FUNCTIONS)
def test_score_functions_match_loops(kind):
  score, queries, keys, _, _ = draw(kind, "B1TH", "NSH")
  parameters = {name: array for name, array in vars(score).items() if name != "scale"}
  actual = SCORE_FUNCTIONS[kind](queries, keys, **parameters)
  desired = reference.scores(SCORES[kind].formula, queries, keys, **parameters)
  # Scores are sums of up to H = 11 products, each up to 9 in size.
  np.testing.assert_allclose(actual, desired, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_only_requested_results_are_returned(implementation):
  ask = functools.partial(attend, draw("scaled_dot_product"), implementation=implementation)
  context, weights, logsumexp = attend_fully(draw("scaled_dot_product"), implementation=implementation)
  output = attention.AttentionOutput
  chex.assert_trees_all_close(ask(), context, **FLOAT32)
  chex.assert_trees_all_close(ask(return_weights=True), output(context, weights, None), **FLOAT32)
  chex.assert_trees_all_close(ask(return_logsumexp=True), output(context, None, logsumexp), **FLOAT32)


# Shapes.


@pytest.mark.parametrize(
  ("kind", "queries", "keys", "values", "heads"),
  [
    ("scaled_dot_product", "B1TH", "SH", "NSD", ""),
    ("user_defined", "TH", "BSH", "1SD", "B"),
    ("bilinear", "BNTH", "SH", "SD", "N"),
    ("additive", "TH", "SH", "SD", "N"),
  ],
)
def test_leading_axes_broadcast(kind, queries, keys, values, heads):
  inputs = draw(kind, queries, keys, values, bias=None, heads=heads)
  actual = attend_fully(inputs, implementation="dense")
  chex.assert_trees_all_close(actual, expected(kind, inputs), **FLOAT32)


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
@pytest.mark.parametrize("sizes", [(2, 1, 1), (2, 0, 5), (2, 3, 0), (0, 3, 5)])
def test_axes_of_size_zero_or_one(sizes, implementation):
  (B, T, S), inputs = sizes, draw("additive", bias=None)
  inputs = inputs._replace(
    queries=inputs.queries[:B, :T], keys=inputs.keys[:B, :S], values=inputs.values[:B, :S]
  )
  actual = attend_fully(inputs, implementation=implementation)
  chex.assert_trees_all_close(actual, expected("additive", inputs), **FLOAT32)


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_leading_axes_of_size_zero(implementation):
  queries, keys = np.zeros((2, 0, 3, 4), np.float32), np.zeros((1, 0, 5, 4), np.float32)
  table = jnp.ones((0, 3, 5), bool)
  mask = attention.masks.from_function(lambda t, s: table[:, t, s])
  output = attend_fully(
    Inputs(attention.ScaledDotProduct(), queries, keys, keys), mask=mask, implementation=implementation
  )
  assert [array.shape for array in output] == [(2, 0, 3, 4), (2, 0, 3, 5), (2, 0, 3)]


def test_self_attention_of_one_array():
  # As many keys as queries of the same width, all the same array; mask and bias are not symmetric.
  inputs = draw("additive", "TH", "SH", "SD", bias="SS")
  inputs = inputs._replace(queries=inputs.keys, values=inputs.keys)
  mask = np.random.default_rng(3).random((S, S)) < 0.6
  for implementation in ("dense", "blockwise"):
    actual = attend_fully(inputs, mask=mask, implementation=implementation)
    chex.assert_trees_all_close(actual, expected("additive", inputs, mask=mask), **FLOAT32)


@pytest.mark.parametrize("kind", SCORES)
def test_lists_and_numbers_are_accepted(kind):
  inputs = draw(kind)
  as_lists = jax.tree.map(lambda array: array.tolist(), inputs)
  actual = attend(as_lists._replace(bias=0.5))
  chex.assert_trees_all_equal(actual, attend(inputs._replace(bias=np.float32(0.5))))


# Scores are dataclasses and pytrees.


@pytest.mark.parametrize("kind", SCORES)
def test_scores_are_frozen_pytrees(kind):
  score, name = draw(kind).score, SCORES[kind].parameter
  with pytest.raises(dataclasses.FrozenInstanceError):
    setattr(score, name, 0.0)
  (leaf,) = jax.tree.leaves(score)
  assert leaf is getattr(score, name)
  assert jax.tree.leaves(attention.ScaledDotProduct()) == []


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class Cubic(attention.Score):
  """q . k^3 + q^2 . (strength * k): a user-defined score with features of several widths."""

  strength: jax.Array

  def query_features(self, queries):
    return jnp.concatenate([queries, queries**2], axis=-1)

  def key_features(self, keys):
    return jnp.concatenate([keys**3, keys, self.strength * keys], axis=-1)

  def scores(self, query_features, key_features):
    H = query_features.shape[-1] // 2
    cubes, _, scaled = jnp.split(key_features, 3, axis=-1)
    scores = jnp.einsum("...TH,...SH->...TS", query_features[..., :H], cubes)
    return scores + jnp.einsum("...TH,...SH->...TS", query_features[..., H:], scaled)


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_custom_features_of_any_width(implementation):
  _, queries, keys, values, _ = draw("cosine", "BTH", "SH", "SD")
  queries, keys = np.float32(0.5) * queries, np.float32(0.5) * keys
  inputs = Inputs(Cubic(np.float32(0.7)), queries, keys, values)
  actual = attend_fully(inputs, implementation=implementation)
  desired = reference.attend(
    lambda query, key: np.sum(query * key**3 + query**2 * 0.7 * key), queries, keys, values
  )
  np.testing.assert_allclose(actual.context, desired.context, rtol=2e-5, atol=2e-5)
