"""`jax.jit` for functions that users call outside of `jax.jit`, too."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

from attention.arrays.pytrees import NamedAxes

T = TypeVar("T", bound=Callable[..., Any])

ARRAYS = jax.Array, np.ndarray, np.generic, int, float, complex


def eager_jit(function: T, *, static_argnames: tuple[str, ...] = ()) -> T:
  """Returns the function compiled as a whole where it is called outside of `jax.jit`.

  Inside, it is traced in place: a program within another is differentiated on its own, which is slower.
  Nothing is compiled where an argument holds code of the user, a function or a class: what a function closed
  over, or a class finds in its module, may be another thing at the next call. Nor where an argument is none
  that JAX knows: the function says what is wrong with it.

  Args:
    function: of pytrees, as `jax.jit` takes it.
    static_argnames: as in `jax.jit`.
  """
  compiled = jax.jit(function, static_argnames=static_argnames)

  @functools.wraps(function)
  def call(*args: Any, **options: Any) -> Any:
    # Inside, any array that is made is traced; an iota is made in half the time of zeros.
    is_inside_jit = isinstance(jax.lax.iota(np.int32, 1), jax.core.Tracer)
    dynamic = [value for name, value in options.items() if name not in static_argnames]
    leaves = jax.tree.leaves((args, dynamic), is_leaf=has_user_code)
    is_known = all(isinstance(leaf, ARRAYS) for leaf in leaves)
    return (compiled if is_known and not is_inside_jit else function)(*args, **options)

  call.clear_cache = compiled.clear_cache  # type: ignore[attr-defined]
  return call  # type: ignore[return-value]


def has_user_code(node: Any) -> bool:
  """Returns whether a node of a pytree calls functions of the user, or is of a class of the user."""
  return isinstance(node, NamedAxes) and (
    node.has_user_code or not type(node).__module__.startswith("attention.")
  )
