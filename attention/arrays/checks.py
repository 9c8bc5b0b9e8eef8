"""Checks of arguments: arrays, numbers, sizes, PRNG keys."""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from attention.arrays.dtypes import compute_dtype

# Axes of arrays of vectors.
_AXES = {
  "queries": "[... T H]",
  "keys": "[... S H]",
  "values": "[... S D]",
  "inputs_q": "[... T D]",
  "inputs_kv": "[... S D]",
}


def as_array(name: str, value: Any, allowed: str = "an array") -> jax.Array:
  """Returns the value as an array, or raises ValueError.

  A JAX array is returned unchanged, since even `jnp.asarray` takes time outside `jax.jit`.
  """
  if isinstance(value, jax.Array):
    return value
  try:
    if not isinstance(value, str):  # which NumPy takes for the name of a type
      return jnp.asarray(value)
  except (TypeError, ValueError):
    pass
  raise ValueError(f"{name} must be {allowed}, got {value!r}")


def check_rank(name: str, array: jax.Array, axes: str) -> None:
  """Raises ValueError unless the array has at least the given axes, such as "[... T H]"."""
  rank = len(axes.strip("[]").replace("...", "").split())
  if array.ndim < rank:
    raise ValueError(f"{name} must have axes {axes}, got shape {array.shape}")


def as_real(name: str, value: Any, allowed: str = "a real number or array") -> jax.Array:
  """Returns an array with a floating-point or integer dtype, or raises ValueError."""
  array = as_array(name, value, allowed)
  if not (jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)):
    raise ValueError(f"{name} must be {allowed}, got {array.dtype}")
  return array


def as_floating(name: str, value: Any) -> jax.Array:
  """Returns an array with a floating-point dtype, or raises ValueError."""
  array = as_array(name, value)
  if not jnp.issubdtype(array.dtype, jnp.floating):
    raise ValueError(f"{name} must be floating-point, got {array.dtype}")
  return array


def as_integers(name: str, value: Any) -> jax.Array:
  """Returns an array with an integer dtype, or raises ValueError, also for integers that overflow in JAX."""
  allowed = "an integer or an array of integers"
  known = value
  if isinstance(value, (int, np.generic, list, tuple)) and not any(
    isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value)
  ):
    try:
      known = np.asarray(value)
    except ValueError:  # rows of different lengths
      raise ValueError(f"{name} must be {allowed}, got {value!r}") from None
  if isinstance(known, np.ndarray) and (known.dtype == object or jnp.issubdtype(known.dtype, jnp.integer)):
    limits = jnp.iinfo(jax.dtypes.canonicalize_dtype(jnp.int64))
    if np.any(known < limits.min) or np.any(known > limits.max):
      raise ValueError(f"{name} must be in [{limits.min}, {limits.max}], got {value}")
  array = as_array(name, value, allowed)
  if not jnp.issubdtype(array.dtype, jnp.integer):
    raise ValueError(f"{name} must be {allowed}, got {getattr(known, 'dtype', array.dtype)}")
  return array


def check_number(name: str, value: Any, allowed: str, is_allowed: Callable[[Any], Any]) -> None:
  """Raises ValueError unless the value is a single real number that is allowed. Traced values always pass."""
  is_real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
  if isinstance(value, (jax.Array, np.ndarray)):
    is_real = any(jnp.issubdtype(value.dtype, kind) for kind in (jnp.floating, jnp.integer))
  is_traced = isinstance(value, jax.core.Tracer)
  # NumPy, since JAX operations on known arrays are traced inside `jax.jit`.
  if not is_real or np.ndim(value) or not (is_traced or is_allowed(_as_numpy(value))):
    raise ValueError(f"{name} must be {allowed}, got {value!r}")


def check_numbers(name: str, value: Any, allowed: str, is_allowed: Callable[[Any], Any]) -> None:
  """Raises ValueError unless all numbers are allowed, in the dtype of JAX. Traced values always pass."""
  numbers = as_real(name, value)
  if isinstance(value, jax.core.Tracer):
    return
  with np.errstate(over="ignore"):  # a number that overflows becomes infinite
    known = np.asarray(value, numbers.dtype)  # NumPy, since `jnp.asarray` is traced inside `jax.jit`
  if not is_allowed(known).all():
    raise ValueError(f"{name} must be {allowed}, got {value!r}")


def check_size(name: str, value: Any, least: int = 1) -> Any:
  """Returns a size as an int, or raises ValueError if it is less than `least`. Symbolic sizes are allowed."""
  if jax.export.is_symbolic_dim(value):
    return value
  size = _as_int(value)
  if size is None or size < least:
    raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
  return size


def check_token(name: str, value: Any) -> jax.Array:
  """Returns a token as an int32, or raises ValueError unless it is a 32-bit integer."""
  limits = np.iinfo(np.int32)
  number = None if isinstance(value, jax.core.Tracer) else _as_int(value)
  if number is not None and not limits.min <= number <= limits.max:
    raise ValueError(f"{name} must be a token (a 32-bit integer), got {value!r}")
  token = as_integers(name, value)
  if token.ndim:
    raise ValueError(f"{name} must be a single token, got shape {token.shape}")
  return token.astype(jnp.int32)


def key_shape(rng: Any) -> tuple[int, ...] | None:
  """Returns the shape of an array of PRNG keys, typed or raw; None if it is not one."""
  if not isinstance(rng, (jax.Array, np.ndarray)):
    return None
  if jnp.issubdtype(rng.dtype, jax.dtypes.prng_key):
    return rng.shape
  is_raw = rng.dtype == jnp.uint32 and rng.ndim > 0 and rng.shape[-1] in (2, 4)  # as jax.random.PRNGKey
  return rng.shape[:-1] if is_raw else None


def _as_int(value: Any) -> int | None:
  """Returns a known integer as an int, otherwise None."""
  try:
    return None if isinstance(value, bool) else operator.index(value)
  except TypeError:
    return None


def _as_numpy(number: Any) -> np.ndarray:
  """Returns a known number as an array; an int that overflows float64 is infinite."""
  try:
    return np.asarray(float(number) if isinstance(number, int) else number)
  except OverflowError:
    return np.asarray(np.inf if number > 0 else -np.inf)


def check_vectors(**arrays: Any) -> list[jax.Array]:
  """Returns named arrays of vectors, or raises ValueError unless they have the axes of `_AXES` and one dtype.

  The score checks the widths.
  """
  vectors = {name: as_array(name, array) for name, array in arrays.items()}
  for name, array in vectors.items():
    check_rank(name, array, _AXES[name])
  *first, last = vectors
  names = f"{', '.join(first)} and {last}"
  got = ", ".join(f"{name} {array.dtype}" for name, array in vectors.items())
  if not all(jnp.issubdtype(array.dtype, jnp.floating) for array in vectors.values()):
    raise ValueError(f"{names} must be floating-point, got {got}")
  if len({array.dtype for array in vectors.values()}) > 1:
    raise ValueError(f"{names} must have one dtype, got {got}")
  if "values" in vectors and vectors["keys"].shape[-2] != vectors["values"].shape[-2]:
    got = f"keys {vectors['keys'].shape}, values {vectors['values'].shape}"
    raise ValueError(f"keys and values must have the same length, got {got}")
  return list(vectors.values())


def as_compute_dtype(**arrays: jax.Array) -> list[jax.Array]:
  """Returns named arrays of vectors in at least float32; see `check_vectors`."""
  return [array.astype(compute_dtype(array.dtype)) for array in check_vectors(**arrays)]


def check_width(name: str, array: jax.Array, width: int, allowed: str) -> None:
  """Raises ValueError unless the last axis of the array has the given size, which `allowed` describes."""
  if array.shape[-1] != width:
    raise ValueError(f"{name} must have {allowed} ({width}), got shape {array.shape}")
