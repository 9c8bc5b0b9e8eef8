"""How a decoder looks at its source: the attentions it knows by name, and one way to call them all."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention import masks
from attention.engines.softmax import Normalizer
from attention.layers import (
  AdditiveAttention,
  BilinearAttention,
  CosineAttention,
  DotProductAttention,
  MultiHeadAttention,
)
from attention.layers.single_head import LocalAttention
from attention.layers.stepwise import LocationAwareAttention, Looked, MonotonicAttention

ATTENTIONS = (
  *("additive", "dot_product", "scaled_dot_product", "bilinear", "cosine", "multi_head"),
  *("location_aware", "coverage", "monotonic", "local", "none"),
)


class DecoderMemory(NamedTuple):
  """What a decoder's steps attend to; it stays the same for a whole sentence.

  Attributes:
    prepared: keys and values, which the attention computes once for the source; None without attention.
    lengths: how many of the S positions are real, [B].
    summary: the encoder's summary, [B D].
  """

  prepared: tuple[jax.Array, jax.Array] | None
  lengths: jax.Array
  summary: jax.Array


def make_attention(
  name: str, *, width: int, num_heads: int, implementation: str, normalizer: Normalizer | None
) -> nn.Module | None:
  """Returns the layer that a name of `ATTENTIONS` stands for, None for "none".

  Raises:
    ValueError: if it stands for nothing, or for what makes its weights without the normalizer.
  """
  options: dict[str, Any] = {"implementation": implementation, "normalizer": normalizer}
  if name in ("local", "monotonic", "none") and normalizer is not None:
    raise ValueError(f'normalizer must be None with attention "{name}", got {normalizer!r}')
  match name:
    case "additive":
      return AdditiveAttention(width=width, **options)
    case "dot_product":
      return DotProductAttention(width=width, scale=1.0, **options)
    case "scaled_dot_product":
      return DotProductAttention(width=width, **options)
    case "bilinear":
      return BilinearAttention(**options)
    case "cosine":
      return CosineAttention(width=width, **options)
    case "multi_head":
      return MultiHeadAttention(num_heads, width, **options)
    case "location_aware":
      return LocationAwareAttention(width=width, **options)
    case "coverage":
      return LocationAwareAttention(width=width, num_filters=1, filter_width=1, accumulates=True, **options)
    case "local":
      return LocalAttention()
    case "monotonic":
      return MonotonicAttention(width=width)
    case "none":
      return None
  raise ValueError(f"attention must be one of {', '.join(ATTENTIONS)}, got {name!r}")


def remembers(layer: Any) -> bool:
  """Returns whether what a layer finds depends on where it looked before (see `layers.stepwise`)."""
  return hasattr(layer, "attend_next")


def context_width(layer: Any, memory: DecoderMemory) -> int:
  """Returns how wide the contexts are that a layer finds in a memory."""
  if memory.prepared is None:
    return memory.summary.shape[-1]
  _, values = memory.prepared  # [B S D], of heads [B N S H]
  return values.shape[-1] * (values.shape[1] if isinstance(layer, MultiHeadAttention) else 1)


def look(layer: Any, queries: jax.Array, memory: DecoderMemory) -> tuple[jax.Array, jax.Array | None]:
  """Returns what all queries find at once, by a layer that remembers nothing.

  Args:
    layer: the attention; None for none.
    queries: [B T H].
    memory: of the source.

  Returns:
    The contexts [B T D], and the weights [B N T S], None without attention.
  """
  if layer is None:
    B, D = memory.summary.shape
    return jnp.broadcast_to(memory.summary[:, None], (B, queries.shape[1], D)), None
  has_heads = isinstance(layer, MultiHeadAttention)
  lengths = memory.lengths[:, None] if has_heads else memory.lengths
  contexts, weights = layer.attend_prepared(
    queries, memory.prepared, mask=masks.lengths(source=lengths), return_weights=True
  )
  return contexts, weights if has_heads else weights[:, None]


def look_next(
  layer: Any,
  queries: jax.Array,
  memory: DecoderMemory,
  remembered: Any,
  *,
  deterministic: bool = True,
  is_hard: bool = False,
) -> Looked:
  """Returns what one query of each sentence, [B H], finds; the weights are [B N S], None without attention.

  The other arguments are those of `StepwiseAttention.attend_next`; for a layer that remembers nothing they
  have no effect.
  """
  if not remembers(layer):
    contexts, weights = look(layer, queries[:, None], memory)
    return Looked(contexts[:, 0], None if weights is None else weights[:, :, 0], None)
  looked: Looked = layer.attend_next(
    queries,
    memory.prepared,
    remembered,
    mask=masks.lengths(source=memory.lengths),
    deterministic=deterministic,
    is_hard=is_hard,
  )
  return looked._replace(weights=looked.weights[:, None])


def mean_of_heads(weights: jax.Array | None) -> jax.Array | None:
  """Returns weights [B N ...] as [B ...], None as it is."""
  if weights is None:
    return None
  return jnp.mean(weights, axis=1) if weights.shape[1] > 1 else weights[:, 0]
