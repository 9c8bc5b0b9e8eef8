"""The arrays of an attention, sorted once by what they follow: queries, keys, pairs of them, or neither.

To cut an array, a loop over leading axes, blocks or devices need only know which field it is in.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.axes import axes_of
from attention.arrays.broadcasting import with_rank
from attention.engines.inputs import Inputs
from attention.masks import BlockMask


class Operands(NamedTuple):
  """Four pytrees of arrays, whose leading axes, all of them, come first.

  Attributes:
    queries: what there is for each query, [... T *].
    keys: what there is for each key, [... S *].
    pairs: what there is for each pair, [... T S *].
    shared: all else, [... *].
  """

  queries: Any = None
  keys: Any = None
  pairs: Any = None
  shared: Any = None


# The axes that come first among an array's own, by the field it is in.
POSITIONS = Operands(queries="T", keys="S", pairs="TS", shared="")


@dataclasses.dataclass(frozen=True)
class Place:
  """Where an array of the Inputs is among the Operands.

  Attributes:
    field: of the Operands.
    axes: the array's own, one letter each; None if it does not name them, and is whole everywhere.
    shape: the array's.
    is_vector: whether it holds features or values.
  """

  field: str
  axes: str | None
  shape: tuple[int, ...]
  is_vector: bool

  def sorted(self, array: jax.Array, num_leading: int) -> jax.Array:
    """Returns the array with all leading axes, then its positions, then the rest."""
    if self.axes is None:
      return array.reshape((1,) * num_leading + self.shape)
    array = with_rank(array, num_leading + len(self.axes))
    return jnp.moveaxis(array, self._own(), range(num_leading, num_leading + len(self._own())))

  def restored(self, array: jax.Array) -> jax.Array:
    """Returns the array, or a tile of it, as its owner knows it."""
    if self.axes is None:
      return array.reshape(self.shape)
    first = array.ndim - len(self.axes)
    return jnp.moveaxis(array, range(first, first + len(self._own())), self._own())

  def _own(self) -> list[int]:
    """Returns where the owner of the array has its positions."""
    assert self.axes is not None
    return [self.axes.index(letter) - len(self.axes) for letter in getattr(POSITIONS, self.field)]


@dataclasses.dataclass(frozen=True, eq=False)  # to JAX the trees of two dataclasses may be equal
class Form:
  """How Inputs become Operands, each field a list with None for the arrays that are in another, and back."""

  structure: Any
  places: tuple[Place, ...]
  has_mask: bool

  @classmethod
  def of(cls, inputs: Inputs, T: int, S: int) -> "Form":
    """Returns the form of the inputs of T queries and S keys."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(inputs)
    places = [
      _place(own, np.shape(leaf), T, S, is_vector=path[0].name in ("queries", "keys", "values"))
      for own, (path, leaf) in zip(axes_of(inputs), leaves, strict=True)
    ]
    return cls(structure, tuple(places), inputs.mask is not None)

  def sort(self, inputs: Inputs, num_leading: int) -> Operands:
    """Returns the operands of inputs with so many leading axes."""
    leaves = jax.tree.leaves(inputs)
    arrays = [
      place.sorted(jnp.asarray(leaf), num_leading) for place, leaf in zip(self.places, leaves, strict=True)
    ]
    return Operands(
      *(
        [array if place.field == field else None for place, array in zip(self.places, arrays, strict=True)]
        for field in Operands._fields
      )
    )

  def restore(self, operands: Operands) -> Inputs:
    """Returns the inputs that were sorted, or those of a tile."""
    arrays = [getattr(operands, place.field)[i] for i, place in enumerate(self.places)]
    leaves = [place.restored(array) for place, array in zip(self.places, arrays, strict=True)]
    return jax.tree.unflatten(self.structure, leaves)

  def block_mask(self, operands: Operands) -> BlockMask:
    """Returns what the mask says of a tile as a whole."""
    inputs = self.restore(operands)
    assert inputs.mask is not None
    return inputs.mask.block_mask(*inputs.positions())

  def finite(self, operands: Operands, arrays: Operands) -> Operands:
    """Returns the operands, or their tangents, with zeros where features or values are not finite."""

    def clean(place: Place, operand: Any, array: Any) -> jax.Array | None:
      may_be_bad = array is not None and place.is_vector and jnp.issubdtype(operand.dtype, jnp.floating)
      return jnp.where(jnp.isfinite(operand), array, 0) if may_be_bad else array

    fields = zip(operands, arrays, strict=True)
    return Operands(*([clean(*each) for each in zip(self.places, *field, strict=True)] for field in fields))


def _place(axes: str | None, shape: tuple[int, ...], T: int, S: int, *, is_vector: bool) -> Place:
  """Returns the place of an array among the operands; an axis T or S of size 1 counts as none."""
  sizes = {} if axes is None else dict(zip(axes, shape[len(shape) - len(axes) :], strict=True))
  has_T = sizes.get("T") == T and not (T == 1 and "S" in sizes)
  has_S = sizes.get("S") == S and not (S == 1 and "T" in sizes)
  field = {(True, True): "pairs", (True, False): "queries", (False, True): "keys"}.get(
    (has_T, has_S), "shared"
  )
  return Place(field, axes, shape, is_vector)
