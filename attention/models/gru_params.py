"""The parameters of a GRU as a Flax module."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention.arrays.checks import check_size
from attention.layers.projections import kernel_init
from attention.models.gru import GRUWeights


class GRUModule(nn.Module):
  """The weights of a GRU with states of width `features`, for functions that take all weights."""

  features: int

  @nn.compact
  def __call__(self, input_width: int) -> GRUWeights:
    check_size("features", self.features)
    H = self.features
    orthogonal = nn.initializers.orthogonal()

    def recurrent_init(rng, shape, dtype):
      blocks = [orthogonal(block_rng, (H, H), dtype) for block_rng in jax.random.split(rng, 3)]
      return jnp.concatenate(blocks, axis=1)

    return GRUWeights(
      input=self.param("input", kernel_init, (input_width, 3 * H), jnp.float32),
      recurrent=self.param("recurrent", recurrent_init, (H, 3 * H), jnp.float32),
      bias=self.param("bias", nn.initializers.zeros, (3 * H,), jnp.float32),
      recurrent_bias=self.param("recurrent_bias", nn.initializers.zeros, (H,), jnp.float32),
    )
