"""Layers and parameters of published models, from their config and state."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention.convert.config import ACTIVATIONS, Config, one_of
from attention.convert.state import State, variables_of
from attention.layers.decoder_layer import DecoderLayer
from attention.layers.encoder_layer import EncoderLayer, FeedForward
from attention.layers.multi_head import MultiHeadAttention
from attention.layers.projections import LayerNorm, RMSNorm
from attention.masks import Mask, causal
from attention.positions import RelativePositionBias
from attention.scores.dot_product import ScaledDotProduct
from attention.scores.soft_cap import SoftCap


class Pretrained(NamedTuple):
  """A published model: a layer, its parameters for each of L layers, and the other parameters.

  Attributes:
    layer: the module of all layers.
    masks: the mask of each layer. None: all pairs.
    norm: the norm of the last layer's outputs; in BERT, of the embeddings. None in `gpt_oss_attention`.
    params: "layers", the variables of each layer; "norm", those of the norm; and others, which the function
      that converts the model names.
    logit_cap: the logits are logit_cap tanh(logits / logit_cap). None: no cap.
  """

  layer: nn.Module
  masks: tuple[Mask | None, ...]
  norm: nn.Module | None
  params: dict[str, Any]
  logit_cap: float | None = None


def llama(config: Mapping[str, Any], state: Mapping[str, Any]) -> Pretrained:
  """Returns a model of the family of Llama: Llama, Mistral, Qwen 2 and 3, Gemma 1 and 2, or StableLM.

  Its parameters are "embedding" [V D], which Gemma scales; the layers; the norm; and "head" [V D], which is
  missing if the state has none and the embedding is not tied. The logits are norm(outputs) head^T.

  Args:
    config: see `attention.convert`.
    state: see `attention.convert`.

  Raises:
    ValueError: if an option in the config is not supported, an array is missing or has an incompatible shape,
      or an array would not be used.
  """
  options = Config(config, "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "stablelm")
  options.check(use_parallel_residual=False, qk_layernorm=False, use_bidirectional_attention=False)
  is_gemma, is_gemma_2 = options.model_type in ("gemma", "gemma2"), options.model_type == "gemma2"
  # The output projection has no bias in these models, and a bias of zero here.
  zero_biases = ("self_attn.o_proj.bias",) if options.model_type in ("qwen2", "stablelm") else ()
  root = State(state, zero_biases=zero_biases, norm_offset=1.0 if is_gemma else 0.0)
  trunk = root.before("embed_tokens.weight")
  embedding = trunk.array("embed_tokens.weight", options["vocab_size"], options["hidden_size"])
  attention = _grouped_heads(options)
  if is_gemma_2:
    score = ScaledDotProduct(options["query_pre_attn_scalar"] ** -0.5)
    cap = options.given("attn_logit_softcapping")
    attention["score"] = score if cap is None else SoftCap(score, cap)
  activation = options.get("hidden_activation") or options["hidden_act"]
  model = _model(
    options,
    trunk,
    _GEMMA_2 if is_gemma_2 else _LLAMA,
    embedding,
    masks=options.causal_masks(),
    norm_cls=LayerNorm if options.model_type == "stablelm" else RMSNorm,
    norm_position="both" if is_gemma_2 else "pre",
    activation="gelu_new" if is_gemma and activation == "gelu" else activation,
    qk_norm=options.model_type == "qwen3",
    mlp_bias=options.get("mlp_bias", False),
    attention=attention,
  )
  if is_gemma:
    model.params["embedding"] = embedding * jnp.asarray(embedding.shape[1] ** 0.5, embedding.dtype)
  _add_head(model, root, options, embedding)
  root.check_all_read("rotary_emb.inv_freq")
  return model._replace(logit_cap=options.given("final_logit_softcapping") if is_gemma_2 else None)


def gpt_oss_attention(config: Mapping[str, Any], state: Mapping[str, Any]) -> Pretrained:
  """Returns the attention of gpt-oss, without its mixtures of experts: the layer is `MultiHeadAttention`.

  Its parameters are the layers: projections and sinks. Other arrays of the state are ignored.

  Args, Raises: see `llama`.
  """
  options = Config(config, "gpt_oss")
  trunk = State(state).before("layers.0.self_attn.sinks")
  parts = [trunk.within(f"layers.{i}.") for i in range(options["num_hidden_layers"])]
  layer = MultiHeadAttention(options["num_attention_heads"], use_sinks=True, **_grouped_heads(options))
  names = {ours.removeprefix("attention/"): theirs for ours, theirs in _LLAMA.items()} | {"": "self_attn"}
  layers = variables_of(layer, parts, names, jnp.zeros((1, options["hidden_size"])))
  for part in parts:
    part.within("self_attn.").check_all_read()
  return Pretrained(layer, options.causal_masks(), None, {"layers": layers})


def gpt2(config: Mapping[str, Any], state: Mapping[str, Any]) -> Pretrained:
  """Returns GPT-2.

  Its parameters are "embedding" [V D] of tokens and "positions" [P D], which are added; the layers; the norm;
  and "head" [V D]. The logits are norm(outputs) head^T.

  Args, Raises: see `llama`.
  """
  options = Config(config, "gpt2")
  options.check(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
  root = State(state, has_kernels=True)
  trunk, D = root.before("wte.weight"), options["hidden_size"]
  for i in range(options["num_hidden_layers"]):
    trunk.within(f"h.{i}.").split("attn.c_attn", *_PROJECTIONS[:3])
  embedding = trunk.array("wte.weight", options["vocab_size"], D)
  model = _model(options, trunk, _GPT_2, embedding, masks=options.causal_masks())
  model.params["positions"] = trunk.array("wpe.weight", options["max_position_embeddings"], D)
  _add_head(model, root, options, embedding)
  root.check_all_read(".attn.bias", ".attn.masked_bias")
  return model


def bert(config: Mapping[str, Any], state: Mapping[str, Any]) -> Pretrained:
  """Returns BERT.

  Its parameters are "embedding" [V D] of tokens, "positions" [P D] and "types" [2 D], of which the sum is
  normalized; the norm; the layers; and "heads", all other arrays, by their names in the state, such as
  "pooler.dense.weight".

  Args, Raises: see `llama`.
  """
  options = Config(config, "bert")
  options.check(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
  root = State(state)
  trunk, D = root.before("embeddings.word_embeddings.weight"), options["hidden_size"]
  embedding = trunk.array("embeddings.word_embeddings.weight", options["vocab_size"], D)
  model = _model(options, trunk, _BERT, embedding, norm_position="post")
  sizes = options["max_position_embeddings"], options["type_vocab_size"]
  model.params["positions"] = trunk.array("embeddings.position_embeddings.weight", sizes[0], D)
  model.params["types"] = trunk.array("embeddings.token_type_embeddings.weight", sizes[1], D)
  model.params["heads"] = root.arrays_outside(trunk.prefix + "embeddings.", trunk.prefix + "encoder.")
  root.check_all_read("position_ids")
  return model


def t5(config: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[Pretrained, Pretrained]:
  """Returns the encoder and the decoder of T5. The layer of the decoder is `DecoderLayer`.

  The parameters of both are "embedding" [V D]; "bias", a `positions.RelativePositionBias` for the
  self-attention of all layers; the layers; and the norm. The decoder has "head" [V D]. The logits are
  norm(outputs) head^T.

  Args, Raises: see `llama`.
  """
  options = Config(config, "t5", "mt5")
  root = State(state)
  embedding = root.array("shared.weight", options["vocab_size"], options["hidden_size"])
  encoder = _t5_stack(options, root.within("encoder."), embedding, _T5_ENCODER)
  decoder = _t5_stack(options, root.within("decoder."), embedding, _T5_DECODER)
  _add_head(decoder, root, options, embedding)
  is_scaled = options.get("scale_decoder_outputs", options.get("tie_word_embeddings", True))
  if is_scaled and options.model_type == "t5" and "head" in decoder.params:  # mT5 never scales
    decoder.params["head"] *= jnp.asarray(options["hidden_size"] ** -0.5, embedding.dtype)
  # The same as shared.weight; and an array of the original files that no model uses.
  root.check_all_read("coder.embed_tokens.weight", "EncDecAttention.relative_attention_bias.weight")
  return encoder, decoder


def _t5_stack(options: Config, trunk: State, embedding: jax.Array, names: Mapping[str, str]) -> Pretrained:
  """Returns the encoder or the decoder of T5, without a head."""
  N, H, is_decoder = options["num_attention_heads"], options["head_dim"], "cross_attention_norm" in names
  activation, L = options.get("feed_forward_proj", "relu"), options["num_hidden_layers"]
  L = options.get("num_decoder_layers", L) if is_decoder else L
  if not activation.startswith("gated-"):
    names = {**names, "feed_forward/hidden": names["feed_forward/hidden"].replace("wi_1", "wi")}
    del names["feed_forward/gate"]
  score = ScaledDotProduct(1.0)
  cross_attention = functools.partial(MultiHeadAttention, use_bias=False, score=score)
  decoder_cls = functools.partial(DecoderLayer, features=N * H, cross_attention_cls=cross_attention)
  model = _model(
    options,
    trunk,
    names,
    embedding,
    masks=(causal() if is_decoder else None,) * L,
    norm_cls=RMSNorm,
    activation="gelu_new" if activation == "gated-gelu" else activation.removeprefix("gated-"),
    layer_cls=decoder_cls if is_decoder else EncoderLayer,
    mlp_bias=False,
    attention={"qkv_features": N * H, "use_bias": False, "score": score},
  )
  name, buckets = "block.0.layer.0.SelfAttention", options["relative_attention_num_buckets"]
  table = trunk.array(f"{name}.relative_attention_bias.weight", buckets, N).T
  max_distance = options.get("relative_attention_max_distance", 128)
  model.params["bias"] = RelativePositionBias(table, max_distance, bidirectional=not is_decoder)
  return model


_PROJECTIONS = ("query", "key", "value", "out")
# Names in the state: of the list of layers, of the modules in a layer, and of the norm after the layers.
_LLAMA = {
  **{f"attention/{name}": f"self_attn.{name[0]}_proj" for name in _PROJECTIONS},
  "attention/query_ln": "self_attn.q_norm",
  "attention/key_ln": "self_attn.k_norm",
  "attention_norm": "input_layernorm",
  "feed_forward/hidden": "mlp.up_proj",
  "feed_forward/gate": "mlp.gate_proj",
  "feed_forward/out": "mlp.down_proj",
  "feed_forward_norm": "post_attention_layernorm",
  "layers": "layers",
  "norm": "norm",
}
_GEMMA_2 = _LLAMA | {
  "attention_out_norm": "post_attention_layernorm",
  "feed_forward_norm": "pre_feedforward_layernorm",
  "feed_forward_out_norm": "post_feedforward_layernorm",
}
_GPT_2 = {
  **{f"attention/{name}": name for name in _PROJECTIONS[:3]},  # parts of attn.c_attn
  "attention/out": "attn.c_proj",
  "attention_norm": "ln_1",
  "feed_forward/hidden": "mlp.c_fc",
  "feed_forward/out": "mlp.c_proj",
  "feed_forward_norm": "ln_2",
  "layers": "h",
  "norm": "ln_f",
}
_BERT = {
  **{f"attention/{name}": f"attention.self.{name}" for name in _PROJECTIONS[:3]},
  "attention/out": "attention.output.dense",
  "attention_norm": "attention.output.LayerNorm",
  "feed_forward/hidden": "intermediate.dense",
  "feed_forward/out": "output.dense",
  "feed_forward_norm": "output.LayerNorm",
  "layers": "encoder.layer",
  "norm": "embeddings.LayerNorm",
}
_T5_ENCODER = {
  **{f"attention/{name}": f"layer.0.SelfAttention.{name[0]}" for name in _PROJECTIONS},
  "attention_norm": "layer.0.layer_norm",
  "feed_forward/hidden": "layer.1.DenseReluDense.wi_1",
  "feed_forward/gate": "layer.1.DenseReluDense.wi_0",
  "feed_forward/out": "layer.1.DenseReluDense.wo",
  "feed_forward_norm": "layer.1.layer_norm",
  "layers": "block",
  "norm": "final_layer_norm",
}
_T5_DECODER = {ours: theirs.replace("layer.1", "layer.2") for ours, theirs in _T5_ENCODER.items()} | {
  **{f"cross_attention/{name}": f"layer.1.EncDecAttention.{name[0]}" for name in _PROJECTIONS},
  "cross_attention_norm": "layer.1.layer_norm",
}


def _model(
  options: Config,
  trunk: State,
  names: Mapping[str, str],
  embedding: jax.Array,
  *,
  masks: tuple[Mask | None, ...] | None = None,
  norm_cls: Any = LayerNorm,
  norm_position: str = "pre",
  activation: str | None = None,
  layer_cls: Any = EncoderLayer,
  qk_norm: bool = False,
  mlp_bias: bool = True,
  attention: Mapping[str, Any] | None = None,
) -> Pretrained:
  """Returns a model with the parameters of its layers, its norm and its embedding.

  Args:
    options: the config.
    trunk: the part of the state with the layers.
    names: see `_LLAMA` and `State.params`.
    embedding: [V D].
    masks: the mask of each layer. Default: none.
    norm_cls: class of all norms.
    norm_position: see `EncoderLayer`.
    activation: name in Transformers. Default: that in the config.
    layer_cls: `EncoderLayer` or `DecoderLayer`.
    qk_norm: whether queries and keys are normalized.
    mlp_bias: whether the feed-forward network has biases.
    attention: options of the self-attention.
  """
  masks = (None,) * options["num_hidden_layers"] if masks is None else masks
  parts = [trunk.within(f"{names['layers']}.{i}.") for i in range(len(masks))]
  dtypes = {"dtype": embedding.dtype, "param_dtype": embedding.dtype}
  norm_cls = functools.partial(norm_cls, epsilon=options["norm_eps"])
  layer = layer_cls(
    options["num_attention_heads"],
    options.get("intermediate_size", 4 * embedding.shape[1]),
    norm_position=norm_position,
    norm_cls=norm_cls,
    self_attention_cls=functools.partial(
      MultiHeadAttention, qk_norm_cls=norm_cls if qk_norm else None, **(attention or {})
    ),
    feed_forward_cls=functools.partial(
      FeedForward,
      activation=one_of("activation", activation or options["hidden_act"], ACTIVATIONS),
      use_gate="feed_forward/gate" in names,
      use_bias=mlp_bias,
    ),
    **dtypes,
  )
  inputs, norm = [embedding[:1]] * (1 if layer_cls is EncoderLayer else 2), norm_cls(**dtypes)
  params = {"embedding": embedding, "layers": variables_of(layer, parts, names, *inputs)}
  (params["norm"],) = variables_of(norm, [trunk], {"": names["norm"]}, inputs[0])
  return Pretrained(layer, masks, norm, params)


def _grouped_heads(options: Config) -> dict[str, Any]:
  """Returns options of `MultiHeadAttention` that Llama and gpt-oss share."""
  N, kind = options["num_attention_heads"], options.model_type
  H = options.get("head_dim", options["hidden_size"] // N)
  name = "use_qkv_bias" if kind == "stablelm" else "attention_bias"
  return {
    "num_key_value_heads": options.get("num_key_value_heads", N),
    "qkv_features": N * H,
    "use_bias": kind == "qwen2" or options.get(name, kind == "gpt_oss"),
    "position_fn": options.rotary(H),
  }


def _add_head(model: Pretrained, root: State, options: Config, embedding: jax.Array) -> None:
  """Adds the matrix of the logits [V D] to the parameters, if there is one."""
  if "lm_head.weight" in root:
    model.params["head"] = root.array("lm_head.weight", *embedding.shape)
  elif options.get("tie_word_embeddings", options.model_type in ("gemma", "gemma2", "gpt2", "t5", "mt5")):
    model.params["head"] = embedding
