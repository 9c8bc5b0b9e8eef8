"""How a decoder looks at its source: the attentions it knows by name, and one way to call them all."""

import functools
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
from attention.layers.attention_layers import LocalAttention
from attention.layers.stateful_attention import LocationAwareAttention, MonotonicAttention

_LAYERS: dict[str, Any] = {
  "additive": AdditiveAttention,
  "dot_product": functools.partial(DotProductAttention, scale=1.0),
  "scaled_dot_product": DotProductAttention,
  "bilinear": BilinearAttention,
  "cosine": CosineAttention,
  "multi_head": MultiHeadAttention,
  "location_aware": LocationAwareAttention,
  "coverage": functools.partial(LocationAwareAttention, num_filters=1, filter_width=1, accumulates=True),
  "monotonic": MonotonicAttention,
  "local": LocalAttention,
  "none": lambda: None,
}
ATTENTIONS = tuple(_LAYERS)


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


class Looked(NamedTuple):
  """What queries have found in a memory.

  Attributes:
    contexts: [B T D].
    weights: [B N T S]; None without attention.
    remembered: for the next query, as in `layers.stepwise.Looked`; None for nothing.
  """

  contexts: jax.Array
  weights: Any = None
  remembered: Any = None


def make_attention(
  name: str, *, width: int, num_heads: int, implementation: str, normalizer: Normalizer | None
) -> nn.Module | None:
  """Returns the layer that a name of `ATTENTIONS` stands for, None for "none".

  Raises:
    ValueError: if it stands for nothing, or for what makes its weights without the normalizer.
  """
  if name not in ATTENTIONS:
    raise ValueError(f"attention must be one of {', '.join(ATTENTIONS)}, got {name!r}")
  options: dict[str, Any] = {}
  if name not in ("local", "monotonic", "none"):
    options = {"implementation": implementation, "normalizer": normalizer}
  elif normalizer is not None:
    raise ValueError(f'normalizer must be None with attention "{name}", got {normalizer!r}')
  if name not in ("bilinear", "local", "none"):
    options["width"] = width
  if name == "multi_head":
    options["num_heads"] = num_heads
  return _LAYERS[name](**options)


def remembers(layer: Any) -> bool:
  """Returns whether what a layer finds depends on where it looked before (see `layers.stepwise`)."""
  return hasattr(layer, "attend_next")


def context_width(layer: Any, memory: DecoderMemory) -> int:
  """Returns how wide the contexts are that a layer finds in a memory."""
  prepared: Any = memory.prepared
  values = prepared[1]  # [B S D], of heads [B N S H]
  return values.shape[-1] * (values.shape[1] if isinstance(layer, MultiHeadAttention) else 1)


def look(
  layer: Any,
  queries: jax.Array,
  memory: DecoderMemory,
  remembered: Any = None,
  *,
  deterministic: bool = True,
  is_hard: bool = False,
) -> Looked:
  """Returns what queries find.

  Args:
    layer: the attention; None for none.
    queries: [B T H]; T is 1 for a layer that remembers.
    memory: of the source.
    remembered, deterministic, is_hard: as in `StepwiseAttention.attend_next`; without effect for a layer that
      remembers nothing.
  """
  if layer is None:
    B, D = memory.summary.shape
    return Looked(jnp.broadcast_to(memory.summary[:, None], (B, queries.shape[1], D)))
  if remembers(layer):
    found = layer.attend_next(
      queries[:, 0],
      memory.prepared,
      remembered,
      mask=masks.lengths(source=memory.lengths),
      deterministic=deterministic,
      is_hard=is_hard,
    )
    return Looked(found.context[:, None], found.weights[:, None, None], found.remembered)
  has_heads = isinstance(layer, MultiHeadAttention)
  lengths = memory.lengths[:, None] if has_heads else memory.lengths
  contexts, weights = layer.attend_prepared(
    queries, memory.prepared, mask=masks.lengths(source=lengths), return_weights=True
  )
  return Looked(contexts, weights if has_heads else weights[:, None])


def mean_of_heads(weights: jax.Array | None) -> jax.Array | None:
  """Returns weights [B N ...] as [B ...], None as it is."""
  if weights is None:
    return None
  return jnp.mean(weights, axis=1) if weights.shape[1] > 1 else weights[:, 0]
