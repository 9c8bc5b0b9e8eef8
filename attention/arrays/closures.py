"""Functions that close over traced arrays, as pytrees."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp

from attention.arrays.axes import HasAxes
from attention.arrays.devices import varying, varying_like
from attention.arrays.pytrees import register_pytree


@register_pytree
@dataclasses.dataclass(frozen=True)
class Closure(HasAxes):
  """A function, and the traced arrays that it closes over.

  A pytree keeps a function as it is. A traced array inside it would leak out of a loop or a rule of
  differentiation that calls the function, so the pytree holds the array, and a program that takes it.
  """

  has_user_code = True
  axes = {"arrays": "X"}  # flat, along an axis that is never cut
  arrays: dict[int, jax.Array]  # not a list, which would be taken for a list of numbers
  function: Callable[..., Any] = dataclasses.field(metadata={"static": True})

  def __call__(self, *arguments: jax.Array) -> Any:
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


def closure(function: Callable[..., Any], *arguments: jax.Array) -> Closure:
  """Returns a function as a Closure, for arguments of these shapes.

  Args:
    function: returns a pytree of arrays.
    arguments: any, like those that it will be called with.

  Raises:
    ValueError: inside `jax.shard_map`, if the traced arrays differ along different axes of the mesh.
  """

  def trace(like: list[Any]) -> tuple[jax.extend.core.ClosedJaxpr, Any]:
    return jax.make_jaxpr(function, return_shape=True)(*varying_like(arguments, like))

  traced = [array for array in trace([])[0].consts if isinstance(array, jax.core.Tracer)]
  if not traced:
    return Closure({}, function)
  # The order of what is closed over is this program's.
  closed, results = trace(traced)
  arrays = {i: array for i, array in enumerate(closed.consts) if isinstance(array, jax.core.Tracer)}
  constants = (jax.typeof(array) if i in arrays else array for i, array in enumerate(closed.consts))
  axes = frozenset().union(*map(varying, arrays.values()))
  program = _Program(closed.jaxpr, tuple(constants), axes, jax.tree.structure(results))
  program.check_varying(*arrays.values())
  return Closure({i: jnp.ravel(array) for i, array in arrays.items()}, program)


@dataclasses.dataclass(frozen=True, eq=False)
class _Program:
  """A traced function that takes the traced arrays that it closed over, made flat, and then its own.

  Attributes:
    jaxpr: the function.
    constants: what it closed over, with its type in the place of each traced array.
    axes: the axes of a device mesh along which its arguments must differ.
    structure: of its results.
  """

  jaxpr: jax.extend.core.Jaxpr
  constants: tuple[Any, ...]
  axes: frozenset[str]
  structure: Any

  def __call__(self, *arguments: jax.Array) -> Any:
    is_traced = [isinstance(constant, jax.core.ShapedArray) for constant in self.constants]
    arrays, own = arguments[: sum(is_traced)], arguments[sum(is_traced) :]
    own = varying_like(own, arrays)
    self.check_varying(*arrays, *own)
    flat = iter(arrays)
    constants = [
      next(flat).reshape(constant.shape) if here else constant
      for here, constant in zip(is_traced, self.constants, strict=True)
    ]
    closed = jax.extend.core.ClosedJaxpr(self.jaxpr, constants)
    return jax.tree.unflatten(self.structure, jax.extend.core.jaxpr_as_fun(closed)(*own))

  def check_varying(self, *arrays: jax.Array) -> None:
    """Raises ValueError unless arrays differ between devices as they did when the function was traced."""
    if any(varying(array) != self.axes for array in arrays):
      raise ValueError(
        "inside jax.shard_map, the traced arrays that the function of a mask or bias closes over must differ "
        'between devices as queries and keys do: first apply jax.lax.pcast(array, axis_name, to="varying")'
      )
