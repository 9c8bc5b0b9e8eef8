"""Parameters from layers of PyTorch."""

import functools
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from attention.arrays.checks import check_size
from attention.convert.state import State, variables_of
from attention.layers.encoder_layer import EncoderLayer, FeedForward
from attention.layers.multi_head import MultiHeadAttention
from attention.layers.projections import LayerNorm
from attention.models.gru import GRUWeights


def torch_multi_head_attention(
  state: Mapping[str, Any], num_heads: int, *, prefix: str = ""
) -> dict[str, Any]:
  """Returns variables of `MultiHeadAttention` from `torch.nn.MultiheadAttention`.

  For a module without `bias=True`, the layer needs `use_bias=False`. For one with `add_zero_attn=True`, which
  the state does not show, it needs `normalizer=Softmax(0.0)`. `add_bias_kv` is not supported.

  Args:
    state: the state of the module.
    num_heads: number of heads, N.
    prefix: see `attention.convert`.

  Raises:
    ValueError: if the state is not a mapping to arrays, an array is missing or has an incompatible shape, or
      there are parameters that this package's layer lacks.
  """
  layer = State(state, prefix)
  layer.split("in_proj", *_INPUTS)
  # Keys and values may have other widths than queries.
  D = layer.array("q_proj.weight", None, None).shape[1]
  inputs = [jnp.zeros((1, layer.array(f"{name}.weight", D, None).shape[1])) for name in _INPUTS]
  module = MultiHeadAttention(num_heads, use_bias="in_proj.bias" in layer)
  (variables,) = variables_of(module, [layer], _ATTENTION, *inputs)
  layer.check_all_read()
  return variables


def torch_encoder_layer(state: Mapping[str, Any], num_heads: int, *, prefix: str = "") -> dict[str, Any]:
  """Returns variables of `EncoderLayer` from `torch.nn.TransformerEncoderLayer`.

  The layer needs `norm_position="post"`, or "pre" for `norm_first=True`; `norm_cls` with epsilon=1e-5, and a
  `FeedForward` with the same activation ("gelu" is `functools.partial(nn.gelu, approximate=False)`).

  Args:
    state: the state of the module.
    num_heads: number of heads, N.
    prefix: see `attention.convert`.

  Raises:
    ValueError: see `torch_multi_head_attention`.
  """
  layer = State(state, prefix)
  layer.within("self_attn.").split("in_proj", *_INPUTS)
  F, D = layer.array("linear1.weight", None, None).shape
  use_bias = "linear1.bias" in layer
  module = EncoderLayer(
    num_heads,
    F,
    norm_cls=functools.partial(LayerNorm, use_bias=use_bias),
    self_attention_cls=functools.partial(MultiHeadAttention, use_bias=use_bias),
    feed_forward_cls=functools.partial(FeedForward, use_bias=use_bias),
  )
  (variables,) = variables_of(module, [layer], _ENCODER, jnp.zeros((1, D)))
  layer.check_all_read()
  return variables


_INPUTS = ("q_proj", "k_proj", "v_proj")
_ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
_ENCODER = {
  **{f"attention/{ours}": f"self_attn.{theirs}" for ours, theirs in _ATTENTION.items()},
  "attention_norm": "norm1",
  "feed_forward/hidden": "linear1",
  "feed_forward/out": "linear2",
  "feed_forward_norm": "norm2",
}


def torch_gru(
  state: Mapping[str, Any], *, layer: int = 0, reverse: bool = False, prefix: str = ""
) -> GRUWeights:
  """Returns weights for `gru` from one layer of `torch.nn.GRU`, or from `torch.nn.GRUCell`.

  Args:
    state: the state of the module.
    layer: number of the layer.
    reverse: whether to read the backward direction of a bidirectional layer.
    prefix: see `attention.convert`.

  Raises:
    ValueError: see `torch_multi_head_attention`. Arrays of other layers and directions are ignored.
  """
  weights = State(state, prefix)
  suffix = f"_l{check_size('layer', layer, least=0)}{'_reverse' if reverse else ''}"
  suffix = "" if suffix == "_l0" and "weight_ih" in weights else suffix
  H = weights.array(f"weight_hh{suffix}", None, None).shape[1]
  recurrent = weights.array(f"weight_hh{suffix}", 3 * H, H)
  kernel = weights.array(f"weight_ih{suffix}", 3 * H, None)
  bias = recurrent_bias = jnp.zeros(3 * H, kernel.dtype)
  if any(f"{name}{suffix}" in weights for name in ("bias_ih", "bias_hh")):
    bias, recurrent_bias = (weights.array(f"{name}{suffix}", 3 * H) for name in ("bias_ih", "bias_hh"))
  bias = bias.at[: 2 * H].add(recurrent_bias[: 2 * H])
  weights.check_all_read(suffix=suffix)
  return GRUWeights(kernel.T, recurrent.T, bias, recurrent_bias[2 * H :])
