"""Checks of the shapes of scores, masks, biases and normalizers, before attention is computed."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.leading_axes import all_indices
from attention.arrays.named_axes import has_user_code, leaf_axes
from attention.arrays.shapes import broadcasts_to, check_pairs
from attention.biases.base import BiasAtIndex
from attention.masks.base import MaskAtIndex, one_pair_of
from attention.scores.base import Score


def scores_shape(score: Score, leading: tuple[int, ...], T: int, S: int) -> tuple[int, ...]:
  """Returns the shape of the scores, [... T S].

  Their leading axes are those of the vectors, broadcast with those of the score's arrays.

  Args:
    score: the score.
    leading: leading axes of queries, keys and values.
    T: number of queries.
    S: number of keys.

  Raises:
    ValueError: if the leading axes do not broadcast.
  """
  for path, leaf, letters in _leaves(score):
    own = np.shape(leaf)[: np.ndim(leaf) - len(letters)]
    name = f"{type(score).__name__}{jax.tree_util.keystr(path)}"
    if not letters and len(own) > max(len(leading), 1) and own[-2:] == (1, 1):
      raise ValueError(
        f"{name} must be a number or an array of leading axes, such as [N] for heads, without axes T and S, "
        f"got shape {own}"
      )
    try:
      leading = jnp.broadcast_shapes(leading, own)
    except ValueError:
      raise ValueError(
        f"the leading axes of {name}, before those named in `axes`, must broadcast with {leading}, those of "
        f"queries, keys and values, got shape {np.shape(leaf)}"
      ) from None
  return (*leading, T, S)


def check_components(options: Any, shape: tuple[int, ...]) -> None:
  """Raises ValueError if an array of the score, mask, bias or normalizer does not broadcast to the scores.

  Args:
    options: `Options`.
    shape: of the scores, [... T S].
  """
  *leading, T, S = shape
  sizes = {"T": T, "S": S}
  for field in ("score", "normalizer", "mask", "bias"):
    component = getattr(options, field)
    for path, leaf, letters in _leaves(component):
      got = np.shape(leaf)
      own = got[: len(got) - len(letters)]
      trailing = tuple(sizes.get(letter, size) for letter, size in zip(letters, got[len(own) :], strict=True))
      allowed = (*leading, *trailing)
      if broadcasts_to(got, allowed):
        continue
      if field in ("mask", "bias") and letters == "TS":
        check_pairs(field, got, shape)
      if field == "mask":
        check_pairs(field, component.full_shape(T, S), shape)
      name = f"{type(component).__name__}{jax.tree_util.keystr(path)}"
      hint = f", where T and S of {letters!r} count queries and keys" if {*letters} & {*"TS"} else ""
      raise ValueError(f"{name} must be broadcastable to {allowed}, got shape {got}{hint}")


def at_one_index(options: Any, shape: tuple[int, ...]) -> Any:
  """Returns the options with masks and biases that return a tile of one index of the leading axes.

  Args:
    options: `Options`.
    shape: of the scores, [... T S].

  Raises:
    ValueError: if the result of a mask or bias function does not broadcast to the scores.
  """
  *leading, T, S = shape
  wrappers: dict[str, Any] = {"mask": MaskAtIndex, "bias": BiasAtIndex}
  for field, wrapper in wrappers.items():
    component = getattr(options, field)
    if has_user_code(component) and not isinstance(component, wrapper):
      pair = jax.eval_shape(lambda component=component: one_pair_of(component))
      if pair.ndim > 2:
        check_pairs(field, (*pair.shape[:-2], T, S), shape)
        options = dataclasses.replace(options, **{field: wrapper(component, all_indices(tuple(leading)))})
  return options


def _leaves(component: Any) -> list[tuple[Any, Any, str]]:
  """Returns the path, the array and the axis letters of each leaf."""
  leaves = jax.tree_util.tree_leaves_with_path(component)
  return [(*leaf, letters) for leaf, letters in zip(leaves, leaf_axes(component), strict=True)]
