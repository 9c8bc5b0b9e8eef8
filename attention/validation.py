"""Validation and conversion of the arguments of attention functions."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypedDict, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.checks import as_array, check_number, check_size, key_shape
from attention.arrays.named_axes import NamedAxes, leaf_axes
from attention.biases.base import BiasLike, as_bias
from attention.engines.dropout import Dropout
from attention.engines.inputs import Options, Settings
from attention.masks import Array, Mask, as_mask
from attention.normalizers.base import Normalizer
from attention.normalizers.softmax import Softmax
from attention.scores.base import Score

T = TypeVar("T")

IMPLEMENTATIONS = ("auto", "dense", "blockwise")


class AttendOptions(TypedDict, total=False):
  """The keyword arguments of `attend`, for functions that pass them on."""

  mask: Mask | Array | None
  bias: BiasLike | None
  dropout_rate: jax.Array | float
  dropout_rng: jax.Array | None
  normalizer: Normalizer | None
  return_weights: bool
  return_logsumexp: bool
  implementation: str
  block_sizes: tuple[int, int] | None


def check_names(function: str, options: Mapping[str, Any]) -> None:
  """Raises TypeError, as Python does, if a function of `AttendOptions` gets another keyword argument."""
  for name in options.keys() - AttendOptions.__annotations__.keys():
    raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def check_options(
  score: Score,
  *,
  mask: Mask | Array | None = None,
  bias: BiasLike | None = None,
  dropout_rate: jax.Array | float = 0.0,
  dropout_rng: jax.Array | None = None,
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
