"""Dataclasses as pytrees, with names for the axes of their arrays."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

T = TypeVar("T")


def register_pytree(cls: type[T]) -> type[T]:
  """Registers a dataclass as a pytree, like `jax.tree_util.register_dataclass`.

  Fields with `dataclasses.field(metadata={"static": True})` are static. Other fields hold arrays, or pytrees
  of arrays.

  In JAX 0.10 to 0.12, tree structures of two classes registered by `register_dataclass` may compare equal, so
  that `jax.jit` runs the program of the wrong class. Structures of classes registered here never do.

  Returns:
    The class.

  Raises:
    TypeError: if the class is not a dataclass.

  >>> @register_pytree
  ... @dataclasses.dataclass(frozen=True)
  ... class Scale:
  ...   factor: jax.Array
  >>> jax.tree.leaves(Scale(2.0))
  [2.0]
  """
  if not hasattr(cls, "__dataclass_fields__"):
    raise TypeError(
      f"{cls.__name__} must be a dataclass: add @dataclasses.dataclass(frozen=True) below @register_pytree"
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


class NamedAxes:
  """A pytree that names the axes of its arrays, so that they can be cut: a score, mask, bias or normalizer.

  Attributes:
    axes: axis letters of each field: {"score_vector": "A", "segments": "S", "scale": ""}. Any axes before
      these are leading axes, such as heads, which broadcast with those of the queries: with "", an array [N]
      has one number per head. Methods see the array at one index of the leading axes. Along "T" or "S" an
      array has an entry for each query or key, and is cut into blocks. Other letters only count axes. Fields
      that are not listed are never cut.
    has_user_code: whether a class of this library calls user-defined functions.
  """

  axes: ClassVar[Mapping[str, str]] = {}
  has_user_code: ClassVar[bool] = False

  def validate(self) -> None:
    """Raises ValueError if a known (not traced) field has an invalid value."""


def leaf_axes(tree: Any) -> list[str]:
  """Returns the axis letters of each leaf of a pytree of NamedAxes, "?" for each axis without a name.

  Raises:
    ValueError: if an array has fewer axes than named, or a class is not registered as a pytree.
  """

  def is_nested(node: Any) -> bool:
    return isinstance(node, NamedAxes) and node is not tree

  axes = []
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_nested):
    if is_nested(leaf):
      axes += leaf_axes(leaf)
      continue
    if leaf is tree:
      raise ValueError(
        f"{type(tree).__name__} must be registered as a pytree: add @attention.register_pytree (or "
        "@jax.tree_util.register_dataclass) above @dataclasses.dataclass(frozen=True)"
      )
    field = getattr(path[0], "name", "") if path else ""
    letters = tree.axes.get(field) if isinstance(tree, NamedAxes) else None
    if letters is not None and np.ndim(leaf) < len(letters):
      name = type(tree).__name__ + jax.tree_util.keystr(path)
      raise ValueError(f"{name} must have axes [... {' '.join(letters)}], got shape {np.shape(leaf)}")
    axes.append("?" * np.ndim(leaf) if letters is None else letters)
  return axes


def first_index(tree: Any, *, of_pair: bool = False) -> Any:
  """Returns a pytree of NamedAxes at the first index of the leading axes.

  Args:
    tree: the pytree.
    of_pair: cut the arrays to the first query and the first key.
  """
  leaves, structure = jax.tree.flatten(tree)
  pairs = []
  for leaf, letters in zip(leaves, leaf_axes(tree), strict=True):
    cut = tuple(slice(1) if of_pair and letter in "TS" else slice(None) for letter in letters)
    array, rank = jnp.asarray(leaf), np.ndim(leaf) - len(letters)
    if 0 in array.shape[:rank]:  # no index exists, but callers only need shapes
      array = jnp.zeros((*[1] * rank, *array.shape[rank:]), array.dtype)
    pairs.append(array[(0,) * rank + cut])
  return jax.tree.unflatten(structure, pairs)


def has_user_code(tree: Any) -> bool:
  """Returns whether a pytree contains a user-defined function, or an instance of a user-defined class."""

  def is_user_code(node: Any) -> bool:
    return isinstance(node, NamedAxes) and (
      node.has_user_code or not type(node).__module__.startswith("attention.")
    )

  return any(map(is_user_code, jax.tree.leaves(tree, is_leaf=is_user_code)))
