"""Functions that close over traced arrays, as pytrees."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp

from attention.arrays.named_axes import NamedAxes, register_pytree
from attention.arrays.sharding import match_vma, varying


@register_pytree
@dataclasses.dataclass(frozen=True)
class Closure(NamedAxes):
  """A function and the traced arrays that it closes over.

  As a static field, a function that closes over a traced array would leak it out of loops and differentiation
  rules. A Closure instead holds these arrays as leaves, and a function that takes them.
  """

  has_user_code = True
  axes = {"arrays": "X"}  # flattened; the axis is never cut
  arrays: dict[int, jax.Array]  # not a list, which would be converted to an array
  function: Callable[..., Any] = dataclasses.field(metadata={"static": True})

  def __call__(self, *arguments: Any) -> Any:
    return self.function(*self.arrays.values(), *arguments)


def at_pairs(function: Callable[[jax.Array, jax.Array], jax.Array], t: jax.Array, s: jax.Array) -> jax.Array:
  """Evaluates a function of a query position and a key position, [...], at all pairs of a tile, [... T S].

  Args:
    function: takes two scalar positions.
    t: [T 1].
    s: [1 S].
  """
  row = jax.vmap(function, in_axes=(None, 0), out_axes=-1)
  return jax.vmap(row, in_axes=(0, None), out_axes=-2)(t[:, 0], s[0])


def closure(function: Callable[..., Any], *arguments: Any) -> Closure:
  """Returns a function as a Closure, for arguments with the given shapes.

  Args:
    function: returns a pytree of arrays.
    arguments: pytrees of arrays with the shapes of later calls.

  Raises:
    ValueError: inside `jax.shard_map`, if the traced arrays vary along different mesh axes than the
      arguments.
  """

  def trace(like: list[Any]) -> tuple[jax.extend.core.ClosedJaxpr, Any]:
    return jax.make_jaxpr(function, return_shape=True)(*match_vma(arguments, like))

  traced = [array for array in trace([])[0].consts if isinstance(array, jax.core.Tracer)]
  if not traced:
    return Closure({}, function)
  # Constants are in the order of this trace.
  closed, results = trace(traced)
  is_traced = [isinstance(const, jax.core.Tracer) for const in closed.consts]
  arrays = {i: jnp.ravel(const) for i, const in enumerate(closed.consts) if is_traced[i]}
  axes, structure = frozenset().union(*map(varying, arrays.values())), jax.tree.structure(results)

  def check_varying(*arrays: jax.Array) -> None:
    if any(varying(array) != axes for array in arrays):
      raise ValueError(
        "inside jax.shard_map, traced arrays that a mask or bias function closes over must vary over devices "
        'as queries and keys do: apply jax.lax.pcast(array, axis_name, to="varying") first'
      )

  def with_arrays(arrays: dict[int, jax.Array], *leaves: jax.Array) -> list[jax.Array]:
    consts = [jnp.reshape(arrays.get(i, const), const.shape) for i, const in enumerate(closed.consts)]
    return jax.extend.core.jaxpr_as_fun(jax.extend.core.ClosedJaxpr(closed.jaxpr, consts))(*leaves)

  num_arrays = len(arrays)
  check_varying(*arrays.values())
  # Traced again, since in JAX 0.12 the first jaxpr may contain the traced arrays themselves.
  closure_free = jax.make_jaxpr(with_arrays)(arrays, *match_vma(jax.tree.leaves(arguments), traced))

  def program(*arguments: Any) -> Any:
    """Takes the closed-over arrays, flattened, and then the arguments of the function."""
    flat = arguments[:num_arrays]
    leaves = match_vma(jax.tree.leaves(arguments[num_arrays:]), flat)
    check_varying(*flat, *leaves)
    return jax.tree.unflatten(structure, jax.extend.core.jaxpr_as_fun(closure_free)(*flat, *leaves))

  return Closure(arrays, program)
