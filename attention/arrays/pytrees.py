"""Dataclasses as pytrees."""

import dataclasses
from typing import Any, TypeVar

import jax

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
