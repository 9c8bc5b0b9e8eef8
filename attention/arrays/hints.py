"""Hints in errors about shapes that follow another library's layout, or lack an axis."""

from attention.arrays.broadcasting import broadcasts_to

# What an error says where shapes look like those of other libraries.
LAYOUT = "if heads come after positions, [B T N H], put them before, [B N T H]: jnp.swapaxes(array, -3, -2)"


def ones_hint(count: int) -> str:
  """Returns a hint for lengths [B] where heads need [B N], or a mask [B S] where [B N T S] is needed."""
  return (
    f"; leading axes count from the right: put in a 1 for one that is not there, array[:{', None' * count}]"
    if count
    else ""
  )


def axes_lacking(shape: tuple[int, ...], target: tuple[int, ...]) -> int:
  """Returns how many axes of 1 behind its first make a shape broadcast to the target; 0 if none do."""
  count = len(target) - len(shape)
  with_ones = (*shape[:1], *[1] * count, *shape[1:])
  return count if shape and broadcasts_to(with_ones, target) else 0
