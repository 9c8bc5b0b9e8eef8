"""Shapes and dtypes: the few rules that masks, scores and engines share."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from attention.marks import nan_where


class HasAxes:
  """A pytree that names the axes of its arrays, so that they can be cut: a score, a mask, a bias.

  Attributes:
    axes: for a field, its own axes, one letter each: {"score_vector": "A"}, {"segments": "S"}, {"scale": ""}.
      What precedes them are leading axes that broadcast, like those of the queries. An axis "T" or "S" holds
      something for each query or key. A field that is not named is never cut.
  """

  axes: ClassVar[Mapping[str, str]] = {}


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


def with_rank(array: jax.Array, rank: int) -> jax.Array:
  """Returns the array with axes of size 1 put in front until it has the given rank."""
  return jnp.expand_dims(array, tuple(range(rank - array.ndim)))


def same_rank(*arrays: jax.Array) -> list[jax.Array]:
  """Returns the arrays with axes of size 1 put in front until all have the largest rank."""
  rank = max(array.ndim for array in arrays)
  return [with_rank(array, rank) for array in arrays]


def broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
  """Whether an array of `shape` can be broadcast to `target` and adds no axis to it."""
  trailing = target[len(target) - len(shape) :]
  return len(shape) <= len(target) and all(
    size in (1, wanted) for size, wanted in zip(shape, trailing, strict=True)
  )


# What an error says where lengths [B] were given for heads [B N].
PUT_IN_A_ONE = "; leading axes count from the right: put in a 1 for one that is not there, array[:, None]"

# What an error says where shapes look like those of other libraries.
LAYOUT = "if heads come after positions, [B T N H], put them before, [B N T H]: jnp.swapaxes(array, -3, -2)"


def lacks_an_axis(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
  """Whether a shape would have the target's rank and broadcast to it with a 1 behind its first axis."""
  with_one = (*shape[:1], 1, *shape[1:])
  return len(with_one) == len(target) and broadcasts_to(with_one, target)


def broadcast_leading(*arrays: jax.Array, names: str) -> tuple[int, ...]:
  """Returns the broadcast of all axes but the last two; `names` is for the error."""
  shapes = [array.shape[:-2] for array in arrays]
  try:
    return jnp.broadcast_shapes(*shapes)
  except ValueError:
    got = ", ".join(str(array.shape) for array in arrays)
    raise ValueError(f"leading axes of {names} must broadcast, got shapes {got}") from None


def varying_like(tree: Any, arrays: Any) -> Any:
  """Returns the tree as one that differs from device to device wherever one of the arrays does.

  Inside `jax.shard_map` a loop's first value must be declared so; elsewhere this does nothing.
  """
  names = frozenset().union(*(varying(array) for array in jax.tree.leaves(arrays)))
  return jax.tree.map(lambda leaf: jax.lax.pcast(leaf, tuple(names - varying(leaf)), to="varying"), tree)


def varying(array: jax.Array) -> frozenset[str]:
  """Returns the axes of a device mesh along which an array differs."""
  aval: Any = jax.typeof(array)
  return aval.manual_axis_type.varying if hasattr(aval, "manual_axis_type") else aval.vma  # before JAX 0.10


def are_spread_by_type(*arrays: jax.Array) -> bool:
  """Whether an array's type says that it is spread over devices, as on meshes with `AxisType.Explicit`."""
  avals: list[Any] = [jax.typeof(array) for array in arrays]
  return any(axis is not None for aval in avals for axis in aval.sharding.spec)


# For functions whose derivative calculates them again, and keeps nothing but their arguments.
recomputed = functools.partial(
  jax.checkpoint, policy=jax.checkpoint_policies.nothing_saveable, prevent_cse=False
)


def compute_dtype(dtype: jnp.dtype) -> jnp.dtype:
  """Returns the dtype for scores, softmax and sums: float32, or float64 for float64."""
  return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)


def matmul_precision() -> str:
  """Returns the precision of products: full, unless the user has set one.

  By default a GPU rounds float32 factors to 10 bits and a TPU to 8. Products that start from half-precision
  inputs are no exception: the softmax's weights and projected queries are float32 numbers of their own.
  """
  return jax.config.jax_default_matmul_precision or "highest"  # type: ignore[attr-defined]


def check_rank(name: str, array: jax.Array, axes: str) -> None:
  """Raises ValueError unless the array has at least the named axes, such as "[... T H]"."""
  rank = len(axes.strip("[]").replace("...", "").split())
  if array.ndim < rank:
    raise ValueError(f"{name} must have axes {axes}, got shape {array.shape}")


def linear(vectors: jax.Array, kernel: jax.Array, dtype: jnp.dtype | None = None) -> jax.Array:
  """Returns vectors [... D] times a kernel [D X], [... X], in a dtype, or in theirs.

  The leading axes become one: with more of them, XLA for CPUs copies an operand of the product that is the
  kernel's gradient, and takes three times as long. Positions that are spread over devices should therefore
  meet it inside `jax.shard_map`; outside, XLA would put them together.
  """
  side_by_side = vectors.reshape(math.prod(vectors.shape[:-1]), vectors.shape[-1])
  products = jnp.einsum("ND,DX->NX", side_by_side, kernel, preferred_element_type=dtype)
  return products.reshape(*vectors.shape[:-1], kernel.shape[-1])


def project(function: Callable[[jax.Array], jax.Array], inputs: jax.Array) -> jax.Array:
  """Returns a projection of vectors [... T D] to [... T X] or [... N T X].

  A vector that holds a NaN or infinity becomes NaN, and gives no gradient: if it is masked, its zero
  gradient would be multiplied by it on the way to the projection's weights, and 0 * NaN is NaN.

  Raises:
    ValueError: if the vectors are not of a floating type.
  """
  if not jnp.issubdtype(inputs.dtype, jnp.floating):
    raise ValueError(f"queries, keys, sources and contexts must be of a floating type, got {inputs.dtype}")
  finite = jnp.all(jnp.isfinite(inputs), axis=-1, keepdims=True)
  with jax.default_matmul_precision(matmul_precision()):
    outputs = function(jnp.where(finite, inputs, 0))
  if outputs.ndim > inputs.ndim:  # [... N T X]: heads were split off
    finite = jnp.expand_dims(finite, -3)
  return jnp.where(finite, outputs, 0) + nan_where(~finite, outputs.dtype)
