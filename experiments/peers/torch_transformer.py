"""The Transformer of `attention.Seq2Seq` in PyTorch. It decodes with cached keys and values."""

from typing import Any

import numpy as np
import torch
from torch import nn

from attention import positions

# A layer's keys and values, [B N S H] each.
KeysValues = tuple[torch.Tensor, torch.Tensor]


class MultiHead(nn.Module):
  """Multi-head attention to projected keys and values."""

  def __init__(self, width: int, num_heads: int):
    super().__init__()
    self.num_heads = num_heads
    self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

  def project_kv(self, inputs: torch.Tensor) -> KeysValues:
    return self._split(self.key(inputs)), self._split(self.value(inputs))

  def forward(
    self,
    inputs: torch.Tensor,
    keys_values: KeysValues,
    mask: torch.Tensor | None = None,
    *,
    is_causal: bool = False,
  ) -> torch.Tensor:
    queries = self._split(self.query(inputs))
    context = nn.functional.scaled_dot_product_attention(
      queries, *keys_values, attn_mask=mask, is_causal=is_causal
    )
    return self.out(context.transpose(1, 2).flatten(2))

  def _split(self, vectors: torch.Tensor) -> torch.Tensor:
    """Splits vectors [B T D] into heads [B N T H]."""
    return vectors.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class Layer(nn.Module):
  """A pre-norm encoder or decoder layer."""

  def __init__(self, width: int, num_heads: int, mlp_dim: int, *, is_decoder: bool):
    super().__init__()
    self.attention, self.attention_norm = MultiHead(width, num_heads), _norm(width)
    if is_decoder:
      self.cross_attention, self.cross_attention_norm = MultiHead(width, num_heads), _norm(width)
    self.feed_forward_norm = _norm(width)
    self.hidden, self.out = nn.Linear(width, mlp_dim), nn.Linear(mlp_dim, width)

  def encode(self, inputs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    normed = self.attention_norm(inputs)
    inputs = inputs + self.attention(normed, self.attention.project_kv(normed), mask)
    return self._feed_forward(inputs)

  def decode(self, inputs: torch.Tensor, memory: KeysValues, mask: torch.Tensor) -> torch.Tensor:
    """Returns the features of known targets, [B T D]."""
    normed = self.attention_norm(inputs)
    inputs = inputs + self.attention(normed, self.attention.project_kv(normed), is_causal=True)
    return self._attend_to_source(inputs, memory, mask)

  def step(
    self, inputs: torch.Tensor, cache: KeysValues, memory: KeysValues, mask: torch.Tensor
  ) -> tuple[torch.Tensor, KeysValues]:
    """Decodes one position, [B 1 D]; returns its features and the longer cache."""
    normed = self.attention_norm(inputs)
    new = self.attention.project_kv(normed)
    keys, values = (torch.cat(pair, dim=2) for pair in zip(cache, new, strict=True))
    inputs = inputs + self.attention(normed, (keys, values))
    return self._attend_to_source(inputs, memory, mask), (keys, values)

  def _attend_to_source(self, inputs: torch.Tensor, memory: KeysValues, mask: torch.Tensor) -> torch.Tensor:
    inputs = inputs + self.cross_attention(self.cross_attention_norm(inputs), memory, mask)
    return self._feed_forward(inputs)

  def _feed_forward(self, inputs: torch.Tensor) -> torch.Tensor:
    return inputs + self.out(torch.relu(self.hidden(self.feed_forward_norm(inputs))))


class Transformer(nn.Module):
  """Encoder and decoder, with sinusoidal positions."""

  def __init__(
    self,
    vocabulary_sizes: tuple[int, int],
    width: int,
    num_heads: int,
    mlp_dim: int,
    num_layers: int,
    max_length: int,
  ):
    super().__init__()
    self.embeddings = nn.ModuleList(nn.Embedding(size, width) for size in vocabulary_sizes)
    self.encoder, self.decoder = (
      nn.ModuleList(Layer(width, num_heads, mlp_dim, is_decoder=is_decoder) for _ in range(num_layers))
      for is_decoder in (False, True)
    )
    self.norms = nn.ModuleList([_norm(width), _norm(width)])
    self.logits = nn.Linear(width, vocabulary_sizes[1])
    self.positions = torch.tensor(np.asarray(positions.sinusoidal(max_length, width)))

  def forward(self, sources: torch.Tensor, lengths: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Returns the logits of known targets, [B T V] (teacher forcing)."""
    encoded, mask = self._encode(sources, lengths)
    vectors = self._embed(self.embeddings[1], inputs, 0)
    for layer in self.decoder:
      vectors = layer.decode(vectors, layer.cross_attention.project_kv(encoded), mask)
    return self.logits(self.norms[1](vectors))

  def start(self, sources: torch.Tensor, lengths: torch.Tensor, beam_size: int) -> tuple[Any, Any]:
    """Returns the state of each hypothesis before the first step, and the memory of all steps."""
    encoded, mask = self._encode(sources, lengths)
    encoded = encoded.repeat_interleave(beam_size, 0)
    memory = [layer.cross_attention.project_kv(encoded) for layer in self.decoder]
    state = [tuple(array[:, :, :0] for array in keys_values) for keys_values in memory]
    return state, (memory, mask.repeat_interleave(beam_size, 0))

  def step(self, state: Any, tokens: torch.Tensor, memory: Any) -> tuple[Any, torch.Tensor]:
    """Returns the next state, and logits [B V]."""
    keys_values, mask = memory
    vectors = self._embed(self.embeddings[1], tokens[:, None], state[0][0].shape[2])
    caches = []
    for layer, cache, layer_memory in zip(self.decoder, state, keys_values, strict=True):
      vectors, cache = layer.step(vectors, cache, layer_memory, mask)
      caches.append(cache)
    return caches, self.logits(self.norms[1](vectors))[:, 0]

  def _encode(self, sources: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the encoded sources [B S D], and the mask of their positions."""
    mask = (torch.arange(sources.shape[1])[None] < lengths[:, None])[:, None, None]
    vectors = self._embed(self.embeddings[0], sources, 0)
    for layer in self.encoder:
      vectors = layer.encode(vectors, mask)
    return self.norms[0](vectors), mask

  def _embed(self, embedding: nn.Embedding, tokens: torch.Tensor, first: int) -> torch.Tensor:
    scale = embedding.embedding_dim**0.5
    return embedding(tokens) * scale + self.positions[first : first + tokens.shape[1]]


def load(transformer: Transformer, params: Any) -> None:
  """Loads the parameters of an `attention.Seq2Seq` with a Transformer encoder and decoder."""
  weights: dict[str, Any] = {}
  for i, side in enumerate(("encoder", "decoder")):
    weights[f"embeddings.{i}.weight"] = params[side]["embedding"]["embedding"]
    weights |= _norm_weights(params[side]["norm"], f"norms.{i}")
    for number in range(len(transformer.encoder)):
      layer, name = params[side][f"layer_{number}"], f"{side}.{number}"
      for kind in ("attention", "cross_attention"):
        if kind in layer:
          weights |= _norm_weights(layer[f"{kind}_norm"], f"{name}.{kind}_norm")
          for part in ("query", "key", "value", "out"):
            weights |= _linear(layer[kind][part], f"{name}.{kind}.{part}", part == "out")
      weights |= _norm_weights(layer["feed_forward_norm"], f"{name}.feed_forward_norm")
      for part in ("hidden", "out"):
        weights |= _linear(layer["feed_forward"][part], f"{name}.{part}")
  weights |= _linear(params["decoder"]["logits"], "logits")
  transformer.load_state_dict({name: torch.tensor(np.asarray(array)) for name, array in weights.items()})


def _norm(width: int) -> nn.LayerNorm:
  return nn.LayerNorm(width, eps=1e-6)


def _norm_weights(params: Any, name: str) -> dict[str, Any]:
  return {f"{name}.weight": params["scale"], f"{name}.bias": params["bias"]}


def _linear(params: Any, name: str, joins_heads: bool = False) -> dict[str, Any]:
  kernel, bias = np.asarray(params["kernel"]), np.asarray(params["bias"])
  matrix = kernel.reshape(-1, kernel.shape[-1]) if joins_heads else kernel.reshape(kernel.shape[0], -1)
  return {f"{name}.weight": matrix.T, f"{name}.bias": bias.reshape(-1)}
