"""Sharded arrays."""

import contextlib
from typing import Any

import jax


def match_vma(tree: Any, arrays: Any) -> Any:
  """Marks the leaves of a tree as varying over the mesh axes along which any of the arrays varies.

  Inside `jax.shard_map`, the initial carry of a loop must be marked so; elsewhere this has no effect.
  """
  names = frozenset().union(*(varying(array) for array in jax.tree.leaves(arrays)))
  return jax.tree.map(lambda leaf: jax.lax.pcast(leaf, tuple(names - varying(leaf)), to="varying"), tree)


def varying(array: jax.Array) -> frozenset[str]:
  """Returns the mesh axes along which an array varies."""
  aval: Any = jax.typeof(array)
  return aval.manual_axis_type.varying


def is_explicitly_sharded(*arrays: jax.Array) -> bool:
  """Returns whether the type of an array contains a sharding, as on meshes with `AxisType.Explicit`."""
  avals: list[Any] = [jax.typeof(array) for array in arrays]
  return any(axis is not None for aval in avals for axis in aval.sharding.spec)


def match_sharding(tree: Any, axes: Any) -> Any:
  """Shards one axis of each array of a pytree as the first array that is sharded along it.

  `jax.vmap` requires it of arrays whose type contains a sharding.

  Args:
    tree: the arrays.
    axes: the axis of each array, or None if an array lacks it.
  """

  def names_of(array: Any, axis: int | None) -> Any:
    return None if axis is None else jax.typeof(array).sharding.spec[axis]

  structure: Any
  leaves, structure = jax.tree.flatten(tree)
  axes = structure.flatten_up_to(axes)
  names = next((names for names in map(names_of, leaves, axes) if names is not None), None)

  def with_names(array: Any, axis: int | None) -> jax.Array:
    if names is None or axis is None or names_of(array, axis) == names:
      return array
    spec = [*jax.typeof(array).sharding.spec]
    return jax.sharding.reshard(array, jax.sharding.PartitionSpec(*spec[:axis], names, *spec[axis + 1 :]))

  return structure.unflatten(map(with_names, leaves, axes))


def mesh_of(*arrays: jax.Array) -> contextlib.AbstractContextManager[Any]:
  """Returns a context with the mesh of arrays whose type contains a sharding.

  `jax.vmap` over such an axis needs it (JAX 0.12); `jax.set_mesh` is optional otherwise.
  """
  for array in arrays:
    if is_explicitly_sharded(array):
      aval: Any = jax.typeof(array)
      return jax.sharding.use_abstract_mesh(aval.sharding.mesh)
  return contextlib.nullcontext()


def leading_axes_may_be_sharded() -> bool:
  """Returns whether leading axes may be sharded over devices, which is unknown inside `jax.jit`.

  Tiles then have all leading axes, since a loop over a sharded axis would gather the arrays on each device.
  Inside `jax.shard_map` no axis is sharded, since each device only sees its shard.
  """
  kinds = jax.sharding.get_abstract_mesh().axis_types
  if jax.sharding.AxisType.Explicit in kinds:
    return True
  is_in_shard_map = bool(kinds) and all(kind == jax.sharding.AxisType.Manual for kind in kinds)
  return jax.device_count() > 1 and not is_in_shard_map
