"""Compilation of functions that are called outside `jax.jit`."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

from attention.arrays.named_axes import has_user_code

T = TypeVar("T", bound=Callable[..., Any])

ARRAYS = jax.Array, np.ndarray, np.generic, int, float, complex


def eager_jit(function: T, *, static_argnames: tuple[str, ...] = ()) -> T:
  """Compiles a function when it is called outside `jax.jit`.

  Inside `jax.jit` the function is traced in place, since a nested jit is differentiated separately, which is
  slower. A call is not compiled if an argument contains user code (a function, or an instance of a
  user-defined class), which may refer to values that change between calls, or if an argument is not a JAX
  type, so that the function can raise its error.

  Args:
    function: takes pytrees, as for `jax.jit`.
    static_argnames: as in `jax.jit`.
  """
  compiled = jax.jit(function, static_argnames=static_argnames)

  @functools.wraps(function)
  def call(*args: Any, **options: Any) -> Any:
    # Inside `jax.jit`, a new array is a tracer. An iota takes half the time of zeros.
    is_inside_jit = isinstance(jax.lax.iota(np.int32, 1), jax.core.Tracer)
    dynamic = [value for name, value in options.items() if name not in static_argnames]
    is_known = not has_user_code((args, dynamic)) and all(
      isinstance(leaf, ARRAYS) for leaf in jax.tree.leaves((args, dynamic))
    )
    return (compiled if is_known and not is_inside_jit else function)(*args, **options)

  call.clear_cache = compiled.clear_cache  # type: ignore[attr-defined]
  return call  # type: ignore[return-value]
