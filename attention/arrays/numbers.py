"""Numbers that users give: checks of their types."""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from attention.arrays.broadcasting import as_array


def as_real(name: str, given: Any, allowed: str = "a real number or array") -> jax.Array:
  """Returns an array of a floating or integer type, or raises ValueError."""
  array = as_array(name, given, allowed)
  if not (jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)):
    raise ValueError(f"{name} must be {allowed}, got {array.dtype}")
  return array


def as_floating(name: str, given: Any) -> jax.Array:
  """Returns an array of a floating type, or raises ValueError."""
  array = as_array(name, given)
  if not jnp.issubdtype(array.dtype, jnp.floating):
    raise ValueError(f"{name} must be of a floating type, got {array.dtype}")
  return array


def as_integers(name: str, given: Any) -> jax.Array:
  """Returns an array of an integer type, or raises ValueError."""
  array = as_array(name, given, "an integer or an array of them")
  if not jnp.issubdtype(array.dtype, jnp.integer):
    raise ValueError(f"{name} must be of an integer type, got {array.dtype}")
  return array


def check_number(
  name: str, given: Any, allowed: str = "a number", is_allowed: Callable[[Any], Any] = lambda number: True
) -> None:
  """Raises ValueError unless a real number, or an array of them, is allowed; what is traced may be any."""
  is_real = isinstance(given, (int, float, np.integer, np.floating)) and not isinstance(given, bool)
  if isinstance(given, (jax.Array, np.ndarray)):
    is_real = any(jnp.issubdtype(given.dtype, kind) for kind in (jnp.floating, jnp.integer))
  is_traced = isinstance(given, jax.core.Tracer)
  # NumPy, since operations of JAX on arrays that are known are traced inside `jax.jit`, too.
  if not is_real or not (is_traced or np.all(is_allowed(np.asarray(given)))):
    raise ValueError(f"{name} must be {allowed}, got {given!r}")


def check_size(name: str, given: Any, least: int = 1) -> None:
  """Raises ValueError unless a size is an integer of at least that, or symbolic (see `jax.export`)."""
  if jax.export.is_symbolic_dim(given):
    return
  try:
    is_allowed = not isinstance(given, bool) and operator.index(given) >= least
  except TypeError:
    is_allowed = False
  if not is_allowed:
    raise ValueError(f"{name} must be an integer of at least {least}, got {given!r}")
