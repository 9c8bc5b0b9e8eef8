"""Functions that close over traced arrays, as pytrees."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp

from attention.arrays.pytrees import NamedAxes, register_pytree
from attention.arrays.sharding import match_vma, varying


@register_pytree
@dataclasses.dataclass(frozen=True)
class Closure(NamedAxes):
  """A function, and the traced arrays that it closes over.

  A pytree keeps a function as it is. A traced array inside it would leak out of a loop or a rule of
  differentiation that calls the function, so the pytree holds the array, and a program that takes it.
  """

  has_user_code = True
  axes = {"arrays": "X"}  # flat, along an axis that is never cut
  arrays: dict[int, jax.Array]  # not a list, which would be taken for a list of numbers
  function: Callable[..., Any] = dataclasses.field(metadata={"static": True})

  def __call__(self, *arguments: Any) -> Any:
    return self.function(*self.arrays.values(), *arguments)


def at_pairs(function: Callable[[jax.Array, jax.Array], jax.Array], t: jax.Array, s: jax.Array) -> jax.Array:
  """Returns a function of a query's and a key's position, [...], at all pairs of a tile, [... T S].

  Args:
    function: of two single positions.
    t: [T 1].
    s: [1 S].
  """
  row = jax.vmap(function, in_axes=(None, 0), out_axes=-1)
  return jax.vmap(row, in_axes=(0, None), out_axes=-2)(t[:, 0], s[0])


def closure(function: Callable[..., Any], *arguments: Any) -> Closure:
  """Returns a function as a Closure, for arguments of these shapes.

  Args:
    function: returns a pytree of arrays.
    arguments: pytrees of arrays, like those that it will be called with.

  Raises:
    ValueError: inside `jax.shard_map`, if the traced arrays differ along different axes of the mesh.
  """

  def trace(like: list[Any]) -> tuple[jax.extend.core.ClosedJaxpr, Any]:
    return jax.make_jaxpr(function, return_shape=True)(*match_vma(arguments, like))

  traced = [array for array in trace([])[0].consts if isinstance(array, jax.core.Tracer)]
  if not traced:
    return Closure({}, function)
  # The order of what is closed over is this program's.
  closed, results = trace(traced)
  is_traced = [isinstance(const, jax.core.Tracer) for const in closed.consts]
  arrays = {i: jnp.ravel(const) for i, const in enumerate(closed.consts) if is_traced[i]}
  axes, structure = frozenset().union(*map(varying, arrays.values())), jax.tree.structure(results)

  def check_varying(*arrays: jax.Array) -> None:
    if any(varying(array) != axes for array in arrays):
      raise ValueError(
        "inside jax.shard_map, the traced arrays that the function of a mask or bias closes over must differ "
        'between devices as queries and keys do: first apply jax.lax.pcast(array, axis_name, to="varying")'
      )

  def with_arrays(arrays: dict[int, jax.Array], *own: jax.Array) -> list[jax.Array]:
    consts = [jnp.reshape(arrays.get(i, const), const.shape) for i, const in enumerate(closed.consts)]
    return jax.extend.core.jaxpr_as_fun(jax.extend.core.ClosedJaxpr(closed.jaxpr, consts))(*own)

  num_arrays = len(arrays)
  check_varying(*arrays.values())
  # Traced again, for the first program may hold the traced arrays themselves, in JAX 0.12.
  without = jax.make_jaxpr(with_arrays)(arrays, *match_vma(jax.tree.leaves(arguments), traced))

  def program(*arguments: Any) -> Any:
    """Takes the traced arrays that the function closed over, made flat, and then its own arguments."""
    flat = arguments[:num_arrays]
    own = match_vma(jax.tree.leaves(arguments[num_arrays:]), flat)
    check_varying(*flat, *own)
    return jax.tree.unflatten(structure, jax.extend.core.jaxpr_as_fun(without)(*flat, *own))

  return Closure(arrays, program)
