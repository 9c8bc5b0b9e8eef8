"""Scores, engines and random inputs for the tests of the contract."""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention
from attention.scores import additive_kernel as additive
from helpers import reference

ENGINES = ("dense", "blockwise")
# Small, so that T = 3 and S = 5 are several blocks, the last of which extends beyond the end.
BLOCK_SIZES = 2, 2

# Each axis has a distinct prime size, so that axes cannot be confused. K: width of the keys, if it differs
# from that of the queries.
DIMS = chex.Dimensions(B=2, T=3, S=5, N=7, H=11, D=13, K=17)

EPSILON = float(np.finfo(np.float32).eps)
# For float32 results of order one: a dot product of H terms has an error of about H roundings, the
# exponential turns this absolute error of a score into a relative error of its weight, and the sums over S
# add a few.
FLOAT32 = 32 * EPSILON
# The same for float64: 32 * 2^-52 = 7e-15, plus a margin for NumPy's rounding.
FLOAT64 = 1e-12
# Central differences with a step of 1e-5 in float64 have a truncation error of 1e-10 and a rounding error of
# 1e-11, times the third derivative of the function.
DIFFERENCES = 1e-7


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NegativeDistance(attention.Score):
  """A user-defined score: -temperature * |q - k|^2."""

  axes = {"temperature": ""}
  temperature: jax.Array

  def scores(self, query_features, key_features):
    difference = query_features[..., :, None, :] - key_features[..., None, :, :]
    return -self.temperature * jnp.sum(difference**2, axis=-1)


class Kind(NamedTuple):
  """A score function: the library's class, the reference's formula, and its parameters' names and axes."""

  score: Callable[..., attention.Score]
  pair_score: Callable[..., float]
  parameters: dict[str, str]
  key_width: str = "H"


SCORES = {
  "scaled_dot_product": Kind(attention.ScaledDotProduct, reference.dot_product, {"scale": ""}),
  "additive": Kind(attention.Additive, reference.additive, {"score_vector": "H"}),
  "bilinear": Kind(attention.Bilinear, reference.bilinear, {"matrix": "HK"}, key_width="K"),
  "cosine": Kind(attention.Cosine, reference.cosine, {"scale": ""}),
  "user_defined": Kind(NegativeDistance, reference.negative_distance, {"temperature": ""}),
}


def always(*chosen, of):
  """Returns parameters for a test, marked `exhaustive` unless they are in `chosen`."""
  assert set(chosen) <= set(of), "each chosen parameter must be one of all"

  def parameter(value):
    marks = () if value in chosen else pytest.mark.exhaustive
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=marks)

  return [parameter(value) for value in of]


def in_turn(**values):
  """Parametrizes a test by values and engines, with the engines alternating over values.

  All other pairs are marked `exhaustive`. For tests whose cases are compiled separately:
  `@in_turn(kind=SCORES)`.
  """
  ((name, values),) = values.items()
  chosen = zip(values, itertools.cycle(("blockwise", "dense")), strict=False)
  pairs = always(*chosen, of=list(itertools.product(values, ENGINES)))
  return pytest.mark.parametrize((name, "implementation"), pairs)


kinds = pytest.mark.parametrize("kind", SCORES)
# Scores whose implementations differ most: matrix products, loops over tiles, and derivatives by JAX.
FEW = ("scaled_dot_product", "additive", "user_defined")
few_kinds = pytest.mark.parametrize("kind", always(*FEW, of=SCORES))
engines = pytest.mark.parametrize("implementation", ENGINES)
mostly_blockwise = pytest.mark.parametrize("implementation", always("blockwise", of=ENGINES))


class Inputs(NamedTuple):
  """The arguments of attention functions that have gradients; a pytree."""

  queries: Any
  keys: Any
  values: Any
  parameters: dict[str, Any]
  bias: Any = None


def draw(kind, queries="TH", keys="SH", values="SD", bias=None, heads="", dtype=np.float32):
  """Returns random Inputs with the given axes ("BNTH", or "B1TH" to broadcast); parameters lead with `heads`.

  Arrays are NumPy's, so nothing is compiled.
  """
  rng = np.random.default_rng(0)
  kind = SCORES[kind]

  def array(axes):
    return rng.normal(size=DIMS[axes]).astype(dtype)

  def parameter(axes):
    # Positive, away from zero, and small, so that scores are of order one.
    return np.asarray(rng.uniform(0.2, 0.6, size=DIMS[heads + axes])).astype(dtype)

  return Inputs(
    queries=array(queries),
    keys=array(keys[:-1] + kind.key_width),
    values=array(values),
    parameters={name: parameter(axes) for name, axes in kind.parameters.items()},
    bias=None if bias is None else np.asarray(array(bias)),
  )


def replaced(array, index, value):
  """Returns a copy of the array with `value` at `index`."""
  array = np.array(array)
  array[index] = value
  return array


def narrow(kind, inputs):
  """Returns inputs with widths of 2, for fewer finite differences."""
  parameters = {
    "additive": lambda score_vector: {"score_vector": score_vector[..., :2]},
    "bilinear": lambda matrix: {"matrix": matrix[..., :2, :2]},
  }.get(kind, dict)(**inputs.parameters)
  vectors = (array[..., :2] for array in inputs[:3])
  return type(inputs)(*vectors, parameters, inputs.bias)


def draw_saturated(size, factor=1):
  """Returns Inputs for additive attention whose queries and keys are as large as `size`.

  All are multiples of 1/8, small enough that every sum of a query and a key is exact in float32. Some
  pre-activations cancel to between -2 and 2, others saturate the tanh. Scores are multiplied by `factor`.
  """
  rng = np.random.default_rng(0)
  signs = rng.choice([-1, 1], size=DIMS["H"])
  sides = np.array([[-1], [-1], [-1], [1], [0]])
  noise_of_queries, noise_of_keys = (rng.integers(-8, 9, size=DIMS[axes]) / 8 for axes in ("TH", "SH"))
  inputs = draw("additive")
  return inputs._replace(
    queries=np.asarray(size * signs + noise_of_queries, np.float32),
    keys=np.asarray(size * signs * sides + noise_of_keys, np.float32),
    parameters={"score_vector": np.float32(factor) * inputs.parameters["score_vector"]},
  )


def attend(kind, inputs, **options):
  """attention.attend with the score `kind`."""
  return attention.attend(SCORES[kind].score(**inputs.parameters), *inputs[:3], bias=inputs.bias, **options)


def attend_fully(kind, inputs, **options):
  """Like `attend`, with context, weights and logsumexp."""
  return tuple(attend(kind, inputs, return_weights=True, return_logsumexp=True, **options))


def of_every_score(kind, inputs):
  """Returns Inputs of several scores: `inputs` for `kind`, and ones of the same shapes for others."""
  (parameter,) = inputs.parameters.values()
  heads = jnp.shape(parameter)[: jnp.ndim(parameter) - len(*SCORES[kind].parameters.values())]
  widths = {"H": inputs.queries.shape[-1]}
  widths["K"] = DIMS.K if widths["H"] == DIMS.H else widths["H"]

  def ones(other):
    width = widths[SCORES[other].key_width]
    return inputs._replace(
      queries=np.ones(inputs.queries.shape, inputs.queries.dtype),
      keys=np.ones((*inputs.keys.shape[:-1], width), inputs.keys.dtype),
      parameters={
        name: np.ones((*heads, *(widths[axis] for axis in axes)), parameter.dtype)
        for name, axes in SCORES[other].parameters.items()
      },
    )

  # Only scores that name their axes support parameters with leading axes.
  others = [other for other in SCORES if other != "user_defined" or not heads]
  others = [other for other in others if (other in FEW) == (kind in FEW)]
  return {other: inputs if other == kind else ones(other) for other in dict.fromkeys((*others, kind))}


def compiled_together(function):
  """Compiles function(kind, implementation, inputs, *args) for several scores and engines as one program.

  Returns a function with the same arguments. It is compiled once for all tests of a file with the same
  shapes, in a third of the time of separate programs. A call computes all scores and engines and returns one.
  With `alone`, for shapes that only one test uses, it only compiles and computes that one. The scores in
  `FEW` are one program, and the others another. `options` are static.
  """

  @functools.partial(jax.jit, static_argnums=(0, 1, 2))
  def run(few_terms, engines, options, inputs, *args):
    return {
      (kind, engine): function(kind, engine, inputs[kind], *args, **dict(options))
      for kind in inputs
      for engine in engines
    }

  def one(kind, implementation, inputs, *args, alone=False, **options):
    engines = ENGINES if implementation in ENGINES and not alone else (implementation,)
    inputs = {kind: inputs} if alone else of_every_score(kind, inputs)
    every = run(additive.MAX_TERMS_WITHOUT_LOOPS, engines, tuple(sorted(options.items())), inputs, *args)
    return every[kind, implementation]

  return one


def results(kind, inputs, mask=None, *, implementation="auto", dropout_rng=None, **options):
  """Like `attend_fully` with small blocks, compiled once for all scores and tests with these shapes."""
  return _results(kind, implementation, inputs, mask, dropout_rng, **options)


@compiled_together
def _results(kind, implementation, inputs, mask, dropout_rng, **options):
  return attend_fully(
    kind,
    inputs,
    mask=mask,
    dropout_rng=dropout_rng,
    implementation=implementation,
    block_sizes=BLOCK_SIZES,
    **options,
  )


def results_and_gradients(kind, inputs, of_loss, mask=None, implementation="auto", **options):
  """Returns the results and the gradients, as Inputs, of sum(of_loss * results)."""
  return _results_and_gradients(kind, implementation, inputs, tuple(of_loss), mask, **options)


@compiled_together
def _results_and_gradients(kind, implementation, inputs, of_loss, mask):
  score = SCORES[kind].score(**inputs.parameters)

  def run(score, queries, keys, values, bias):
    return tuple(
      attention.attend(
        score,
        queries,
        keys,
        values,
        bias=bias,
        mask=mask,
        return_weights=True,
        return_logsumexp=True,
        implementation=implementation,
        block_sizes=BLOCK_SIZES,
      )
    )

  outputs, pull = jax.vjp(run, score, *inputs[:3], inputs.bias)
  slope, queries, keys, values, bias = pull(
    tuple(array.astype(out.dtype) for array, out in zip(of_loss, outputs, strict=True))
  )
  assert type(slope) is type(score)
  parameters = {name: getattr(slope, name) for name in inputs.parameters}
  return outputs, Inputs(queries, keys, values, parameters, bias)


def gradients(kind, inputs, of_loss, **options):
  """Returns the gradients of `results_and_gradients`."""
  return results_and_gradients(kind, inputs, of_loss, **options)[1]


def expected(kind, inputs, **options):
  """Returns the reference's Result for the same inputs."""
  bias = 0.0 if inputs.bias is None else inputs.bias
  return reference.attend(SCORES[kind].pair_score, *inputs[:3], bias=bias, **inputs.parameters, **options)


def expected_gradients(kind, inputs, of_loss, **options):
  """Returns Inputs of the gradients of sum(of_loss * result), by finite differences of the reference.

  The logsumexp of an empty row, -inf, is treated as a constant.
  """
  leaves, structure = jax.tree.flatten(inputs)
  leaves = [np.asarray(leaf).astype(np.float64) for leaf in leaves]

  def gradient(i):
    def loss(leaf):
      changed = jax.tree.unflatten(structure, [*leaves[:i], leaf, *leaves[i + 1 :]])
      return total(of_loss, expected(kind, changed, **options))

    return reference.gradient(loss, leaves[i])

  return jax.tree.unflatten(structure, [gradient(i) for i in range(len(leaves))])


def total(of_loss, result):
  """Returns sum(of_loss * result) over the finite elements of a reference Result."""
  return sum(
    np.sum(weight * np.where(np.isfinite(array), array, 0.0))
    for weight, array in zip(of_loss, result, strict=True)
  )


def draw_loss(result, seed=1):
  """Returns random factors of a loss, one array per field of a reference Result."""
  rng = np.random.default_rng(seed)
  return tuple(rng.normal(size=array.shape) for array in result)


def assert_close(actual, desired, tolerance):
  """Asserts equal shapes, infinities and NaN, and otherwise differences within `tolerance` * (1 + size)."""
  actual, desired = (np.asarray(array).astype(np.float64) for array in (actual, desired))
  assert actual.shape == desired.shape
  np.testing.assert_allclose(actual, desired, rtol=tolerance, atol=tolerance)


def assert_trees_close(actual, desired, tolerance):
  """Applies `assert_close` to all arrays of two trees."""
  for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
    assert_close(one, other, tolerance)


def assert_trees_equal(actual, desired):
  """Asserts that all arrays of two trees are bitwise equal."""
  for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
    np.testing.assert_array_equal(one, other)


def assert_trees_finite(tree):
  assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(tree))
