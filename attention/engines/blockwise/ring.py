"""Keys that are spread over a ring of devices: each device meets the keys of all of them, one part at a time.

Source: Liu et al. 2023, arXiv:2310.01889.
"""

import functools
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp

from attention.arrays.devices import varying, varying_like
from attention.arrays.loops import Arrays
from attention.arrays.recomputing import recomputed
from attention.engines.blockwise.plan import Plan

T = TypeVar("T")


def over_parts(
  plan: Plan,
  function: Callable[[Arrays], T],
  join: Callable[[T, T], T],
  nothing: Callable[[], T],
  arrays: Arrays,
  axes: Sequence[str | None],
) -> T:
  """Returns what `function` finds in all parts of the keys, joined.

  Each part comes straight from its device, when its turn has come, and again for derivatives. Were it handed
  on from neighbour to neighbour, derivatives would have to keep all of them.

  Args:
    plan: the plan, with the axis of the mesh; None if all keys are here.
    function: takes arrays with those of a part in the place of this device's keys.
    join: joins what it has found in two parts.
    nothing: gives what would be found in no key.
    arrays: this device's.
    axes: the own axes of each.

  Raises:
    ValueError: if it cannot be told whether an array belongs to the queries or to the keys.
  """
  ring = plan.ring
  if ring is None:
    return function(arrays)
  devices = jax.lax.axis_size(ring)
  moves = [_belongs_to_keys(plan, array, own) for array, own in zip(arrays, axes, strict=True)]

  def from_behind(distance: int, moving: Arrays) -> Arrays:
    routes = [(source, (source + distance) % devices) for source in range(devices)]
    return [jax.lax.ppermute(array, ring, routes) for array in moving] if distance else moving

  @recomputed
  def find(distance: jax.Array, arrays: Arrays) -> T:
    moving = [array for array, move in zip(arrays, moves, strict=True) if move]
    fetches = [functools.partial(from_behind, distance) for distance in range(devices)]
    fetched = iter(jax.lax.switch(distance, fetches, moving))
    return function([next(fetched) if move else array for array, move in zip(arrays, moves, strict=True)])

  def step(found: T, distance: jax.Array) -> tuple[T, None]:
    return join(found, find(distance, arrays)), None

  arrays = varying_like(arrays, arrays)
  return jax.lax.scan(step, varying_like(nothing(), arrays), jnp.arange(devices))[0]


def _belongs_to_keys(plan: Plan, array: jax.Array, own: str | None) -> bool:
  """Whether an array has something for each key of this device, and not for each query."""
  if own is None or "S" not in own:
    return False
  if "T" not in own:
    return True
  T, S = (array.shape[array.ndim - len(own) + own.index(letter)] for letter in "TS")
  if 1 == T == S == plan.queries.length == plan.keys.length and plan.ring in varying(array):
    raise ValueError(
      "where a device has one query and one key, a mask or bias [... 1 1] may belong to either: "
      "use one that knows, such as `masks.lengths`, or give each device more of them"
    )
  return T == 1 and plan.keys.length == S
