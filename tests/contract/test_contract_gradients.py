"""Points 8 and 9 of the contract: derivatives of all arguments, in both modes, and second derivatives.

They are compared with central differences of the reference in float64. Row 0 of the mask is empty.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import reference
from helpers.fixtures import (
  DIFFERENCES,
  DIMS,
  ENGINES,
  FEW,
  FLOAT32,
  FLOAT64,
  SCORES,
  always,
  assert_close,
  assert_trees_close,
  attend,
  attend_fully,
  compiled_together,
  draw,
  draw_loss,
  draw_saturated,
  engines,
  expected,
  expected_gradients,
  few_kinds,
  gradients,
  in_turn,
  kinds,
  mostly_blockwise,
  narrow,
  of_every_score,
  replaced,
)

import attention

# Exactness must also hold for the formula that is fast for many scores.
pytestmark = pytest.mark.usefixtures("additive_in_loops")

T, S = DIMS["TS"]
ALLOWED = np.array([[0, 0, 0, 0, 0], [1, 0, 1, 1, 0], [0, 1, 1, 1, 1]], bool)


@kinds
@pytest.mark.parametrize("mask", [np.ones((T, S), bool), ALLOWED], ids=["full", "masked"])
@engines
def test_gradients_match_reference(kind, mask, implementation, float64):
  inputs = draw(kind, bias="TS", dtype=np.float64)
  of_loss = draw_loss(expected(kind, inputs, mask=mask))
  actual = gradients(kind, inputs, of_loss, mask=mask, implementation=implementation)
  assert_trees_close(actual, expected_gradients(kind, inputs, of_loss, mask=mask), DIFFERENCES)
  assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(actual))


@pytest.mark.parametrize(
  ("kind", "bias", "implementation"),
  always(
    *(("scaled_dot_product", "B11", "dense"), ("additive", "1TS", "blockwise")),
    of=[
      (kind, bias, engine)
      for kind, biases in (
        ("scaled_dot_product", ("", "B11", "1TS")),
        ("additive", ("1TS",)),
        ("bilinear", ("1TS",)),
      )
      for bias in biases
      for engine in ENGINES
    ],
  ),
)
def test_broadcast_gradients_are_summed(kind, bias, implementation, float64):
  inputs = draw(kind, "TH", "BSH", "1SD", bias=bias, heads="B", dtype=np.float64)
  inputs = narrow(kind, inputs)
  of_loss = draw_loss(expected(kind, inputs, mask=ALLOWED))
  actual = gradients(kind, inputs, of_loss, mask=ALLOWED, implementation=implementation, alone=True)
  assert_trees_close(actual, expected_gradients(kind, inputs, of_loss, mask=ALLOWED), DIFFERENCES)


@in_turn(kind=FEW)
def test_bfloat16_gradients_are_rounded_once(kind, implementation):
  full = draw(kind, bias="TS")
  halved = jax.tree.map(lambda array: array.astype(jnp.bfloat16), full)
  inputs = halved._replace(parameters=full.parameters, bias=full.bias)
  desired = expected(kind, inputs, mask=ALLOWED)
  # The incoming gradient is bfloat16, too, so that it is exact.
  of_loss = tuple(np.asarray(jnp.asarray(array, jnp.bfloat16), np.float64) for array in draw_loss(desired))
  actual = gradients(kind, inputs, of_loss, mask=ALLOWED, implementation=implementation, alone=True)
  desired = expected_gradients(kind, inputs, of_loss, mask=ALLOWED)
  for name, given, slope, exact in zip(
    ("queries", "keys", "values", "parameters", "bias"), inputs, actual, desired, strict=True
  ):
    (given,), (slope,), (exact,) = map(jax.tree.leaves, (given, slope, exact))
    assert slope.dtype == given.dtype, name
    rounding = 2.0**-8 if slope.dtype == jnp.bfloat16 else 0.0
    error = np.abs(np.asarray(slope).astype(np.float64) - exact)
    assert np.all(error <= rounding * np.abs(exact) + 8 * FLOAT32), name


@kinds
def test_scores_are_frozen_dataclass_pytrees(kind):
  parameters = draw(kind).parameters
  score = SCORES[kind].score(**parameters)
  (name,) = parameters
  assert dataclasses.is_dataclass(score)
  with pytest.raises(dataclasses.FrozenInstanceError):
    setattr(score, name, 0.0)
  (leaf,) = jax.tree.leaves(score)
  assert leaf is parameters[name]
  assert jax.tree.leaves(attention.ScaledDotProduct()) == []


@pytest.mark.parametrize("kind", ["scaled_dot_product", "cosine"])
@engines
def test_scale_option_is_differentiable(kind, implementation, float64):
  inputs = draw(kind, dtype=np.float64)
  function = {
    "scaled_dot_product": attention.scaled_dot_product_attention,
    "cosine": attention.cosine_attention,
  }[kind]

  def loss(scale):
    return jnp.sum(function(*inputs[:3], scale=scale, implementation=implementation) ** 2)

  def expected_loss(scale):
    return np.sum(expected(kind, inputs._replace(parameters={"scale": scale})).context ** 2)

  scale = inputs.parameters["scale"]
  desired = reference.gradient(expected_loss, scale)
  assert_close(jax.jit(jax.grad(loss))(scale), desired, DIFFERENCES)


@in_turn(kind=FEW)
def test_bias_function_closures_are_differentiable(kind, implementation, float64):
  # A slope per batch element (ALiBi) and a trained bias per distance (Shaw, T5), as in position biases.
  inputs = draw(kind, "BTH", "SH", "SD", dtype=np.float64)
  rng = np.random.default_rng(2)
  slopes, table = rng.normal(size=DIMS["B"]), rng.normal(size=T + S)
  of_loss = draw_loss(expected(kind, inputs, mask=ALLOWED))

  def loss(parameters):
    slopes, table = parameters

    def bias(t, s):
      distance = jnp.abs(t - s).astype(jnp.float64)
      return slopes[:, None, None] * distance[None] + table[t - s + S][None]

    outputs = attend_fully(
      kind,
      inputs._replace(bias=bias),
      mask=ALLOWED,
      implementation=implementation,
    )
    finite = [jnp.where(jnp.isfinite(array), array, 0.0) for array in outputs]
    return sum(jnp.sum(weight * array) for weight, array in zip(of_loss, finite, strict=True))

  def expected_loss(slopes, table):
    t, s = np.arange(T)[:, None], np.arange(S)[None, :]
    bias = slopes[:, None, None] * np.abs(t - s) + table[t - s + S]
    result = expected(kind, inputs._replace(bias=bias), mask=ALLOWED)
    return sum(
      np.sum(weight * np.where(np.isfinite(array), array, 0.0))
      for weight, array in zip(of_loss, result, strict=True)
    )

  actual = jax.jit(jax.grad(loss))((jnp.asarray(slopes), jnp.asarray(table)))
  desired = (
    reference.gradient(lambda slopes: expected_loss(slopes, table), slopes),
    reference.gradient(lambda table: expected_loss(slopes, table), table),
  )
  assert_trees_close(actual, desired, DIFFERENCES)


@few_kinds
@engines
def test_logsumexp_gradient_is_the_weights(kind, implementation, float64):
  inputs = draw(kind, bias="TS", dtype=np.float64)
  desired = expected(kind, inputs, mask=ALLOWED)
  only_logsumexp = tuple(
    np.full(array.shape, factor) for factor, array in zip((0.0, 0.0, 1.0), desired, strict=True)
  )
  slopes = gradients(kind, inputs, only_logsumexp, mask=ALLOWED, implementation=implementation)
  assert_close(slopes.bias, desired.weights, FLOAT64)


@mostly_blockwise
def test_zero_vectors_have_zero_cosine_gradient(implementation):
  inputs = draw("cosine", bias="TS")
  inputs = inputs._replace(queries=replaced(inputs.queries, 1, 0.0), keys=replaced(inputs.keys, 2, 0.0))
  of_loss = draw_loss(expected("cosine", inputs))
  mask = np.ones((T, S), bool)
  slopes = gradients("cosine", inputs, of_loss, mask=mask, implementation=implementation, alone=True)
  np.testing.assert_array_equal(slopes.queries[1], np.zeros(DIMS["H"]))
  np.testing.assert_array_equal(slopes.keys[2], np.zeros(DIMS["H"]))
  # Gradients of nonzero vectors, where the function is smooth, equal the reference's.
  smooth = expected_gradients("cosine", inputs, of_loss)
  smooth.queries[1] = 0
  smooth.keys[2] = 0
  assert_trees_close(slopes, smooth, 8 * FLOAT32)


@pytest.mark.parametrize("size", [45, 10_000])
@pytest.mark.parametrize("implementation", always("blockwise", of=ENGINES))
def test_additive_gradients_of_large_pre_activations(size, implementation):
  inputs = draw_saturated(size)
  of_loss = draw_loss(expected("additive", inputs))
  actual = gradients("additive", inputs, of_loss, implementation=implementation, alone=True)
  # Differences are taken around 1e4: an error of 1e-12 in x over a step of 1e-5, below float32's.
  assert_trees_close(actual, expected_gradients("additive", inputs, of_loss), 8 * FLOAT32)


@compiled_together
def tangents_along(kind, implementation, inputs, direction):
  def run(inputs):
    return attend_fully(kind, inputs, mask=ALLOWED, implementation=implementation)

  return jax.jvp(run, (inputs,), (direction[kind],))[1]


@few_kinds
@engines
def test_forward_mode_matches_differences(kind, implementation, float64):
  # One argument at a time: the direction is zero in the others.
  inputs = draw(kind, bias="TS", dtype=np.float64)
  leaves, structure = jax.tree.flatten(inputs)
  rng = np.random.default_rng(4)
  for i, leaf in enumerate(leaves):
    zeros = [np.zeros(leaf.shape) for leaf in leaves]
    direction = np.asarray(rng.normal(size=leaf.shape))
    directions = of_every_score(kind, jax.tree.unflatten(structure, [*zeros[:i], direction, *zeros[i + 1 :]]))
    tangents = tangents_along(kind, implementation, inputs, directions)

    def finite(leaf, output, i=i):
      changed = jax.tree.unflatten(structure, [*leaves[:i], leaf, *leaves[i + 1 :]])
      array = expected(kind, changed, mask=ALLOWED)[output]
      return np.where(np.isfinite(array), array, 0.0)

    for output, tangent in enumerate(tangents):
      desired = reference.derivative(lambda leaf, o=output: finite(leaf, o), leaf, direction)
      assert_close(tangent, desired, DIFFERENCES)


@compiled_together
def jacobians(kind, implementation, inputs):
  """Returns the Jacobians of the context with respect to the queries, in forward and reverse mode."""

  def context(queries):
    return attend(kind, inputs._replace(queries=queries), mask=ALLOWED, implementation=implementation)

  return [mode(context)(inputs.queries) for mode in (jax.jacfwd, jax.jacrev)]


@few_kinds
@engines
@pytest.mark.exhaustive
def test_both_modes_match_reference_jacobian(kind, implementation, float64):
  inputs = narrow(kind, draw(kind, dtype=np.float64))

  def expected_context(queries):
    return expected(kind, inputs._replace(queries=queries), mask=ALLOWED).context

  desired = reference.gradient(expected_context, inputs.queries)
  for actual in jacobians(kind, implementation, inputs):
    assert_close(actual, desired, DIFFERENCES)


@compiled_together
def gradients_and_hessian_vectors(kind, implementation, inputs, direction, *, order):
  """Returns the gradient and the Hessian-vector product with the direction."""

  def loss(inputs):
    context, _, logsumexp = attend(
      kind,
      inputs,
      mask=ALLOWED,
      return_logsumexp=True,
      implementation=implementation,
    )
    return jnp.sum(jnp.sin(context)) + jnp.sum(logsumexp[1:] ** 2)

  if order == "forward_over_reverse":
    return jax.jvp(jax.grad(loss), (inputs,), (direction[kind],))
  gradient = jax.grad(loss)(inputs)
  return gradient, jax.grad(lambda inputs: jax.jvp(loss, (inputs,), (direction[kind],))[1])(inputs)


# test_compiled_many.py has Hessians of every score, in `make test` too.
@few_kinds
@pytest.mark.parametrize("order", ["forward_over_reverse", "reverse_over_forward"])
@engines
@pytest.mark.exhaustive
def test_hessian_vector_products_match_differences(kind, order, implementation, float64):
  inputs = narrow(kind, draw(kind, bias="TS", dtype=np.float64))
  rng = np.random.default_rng(5)
  direction = jax.tree.map(lambda array: np.asarray(rng.normal(size=array.shape)), inputs)
  directions = of_every_score(kind, direction)

  def both(inputs):
    return gradients_and_hessian_vectors(kind, implementation, inputs, directions, order=order)

  step = 1e-5
  ahead, behind = (
    both(jax.tree.map(lambda x, d, sign=sign: x + sign * step * d, inputs, direction))[0] for sign in (1, -1)
  )
  desired = jax.tree.map(lambda a, b: (a - b) / (2 * step), ahead, behind)
  # The norm of the direction is about 8, and its third power is in the truncation error.
  assert_trees_close(both(inputs)[1], desired, 10 * DIFFERENCES)
