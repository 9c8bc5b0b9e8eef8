"""Position encodings: what tells attention, which sees a set, where each vector stands."""

import jax.numpy as jnp
import numpy as np


def sinusoidal(length: int, width: int) -> jnp.ndarray:
  """Returns the fixed encodings of positions 0 ... length - 1.

      encoding[t, 2i]     = sin(t / 10000^(2i / width))
      encoding[t, 2i + 1] = cos(t / 10000^(2i / width))

  Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.

  Args:
    length: number of positions T.
    width: D, even.

  Returns:
    Float32 in [-1, 1], [T D].

  Raises:
    ValueError: if the width is odd.

  >>> sinusoidal(2, 2).round(3).tolist()
  [[0.0, 1.0], [0.8410000205039978, 0.5400000214576721]]
  """
  if width % 2:
    raise ValueError(f"width must be even, got {width}")
  rates = 10_000.0 ** (-np.arange(0, width, 2) / width)
  angles = np.arange(length)[:, None] * rates[None, :]
  pairs = np.stack([np.sin(angles), np.cos(angles)], axis=-1)
  return jnp.asarray(pairs.reshape(length, width), jnp.float32)
