"""Dataclasses as pytrees."""

import dataclasses
from typing import Any, TypeVar

import jax

T = TypeVar("T")


def register_pytree(cls: type[T]) -> type[T]:
  """Registers a dataclass as a pytree; static fields are marked as for `jax.tree_util.register_dataclass`.

  To JAX 0.10 to 0.12 the trees of two classes that `register_dataclass` has registered are equal, and now and
  then `jax.jit` takes the program of one for the other. To trees registered in this way it does not happen.
  """
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
