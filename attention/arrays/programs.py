"""Functions that are one compiled program when they are called outside of `jax.jit`."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.axes import HasAxes

P = ParamSpec("P")
T = TypeVar("T")


def one_program(function: Callable[P, T]) -> Callable[P, T]:
  """Makes a function of pytrees one program, found again by later calls of the same shapes and options.

  Arrays are arguments of the program, as are numbers within scores, masks and biases; all else is known when
  it is compiled. Inside of `jax.jit` it becomes a part of the program there. Nothing is compiled as a whole
  where an argument is a function, or of a class that is not this library's: what a function closed over, or
  a class finds in its module, may be another thing at the next call.
  """

  signature = inspect.signature(function)

  @functools.partial(jax.jit, static_argnums=0)
  def program(known: tuple[tuple[str, type, Any], ...], trees: dict[str, Any]) -> T:
    arguments: dict[str, Any] = trees | {name: value for name, _, value in known}
    return function(**arguments)  # type: ignore[call-arg]

  @functools.wraps(function)
  def call(*args: P.args, **options: P.kwargs) -> T:
    try:
      bound = signature.bind(*args, **options).arguments
    except TypeError:
      return function(*args, **options)  # which tells it with the function's name
    known, trees = [], {}
    for name, argument in sorted((bound | bound.pop("options", {})).items()):
      if isinstance(argument, HasAxes):
        argument.check_values()
      if not _may_be_known(argument):
        return function(*args, **options)
      if _is_tree(argument):
        trees[name] = argument
      else:
        known.append((name, type(argument), argument))  # with its type: 1 is not True
    # A program within another is differentiated on its own, and its gradient is slower for that.
    is_within_another = isinstance(jnp.zeros(()), jax.core.Tracer)
    return function(*args, **options) if is_within_another else program(tuple(known), trees)

  call.clear_cache = program.clear_cache  # type: ignore[attr-defined]
  return call


def _is_tree(argument: Any) -> bool:
  """Whether an argument is an array, or holds numbers that are to be arguments of a program."""
  arrays = jax.Array, np.ndarray, np.generic
  is_of_arrays = any(isinstance(leaf, arrays) for leaf in jax.tree.leaves(argument))
  return is_of_arrays or isinstance(argument, HasAxes)


def _may_be_known(argument: Any) -> bool:
  """Whether a program may be found again by an argument: one without functions, classes of others, lists."""
  if isinstance(argument, HasAxes):
    fields: tuple[Any, ...] = dataclasses.fields(argument) if dataclasses.is_dataclass(argument) else ()
    is_ours = type(argument).__module__.startswith("attention.")
    return is_ours and all(_may_be_known(getattr(argument, field.name)) for field in fields)
  is_of_integers = isinstance(argument, tuple) and all(type(size) is int for size in argument)
  is_option = argument is None or type(argument) in (bool, int, float, str) or is_of_integers
  return is_option or (_is_tree(argument) and not callable(argument))
