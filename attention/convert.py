"""Parameters from PyTorch and from models of Hugging Face, as parameters of the layers of this package.

Each function takes a state: a mapping from names to arrays, such as `module.state_dict()` or
`safetensors.numpy.load_file(path)`. PyTorch is not imported. Names that begin with `prefix` are read, such as
"encoder.layer.0."; others are ignored. Arrays keep their dtype, but
float64 becomes float32 unless `jax_enable_x64` is set.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.checks import check_size
from attention.models.gru_rule import GRUWeights


def torch_multi_head_attention(
  state: Mapping[str, Any], num_heads: int, *, prefix: str = ""
) -> dict[str, Any]:
  """Returns variables of `MultiHeadAttention` from `torch.nn.MultiheadAttention`.

  For a module without `bias=True`, the layer needs `use_bias=False`. `add_bias_kv` is not supported.

  Args:
    state: the state of the module.
    num_heads: number of heads, N.
    prefix: see above.

  Raises:
    ValueError: if an array is missing, or its shape does not fit the number of heads.
  """
  return {"params": _torch_attention(_State(state, prefix), num_heads)}


def torch_encoder_layer(state: Mapping[str, Any], num_heads: int, *, prefix: str = "") -> dict[str, Any]:
  """Returns variables of `EncoderLayer` from `torch.nn.TransformerEncoderLayer`.

  The layer needs `norm_position="post"`, or "pre" for `norm_first=True`; `norm_cls` with epsilon=1e-5, and a
  `FeedForward` with the same activation ("gelu" is `functools.partial(nn.gelu, approximate=False)`).

  Args:
    state: the state of the module.
    num_heads: number of heads, N.
    prefix: see above.

  Raises:
    ValueError: see `torch_multi_head_attention`.
  """
  layer = _State(state, prefix)
  return _encoder_layer(
    attention=_torch_attention(layer.within("self_attn."), num_heads),
    attention_norm=layer.norm("norm1"),
    feed_forward={"hidden": layer.linear("linear1"), "out": layer.linear("linear2")},
    feed_forward_norm=layer.norm("norm2"),
  )


def torch_gru(
  state: Mapping[str, Any], *, layer: int = 0, reverse: bool = False, prefix: str = ""
) -> GRUWeights:
  """Returns weights for `gru` from one layer of `torch.nn.GRU`, or from `torch.nn.GRUCell`.

  Args:
    state: the state of the module.
    layer: number of the layer.
    reverse: whether to read the backward direction of a bidirectional layer.
    prefix: see above.

  Raises:
    ValueError: if an array is missing.
  """
  weights = _State(state, prefix)
  suffix = f"_l{layer}{'_reverse' if reverse else ''}"
  suffix = "" if suffix == "_l0" and f"{prefix}weight_ih" in state else suffix
  kernel, recurrent = weights[f"weight_ih{suffix}"].T, weights[f"weight_hh{suffix}"].T
  H = recurrent.shape[0]
  bias, recurrent_bias = jnp.zeros(3 * H, kernel.dtype), jnp.zeros(3 * H, kernel.dtype)
  if f"{prefix}bias_ih{suffix}" in state:
    bias, recurrent_bias = weights[f"bias_ih{suffix}"], weights[f"bias_hh{suffix}"]
  return GRUWeights(kernel, recurrent, bias.at[: 2 * H].add(recurrent_bias[: 2 * H]), recurrent_bias[2 * H :])


def bert_layer(state: Mapping[str, Any], num_heads: int, *, prefix: str = "") -> dict[str, Any]:
  """Returns variables of `EncoderLayer` from a layer of BERT ("bert.encoder.layer.0.").

  The layer needs `norm_position="post"`, `norm_cls=functools.partial(LayerNorm, epsilon=1e-12)`, and a
  `FeedForward` with `activation=functools.partial(nn.gelu, approximate=False)`.

  Args:
    state: the state of the model or of the layer.
    num_heads: number of heads, N.
    prefix: see above.

  Raises:
    ValueError: see `torch_multi_head_attention`.
  """
  layer = _State(state, prefix)
  names = "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"
  return _encoder_layer(
    attention=_attention(layer, names, num_heads, num_heads),
    attention_norm=layer.norm("attention.output.LayerNorm"),
    feed_forward={"hidden": layer.linear("intermediate.dense"), "out": layer.linear("output.dense")},
    feed_forward_norm=layer.norm("output.LayerNorm"),
  )


def gpt2_layer(state: Mapping[str, Any], num_heads: int, *, prefix: str = "") -> dict[str, Any]:
  """Returns variables of `EncoderLayer` from a block of GPT-2 ("transformer.h.0.").

  The layer needs `norm_cls=functools.partial(LayerNorm, epsilon=1e-5)`, a `FeedForward` with
  `activation=nn.gelu`, and `mask=masks.causal()`.

  Args:
    state: the state of the model or of the block.
    num_heads: number of heads, N.
    prefix: see above.

  Raises:
    ValueError: see `torch_multi_head_attention`.
  """
  layer = _State(state, prefix)
  kernels = jnp.split(layer["attn.c_attn.weight"], 3, axis=-1)  # GPT-2 stores kernels as [D X]
  biases = jnp.split(layer["attn.c_attn.bias"], 3)
  attention = {
    name: _to_heads(kernel.T, bias, num_heads)
    for name, kernel, bias in zip(("query", "key", "value"), kernels, biases, strict=True)
  }
  out = _from_heads(layer["attn.c_proj.weight"].T, layer["attn.c_proj.bias"], num_heads)
  return _encoder_layer(
    attention=attention | {"out": out},
    attention_norm=layer.norm("ln_1"),
    feed_forward={
      ours: {"kernel": layer[f"mlp.{theirs}.weight"], "bias": layer[f"mlp.{theirs}.bias"]}
      for ours, theirs in (("hidden", "c_fc"), ("out", "c_proj"))
    },
    feed_forward_norm=layer.norm("ln_2"),
  )


def t5_attention(state: Mapping[str, Any], num_heads: int, *, prefix: str = "") -> dict[str, Any]:
  """Returns variables of `MultiHeadAttention` from an attention of T5 ("…layer.0.SelfAttention.").

  The layer needs `use_bias=False`, `score=ScaledDotProduct(1.0)`, and qkv_features if the heads are not as
  wide as the model. The bias of the first layer is `positions.RelativePositionBias(table, 128,
  bidirectional)`, with the table from `t5_bias_table`; it is not bidirectional in the decoder.

  Args:
    state: the state of the model or of the attention.
    num_heads: number of heads, N.
    prefix: see above.

  Raises:
    ValueError: see `torch_multi_head_attention`.
  """
  return {"params": _attention(_State(state, prefix), ("q", "k", "v", "o"), num_heads, num_heads)}


def t5_bias_table(state: Mapping[str, Any], *, prefix: str = "") -> jax.Array:
  """Returns the table [N R] of `positions.RelativePositionBias` from an attention of T5."""
  return _State(state, prefix)["relative_attention_bias.weight"].T


def llama_layer(
  state: Mapping[str, Any], num_heads: int, num_key_value_heads: int | None = None, *, prefix: str = ""
) -> dict[str, Any]:
  """Returns variables of `EncoderLayer` from a layer of Llama ("model.layers.0.").

  See `EncoderLayer` for the arguments of this layer. It needs `mask=masks.causal()`. The base of
  `positions.rotary` and the epsilon of `RMSNorm` are "rope_theta" and "rms_norm_eps" of the model's config.

  Args:
    state: the state of the model or of the layer.
    num_heads: number of heads, N.
    num_key_value_heads: number of heads of keys and values. Default: num_heads.
    prefix: see above.

  Raises:
    ValueError: see `torch_multi_head_attention`.
  """
  layer = _State(state, prefix)
  names = "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"
  return _encoder_layer(
    attention=_attention(
      layer, names, num_heads, num_heads if num_key_value_heads is None else num_key_value_heads
    ),
    attention_norm={"scale": layer["input_layernorm.weight"]},
    feed_forward={
      ours: layer.linear(f"mlp.{theirs}")
      for ours, theirs in (("hidden", "up_proj"), ("gate", "gate_proj"), ("out", "down_proj"))
    },
    feed_forward_norm={"scale": layer["post_attention_layernorm.weight"]},
  )


class _State:
  """The arrays whose names begin with a prefix."""

  def __init__(self, state: Mapping[str, Any], prefix: str):
    self._state, self._prefix = state, prefix

  def __getitem__(self, name: str) -> jax.Array:
    if self._prefix + name not in self._state:
      raise ValueError(
        f"state must have the name {self._prefix + name!r}, got {', '.join(sorted(self._state)[:8])}, …"
      )
    return jnp.asarray(np.asarray(self._state[self._prefix + name]))

  def get(self, name: str) -> jax.Array | None:
    return self[name] if self._prefix + name in self._state else None

  def within(self, prefix: str) -> "_State":
    return _State(self._state, self._prefix + prefix)

  def linear(self, name: str) -> dict[str, jax.Array]:
    bias = self.get(f"{name}.bias")
    return {"kernel": self[f"{name}.weight"].T} | ({} if bias is None else {"bias": bias})

  def norm(self, name: str) -> dict[str, jax.Array]:
    bias = self.get(f"{name}.bias")
    return {"scale": self[f"{name}.weight"]} | ({} if bias is None else {"bias": bias})


def _encoder_layer(**params: Any) -> dict[str, Any]:
  return {"params": params}


def _torch_attention(state: _State, num_heads: int) -> dict[str, Any]:
  """Returns parameters from `torch.nn.MultiheadAttention`."""
  if state.get("bias_k") is not None:
    raise ValueError("state must have no 'bias_k': add_bias_kv=True is not supported")
  together, biases = state.get("in_proj_weight"), state.get("in_proj_bias")
  names = "query", "key", "value"
  if together is not None:
    weights = jnp.split(together, 3)
  else:  # keys and values of other widths
    weights = [state[f"{letter}_proj_weight"] for letter in "qkv"]
  each: Any = [None] * 3 if biases is None else jnp.split(biases, 3)
  heads = {
    name: _to_heads(weight, bias, num_heads) for name, weight, bias in zip(names, weights, each, strict=True)
  }
  return heads | {"out": _from_heads(state["out_proj.weight"], state.get("out_proj.bias"), num_heads)}


def _attention(
  state: _State, names: tuple[str, str, str, str], num_heads: int, num_key_value_heads: int
) -> dict[str, Any]:
  """Returns parameters from four linear layers: query, key, value and output."""
  counts = num_heads, num_key_value_heads, num_key_value_heads
  params = {
    ours: _to_heads(state[f"{name}.weight"], state.get(f"{name}.bias"), count)
    for ours, name, count in zip(("query", "key", "value"), names, counts, strict=False)
  }
  out = names[3]
  return params | {"out": _from_heads(state[f"{out}.weight"], state.get(f"{out}.bias"), num_heads)}


def _to_heads(weight: jax.Array, bias: jax.Array | None, num_heads: int) -> dict[str, jax.Array]:
  """Returns the kernel [D N H] and bias [N H] of a weight [(N H) D]."""
  split = weight.T.reshape(-1, num_heads, _head_width(weight.shape[0], num_heads))
  return {"kernel": split} | ({} if bias is None else {"bias": bias.reshape(num_heads, -1)})


def _from_heads(weight: jax.Array, bias: jax.Array | None, num_heads: int) -> dict[str, jax.Array]:
  """Returns the kernel [N H D] and bias [D] of a weight [D (N H)]."""
  merged = weight.T.reshape(num_heads, _head_width(weight.shape[1], num_heads), -1)
  return {"kernel": merged} | ({} if bias is None else {"bias": bias})


def _head_width(features: int, num_heads: int) -> int:
  if features % check_size("num_heads", num_heads):
    raise ValueError(f"num_heads must divide the width of all heads, {features}, got {num_heads}")
  return features // num_heads
