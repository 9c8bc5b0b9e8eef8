"""Parameters from PyTorch and from models of Hugging Face, as parameters of the layers of this package.

Each function takes a state: a mapping from names to arrays, such as `module.state_dict()` or
`safetensors.numpy.load_file(path)`. PyTorch is not imported. Names that begin with `prefix` are read, such as
"encoder.layer.0."; others are ignored. Parameters with the prefix that this package's layer lacks are an
error, since its outputs would differ. Arrays keep their dtype, but float64 becomes float32 unless
`jax_enable_x64` is set. Tensors of bfloat16 must first be converted, such as by `module.float()`.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.checks import check_size
from attention.models.gru_rule import GRUWeights

Linear = tuple[jax.Array, jax.Array | None]  # weight [X D], bias [X] or None
# Buffers, and the parameter of `t5_bias_table`.
_OTHERS = "attn.bias", "attn.masked_bias", "self_attn.rotary_emb.inv_freq", "relative_attention_bias.weight"


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
    ValueError: if an array is missing, its shape does not fit the number of heads, or there are
      parameters that this package's layer lacks.
  """
  layer = _State(state, prefix)
  return layer.variables(_attention(_torch_linears(layer), num_heads))


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
  linears = _torch_linears(layer, "self_attn.")
  return _encoder_layer(layer, linears, num_heads, norms=("norm1", "norm2"), hidden="linear1", out="linear2")


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
  if any(f"{prefix}{name}{suffix}" in state for name in ("bias_ih", "bias_hh")):
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
  norms = "attention.output.LayerNorm", "output.LayerNorm"
  return _encoder_layer(
    layer, map(layer.linear, names), num_heads, norms=norms, hidden="intermediate.dense", out="output.dense"
  )


def gpt2_layer(state: Mapping[str, Any], num_heads: int, *, prefix: str = "") -> dict[str, Any]:
  """Returns variables of `EncoderLayer` from a block of GPT-2 ("h.0." or "transformer.h.0.").

  The layer needs `norm_cls=functools.partial(LayerNorm, epsilon=1e-5)`, a `FeedForward` with
  `activation=nn.gelu`, and `mask=masks.causal()`.

  Args:
    state: the state of the model or of the block.
    num_heads: number of heads, N.
    prefix: see above.

  Raises:
    ValueError: see `torch_multi_head_attention`.
  """
  layer = _State(state, prefix, has_kernels=True)
  arrays = layer.linear("attn.c_attn")[0], layer["attn.c_attn.bias"]
  linears = [*zip(*(jnp.split(array, 3) for array in arrays), strict=True), layer.linear("attn.c_proj")]
  return _encoder_layer(
    layer, linears, num_heads, norms=("ln_1", "ln_2"), hidden="mlp.c_fc", out="mlp.c_proj"
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
  layer = _State(state, prefix)
  return layer.variables(_attention(map(layer.linear, "qkvo"), num_heads))


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
    layer,
    map(layer.linear, names),
    num_heads,
    num_key_value_heads,
    norms=("input_layernorm", "post_attention_layernorm"),
    hidden="mlp.up_proj",
    gate="mlp.gate_proj",
    out="mlp.down_proj",
  )


class _State:
  """The arrays whose names begin with a prefix."""

  def __init__(self, state: Mapping[str, Any], prefix: str, *, has_kernels: bool = False):
    # The published files of BERT have older names.
    self._state = {name.replace(".gamma", ".weight").replace(".beta", ".bias"): state[name] for name in state}
    self._prefix, self._has_kernels = prefix, has_kernels
    self._read: set[str] = set()

  def __getitem__(self, name: str) -> jax.Array:
    name = self._prefix + name
    if name not in self._state:
      names = sorted(other for other in self._state if other.startswith(self._prefix)) or [*self._state]
      raise ValueError(f"state must have the name {name!r}, got {', '.join(names[:8])}, …")
    self._read.add(name)
    return jnp.asarray(np.asarray(self._state[name]))

  def get(self, name: str) -> jax.Array | None:
    return self[name] if self._prefix + name in self._state else None

  def linear(self, name: str) -> Linear:
    weight, bias = self[f"{name}.weight"], self.get(f"{name}.bias")
    weight = weight.T if self._has_kernels else weight
    if bias is not None and bias.shape != weight.shape[:1]:
      raise ValueError(f"{self._prefix}{name}.bias must have shape {weight.shape[:1]}, got {bias.shape}")
    return weight, bias

  def norm(self, name: str) -> dict[str, jax.Array]:
    return _params("scale", *self.linear(name))

  def dense(self, name: str) -> dict[str, jax.Array]:
    weight, bias = self.linear(name)
    return _params("kernel", weight.T, bias)

  def variables(self, params: dict[str, Any]) -> dict[str, Any]:
    """Returns the variables of a layer, or raises ValueError if the state has more parameters."""
    known = self._read | {self._prefix + name for name in _OTHERS}
    if more := sorted(name for name in self._state.keys() - known if name.startswith(self._prefix)):
      raise ValueError(f"state must have no parameters that the layer lacks, got {', '.join(more[:8])}")
    return {"params": params}


def _encoder_layer(
  layer: _State,
  linears: Iterable[Linear],
  num_heads: int,
  num_key_value_heads: int | None = None,
  *,
  norms: tuple[str, str],
  **feed_forward: str,
) -> dict[str, Any]:
  """Returns variables of `EncoderLayer` from the linear layers of the attention, and names of the others."""
  return layer.variables(
    {
      "attention": _attention(linears, num_heads, num_key_value_heads),
      "attention_norm": layer.norm(norms[0]),
      "feed_forward": {ours: layer.dense(theirs) for ours, theirs in feed_forward.items()},
      "feed_forward_norm": layer.norm(norms[1]),
    }
  )


def _torch_linears(layer: _State, within: str = "") -> list[Linear]:
  """Returns weights and biases of queries, keys, values and outputs of `torch.nn.MultiheadAttention`."""
  bias = layer.get(f"{within}in_proj_bias")
  biases: Any = [None] * 3 if bias is None else jnp.split(bias, 3)
  if layer.get(f"{within}q_proj_weight") is None:
    weights = jnp.split(layer[f"{within}in_proj_weight"], 3)
  else:  # keys and values of other widths
    weights = [layer[f"{within}{letter}_proj_weight"] for letter in "qkv"]
  return [*zip(weights, biases, strict=True), layer.linear(f"{within}out_proj")]


def _attention(
  linears: Iterable[Linear], num_heads: int, num_key_value_heads: int | None = None
) -> dict[str, Any]:
  """Returns parameters from weights and biases of queries, keys, values and outputs."""
  *inputs, (out_weight, out_bias) = linears
  num_key_value_heads = num_heads if num_key_value_heads is None else num_key_value_heads
  width = out_weight.shape[1]
  if width % check_size("num_heads", num_heads):
    raise ValueError(f"num_heads must divide the width of all heads, {width}, got {num_heads}")
  params = {}
  for name, (weight, bias) in zip(("query", "key", "value"), inputs, strict=True):
    heads = (num_heads if name == "query" else num_key_value_heads), width // num_heads
    if weight.shape[0] != math.prod(heads):
      raise ValueError(f"the {name} weight must have {heads[0]} heads of {heads[1]} rows, got {weight.shape}")
    kernel = weight.T.reshape(-1, *heads)
    params[name] = _params("kernel", kernel, None if bias is None else bias.reshape(heads))
  out = _params("kernel", out_weight.T.reshape(num_heads, width // num_heads, -1), out_bias)
  return params | {"out": out}


def _params(name: str, array: jax.Array, bias: jax.Array | None) -> dict[str, jax.Array]:
  return {name: array} | ({} if bias is None else {"bias": bias})
