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


def axes_of(tree: Any) -> list[str | None]:
  """Returns the own axes of each leaf of a pytree of HasAxes, None where they are not named.

  Raises:
    ValueError: if an array has fewer axes than are named.
  """
  found = []
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    own = _axes_at(tree, path)
    if own is not None and np.ndim(leaf) < len(own):
      where = type(tree).__name__ + jax.tree_util.keystr(path)
      raise ValueError(f"{where} must have axes [... {' '.join(own)}], got shape {np.shape(leaf)}")
    found.append(own)
  return found


def names_its_axes(tree: Any) -> bool:
  """Whether all arrays of a pytree of HasAxes, but single numbers, have named axes."""
  return all(
    own is not None or np.ndim(leaf) == 0
    for own, leaf in zip(axes_of(tree), jax.tree.leaves(tree), strict=True)
  )


def _axes_at(node: Any, path: tuple[Any, ...]) -> str | None:
  """Returns the axes of the leaf that a path of keys leads to, as the last HasAxes on the way names them."""
  own = None
  for key in path:
    name = getattr(key, "name", "")
    if isinstance(node, HasAxes):
      own = node.axes.get(name)
    if name:
      node = getattr(node, name, None)
    elif isinstance(node, (list, tuple)):
      node = node[key.idx]
    elif isinstance(node, dict):
      node = node[key.key]
    else:
      node = None
  return own
