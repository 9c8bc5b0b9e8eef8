"""The attention of a recurrent decoder: layers by name, and a common interface to all of them."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention import masks
from attention.layers import (
  AdditiveAttention,
  BilinearAttention,
  CosineAttention,
  DotProductAttention,
  MultiHeadAttention,
)
from attention.layers.attention_layers import LocalAttention
from attention.layers.stateful_attention import LocationAwareAttention, MonotonicAttention
from attention.normalizers.base import Normalizer

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
STEP_RNGS: Any = {"params": False, "dropout": True}  # which random numbers differ between the steps of a loop


class DecoderMemory(NamedTuple):
  """The encoded source that a decoder attends to, the same for all steps.

  Attributes:
    keys_values: keys and values, projected once per source; None without attention.
    lengths: number of valid positions of S, [B].
    final_state: final state of the encoder, [B D].
  """

  keys_values: tuple[jax.Array, jax.Array] | None
  lengths: jax.Array
  final_state: jax.Array


class AttentionResult(NamedTuple):
  """The result of attention to a memory.

  Attributes:
    context: [B T D].
    weights: [B N T S]; None without attention.
    state: state for the next query, as in `layers.stateful_attention.AttentionStep`; None if stateless.
  """

  context: jax.Array
  weights: Any = None
  state: Any = None


def make_attention_layer(
  name: str, *, features: int, num_heads: int, implementation: str, normalizer: Normalizer | None
) -> nn.Module | None:
  """Returns the layer with a name from `ATTENTION_TYPES`, or None for "none".

  Raises:
    ValueError: if the name is unknown, or the layer does not support the normalizer.
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
  """Returns whether a layer's weights depend on previous weights (see `layers.stateful_attention`)."""
  return hasattr(layer, "step")


def context_width(layer: Any, memory: DecoderMemory) -> int:
  """Returns the width of the contexts that a layer computes from a memory."""
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
  """Computes attention to a memory with any layer.

  Args:
    layer: the attention layer, or None without attention.
    queries: [B T H].
    memory: the encoded source.
    state, deterministic, hard: as in `StatefulAttention.step`; ignored by stateless layers.
  """
  if layer is None:
    B, D = memory.final_state.shape
    return AttentionResult(jnp.broadcast_to(memory.final_state[:, None], (B, queries.shape[1], D)))
  if is_stateful(layer):
    options: dict[str, Any] = {"deterministic": deterministic, "hard": hard}
    options["mask"] = masks.lengths(source=memory.lengths)

    def step(layer: Any, state: Any, queries: jax.Array) -> tuple[Any, Any]:
      output = layer.step(queries, memory.keys_values, state, **options)
      return output.state, (output.context, output.weights)

    if queries.shape[1] == 1:
      state, outputs = step(layer, state, queries[:, 0])
      contexts, weights = jax.tree.map(lambda array: array[:, None], outputs)
    else:
      scan: Any = nn.scan(step, variable_broadcast="params", split_rngs=STEP_RNGS, in_axes=1, out_axes=1)
      state, (contexts, weights) = scan(layer, state, queries)
    return AttentionResult(contexts, weights[:, None], state)
  has_heads = isinstance(layer, MultiHeadAttention)
  lengths = memory.lengths[:, None] if has_heads else memory.lengths
  contexts, weights = layer.attend_with_kv(
    queries, memory.keys_values, mask=masks.lengths(source=lengths), return_weights=True
  )
  return AttentionResult(contexts, weights if has_heads else weights[:, None])


def mean_of_heads(weights: jax.Array | None) -> jax.Array | None:
  """Returns the mean of weights [B N ...] over heads, [B ...]; None stays None."""
  if weights is None:
    return None
  return jnp.mean(weights, axis=1) if weights.shape[1] > 1 else weights[:, 0]
