"""Biases: arrays, functions of positions, and objects that are functions of positions."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.checks import as_array
from attention.arrays.closure_conversion import Closure, at_pairs, closure
from attention.arrays.leading_axes import select_index
from attention.arrays.named_axes import NamedAxes, register_pytree
from attention.arrays.shapes import same_rank, with_rank
from attention.masks import Mask

BiasLike: TypeAlias = jax.Array | np.ndarray | float | Callable[[jax.Array, jax.Array], jax.Array]

ALLOWED = "an array, or a function that returns one"


@register_pytree
@dataclasses.dataclass(frozen=True)
class ArrayBias(NamedAxes):
  """An array [... T S] as a function of positions."""

  axes = {"array": "TS"}
  array: jax.Array

  def __call__(self, t, s):
    return self.array


@register_pytree
@dataclasses.dataclass(frozen=True)
class FunctionBias(NamedAxes):
  """A user-defined function of positions, with the arrays that it closes over as leaves."""

  function: Closure

  def __call__(self, t, s):
    return at_pairs(self.function, t, s)


@register_pytree
@dataclasses.dataclass(frozen=True)
class BiasAtIndex(NamedAxes):
  """A bias function that returns leading axes, at one index of them."""

  axes = {"index": ""}
  bias: Any
  index: tuple[jax.Array, ...]

  def __call__(self, t, s):
    return select_index(self.bias(t, s), self.index)


@register_pytree
@dataclasses.dataclass(frozen=True)
class BiasSum(NamedAxes):
  """The sum of two biases."""

  first: Any
  second: Any

  def __call__(self, t, s):
    first, second = same_rank(jnp.asarray(self.first(t, s)), jnp.asarray(self.second(t, s)))
    return first + second


def as_bias(bias: BiasLike | None) -> Any:
  """Returns a bias as a pytree that is a function of positions, or None.

  Raises:
    ValueError: if it is neither an array nor a function that returns one.
  """
  if bias is None or (isinstance(bias, NamedAxes) and callable(bias) and not isinstance(bias, Mask)):
    return bias
  if isinstance(bias, Mask):
    raise ValueError(f"bias must be {ALLOWED}, got the mask {type(bias).__name__}; pass masks as `mask`")
  if callable(bias) and not isinstance(bias, type):
    position = jnp.zeros((), int)
    return FunctionBias(closure(lambda t, s: _terms(bias(t[None, None], s[None, None])), position, position))
  array = as_array("bias", bias, ALLOWED)
  return ArrayBias(with_rank(array, max(array.ndim, 2)))


def _terms(result: Any) -> jax.Array:
  """Returns the result of a user-defined function for one pair as [...], or raises ValueError."""
  if result is None or isinstance(result, (str, Mask)) or callable(result):
    raise ValueError(f"bias must be {ALLOWED}, got {result!r}")
  terms = as_array("bias", result)
  terms = with_rank(terms, max(terms.ndim, 2))
  if terms.shape[-2:] != (1, 1):
    raise ValueError(
      "bias must return an array that broadcasts to [... T S] and is indexed by t and s, "
      f"got shape {terms.shape} for T=1 query position and S=1 key position"
    )
  return terms[..., 0, 0]
