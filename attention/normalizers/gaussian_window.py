"""Softmax weights in a Gaussian window."""

import dataclasses

import jax
import jax.numpy as jnp

from attention.arrays.checks import as_real, check_numbers
from attention.arrays.named_axes import register_pytree
from attention.normalizers.base import Normalizer
from attention.normalizers.softmax import Softmax


@register_pytree
@dataclasses.dataclass(frozen=True)
class GaussianWindow(Normalizer):
  """Softmax weights times a Gaussian around an expected position.

      weights[t, s] = softmax(scores[t])[s] exp(-(s - centers[t])^2 / (2 stddev^2))

  Attributes:
    centers: real-valued key positions, [... T].
    stddev: positive; in the paper, half of the window radius D.

  References:
    Luong et al. 2015, arXiv:1508.04025, equation 10, "local-p". Use a mask to exclude keys outside the
    window.
  """

  axes = {"centers": "T", "stddev": ""}
  centers: jax.Array
  stddev: jax.Array | float

  def validate(self):
    check_numbers("stddev", self.stddev, "above 0 in float32", lambda stddev: stddev > 0)

  def row_state(self, rows):
    return Softmax().row_state(rows)

  def weights(self, tile, state):
    softmax = Softmax().weights(tile, state)
    centers = as_real("centers", self.centers).astype(softmax.dtype)[:, None]
    stddev = jnp.asarray(self.stddev, softmax.dtype)
    return softmax * jnp.exp(-(((tile.s.astype(softmax.dtype) - centers) / stddev) ** 2) / 2)
