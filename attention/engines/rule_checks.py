"""Checks of the shapes of scores, masks, biases and normalizers, before attention is computed."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.leading_axes import all_indices
from attention.arrays.named_axes import has_user_code, leaf_axes
from attention.arrays.shapes import broadcasts_to, check_pairs
from attention.masks.base import one_pair_of


def check_rules(options: Any, shape: tuple[int, ...]) -> Any:
  """Returns the options, with the `index` that functions with leading axes need.

  Args:
    options: `Options`.
    shape: of the scores, [... T S].

  Raises:
    ValueError: if an array of the score, mask, bias or normalizer does not broadcast to the shape.
  """
  _check_axes(options.score, shape)
  _check_axes(options.normalizer, shape)
  T, S = shape[-2:]
  has_leading_axes = False
  for name, rule in (("mask", options.mask), ("bias", options.bias)):
    if rule is None:
      continue
    for leaf, letters in zip(jax.tree.leaves(rule), leaf_axes(rule), strict=True):
      if letters == "TS":
        check_pairs(name, np.shape(leaf), shape)
    if options.index is not None:  # has been checked
      continue
    if name == "mask":
      check_pairs(name, rule.full_shape(T, S), shape)
    else:
      _check_axes(rule, shape)
    if has_user_code(rule):
      pair = jax.eval_shape(lambda rule=rule: one_pair_of(rule))
      if pair.ndim > 2:
        has_leading_axes = True
        check_pairs(name, (*pair.shape[:-2], T, S), shape)
  return dataclasses.replace(options, index=all_indices(shape[:-2])) if has_leading_axes else options


def leading_axes(score: Any, leading: tuple[int, ...]) -> tuple[int, ...]:
  """Returns the leading axes of the scores: those of the queries, keys and values, and of the score's arrays.

  Raises:
    ValueError: if they do not broadcast, or an array has axes of size 1 for T and S after its leading axes.
  """
  result = leading
  for (path, leaf), letters in zip(jax.tree_util.tree_leaves_with_path(score), leaf_axes(score), strict=True):
    own = np.shape(leaf)[: np.ndim(leaf) - len(letters)]
    name = f"{type(score).__name__}{jax.tree_util.keystr(path)}"
    if not letters and len(own) > max(len(leading), 1) and own[-2:] == (1, 1):
      raise ValueError(
        f"{name} must be a number or an array of leading axes, such as [N] for heads, without axes T and S, "
        f"got shape {own}"
      )
    try:
      result = jnp.broadcast_shapes(result, own)
    except ValueError:
      raise ValueError(
        f"the leading axes of {name} must broadcast with {leading}, those of queries, keys and values, "
        f"got shape {np.shape(leaf)}"
      ) from None
  return result


def _check_axes(tree: Any, shape: tuple[int, ...]) -> None:
  """Raises ValueError unless the arrays of a rule broadcast to scores of a shape [... T S]."""
  sizes = {"T": shape[-2], "S": shape[-1]}
  for (path, leaf), letters in zip(jax.tree_util.tree_leaves_with_path(tree), leaf_axes(tree), strict=True):
    got = np.shape(leaf)
    trailing = zip(letters, got[len(got) - len(letters) :], strict=True)
    allowed = (*shape[:-2], *(sizes.get(letter, size) for letter, size in trailing))
    if not broadcasts_to(got, allowed):
      name = f"{type(tree).__name__}{jax.tree_util.keystr(path)}"
      raise ValueError(f"{name} must be broadcastable to {allowed}, got shape {got}")
