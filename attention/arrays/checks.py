"""Checks of arguments: arrays, numbers, sizes, random keys."""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np


def as_array(name: str, given: Any, allowed: str = "an array") -> jax.Array:
  """Returns what is given as an array, or raises ValueError that says what is allowed.

  An array stays untouched, for outside of `jax.jit` even `jnp.asarray` takes its time.
  """
  if isinstance(given, jax.Array):
    return given
  try:
    if not isinstance(given, str):  # which NumPy takes for the name of a type
      return jnp.asarray(given)
  except (TypeError, ValueError):
    pass
  raise ValueError(f"{name} must be {allowed}, got {given!r}")


def check_rank(name: str, array: jax.Array, axes: str) -> None:
  """Raises ValueError unless the array has at least the named axes, such as "[... T H]"."""
  rank = len(axes.strip("[]").replace("...", "").split())
  if array.ndim < rank:
    raise ValueError(f"{name} must have axes {axes}, got shape {array.shape}")


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
  """Returns an array of an integer type, or raises ValueError; also for integers that JAX would cut off."""
  allowed = "an integer or an array of integers"
  known = given
  if isinstance(given, (int, np.generic, list, tuple)) and not any(
    isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(given)
  ):
    known = np.asarray(given)
  if isinstance(known, np.ndarray) and (known.dtype == object or jnp.issubdtype(known.dtype, jnp.integer)):
    limits = jnp.iinfo(jax.dtypes.canonicalize_dtype(jnp.int64))
    if np.any(known < limits.min) or np.any(known > limits.max):
      raise ValueError(f"{name} must be in [{limits.min}, {limits.max}], got {given}")
  array = as_array(name, given, allowed)
  if not jnp.issubdtype(array.dtype, jnp.integer):
    raise ValueError(f"{name} must be {allowed}, got {getattr(known, 'dtype', array.dtype)}")
  return array


def check_number(
  name: str, given: Any, allowed: str = "a number", is_allowed: Callable[[Any], Any] = lambda number: True
) -> None:
  """Raises ValueError unless it is one real number that is allowed; what is traced may be any."""
  is_real = isinstance(given, (int, float, np.integer, np.floating)) and not isinstance(given, bool)
  if isinstance(given, (jax.Array, np.ndarray)):
    is_real = any(jnp.issubdtype(given.dtype, kind) for kind in (jnp.floating, jnp.integer))
  is_traced = isinstance(given, jax.core.Tracer)
  # NumPy, since operations of JAX on arrays that are known are traced inside `jax.jit`, too.
  if not is_real or np.ndim(given) or not (is_traced or is_allowed(_as_numpy(given))):
    raise ValueError(f"{name} must be {allowed}, got {given!r}")


def check_numbers(name: str, given: Any, allowed: str, is_allowed: Callable[[Any], Any]) -> None:
  """Raises ValueError unless all numbers, as JAX would hold them, are allowed; what is traced may be any."""
  numbers = as_real(name, given)
  if isinstance(given, jax.core.Tracer):
    return
  with np.errstate(over="ignore"):  # a number that the type cannot hold is infinite
    known = np.asarray(given, numbers.dtype)  # NumPy, since `jnp.asarray` traces even this inside `jax.jit`
  if not is_allowed(known).all():
    raise ValueError(f"{name} must be {allowed}, got {given!r}")


def check_size(name: str, given: Any, least: int = 1) -> Any:
  """Returns a size as an int; raises ValueError unless it is at least that. A symbolic size is allowed."""
  if jax.export.is_symbolic_dim(given):
    return given
  size = _as_int(given)
  if size is None or size < least:
    raise ValueError(f"{name} must be an integer of at least {least}, got {given!r}")
  return size


def check_token(name: str, given: Any) -> jax.Array:
  """Returns one token as an int32; raises ValueError unless it is an integer that fits."""
  limits = np.iinfo(np.int32)
  number = None if isinstance(given, jax.core.Tracer) else _as_int(given)
  if number is not None and not limits.min <= number <= limits.max:
    raise ValueError(f"{name} must be a token, an integer of 32 bits, got {given!r}")
  token = as_integers(name, given)
  if token.ndim:
    raise ValueError(f"{name} must be one token, got shape {token.shape}")
  return token.astype(jnp.int32)


def key_shape(rng: Any) -> tuple[int, ...] | None:
  """Returns the shape of an array of random keys, of either kind; None for what is no key."""
  if not isinstance(rng, (jax.Array, np.ndarray)):
    return None
  if jnp.issubdtype(rng.dtype, jax.dtypes.prng_key):
    return rng.shape
  is_raw = rng.dtype == jnp.uint32 and rng.ndim > 0 and rng.shape[-1] in (2, 4)  # as jax.random.PRNGKey
  return rng.shape[:-1] if is_raw else None


def _as_int(given: Any) -> int | None:
  """Returns a known integer as an int; None for what is none."""
  try:
    return None if isinstance(given, bool) else operator.index(given)
  except TypeError:
    return None


def _as_numpy(number: Any) -> np.ndarray:
  """Returns a known number as an array; an int beyond float64 is infinite."""
  try:
    return np.asarray(float(number) if isinstance(number, int) else number)
  except OverflowError:
    return np.asarray(np.inf if number > 0 else -np.inf)
