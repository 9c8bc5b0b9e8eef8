"""The score and the options of an attention."""

import dataclasses
from typing import Any

import jax

from attention.arrays.pytrees import register_pytree
from attention.masks import Array, Mask
from attention.scores.score import Score


@register_pytree
@dataclasses.dataclass(frozen=True)
class Options:
  """The score and the options of an attention, checked. Static fields decide which program is compiled."""

  score: Score
  mask: Mask | None
  bias: Any
  dropout_rate: Array | None
  dropout_rng: jax.Array | None
  normalizer: Any
  return_weights: bool = dataclasses.field(metadata={"static": True})
  return_logsumexp: bool = dataclasses.field(metadata={"static": True})
  implementation: str = dataclasses.field(metadata={"static": True})
  block_sizes: tuple[int, int] | None = dataclasses.field(metadata={"static": True})

  def returned(self, attended: Any) -> Any:
    """Returns the context alone, unless more was asked for."""
    return attended if self.return_weights or self.return_logsumexp else attended.context
