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


def check_rules(options: Any, leading: tuple[int, ...], T: int, S: int) -> tuple[Any, tuple[int, ...]]:
  """Returns the options, whose masks and biases see one index of leading axes, and the shape of the scores.

  The leading axes of the scores are those of the vectors, broadcast with those of the score's arrays.

  Args:
    options: `Options`.
    leading: leading axes of queries, keys and values.
    T: number of queries.
    S: number of keys.

  Raises:
    ValueError: if an array of the score, mask, bias or normalizer does not broadcast to the scores [... T S].
  """
  for path, leaf, letters in _leaves(options.score):
    own = np.shape(leaf)[: np.ndim(leaf) - len(letters)]
    name = f"{type(options.score).__name__}{jax.tree_util.keystr(path)}"
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
  shape, sizes = (*leading, T, S), {"T": T, "S": S}
  for field in ("score", "normalizer", "mask", "bias"):
    rule = getattr(options, field)
    for path, leaf, letters in _leaves(rule):
      got = np.shape(leaf)
      own = got[: len(got) - len(letters)]
      trailing = tuple(sizes.get(letter, size) for letter, size in zip(letters, got[len(own) :], strict=True))
      allowed = (*leading, *trailing)
      if broadcasts_to(got, allowed):
        continue
      if field in ("mask", "bias") and letters == "TS":
        check_pairs(field, got, shape)
      if field == "mask":
        check_pairs(field, rule.full_shape(T, S), shape)
      name = f"{type(rule).__name__}{jax.tree_util.keystr(path)}"
      hint = f", where T and S of {letters!r} count queries and keys" if {*letters} & {*"TS"} else ""
      raise ValueError(f"{name} must be broadcastable to {allowed}, got shape {got}{hint}")
  at_index: dict[str, Any] = {"mask": MaskAtIndex, "bias": BiasAtIndex}
  for field, wrapper in at_index.items():
    rule = getattr(options, field)
    if has_user_code(rule) and not isinstance(rule, wrapper):
      pair = jax.eval_shape(lambda rule=rule: one_pair_of(rule))
      if pair.ndim > 2:
        check_pairs(field, (*pair.shape[:-2], T, S), shape)
        options = dataclasses.replace(options, **{field: wrapper(rule, all_indices(leading))})
  return options, shape


def _leaves(rule: Any) -> list[tuple[Any, Any, str]]:
  """Returns the path, the array and the axis letters of each leaf."""
  leaves = jax.tree_util.tree_leaves_with_path(rule)
  return [(*leaf, letters) for leaf, letters in zip(leaves, leaf_axes(rule), strict=True)]
