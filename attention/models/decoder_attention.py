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
  "coverage": functools.partial(
    LocationAwareAttention, num_filters=1, kernel_size=1, accumulate_weights=True
  ),
  "monotonic": MonotonicAttention,
  "local": LocalAttention,
  "none": lambda: None,
}
ATTENTION_TYPES = tuple(_LAYERS)


class DecoderMemory(NamedTuple):
  """What a decoder's steps attend to; it stays the same for a whole sentence.

  Attributes:
    keys_values: keys and values, which the attention computes once for the source; None without attention.
    lengths: how many of the S positions are real, [B].
    final_state: the encoder's summary, [B D].
  """

  keys_values: tuple[jax.Array, jax.Array] | None
  lengths: jax.Array
  final_state: jax.Array


class AttentionResult(NamedTuple):
  """What queries have found in a memory.

  Attributes:
    context: [B T D].
    weights: [B N T S]; None without attention.
    state: for the next query, as in `layers.stateful_attention.AttentionStep`; None without a state.
  """

  context: jax.Array
  weights: Any = None
  state: Any = None


def make_attention_layer(
  name: str, *, features: int, num_heads: int, implementation: str, normalizer: Normalizer | None
) -> nn.Module | None:
  """Returns the layer that a name of `ATTENTION_TYPES` stands for, None for "none".

  Raises:
    ValueError: if it stands for nothing, or for what makes its weights without the normalizer.
  """
  if name not in ATTENTION_TYPES:
    raise ValueError(f"attention must be one of {', '.join(ATTENTION_TYPES)}, got {name!r}")
  options: dict[str, Any] = {}
  if name not in ("local", "monotonic", "none"):
    options = {"implementation": implementation, "normalizer": normalizer}
  elif normalizer is not None:
    raise ValueError(f'normalizer must be None with attention "{name}", got {normalizer!r}')
  if name == "multi_head":
    options |= {"num_heads": num_heads, "qkv_features": features, "out_features": features}
  elif name not in ("bilinear", "local", "none"):
    options["features"] = features
  return _LAYERS[name](**options)


def is_stateful(layer: Any) -> bool:
  """Returns whether a layer's weights depend on its previous weights (see `layers.stateful_attention`)."""
  return hasattr(layer, "step")


def context_width(layer: Any, memory: DecoderMemory) -> int:
  """Returns how wide the contexts are that a layer finds in a memory."""
  keys_values: Any = memory.keys_values
  values = keys_values[1]  # [B S D], of heads [B N S H]
  return values.shape[-1] * (values.shape[1] if isinstance(layer, MultiHeadAttention) else 1)


def attend(
  layer: Any,
  queries: jax.Array,
  memory: DecoderMemory,
  state: Any = None,
  *,
  deterministic: bool = True,
  hard: bool = False,
) -> AttentionResult:
  """Returns what queries find.

  Args:
    layer: the attention; None for none.
    queries: [B T H]; T is 1 for a layer that remembers.
    memory: of the source.
    state, deterministic, hard: as in `StatefulAttention.step`; without effect for a layer that
      remembers nothing.
  """
  if layer is None:
    B, D = memory.final_state.shape
    return AttentionResult(jnp.broadcast_to(memory.final_state[:, None], (B, queries.shape[1], D)))
  if is_stateful(layer):
    output = layer.step(
      queries[:, 0],
      memory.keys_values,
      state,
      mask=masks.lengths(source=memory.lengths),
      deterministic=deterministic,
      hard=hard,
    )
    return AttentionResult(output.context[:, None], output.weights[:, None, None], output.state)
  has_heads = isinstance(layer, MultiHeadAttention)
  lengths = memory.lengths[:, None] if has_heads else memory.lengths
  contexts, weights = layer.attend_with_kv(
    queries, memory.keys_values, mask=masks.lengths(source=lengths), return_weights=True
  )
  return AttentionResult(contexts, weights if has_heads else weights[:, None])


def mean_of_heads(weights: jax.Array | None) -> jax.Array | None:
  """Returns weights [B N ...] as [B ...], None as it is."""
  if weights is None:
    return None
  return jnp.mean(weights, axis=1) if weights.shape[1] > 1 else weights[:, 0]
