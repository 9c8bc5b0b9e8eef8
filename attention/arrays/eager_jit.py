"""Compiled functions, except for calls with user code."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

from attention.arrays.named_axes import has_user_code

T = TypeVar("T", bound=Callable[..., Any])

ARRAYS = jax.Array, np.ndarray, np.generic, int, float, complex


def eager_jit(function: T, *, static_argnames: tuple[str, ...] = ()) -> T:
  """Compiles a function, as `jax.jit` does, if that is safe.

  Inside `jax.jit`, calls with equal shapes share one trace. A call is not compiled if an argument contains
  user code (a function, or an instance of a user-defined class), which may refer to values that change
  between calls, or if an argument is not a JAX type, so that the function can raise its error.

  Args:
    function: takes pytrees, as for `jax.jit`.
    static_argnames: as in `jax.jit`.
  """
  compiled = jax.jit(function, static_argnames=static_argnames)

  @functools.wraps(function)
  def call(*args: Any, **options: Any) -> Any:
    dynamic = [value for name, value in options.items() if name not in static_argnames]
    leaves = jax.tree.leaves((args, dynamic))
    is_known = all(isinstance(leaf, ARRAYS) for leaf in leaves) and not has_user_code((args, dynamic))
    return (compiled if is_known else function)(*args, **options)

  call.clear_cache = compiled.clear_cache  # type: ignore[attr-defined]
  return call  # type: ignore[return-value]
