"""Points 7 and 9 of the contract: values, equal results of both engines, and optional results.

The other points: test_contract_shapes.py (1), _masks.py and _biases.py (2), _empty_rows.py (3), _leaks.py
(4), _precision.py (5, 6), _dropout.py (7), _gradients.py and _transformations.py (8), _errors.py (11), and
_multi_head.py. Shared helpers are in helpers/fixtures.py, the reference is helpers/reference.py.
"""

import jax
import numpy as np
import pytest
from helpers import reference
from helpers.fixtures import (
  DIMS,
  FEW,
  FLOAT32,
  SCORES,
  Inputs,
  always,
  assert_close,
  assert_trees_close,
  attend,
  draw,
  engines,
  expected,
  in_turn,
  kinds,
  results,
)

import attention
from attention import AttentionOutput

# By hand: one query, two keys, scores (0, 1). scaled_dot_product: (1/2)(6) + 3(-1) = 0; (1/2)(2) + 3(0) = 1.
# additive: tanh(0) = 0 and tanh(ln(3) / 2) = (3 - 1) / (3 + 1) = 1/2, times 2. bilinear: (1, 2) ((0, 1), (2,
# 0)) = (4, 1); (4, 1) . (1, -4) = 0; (4, 1) . (0, 1) = 1. cosine: angles of 90 and 0 degrees. user_defined:
# squared distances 9 and 0, times -1/9: scores (-1, 0), each 1 less.
HAND_VALUES = {
  "scaled_dot_product": ([[0.5, 3.0]], [[6.0, -1.0], [2.0, 0.0]], {"scale": 1.0}),
  "additive": ([[0.0, 5.0]], [[0.0, -5.0], [np.log(3) / 2, -5.0]], {"score_vector": [2.0, 7.0]}),
  "bilinear": ([[1.0, 2.0]], [[1.0, -4.0], [0.0, 1.0]], {"matrix": [[0.0, 1.0], [2.0, 0.0]]}),
  "cosine": ([[3.0, 4.0]], [[-8.0, 6.0], [0.6, 0.8]], {"scale": 1.0}),
  "user_defined": ([[1.0, 2.0]], [[1.0, -1.0], [1.0, 2.0]], {"temperature": 1 / 9}),
}


@kinds
@engines
def test_weights_match_hand_values(kind, implementation):
  queries, keys, parameters = HAND_VALUES[kind]
  inputs = Inputs(
    np.float32(queries),
    np.float32(keys),
    values=np.float32([[10.0, 1.0, 0.0], [20.0, 1.0, -1.0]]),
    parameters={name: np.float32(value) for name, value in parameters.items()},
  )
  context, weights, logsumexp = results(kind, inputs, implementation=implementation)
  # 1 / (1 + e) = 0.268941421, e / (1 + e) = 0.731058579, ln(1 + e) = 1.313261688.
  assert_close(weights, [[0.268941421, 0.731058579]], FLOAT32)
  assert_close(context, [[17.31058579, 1.0, -0.731058579]], FLOAT32)
  assert_close(logsumexp, [1.313261688 - (kind == "user_defined")], FLOAT32)


NAMED_FUNCTIONS = {
  "scaled_dot_product": attention.scaled_dot_product_attention,
  "additive": attention.additive_attention,
  "bilinear": attention.bilinear_attention,
  "cosine": attention.cosine_attention,
}


@pytest.mark.parametrize("kind", NAMED_FUNCTIONS)
@engines
def test_named_functions_match_reference(kind, implementation):
  inputs = draw(kind, bias="TS")
  mask = np.random.default_rng(2).random(DIMS["TS"]) < 0.7

  @jax.jit
  def run(inputs, mask):
    return tuple(
      NAMED_FUNCTIONS[kind](
        *inputs[:3],
        **inputs.parameters,
        mask=mask,
        bias=inputs.bias,
        return_weights=True,
        return_logsumexp=True,
        implementation=implementation,
      )
    )

  actual = run(inputs, mask)
  assert_trees_close(actual, tuple(expected(kind, inputs, mask=mask)), FLOAT32)


def test_default_dot_product_scale():
  inputs = draw("scaled_dot_product")
  desired = reference.attend(reference.dot_product, *inputs[:3], scale=1 / np.sqrt(11)).context
  assert_close(attention.scaled_dot_product_attention(*inputs[:3]), desired, FLOAT32)
  assert_close(attention.attend(attention.ScaledDotProduct(), *inputs[:3]), desired, FLOAT32)


def test_default_cosine_scale():
  inputs = draw("cosine")
  desired = reference.attend(reference.cosine, *inputs[:3], scale=1.0).context
  assert_close(attention.cosine_attention(*inputs[:3]), desired, FLOAT32)
  assert_close(attention.attend(attention.Cosine(), *inputs[:3]), desired, FLOAT32)


@pytest.mark.parametrize("kind", ["scaled_dot_product", "cosine"])
@pytest.mark.parametrize("scale", [0.5, np.float32(0.5)], ids=["python", "numpy"])
def test_scale_accepts_plain_numbers(kind, scale):
  inputs = draw(kind)._replace(parameters={"scale": np.asarray(0.5)})
  actual = NAMED_FUNCTIONS[kind](*inputs[:3], scale=scale)
  assert_close(actual, expected(kind, inputs).context, FLOAT32)


SCORE_FUNCTIONS = {
  "scaled_dot_product": (attention.dot_product_scores, reference.dot_product),
  "additive": (attention.additive_scores, reference.additive),
  "bilinear": (attention.bilinear_scores, reference.bilinear),
  "cosine": (attention.cosine_scores, reference.cosine),
}


@pytest.mark.parametrize("kind", SCORE_FUNCTIONS)
def test_score_functions_match_reference(kind):
  function, pair_score = SCORE_FUNCTIONS[kind]
  inputs = draw(kind, "B1TH", "NSH")
  parameters = {name: value for name, value in inputs.parameters.items() if name != "scale"}
  actual = jax.jit(function)(inputs.queries, inputs.keys, **parameters)
  desired = reference.scores(pair_score, inputs.queries, inputs.keys, **parameters)
  # Scores are sums of up to H = 11 products, each up to 9 in size.
  assert_close(actual, desired, 4 * FLOAT32)


@in_turn(kind=FEW)
def test_returned_extras_do_not_change_context(kind, implementation):
  inputs = draw(kind)
  context, weights, logsumexp = expected(kind, inputs)

  def ask(**options):
    return attend(kind, inputs, implementation=implementation, **options)

  assert_close(ask(), context, FLOAT32)
  assert_trees_close(ask(return_weights=True), AttentionOutput(context, weights, None), FLOAT32)
  assert_trees_close(ask(return_logsumexp=True), AttentionOutput(context, None, logsumexp), FLOAT32)
  desired = AttentionOutput(context, weights, logsumexp)
  assert_trees_close(ask(return_weights=True, return_logsumexp=True), desired, FLOAT32)


@pytest.mark.parametrize("kind", always("bilinear", "cosine", of=SCORES))
@pytest.mark.parametrize("options", [{}, {"implementation": "auto"}], ids=["default", "auto"])
def test_default_implementation_matches_reference(kind, options):
  inputs = draw(kind)
  assert_close(attend(kind, inputs, **options), expected(kind, inputs).context, FLOAT32)
