"""How the layers of a transformer know where a word stands."""

import jax.numpy as jnp
from flax import linen as nn

from attention import positions

POSITIONS = ("sinusoidal", "relative", "rotary", "none")


class RelativeBias(nn.Module):
  """Holds the table [N R] of `positions.RelativePositions`, zeros at first; all layers of a stack share it.

  Source: Raffel et al. 2020, arXiv:1910.10683, section 2.1.

  Attributes:
    num_heads: N.
    bidirectional: as in `positions.RelativePositions`.
    num_buckets: R.
  """

  num_heads: int
  bidirectional: bool = True
  num_buckets: int = 32

  @nn.compact
  def __call__(self) -> positions.RelativePositions:
    table = self.param("table", nn.initializers.zeros, (self.num_heads, self.num_buckets), jnp.float32)
    return positions.RelativePositions(table, bidirectional=self.bidirectional)
