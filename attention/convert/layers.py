"""The functions of this package; see its docstring for the state and the prefix."""

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.checks import check_number, check_size
from attention.convert.state import Linear, State, named
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
  params = _attention(_torch_linears(layer), num_heads)
  layer.check_all_read()
  return {"params": params}


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
    prefix: see `attention.convert`.

  Raises:
    ValueError: see `torch_multi_head_attention`. Arrays of other layers and directions are ignored.
  """
  weights = State(state, prefix)
  suffix = f"_l{check_size('layer', layer, least=0)}{'_reverse' if reverse else ''}"
  suffix = "" if suffix == "_l0" and weights.get("weight_ih") is not None else suffix
  H = weights.get_matrix(f"weight_hh{suffix}").shape[1]
  recurrent = weights.get_matrix(f"weight_hh{suffix}", rows=3 * H)
  kernel = weights.get_matrix(f"weight_ih{suffix}", rows=3 * H)
  bias = recurrent_bias = jnp.zeros(3 * H, kernel.dtype)
  if any(weights.get(f"{name}{suffix}") is not None for name in ("bias_ih", "bias_hh")):
    bias, recurrent_bias = (weights.get_vector(f"{name}{suffix}", 3 * H) for name in ("bias_ih", "bias_hh"))
  bias = bias.at[: 2 * H].add(recurrent_bias[: 2 * H])
  weights.check_all_read(suffix=suffix)
  return GRUWeights(kernel.T, recurrent.T, bias, recurrent_bias[2 * H :])


def bert_layer(state: Mapping[str, Any], num_heads: int, *, prefix: str = "") -> dict[str, Any]:
  """Returns variables of `EncoderLayer` from a layer of BERT ("bert.encoder.layer.0.").

  The layer needs `norm_position="post"`, `norm_cls=functools.partial(LayerNorm, epsilon=1e-12)`, and a
  `FeedForward` with `activation=functools.partial(nn.gelu, approximate=False)`.

  Args:
    state: the state of the model or of the layer.
    num_heads: number of heads, N.
    prefix: see `attention.convert`.

  Raises:
    ValueError: see `torch_multi_head_attention`.
  """
  layer = State(state, prefix, needs_biases=True)
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
    prefix: see `attention.convert`.

  Raises:
    ValueError: see `torch_multi_head_attention`.
  """
  layer = State(state, prefix, needs_biases=True, has_kernels=True)
  out = layer.linear("attn.c_proj")
  D = out[0].shape[0]
  arrays: Any = layer.linear("attn.c_attn", rows=3 * D, columns=D)
  linears = [*zip(*(jnp.split(array, 3) for array in arrays), strict=True), out]
  return _encoder_layer(
    layer,
    linears,
    num_heads,
    norms=("ln_1", "ln_2"),
    hidden="mlp.c_fc",
    out="mlp.c_proj",
    ignored=("attn.bias", "attn.masked_bias"),
  )


def t5_attention(state: Mapping[str, Any], num_heads: int, *, prefix: str = "") -> dict[str, Any]:
  """Returns variables of `MultiHeadAttention` from an attention of T5 ("…layer.0.SelfAttention.").

  The layer needs `use_bias=False`, `score=ScaledDotProduct(1.0)`, and qkv_features if the heads are not as
  wide as the model. The bias of the first layer is `positions.RelativePositionBias(table, 128,
  bidirectional)`, with the table from `t5_bias_table`; it is not bidirectional in the decoder.

  Args:
    state: the state of the model or of the attention.
    num_heads: number of heads, N.
    prefix: see `attention.convert`.

  Raises:
    ValueError: see `torch_multi_head_attention`.
  """
  layer = State(state, prefix)
  params = _attention(map(layer.linear, "qkvo"), num_heads)
  layer.check_all_read("relative_attention_bias.weight")
  return {"params": params}


def t5_bias_table(state: Mapping[str, Any], *, prefix: str = "") -> jax.Array:
  """Returns the table [N R] of `positions.RelativePositionBias` from an attention of T5."""
  return State(state, prefix).get_matrix("relative_attention_bias.weight").T


def llama_layer(
  state: Mapping[str, Any],
  num_heads: int,
  num_key_value_heads: int | None = None,
  *,
  norm_offset: float = 0.0,
  prefix: str = "",
) -> dict[str, Any]:
  """Returns variables of `EncoderLayer` from a layer of Llama ("model.layers.0.").

  See `EncoderLayer` for the arguments of this layer. It needs `mask=masks.causal()`. The base of
  `positions.rotary` and the epsilon of `RMSNorm` are "rope_theta" and "rms_norm_eps" of the model's config.
  Models with the same names:

  * Mistral: its "sliding_window" W is the mask `masks.sliding_window(W - 1, 0)`.
  * Qwen 2: the attention needs `use_bias=True`.
  * Qwen 3: the attention needs `qk_norm_cls` with the norm, and `qkv_features` (num_heads times "head_dim").
  * Gemma (the first): `norm_offset=1`. The attention needs `qkv_features`, and the feed-forward network
    `activation=nn.gelu`. Later models have other layers.

  Other models with these names, such as Granite and Helium, compute other functions.

  Args:
    state: the state of the model or of the layer.
    num_heads: number of heads, N.
    num_key_value_heads: number of heads of keys and values. Default: num_heads.
    norm_offset: number that the model adds to the weights of its norms. The state does not show it.
    prefix: see `attention.convert`.

  Raises:
    ValueError: see `torch_multi_head_attention`.
  """
  check_number("norm_offset", norm_offset, "a finite number", np.isfinite)
  layer = State(state, prefix, norm_offset=norm_offset)
  names = "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"
  return _encoder_layer(
    layer,
    map(layer.linear, names),
    num_heads,
    num_key_value_heads,
    norms=("input_layernorm", "post_attention_layernorm"),
    qk_norms=("self_attn.q_norm", "self_attn.k_norm"),
    ignored=("self_attn.rotary_emb.inv_freq",),
    hidden="mlp.up_proj",
    gate="mlp.gate_proj",
    out="mlp.down_proj",
  )


def _encoder_layer(
  layer: State,
  linears: Iterable[Linear],
  num_heads: int,
  num_key_value_heads: int | None = None,
  *,
  norms: tuple[str, str],
  hidden: str,
  out: str,
  gate: str | None = None,
  qk_norms: tuple[str, str] | None = None,
  ignored: tuple[str, ...] = (),
) -> dict[str, Any]:
  """Returns variables of `EncoderLayer` from the linear layers of the attention, and names of the others."""
  linears = [*linears]
  D = linears[-1][0].shape[0]
  for weight, _ in linears[:-1]:
    if weight.shape[1] != D:
      raise ValueError(f"projections of the attention must have {D} columns, got shape {weight.shape}")
  attention = _attention(linears, num_heads, num_key_value_heads)
  if qk_norms and layer.get(f"{qk_norms[0]}.weight") is not None:
    head_width = attention["query"]["kernel"].shape[-1]
    attention |= {
      ours: layer.norm(theirs, head_width)
      for ours, theirs in zip(("query_ln", "key_ln"), qk_norms, strict=True)
    }
  feed_forward = {"hidden": layer.dense(hidden, columns=D)}
  F = feed_forward["hidden"]["kernel"].shape[1]
  if gate:
    feed_forward["gate"] = layer.dense(gate, rows=F, columns=D)
  feed_forward["out"] = layer.dense(out, rows=D, columns=F)
  params = {
    "attention": attention,
    "attention_norm": layer.norm(norms[0], D),
    "feed_forward": _with_all_biases(feed_forward),
    "feed_forward_norm": layer.norm(norms[1], D),
  }
  layer.check_all_read(*ignored)
  return {"params": params}


def _torch_linears(layer: State, within: str = "") -> list[Linear]:
  """Returns weights and biases of queries, keys, values and outputs of `torch.nn.MultiheadAttention`."""
  has_bias = layer.needs_biases = layer.get(f"{within}in_proj_bias") is not None
  out_weight, out_bias = layer.linear(f"{within}out_proj")
  D = out_weight.shape[0]
  biases: Any = jnp.split(layer.get_vector(f"{within}in_proj_bias", 3 * D), 3) if has_bias else [None] * 3
  if layer.get(f"{within}q_proj_weight") is None:
    weights = jnp.split(layer.get_matrix(f"{within}in_proj_weight", rows=3 * D), 3)
  else:  # keys and values of other widths
    weights = [layer.get_matrix(f"{within}{letter}_proj_weight", rows=D) for letter in "qkv"]
  return [*zip(weights, biases, strict=True), (out_weight, out_bias)]


def _attention(
  linears: Iterable[Linear], num_heads: int, num_key_value_heads: int | None = None
) -> dict[str, Any]:
  """Returns parameters from weights and biases of queries, keys, values and outputs."""
  *inputs, (out_weight, out_bias) = linears
  N = check_size("num_heads", num_heads)
  K = N if num_key_value_heads is None else check_size("num_key_value_heads", num_key_value_heads)
  width = out_weight.shape[1]
  if width % N:
    raise ValueError(f"num_heads must divide the width of all heads, {width}, got {num_heads}")
  H = width // N
  params = {}
  for name, count, (weight, bias) in zip(("query", "key", "value"), (N, K, K), inputs, strict=True):
    if weight.shape[0] != count * H:
      raise ValueError(f"the {name} weight must have {count} heads of {H} rows, got {weight.shape}")
    kernel = weight.T.reshape(-1, count, H)
    params[name] = named("kernel", kernel, None if bias is None else bias.reshape(count, H))
  params["out"] = named("kernel", out_weight.T.reshape(N, H, -1), out_bias)
  return _with_all_biases(params)


def _with_all_biases(params: dict[str, Any]) -> dict[str, Any]:
  """Adds biases of zero to layers without one, if others have one, since `use_bias` is for all of them."""
  if not any("bias" in layer for layer in params.values()):
    return params

  def zeros(name: str, kernel: jax.Array) -> jax.Array:
    return jnp.zeros(kernel.shape[-1:] if name == "out" else kernel.shape[1:], kernel.dtype)

  return {name: {"bias": zeros(name, layer["kernel"]), **layer} for name, layer in params.items()}
