"""Dataclasses as pytrees, and the own axes of the arrays that they hold."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import jax
import numpy as np

T = TypeVar("T")


def register_pytree(cls: type[T]) -> type[T]:
  """Registers a dataclass as a pytree, like `jax.tree_util.register_dataclass`; returns the class.

  A field is static, known when a program is compiled, if it is
  `dataclasses.field(metadata={"static": True})`. The others hold arrays, or pytrees of them.

  In JAX 0.10 to 0.12, trees of two classes that were registered by `register_dataclass` compare equal, and
  `jax.jit` may run the program of one class for the other. Trees registered here compare unequal.

  >>> @register_pytree
  ... @dataclasses.dataclass(frozen=True)
  ... class Scale:
  ...   factor: jax.Array
  >>> jax.tree.leaves(Scale(2.0))
  [2.0]
  """
  if not hasattr(cls, "__dataclass_fields__"):
    raise TypeError(
      f"{cls.__name__} must be a dataclass: put @dataclasses.dataclass(frozen=True) below @register_pytree"
    )
  fields: Any = dataclasses.fields(cls)  # type: ignore[arg-type]
  static = [field.name for field in fields if field.metadata.get("static")]
  dynamic = [field.name for field in fields if field.name not in static]

  def flatten(tree: T) -> tuple[list[Any], tuple[Any, ...]]:
    return [getattr(tree, name) for name in dynamic], tuple(getattr(tree, name) for name in static)

  def flatten_with_keys(tree: T) -> tuple[list[Any], tuple[Any, ...]]:
    leaves, known = flatten(tree)
    return [(jax.tree_util.GetAttrKey(name), leaf) for name, leaf in zip(dynamic, leaves, strict=True)], known

  def unflatten(known: tuple[Any, ...], leaves: Any) -> T:
    return cls(**dict(zip(dynamic, leaves, strict=True)), **dict(zip(static, known, strict=True)))

  jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
  return cls


def combine(some: Any, others: Any) -> Any:
  """Returns the leaves of one pytree, and those of another where they are None."""
  return jax.tree.map(
    lambda one, other: other if one is None else one, some, others, is_leaf=lambda leaf: leaf is None
  )


class NamedAxes:
  """A pytree that names the axes of its arrays, so that they can be cut: a score, a mask, a bias.

  Attributes:
    axes: for each field, its own axes, one letter each: {"score_vector": "A", "segments": "S", "scale": ""}.
      Axes before these are leading axes, such as heads, which broadcast like those of the queries: with "",
      an array [N] has a number for each head. An axis "T" or "S" has an entry for each query or key, and is
      cut into blocks; other letters only say how many axes there are. Fields without names are never cut.
    has_user_code: whether a class of this library calls functions of the user.
  """

  axes: ClassVar[Mapping[str, str]] = {}
  has_user_code: ClassVar[bool] = False

  def validate(self) -> None:
    """Raises ValueError if a number that it holds is not allowed, and is known: not traced by `jax.jit`."""


def leaf_axes(tree: Any) -> list[str]:
  """Returns the own axes of each leaf of a pytree of NamedAxes, "?" for each axis without a name.

  Raises:
    ValueError: if an array has fewer axes than are named.
  """

  def is_inside(node: Any) -> bool:
    return isinstance(node, NamedAxes) and node is not tree

  found = []
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_inside):
    if is_inside(leaf):
      found += leaf_axes(leaf)
      continue
    field = getattr(path[0], "name", "") if path else ""
    own = tree.axes.get(field) if isinstance(tree, NamedAxes) else None
    if own is not None and np.ndim(leaf) < len(own):
      where = type(tree).__name__ + jax.tree_util.keystr(path)
      raise ValueError(f"{where} must have axes [... {' '.join(own)}], got shape {np.shape(leaf)}")
    found.append("?" * np.ndim(leaf) if own is None else own)
  return found
