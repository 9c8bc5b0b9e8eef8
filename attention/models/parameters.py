"""Flax: weights that models hold, for functions that take them whole."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention.arrays.numbers import check_size
from attention.arrays.precision import compute_dtype
from attention.layers.parameters import kernel_init
from attention.models.recurrent import GRUWeights
from attention.projections import linear


def logits_of(features: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
  """Returns logits [... V] of features [... H], in float32 also where these are of fewer bits."""
  logits = linear(features, kernel, compute_dtype(features.dtype))
  return logits + jnp.broadcast_to(bias.astype(logits.dtype), logits.shape)


class LinearParameters(nn.Module):
  """Holds the kernel [D X] and the bias [X] of a product with vectors of any width D."""

  width: int

  @nn.compact
  def __call__(self, input_width: int) -> tuple[jax.Array, jax.Array]:
    kernel = self.param("kernel", kernel_init, (input_width, self.width), jnp.float32)
    return kernel, self.param("bias", nn.initializers.zeros, (self.width,), jnp.float32)


class GRUParameters(nn.Module):
  """Holds the weights of a GRU with states of the given width."""

  width: int

  @nn.compact
  def __call__(self, input_width: int) -> GRUWeights:
    check_size("width", self.width)
    H = self.width
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
