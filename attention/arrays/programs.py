"""Functions that are one compiled program when they are called outside of `jax.jit`."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.axes import HasAxes

P = ParamSpec("P")
T = TypeVar("T")


def as_array(array: Any) -> jax.Array:
  """Returns an array as it is, and what is none as one; `jnp.asarray` of a traced array is an operation."""
  return array if isinstance(array, jax.Array) else jnp.asarray(array)


@dataclasses.dataclass(frozen=True)
class _Known:
  """What a program is compiled for: its arguments, each with its type (1 is not True), None for arrays."""

  structure: Any
  leaves: tuple[tuple[type, Any] | None, ...]


def one_program(function: Callable[P, T]) -> Callable[P, T]:
  """Makes a function of pytrees one program, found again by later calls of the same shapes and options.

  Arrays are arguments of the program, as are numbers within scores, masks and biases; all else is known when
  it is compiled. Inside of `jax.jit` it becomes a part of the program there. Nothing is compiled as a whole
  where an argument is or holds a function: what it closed over may be another thing at the next call.
  """

  @functools.partial(jax.jit, static_argnums=0)
  def program(known: _Known, arrays: list[Any]) -> T:
    each = iter(arrays)
    leaves = [next(each) if leaf is None else leaf[1] for leaf in known.leaves]
    args, options = jax.tree.unflatten(known.structure, leaves)
    return function(*args, **options)

  @functools.wraps(function)
  def call(*args: P.args, **options: P.kwargs) -> T:
    known, arrays = [], []
    for argument in (*args, *(options[name] for name in sorted(options))):
      if isinstance(argument, HasAxes):
        argument.check_values()
      if _holds_a_function(argument):
        return function(*args, **options)
      for leaf in jax.tree.leaves(argument):
        is_argument = isinstance(argument, HasAxes) or isinstance(leaf, (jax.Array, np.ndarray, np.generic))
        known.append(None if is_argument else (type(leaf), leaf))
        arrays += [leaf] if is_argument else []
    return program(_Known(jax.tree.structure((args, options)), tuple(known)), arrays)

  call.clear_cache = program.clear_cache  # type: ignore[attr-defined]
  return call


def _holds_a_function(argument: Any) -> bool:
  """Whether an argument is a function, or a score, mask or bias with one in a field."""
  if isinstance(argument, HasAxes):
    fields: tuple[Any, ...] = dataclasses.fields(argument) if dataclasses.is_dataclass(argument) else ()
    return any(_holds_a_function(getattr(argument, field.name)) for field in fields)
  return callable(argument)
