"""Flax decoder: a GRU that attends to the memory at every step."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention import masks
from attention.encoders import Encoded
from attention.layers import (
  AdditiveAttention,
  BilinearAttention,
  DotProductAttention,
  GRUParameters,
  LinearParameters,
  MultiHeadAttention,
)
from attention.recurrent import GRUWeights, attentive_gru, gru_step, project_inputs

ATTENTIONS = ("additive", "scaled_dot_product", "bilinear", "multi_head", "none")


class DecoderMemory(NamedTuple):
  """What a decoder's steps attend to; it stays the same for a whole sentence.

  Attributes:
    prepared: keys and values, which the attention computes once for the source; None without attention.
    lengths: how many of the S positions are real, [B].
    summary: the encoder's summary, [B D].
  """

  prepared: tuple[jax.Array, jax.Array] | None
  lengths: jax.Array
  summary: jax.Array


class Decoder(nn.Module):
  """A GRU language model of the target that attends to the source.

      context_t = attention(state_{t-1}, memory)
      state_t = GRU(state_{t-1}, [embedding of the word before; context_t])
      logits_t = W_o tanh(W_r [state_t; context_t; embedding of the word before])

  With attention "none" the context is the same at every step, the encoder's summary: the fixed-length
  vector whose limits attention was invented to overcome.

  Source: Bahdanau et al. 2015, arXiv:1409.0473, A.2.2; the baseline: Cho et al. 2014, arXiv:1406.1078.

  Attributes:
    vocabulary_size: V.
    embedding_width: width of a word's vector.
    width: H of the state, also that of the attention and of the read-out.
    attention: "additive", "scaled_dot_product", "bilinear", "multi_head" or "none".
    num_heads: for "multi_head", a divisor of the width.
    dropout_rate: probability that a unit of the embedding or of the read-out is dropped.
    implementation: as in `attend`.

  Raises:
    ValueError: if `attention` is not one of these.
  """

  vocabulary_size: int
  embedding_width: int
  width: int
  attention: str = "additive"
  num_heads: int = 1
  dropout_rate: float = 0.0
  implementation: str = "auto"

  def setup(self):
    self.embedding = nn.Embed(self.vocabulary_size, self.embedding_width)
    self.initial = nn.Dense(self.width)
    self.cell = GRUParameters(self.width)
    self.readout = nn.Dense(self.width)
    self.logits = LinearParameters(self.vocabulary_size)
    self.dropout = nn.Dropout(self.dropout_rate)
    self.look_up = _make_attention(self.attention, self.width, self.num_heads, self.implementation)

  def prepare(self, encoded: Encoded, source_lengths: jax.Array) -> tuple[jax.Array, DecoderMemory]:
    """Returns the state before the first step [B H], and the memory of all steps."""
    prepared = None if self.look_up is None else self.look_up.prepare(encoded.memory)
    memory = DecoderMemory(prepared, source_lengths, encoded.summary)
    return jnp.tanh(self.initial(encoded.summary)), memory

  def step(
    self, state: jax.Array, tokens: jax.Array, memory: DecoderMemory
  ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Reads one token of each sentence and says what may come next.

    Args:
      state: [B H].
      tokens: the words before, integers [B].
      memory: from `prepare`.

    Returns:
      The next state [B H], logits [B V], and weights [B S], None without attention. Several heads'
      weights are averaged.
    """
    embedded = self.embedding(tokens)
    context, weights = self._look_up(state[:, None], memory)
    cell, context_cell = self._cells(memory)
    projected = project_inputs(cell, embedded) + jnp.einsum("BD,DG->BG", context[:, 0], context_cell.input)
    state = gru_step(cell, state, projected)
    hidden = self._read_out(state, context[:, 0], embedded, deterministic=True)
    return state, self._logits(hidden), None if weights is None else weights[:, 0]

  def __call__(
    self,
    state: jax.Array,
    targets: jax.Array,
    memory: DecoderMemory,
    *,
    deterministic: bool = True,
  ) -> tuple[jax.Array, jax.Array | None]:
    """Reads whole targets (teacher forcing): `step` for each token in turn.

    Args:
      state: [B H].
      targets: the word before each position, integers [B T].
      memory: from `prepare`.
      deterministic: whether to leave the dropout out; otherwise it draws from the rng "dropout".

    Returns:
      Logits [B T V], and weights [B T S], None without attention.
    """
    hidden, weights = self.hidden(state, targets, memory, deterministic=deterministic)
    return self._logits(hidden), weights

  def hidden(
    self,
    state: jax.Array,
    targets: jax.Array,
    memory: DecoderMemory,
    *,
    deterministic: bool = True,
  ) -> tuple[jax.Array, jax.Array | None]:
    """Does what `__call__` does, and returns of what the logits are made, [B T H], in their place.

    Where the vocabulary is large, logits of all positions are the largest array of all. A loss may find them
    a part at a time, with `output_weights`.
    """
    embedded = self.dropout(self.embedding(targets), deterministic=deterministic)
    states, contexts, weights = self._read(state, embedded, memory)
    return self._read_out(states, contexts, embedded, deterministic=deterministic), weights

  def _read(
    self, state: jax.Array, embedded: jax.Array, memory: DecoderMemory
  ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Returns the states [B T H] after embedded words, the contexts [B T D] and the weights [B T S]."""
    cell, context_cell = self._cells(memory)
    projected = project_inputs(cell, embedded)
    if self.look_up is None:  # the context is an input like any other
      contexts, _ = self._look_up(embedded, memory)
      projected += jnp.einsum("BTD,DG->BTG", contexts, context_cell.input)
      return attentive_gru(context_cell, state, projected)[0], contexts, None
    if self.is_initializing():
      self._look_up(state[:, None], memory)  # makes the parameters
    layer, variables = self.look_up.unbind()

    def look_up(memory: tuple[Any, DecoderMemory], queries: jax.Array) -> jax.Array:
      return _find(layer.bind(memory[0]), queries, memory[1])[0]

    states, contexts = attentive_gru(context_cell, state, projected, look_up, (variables, memory))
    # The weights again, of all states at once: nothing is done for them if nobody asks.
    weights = self._look_up(jnp.concatenate([state[:, None], states[:, :-1]], axis=1), memory)[1]
    return states, contexts, weights

  def _look_up(self, states: jax.Array, memory: DecoderMemory) -> tuple[jax.Array, jax.Array | None]:
    """Returns the contexts [B T D] that states [B T H] find, and the weights [B T S]."""
    if self.look_up is None:
      B, D = memory.summary.shape
      return jnp.broadcast_to(memory.summary[:, None], (B, states.shape[1], D)), None
    return _find(self.look_up, states, memory)

  def _cells(self, memory: DecoderMemory) -> tuple[GRUWeights, GRUWeights]:
    """Returns the GRU's weights with the rows of the input that are for embeddings, and for contexts."""
    if memory.prepared is None:
      context_width = memory.summary.shape[-1]
    else:
      context_width = self.width if self.attention == "multi_head" else memory.prepared[1].shape[-1]
    weights = self.cell(self.embedding_width + context_width)
    rows = jnp.split(weights.input, [self.embedding_width])
    return dataclasses.replace(weights, input=rows[0]), dataclasses.replace(weights, input=rows[1])

  def _read_out(
    self, states: jax.Array, contexts: jax.Array, embedded: jax.Array, *, deterministic: bool
  ) -> jax.Array:
    """Returns of what the logits are made, [... H]."""
    hidden = jnp.tanh(self.readout(jnp.concatenate([states, contexts, embedded], axis=-1)))
    return self.dropout(hidden, deterministic=deterministic)

  def _logits(self, hidden: jax.Array) -> jax.Array:
    """Returns logits [... V] of the read-out [... H]."""
    kernel, bias = self.output_weights()
    logits = jnp.einsum("...H,HV->...V", hidden, kernel)
    return logits + jnp.broadcast_to(bias, logits.shape)

  def output_weights(self) -> tuple[jax.Array, jax.Array]:
    """Returns the kernel [H V] and the bias [V] that make logits of the read-out."""
    return self.logits(self.width)


def _find(layer: nn.Module, states: jax.Array, memory: DecoderMemory) -> tuple[jax.Array, jax.Array]:
  """Returns the contexts [B T D] that states [B T H] find by a layer, and the weights [B T S]."""
  has_heads = isinstance(layer, MultiHeadAttention)
  lengths = memory.lengths[:, None] if has_heads else memory.lengths
  contexts, weights = layer.attend_prepared(
    states, memory.prepared, mask=masks.lengths(source=lengths), return_weights=True
  )
  return contexts, jnp.mean(weights, axis=1) if has_heads else weights


def _make_attention(kind: str, width: int, num_heads: int, implementation: str) -> nn.Module | None:
  """Returns the layer that a name stands for, None for "none"."""
  if kind not in ATTENTIONS:
    raise ValueError(f"attention must be one of {', '.join(ATTENTIONS)}, got {kind!r}")
  if kind == "additive":
    return AdditiveAttention(width=width, implementation=implementation)
  if kind == "scaled_dot_product":
    return DotProductAttention(width=width, implementation=implementation)
  if kind == "bilinear":
    return BilinearAttention(implementation=implementation)
  if kind == "multi_head":
    return MultiHeadAttention(num_heads, width, implementation=implementation)
  return None
