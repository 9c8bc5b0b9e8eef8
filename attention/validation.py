"""Validation and conversion of the arguments of attention functions."""

import dataclasses
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.checks import as_array, check_number, check_rank, check_size, key_shape
from attention.arrays.named_axes import NamedAxes, leaf_axes
from attention.arrays.shapes import LAYOUT, broadcast_leading
from attention.biases.base import BiasLike, as_bias
from attention.engines.dropout import Dropout
from attention.engines.inputs import Options, Settings
from attention.masks import Array, Mask, as_mask
from attention.normalizers.base import Normalizer
from attention.normalizers.softmax import Softmax
from attention.scores.base import Score

T = TypeVar("T")

IMPLEMENTATIONS = ("auto", "dense", "blockwise")


def check_queries_and_keys(queries: Any, keys: Any) -> tuple[jax.Array, jax.Array]:
  """Returns queries and keys as arrays, or raises ValueError if their shapes are incompatible."""
  queries, keys = as_array("queries", queries), as_array("keys", keys)
  check_rank("queries", queries, "[... T H]")
  check_rank("keys", keys, "[... S H]")
  check_dtypes(queries=queries, keys=keys)
  broadcast_leading(queries, keys, names="queries and keys")
  return queries, keys


def check_vectors(queries: Any, keys: Any, values: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns queries, keys and values as arrays, or raises ValueError if their shapes are incompatible.

  The score checks the widths.
  """
  queries, keys, values = map(as_array, ("queries", "keys", "values"), (queries, keys, values))
  check_rank("queries", queries, "[... T H]")
  check_rank("keys", keys, "[... S H]")
  check_rank("values", values, "[... S D]")
  check_dtypes(queries=queries, keys=keys, values=values)
  check_lengths(keys, values)
  try:
    broadcast_leading(queries, keys, values, names="queries, keys and values")
  except ValueError as error:
    raise ValueError(f"{error}{_heads_hint(queries, keys, values)}") from None
  return queries, keys, values


def check_lengths(keys: jax.Array, values: jax.Array) -> None:
  """Raises ValueError unless keys and values have the same length."""
  if keys.shape[-2] != values.shape[-2]:
    raise ValueError(
      f"keys and values must have the same length, got keys {keys.shape}, values {values.shape}"
    )


def check_dtypes(**arrays: jax.Array) -> None:
  """Raises ValueError unless the named arrays have the same floating-point dtype."""
  *first, last = arrays
  names = f"{', '.join(first)} and {last}"
  got = ", ".join(f"{name} {array.dtype}" for name, array in arrays.items())
  if not all(jnp.issubdtype(array.dtype, jnp.floating) for array in arrays.values()):
    raise ValueError(f"{names} must be floating-point, got {got}")
  if len({array.dtype for array in arrays.values()}) > 1:
    raise ValueError(f"{names} must have one dtype, got {got}")


def _heads_hint(queries: jax.Array, keys: jax.Array, values: jax.Array) -> str:
  """Returns a hint for an error about heads that do not broadcast."""
  if min(queries.ndim, keys.ndim, values.ndim) < 4:
    return ""
  (before, last), (keys_before, keys_last) = (array.shape[-3:-1] for array in (queries, keys))
  if before == keys_before or 1 in (before, keys_before) or keys_before != values.shape[-3]:
    return ""  # other axes do not broadcast
  hint = ""
  if keys_before and before % keys_before == 0:
    hint += f"; for {before} query heads and {keys_before} key heads, use attend_heads"
  if last == keys_last:
    hint += f"; {LAYOUT}"
  return hint


def check_options(
  score: Score,
  *,
  mask: Mask | Array | None,
  bias: BiasLike | None,
  dropout_rate: jax.Array | float,
  dropout_rng: jax.Array | None,
  normalizer: Normalizer | None = None,
  return_weights: bool = False,
  return_logsumexp: bool = False,
  implementation: str = "auto",
  block_sizes: tuple[int, int] | None = None,
) -> tuple[Options, Settings]:
  """Returns the score, options and settings of `attend`, or raises ValueError if one is invalid."""
  if not isinstance(score, Score):
    got = f"an array of shape {score.shape}" if hasattr(score, "shape") else repr(score)
    raise ValueError(f"score must be a Score such as ScaledDotProduct(), got {got}")
  if implementation not in IMPLEMENTATIONS:
    raise ValueError(f"implementation must be one of {', '.join(IMPLEMENTATIONS)}, got {implementation!r}")
  if block_sizes is not None:
    if not isinstance(block_sizes, (tuple, list)) or len(block_sizes) != 2:
      raise ValueError(f"block_sizes must be two positive integers, (queries, keys), got {block_sizes!r}")
    block_sizes = check_size("block_sizes", block_sizes[0]), check_size("block_sizes", block_sizes[1])
  if normalizer is not None and not isinstance(normalizer, Normalizer):
    raise ValueError(f"normalizer must be a Normalizer such as Sparsemax(), or None, got {normalizer!r}")
  if normalizer is not None and type(normalizer) is not Softmax:
    name = type(normalizer).__name__
    if implementation == "blockwise" and normalizer.whole_rows:
      raise ValueError(f"implementation must be auto or dense for the normalizer {name}, got 'blockwise'")
    if return_logsumexp:
      raise ValueError(f"return_logsumexp must be False for the normalizer {name}, got True")
  dropout = None
  if type(dropout_rate) is not float or dropout_rate != 0:  # the default, 0.0, is not checked
    rate, rng = check_dropout(dropout_rate, dropout_rng)
    dropout = None if rate is None else Dropout(rate, rng)
  options = Options(
    with_arrays(score),
    None if mask is None else with_arrays(as_mask(mask)),
    None if bias is None else with_arrays(as_bias(bias)),
    Softmax() if normalizer is None else with_arrays(normalizer),
    dropout,
  )
  return options, Settings(bool(return_weights), bool(return_logsumexp), str(implementation), block_sizes)


def check_dropout(rate: jax.Array | float, rng: jax.Array | None) -> tuple[Array | None, jax.Array | None]:
  """Returns the dropout rate as an array, and the key; (None, None) if the rate is known to be 0.

  Raises:
    ValueError: if the rate is not in [0, 1), or the key is missing or invalid.
  """
  allowed = "a number in [0, 1)"
  check_number("dropout_rate", rate, allowed, lambda rate: 0 <= np.float32(rate) < 1)
  if not isinstance(rate, jax.core.Tracer) and np.asarray(rate) == 0:
    return None, None
  if rng is None:
    raise ValueError(f"dropout_rng must be a PRNG key for dropout_rate={rate}, got None")
  if key_shape(rng) != ():
    got = rng.aval.str_short() if isinstance(rng, jax.Array) else repr(rng)
    raise ValueError(f"dropout_rng must be a single PRNG key, such as jax.random.key(0), got {got}")
  if isinstance(rate, jax.Array):
    return jax.lax.stop_gradient(jnp.asarray(rate, float)), rng
  return np.asarray(rate, jax.dtypes.canonicalize_dtype(float)), rng  # NumPy is faster than eager JAX


def with_arrays(tree: T) -> T:
  """Returns a score, mask, bias or normalizer whose lists of numbers are converted to arrays.

  Only fields listed in `axes` are converted.

  Raises:
    ValueError: if `axes` names a missing field or has more axes than an array, if the class is not registered
      as a pytree, or if a field that is a string or a function is not static.
  """
  if not isinstance(tree, NamedAxes):
    return tree
  for name in tree.axes:
    if not hasattr(tree, name):
      raise ValueError(f"{type(tree).__name__}.axes must contain names of fields, got {name!r}")
  if any(leaf is tree for leaf in jax.tree.leaves(tree)):
    leaf_axes(tree)  # raises the error of an unregistered class
  changed: dict[str, Any] = {}
  if not dataclasses.is_dataclass(tree):
    return tree
  for field in dataclasses.fields(tree):
    value = getattr(tree, field.name)
    if isinstance(value, NamedAxes):
      changed[field.name] = with_arrays(value)
    elif isinstance(value, (list, tuple)) and field.name in tree.axes:
      changed[field.name] = as_array(field.name, value)
  tree = dataclasses.replace(tree, **changed) if changed else tree
  tree.validate()
  leaf_axes(tree)
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    if isinstance(leaf, str) or callable(leaf):
      raise ValueError(
        f"{type(tree).__name__}{jax.tree_util.keystr(path)} must be an array, a number or a static field "
        f'(dataclasses.field(metadata={{"static": True}})), got {leaf!r}'
      )
  return tree
