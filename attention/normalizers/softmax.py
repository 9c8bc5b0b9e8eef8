"""The softmax, with an optional sink."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.checks import check_numbers
from attention.arrays.named_axes import register_pytree
from attention.arrays.shapes import with_rank
from attention.normalizers.base import Normalizer


@register_pytree
@dataclasses.dataclass(frozen=True)
class Softmax(Normalizer):
  """weights[t, s] = exp(scores[t, s]) / sum over r of exp(scores[t, r]).

  Attributes:
    sink: the score of an attention sink, one more key with a value of zero: exp(sink) is added to the sum. A
      number, or an array [...] with leading axes, such as [N] for heads. 0 is "softmax off by one".

  References:
    Xiao et al. 2024, arXiv:2309.17453; one trained score per head: OpenAI 2025, arXiv:2508.10925; 0: Miller
    2023, "Attention is off by one".
  """

  axes = {"sink": ""}
  sink: jax.Array | float | None = None

  def validate(self):
    if self.sink is not None:
      check_numbers("sink", self.sink, "a real number below infinity", lambda sink: sink < np.inf)

  def row_state(self, rows):
    row_max = rows.max()
    denominator = rows.sum(lambda tile: jnp.exp(tile.shifted(row_max)))
    denominator = jnp.where(denominator == 0, 1, denominator)
    return row_max, denominator, self.share(jnp.log(denominator), row_max)[0]

  def weights(self, tile, state):
    row_max, denominator, share = state
    return jnp.exp(tile.shifted(row_max)) / denominator * share

  def share(self, logsumexp: jax.Array, shift: jax.Array | float = 0) -> tuple[jax.Array, jax.Array]:
    """Returns the sum of the weights of all keys but the sink, and what the sink adds to the logsumexp.

    Args:
      logsumexp: of the keys, minus the shift, [... T 1].
      shift: a part of the logsumexp, kept apart for precision.
    """
    if self.sink is None:
      return jnp.ones_like(logsumexp), jnp.zeros_like(logsumexp)
    sink = with_rank(jnp.asarray(self.sink, logsumexp.dtype)[..., None, None], logsumexp.ndim)
    sink = jnp.where(sink < jnp.inf, sink, jnp.nan)  # an infinite score gives NaN, as for other keys
    excess = shift - sink + logsumexp
    return jax.nn.sigmoid(excess), jax.nn.softplus(-excess)
