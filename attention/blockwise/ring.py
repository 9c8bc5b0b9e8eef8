"""Keys that are spread over a ring of devices: each device meets the keys of all of them, one part at a time.

Source: Liu et al. 2023, arXiv:2310.01889.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax

from attention.tiles import Arrays

# Takes arrays and their own axes, returns them with those of the part in the place of this device's keys.
Part: TypeAlias = Callable[[Arrays, Sequence[str | None]], Arrays]


def parts(ring: str | None) -> list[Part]:
  """Returns what fetches each part of the keys, this device's own first.

  Each comes straight from its device. Were it handed on from neighbour to neighbour, the derivatives would
  have to keep all of them.

  Args:
    ring: the axis of the mesh; None if all keys are here.
  """
  return [_part(ring, distance) for distance in range(1 if ring is None else jax.lax.axis_size(ring))]


def _part(ring: str | None, distance: int) -> Part:
  """Returns what fetches the keys of the device so far behind in the ring."""

  def fetch(arrays: Arrays, axes: Sequence[str | None]) -> Arrays:
    if ring is None or distance == 0:
      return arrays
    count = jax.lax.axis_size(ring)
    routes = [(source, (source + distance) % count) for source in range(count)]
    return [
      jax.lax.ppermute(array, ring, routes) if own is not None and "S" in own else array
      for array, own in zip(arrays, axes, strict=True)
    ]

  return fetch
