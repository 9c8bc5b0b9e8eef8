"""Properties of the device."""

import jax


def is_cpu() -> bool:
  """Returns whether to compute one tile at a time, which suits CPU caches, instead of many together.

  This is decided by the default device at trace time. Results are valid on any device.
  """
  return jax.default_backend() == "cpu"
