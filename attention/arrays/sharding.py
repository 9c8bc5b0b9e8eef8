"""Arrays that are spread over devices, the precision to compute in, and what a device is good at."""

from typing import Any

import jax
import jax.numpy as jnp


def compute_dtype(dtype: jnp.dtype) -> jnp.dtype:
  """Returns the dtype for scores, softmax and sums: float32, or float64 for float64."""
  return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)


def matmul_precision() -> str:
  """Returns the precision of products: full, unless the user has set one.

  By default a GPU rounds float32 factors to 10 bits and a TPU to 8. Products that start from half-precision
  inputs are no exception: the softmax's weights and projected queries are float32 numbers of their own.
  """
  return jax.config.jax_default_matmul_precision or "highest"  # type: ignore[attr-defined]


def match_vma(tree: Any, arrays: Any) -> Any:
  """Returns the tree as one that differs from device to device wherever one of the arrays does.

  Inside `jax.shard_map` a loop's first value must be declared so; elsewhere this does nothing.
  """
  names = frozenset().union(*(varying(array) for array in jax.tree.leaves(arrays)))
  return jax.tree.map(lambda leaf: jax.lax.pcast(leaf, tuple(names - varying(leaf)), to="varying"), tree)


def varying(array: jax.Array) -> frozenset[str]:
  """Returns the axes of a device mesh along which an array differs."""
  aval: Any = jax.typeof(array)
  return aval.manual_axis_type.varying


def is_explicitly_sharded(*arrays: jax.Array) -> bool:
  """Whether an array's type says that it is spread over devices, as on meshes with `AxisType.Explicit`."""
  avals: list[Any] = [jax.typeof(array) for array in arrays]
  return any(axis is not None for aval in avals for axis in aval.sharding.spec)


def is_cpu() -> bool:
  """Whether to work on one tile after the other, as suits the cache of a CPU, and not on many at once.

  The default device decides when a function is traced. Either way is right on any device.
  """
  return jax.default_backend() == "cpu"


def leading_axes_may_be_spread() -> bool:
  """Whether arrays may be spread over devices along their leading axes, which `jax.jit` does not tell.

  Then tiles have all leading axes: a loop over them would gather the arrays on each device. Inside
  `jax.shard_map` none is spread, for each device sees its own part alone.
  """
  kinds = jax.sharding.get_abstract_mesh().axis_types
  is_own_part = bool(kinds) and all(kind == jax.sharding.AxisType.Manual for kind in kinds)
  return jax.device_count() > 1 and not is_own_part
