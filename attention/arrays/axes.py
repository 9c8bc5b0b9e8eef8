"""The own axes of the arrays that scores, masks and biases hold."""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import numpy as np


class HasAxes:
  """A pytree that names the axes of its arrays, so that they can be cut: a score, a mask, a bias.

  Attributes:
    axes: for a field, its own axes, one letter each: {"score_vector": "A"}, {"segments": "S"}, {"scale": ""}.
      Axes before these are leading axes that broadcast, like those of the queries. An axis "T" or "S" holds
      something for each query or key. A field that is not named is never cut.
    has_user_code: whether a class of this library calls functions of the user.
  """

  axes: ClassVar[Mapping[str, str]] = {}
  has_user_code: ClassVar[bool] = False

  def check_values(self) -> None:
    """Raises ValueError if a number that it holds is not allowed, and is known: not traced by `jax.jit`."""


def axes_of(tree: Any) -> list[str]:
  """Returns the own axes of each leaf of a pytree of HasAxes, "?" for each axis without a name.

  Raises:
    ValueError: if an array has fewer axes than are named.
  """
  found = []
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    node, own = tree, None
    for key in path:  # the last HasAxes on the way names them
      if isinstance(node, HasAxes):
        own = node.axes.get(getattr(key, "name", ""))
      node = _child(node, key)
    if own is not None and np.ndim(leaf) < len(own):
      where = type(tree).__name__ + jax.tree_util.keystr(path)
      raise ValueError(f"{where} must have axes [... {' '.join(own)}], got shape {np.shape(leaf)}")
    found.append("?" * np.ndim(leaf) if own is None else own)
  return found


def _child(node: Any, key: Any) -> Any:
  """Returns what a key of a path leads to, None if that is unknown."""
  if isinstance(node, (list, tuple)) and isinstance(key, jax.tree_util.SequenceKey):
    return node[key.idx]
  if isinstance(node, dict) and isinstance(key, jax.tree_util.DictKey):
    return node[key.key]
  return getattr(node, getattr(key, "name", ""), None)
