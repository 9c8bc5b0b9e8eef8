"""The scores of the contract with random inputs, and the oracle of their results.

Tests that are parametrized over `SCORES` include each score that is added to it.
"""

import dataclasses
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import reference

import attention

# Each axis has a distinct prime size, so that axes cannot be confused. K: width of the keys of `Bilinear`.
DIMS = chex.Dimensions(B=2, T=3, S=5, N=7, H=11, D=13, K=17)
# Small, so that T = 3 and S = 5 are several blocks, the last of which extends beyond the end.
BLOCK_SIZES = 2, 2

# Tolerances for results of order one: a dot product of H terms has an error of about H roundings, the
# exponential turns this absolute error of a score into a relative error of its weight, and sums over S add a
# few. Gradients sum more terms.
FLOAT32 = {"rtol": 4e-6, "atol": 4e-6}
GRADIENTS = {"rtol": 3e-5, "atol": 3e-5}
FLOAT64 = {"rtol": 1e-12, "atol": 1e-12}


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class NegativeDistance(attention.Score):
  """A user-defined score: -temperature * |q - k|^2."""

  axes = {"temperature": ""}
  temperature: jax.Array

  def scores(self, query_features, key_features):
    difference = query_features[..., :, None, :] - key_features[..., None, :, :]
    return -self.temperature * jnp.sum(difference**2, axis=-1)


class Kind(NamedTuple):
  """A score, its formula for one query and one key in float64, and its parameter's name and axes."""

  score: Callable[..., attention.Score]
  formula: Callable[..., float]
  parameter: str
  axes: str = ""
  key_width: str = "H"


SCORES = {
  "scaled_dot_product": Kind(attention.ScaledDotProduct, reference.dot_product, "scale"),
  "additive": Kind(attention.Additive, reference.additive, "score_vector", axes="H"),
  "bilinear": Kind(attention.Bilinear, reference.bilinear, "matrix", axes="HK", key_width="K"),
  "cosine": Kind(attention.Cosine, reference.cosine, "scale"),
  "user_defined": Kind(NegativeDistance, reference.negative_distance, "temperature"),
}


class Inputs(NamedTuple):
  """The arguments of attention that have gradients; a pytree."""

  score: Any
  queries: Any
  keys: Any
  values: Any
  bias: Any = None


def draw(kind, queries="BTH", keys="BSH", values="BSD", bias="TS", heads="", dtype=np.float32):
  """Returns random Inputs of NumPy arrays with the given axes; the score's parameter leads with `heads`."""
  rng = np.random.default_rng(0)
  _, _, name, axes, key_width = SCORES[kind]

  def normal(axes):
    return np.asarray(rng.normal(size=DIMS[axes])).astype(dtype)

  # Positive, away from zero, and small, so that scores are of order one.
  parameter = np.asarray(rng.uniform(0.2, 0.6, size=DIMS[heads + axes])).astype(dtype)
  return Inputs(
    SCORES[kind].score(**{name: parameter}),
    normal(queries),
    normal(keys[:-1] + key_width),
    normal(values),
    None if bias is None else normal(bias),
  )


def attend(inputs, **options):
  """attention.attend with the inputs."""
  score, queries, keys, values, bias = inputs
  return attention.attend(score, queries, keys, values, bias=bias, **options)


def attend_fully(inputs, **options):
  """Returns context, weights and logsumexp, in small blocks if "blockwise"."""
  return attend(inputs, return_weights=True, return_logsumexp=True, block_sizes=BLOCK_SIZES, **options)


def expected(kind, inputs, **options):
  """Returns context, weights and logsumexp, computed in float64 by loops over all pairs."""
  score, queries, keys, values, bias = inputs
  result = reference.attend(
    SCORES[kind].formula, queries, keys, values, bias=0.0 if bias is None else bias, **vars(score), **options
  )
  return attention.AttentionOutput(*result)


def random_like(tree, seed=1):
  """Returns random arrays with the shapes and dtypes of a pytree."""
  rng = np.random.default_rng(seed)
  return jax.tree.map(lambda leaf: np.asarray(rng.normal(size=leaf.shape)).astype(leaf.dtype), tree)


def replaced(array, index, value):
  """Returns a copy of the array with `value` at `index`."""
  array = np.array(array)
  array[index] = value
  return array


def shape_of(*shape, dtype=jnp.float32):
  return jax.ShapeDtypeStruct(shape, dtype)


def assert_error_says(words, function, *arguments):
  """Asserts that tracing raises a ValueError whose message contains all words, each as a whole word."""
  with pytest.raises(ValueError) as caught:
    jax.eval_shape(function, *arguments)
  patterns = {word: rf"(?<!\w){re.escape(word)}(?!\w)" for word in words.split()}
  missing = [word for word, pattern in patterns.items() if not re.search(pattern, str(caught.value))]
  assert not missing, f"no {missing} in {str(caught.value)!r}"
