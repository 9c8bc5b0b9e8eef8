"""Point 2 of the contract: biases, as arrays and as functions of positions."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.fixtures import (
  BLOCK_SIZES,
  DIMS,
  ENGINES,
  FEW,
  FLOAT32,
  assert_trees_close,
  attend_fully,
  draw,
  engines,
  expected,
  few_kinds,
  replaced,
  results,
)

B, N, T, S = DIMS["BNTS"]


def function_of_indices(function):
  """Returns the function, which checks its indices."""

  def bias(t, s):
    assert t.ndim == s.ndim == 2
    assert t.shape[1] == s.shape[0] == 1
    assert jnp.issubdtype(t.dtype, jnp.integer)
    assert jnp.issubdtype(s.dtype, jnp.integer)
    return function(t, s)

  return bias


RANDOM = np.random.default_rng(2)


ARRAYS = {axes: np.float32(RANDOM.normal(size=DIMS[axes])) for axes in ("", "S", "T1", "N1S", "B1TS", "BNTS")}


SLOPES = RANDOM.uniform(size=(N, 1, 1)).astype(np.float32)


# Functions of the two indices, and the same in NumPy.
FUNCTIONS = {
  "table": (lambda t, s: jnp.asarray(ARRAYS["BNTS"])[..., t, s], lambda t, s: ARRAYS["BNTS"]),
  "slopes": (lambda t, s: SLOPES * (t - s)[None].astype(jnp.float32), lambda t, s: SLOPES * (t - s)),
  "target": (lambda t, s: t.astype(jnp.float32) / 3, lambda t, s: t / 3),
  "source": (lambda t, s: s.astype(jnp.float32) / 3, lambda t, s: s / 3),
  "masking": (
    lambda t, s: jnp.where(s <= t, 0.5, -jnp.inf),
    lambda t, s: np.where(s <= t, 0.5, -np.inf),
  ),
}


# Biases, and the arrays that they represent.
BIASES = {f"axes_{axes}": (array, array) for axes, array in ARRAYS.items()}


BIASES |= {
  name: (function_of_indices(function), of_arrays(np.arange(T)[:, None], np.arange(S)[None]))
  for name, (function, of_arrays) in FUNCTIONS.items()
}


# The engines alternate, which halves the number of programs.
ADDED = [
  *(("scaled_dot_product", *pair) for pair in zip(BIASES, itertools.cycle(ENGINES), strict=False)),
  *(("additive", "slopes", "blockwise"), ("user_defined", "slopes", "dense")),
]


@functools.cache
def results_of_every_bias():
  """Returns the results by score, bias and engine, compiled as one program to save time."""
  inputs = {kind: draw(kind, "BNTH", "BNSH", "NSD") for kind in FEW}

  @jax.jit
  def run(inputs):
    return {
      (kind, name, engine): attend_fully(
        kind,
        inputs[kind]._replace(bias=BIASES[name][0]),
        implementation=engine,
        block_sizes=BLOCK_SIZES,
      )
      for kind, name, engine in ADDED
    }

  return inputs, run(inputs)


@pytest.mark.parametrize(("kind", "name", "implementation"), ADDED)
def test_biases_are_added_to_scores(kind, name, implementation):
  inputs, every_result = results_of_every_bias()
  actual = every_result[kind, name, implementation]
  array = np.broadcast_to(BIASES[name][1], (B, N, T, S))
  desired = expected(kind, inputs[kind]._replace(bias=array))
  # Biases of up to 5 in size.
  assert_trees_close(actual, tuple(desired), 2 * FLOAT32)


@few_kinds
@engines
def test_minus_infinity_bias_masks(kind, implementation):
  inputs = draw(kind, bias="TS")
  # Row 1 is empty.
  allowed = np.array([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [0, 1, 1, 0, 1]], bool)
  inputs = inputs._replace(bias=replaced(inputs.bias, ~allowed, -np.inf))
  everyone = np.ones((T, S), bool)
  actual = results(kind, inputs, mask=everyone, implementation=implementation)
  assert_trees_close(actual, tuple(expected(kind, inputs)), FLOAT32)
  np.testing.assert_array_equal(actual[1] == 0, ~allowed)


@engines
@pytest.mark.usefixtures("float64")
def test_bias_below_score_dtype_range_masks(implementation):
  lowest = np.finfo(np.float64).min
  inputs = draw("scaled_dot_product", bias="TS", dtype=np.float32)
  bias = replaced(np.float64(inputs.bias), np.s_[:, 2], lowest)
  bias[1] = lowest
  inputs = inputs._replace(keys=replaced(inputs.keys, 2, np.nan), bias=bias)
  masked = np.where(bias == lowest, -np.inf, bias)
  desired = expected("scaled_dot_product", inputs._replace(keys=draw("scaled_dot_product").keys, bias=masked))
  actual = results("scaled_dot_product", inputs, implementation=implementation, alone=True)
  assert_trees_close(actual, tuple(desired), FLOAT32)
