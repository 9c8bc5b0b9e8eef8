"""The recurrent model of `attention.Seq2Seq` in PyTorch."""

from typing import Any

import numpy as np
import torch
from torch import nn


class Encoder(nn.Module):
  """Bidirectional GRU encoder."""

  def __init__(self, vocabulary_size: int, embed_dim: int, width: int):
    super().__init__()
    self.embedding = nn.Embedding(vocabulary_size, embed_dim)
    self.gru = nn.GRU(embed_dim, width, bidirectional=True, batch_first=True)

  def forward(self, sources: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    packed = nn.utils.rnn.pack_padded_sequence(
      self.embedding(sources), lengths, batch_first=True, enforce_sorted=False
    )
    states, finals = self.gru(packed)
    memory, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True, total_length=sources.shape[1])
    return memory, torch.cat([finals[0], finals[1]], dim=-1)


class Attention(nn.Module):
  """Additive attention."""

  def __init__(self, query_width: int, memory_width: int, width: int):
    super().__init__()
    self.query = nn.Linear(query_width, width, bias=False)
    self.key = nn.Linear(memory_width, width, bias=False)
    self.score = nn.Linear(width, 1, bias=False)

  def forward(
    self,
    state: torch.Tensor,
    memory: torch.Tensor,
    is_padding: torch.Tensor,
    keys: torch.Tensor | None = None,
  ) -> torch.Tensor:
    keys = self.key(memory) if keys is None else keys
    scores = self.score(torch.tanh(self.query(state)[:, None] + keys))[..., 0]
    weights = torch.softmax(scores.masked_fill(is_padding, -torch.inf), dim=-1)
    return torch.einsum("bs,bsd->bd", weights, memory)


class Decoder(nn.Module):
  """GRU decoder that attends to the memory at each step.

  If `optimized` is set, it projects the keys once per sentence, and computes the logits of all steps
  together.
  """

  def __init__(self, vocabulary_size: int, embed_dim: int, width: int, *, optimized: bool):
    super().__init__()
    self.optimized = optimized
    self.embedding = nn.Embedding(vocabulary_size, embed_dim)
    self.initial = nn.Linear(2 * width, width)
    self.attention = Attention(width, 2 * width, width)
    self.cell = nn.GRUCell(embed_dim + 2 * width, width)
    self.readout = nn.Linear(3 * width + embed_dim, width)
    self.logits = nn.Linear(width, vocabulary_size)

  def forward(
    self, inputs: torch.Tensor, memory: torch.Tensor, summary: torch.Tensor, is_padding: torch.Tensor
  ) -> torch.Tensor:
    state = torch.tanh(self.initial(summary))
    keys = self.attention.key(memory) if self.optimized else None
    embedded = self.embedding(inputs)
    steps = []
    for t in range(inputs.shape[1]):
      context = self.attention(state, memory, is_padding, keys)
      state = self.cell(torch.cat([embedded[:, t], context], dim=-1), state)
      features = torch.cat([state, context, embedded[:, t]], dim=-1)
      steps.append(features if self.optimized else self.output_logits(features))
    outputs = torch.stack(steps, dim=1)
    return self.output_logits(outputs) if self.optimized else outputs

  def output_logits(self, features: torch.Tensor) -> torch.Tensor:
    return self.logits(torch.tanh(self.readout(features)))


class Translator(nn.Module):
  """Encoder and decoder. It returns the logits of the target words (teacher forcing)."""

  def __init__(self, vocabulary_sizes: tuple[int, int], embed_dim: int, width: int, *, optimized: bool):
    super().__init__()
    self.encoder = Encoder(vocabulary_sizes[0], embed_dim, width)
    self.decoder = Decoder(vocabulary_sizes[1], embed_dim, width, optimized=optimized)

  def forward(self, sources: torch.Tensor, lengths: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    memory, summary = self.encoder(sources, lengths)
    is_padding = torch.arange(sources.shape[1])[None] >= lengths[:, None]
    return self.decoder(inputs, memory, summary, is_padding)

  def start(self, sources: torch.Tensor, lengths: torch.Tensor, beam_size: int) -> tuple[Any, Any]:
    """Returns the state of each hypothesis before the first step, and the memory of all steps."""
    memory, summary = (array.repeat_interleave(beam_size, 0) for array in self.encoder(sources, lengths))
    is_padding = torch.arange(sources.shape[1])[None] >= lengths.repeat_interleave(beam_size)[:, None]
    state = torch.tanh(self.decoder.initial(summary))
    return state, (memory, is_padding, self.decoder.attention.key(memory))

  def step(self, state: torch.Tensor, tokens: torch.Tensor, memory: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the next state, and logits [B V]."""
    embedded = self.decoder.embedding(tokens)
    context = self.decoder.attention(state, *memory)
    state = self.decoder.cell(torch.cat([embedded, context], dim=-1), state)
    return state, self.decoder.output_logits(torch.cat([state, context, embedded], dim=-1))


def load(translator: Translator, params: Any) -> None:
  """Loads the parameters of an `attention.Seq2Seq` with one recurrent encoder layer."""
  encoder, decoder = params["encoder"], params["decoder"]
  weights = {
    "encoder.embedding.weight": encoder["embedding"]["embedding"],
    **_gru(encoder["forward_0"], "encoder.gru.{}_l0"),
    **_gru(encoder["backward_0"], "encoder.gru.{}_l0_reverse"),
    "decoder.embedding.weight": decoder["embedding"]["embedding"],
    **_gru(decoder["cell"], "decoder.cell.{}"),
    "decoder.attention.query.weight": decoder["attention_layer"]["query"]["kernel"].T,
    "decoder.attention.key.weight": decoder["attention_layer"]["key"]["kernel"].T,
    "decoder.attention.score.weight": decoder["attention_layer"]["score_vector"][None],
  }
  for name in ("initial", "readout", "logits"):
    weights[f"decoder.{name}.weight"] = decoder[name]["kernel"].T
    weights[f"decoder.{name}.bias"] = decoder[name]["bias"]
  translator.load_state_dict({name: torch.tensor(np.asarray(array)) for name, array in weights.items()})


def _gru(params: Any, name: str) -> dict[str, np.ndarray]:
  """Returns the weights of a GRU by their names in PyTorch. The order of the gates is the same."""
  recurrent_bias = np.asarray(params["recurrent_bias"])
  return {
    name.format("weight_ih"): np.asarray(params["input"]).T,
    name.format("weight_hh"): np.asarray(params["recurrent"]).T,
    name.format("bias_ih"): np.asarray(params["bias"]),
    # PyTorch has a recurrent bias for all three gates.
    name.format("bias_hh"): np.concatenate([np.zeros(2 * len(recurrent_bias), np.float32), recurrent_bias]),
  }
