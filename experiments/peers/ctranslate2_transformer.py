"""The Transformer of `attention.Seq2Seq` in CTranslate2."""

import os
import pathlib
from typing import Any

import ctranslate2
import numpy as np

from attention import positions


def make_translator(
  folder: pathlib.Path, params: Any, *, num_heads: int, num_layers: int, max_length: int
) -> ctranslate2.Translator:
  """Returns a translator with the parameters of a Transformer `attention.Seq2Seq`, saved in a folder.

  Token i of the model is the string "i" in both vocabularies.
  """
  spec = ctranslate2.specs.TransformerSpec.from_config(num_layers, num_heads, pre_norm=True)
  for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
    weights = params[side]
    embedding = np.asarray(weights["embedding"]["embedding"])
    embeddings = stack.embeddings[0] if side == "encoder" else stack.embeddings
    embeddings.weight = embedding
    stack.scale_embeddings = True
    stack.position_encodings.encodings = np.asarray(positions.sinusoidal(max_length, embedding.shape[1]))
    _set_norm(stack.layer_norm, weights["norm"])
    for number, layer in enumerate(stack.layer):
      _set_layer(layer, weights[f"layer_{number}"])
  _set_linear(spec.decoder.projection, [params["decoder"]["logits"]])
  for name, register in (
    ("encoder", spec.register_source_vocabulary),
    ("decoder", spec.register_target_vocabulary),
  ):
    register([str(i) for i in range(len(params[name]["embedding"]["embedding"]))])
  spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "1", "2", "3"
  spec.config.decoder_start_token, spec.config.layer_norm_epsilon = "1", 1e-6
  spec.validate()
  spec.save(str(folder))
  return ctranslate2.Translator(
    str(folder), device="cpu", inter_threads=1, intra_threads=len(os.sched_getaffinity(0))
  )


def _set_layer(layer: Any, weights: Any) -> None:
  _set_norm(layer.self_attention.layer_norm, weights["attention_norm"])
  attention = weights["attention"]
  _set_linear(layer.self_attention.linear[0], [attention[name] for name in ("query", "key", "value")])
  _set_linear(layer.self_attention.linear[1], [attention["out"]], joins_heads=True)
  if "cross_attention" in weights:
    attention = weights["cross_attention"]
    _set_norm(layer.attention.layer_norm, weights["cross_attention_norm"])
    _set_linear(layer.attention.linear[0], [attention["query"]])
    _set_linear(layer.attention.linear[1], [attention["key"], attention["value"]])
    _set_linear(layer.attention.linear[2], [attention["out"]], joins_heads=True)
  _set_norm(layer.ffn.layer_norm, weights["feed_forward_norm"])
  _set_linear(layer.ffn.linear_0, [weights["feed_forward"]["hidden"]])
  _set_linear(layer.ffn.linear_1, [weights["feed_forward"]["out"]])


def _set_norm(spec: Any, weights: Any) -> None:
  spec.gamma, spec.beta = np.asarray(weights["scale"]), np.asarray(weights["bias"])


def _set_linear(spec: Any, layers: list[Any], *, joins_heads: bool = False) -> None:
  matrices = []
  for layer in layers:
    kernel = np.asarray(layer["kernel"])
    shape = (-1, kernel.shape[-1]) if joins_heads else (kernel.shape[0], -1)
    matrices.append(kernel.reshape(shape).T)
  spec.weight = np.concatenate(matrices)
  spec.bias = np.concatenate([np.asarray(layer["bias"]).reshape(-1) for layer in layers])
