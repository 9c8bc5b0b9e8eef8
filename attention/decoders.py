"""Flax decoder: a GRU that attends to the memory at every step."""

import dataclasses
from typing import NamedTuple

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
  MultiHeadAttention,
)
from attention.recurrent import GRUWeights, gru_step, project_inputs

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
    self.logits = nn.Dense(self.vocabulary_size)
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
    state, context, weights = self._recur(state, self._project(embedded, memory), memory)
    return state, self._read_out(state, context, embedded, deterministic=True), weights

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
    embedded = self.dropout(self.embedding(targets), deterministic=deterministic)

    def body(decoder, state, projected):
      state, context, weights = decoder._recur(state, projected, memory)
      return state, (state, context, weights)

    scan = nn.scan(
      body,
      variable_broadcast="params",
      split_rngs={"params": False, "dropout": False},
      in_axes=1,
      out_axes=1,
    )
    _, (states, contexts, weights) = scan(self, state, self._project(embedded, memory))
    return self._read_out(states, contexts, embedded, deterministic=deterministic), weights

  def _project(self, embedded: jax.Array, memory: DecoderMemory) -> jax.Array:
    """Returns the embeddings' part of the GRU's input products, [... 3H]: it needs no state."""
    weights = self._gru_weights(memory)
    kernel = weights.input[: self.embedding_width]
    return project_inputs(dataclasses.replace(weights, input=kernel), embedded)

  def _recur(
    self, state: jax.Array, projected: jax.Array, memory: DecoderMemory
  ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Returns next state [B H], context [B D] and weights [B S]."""
    weights = self._gru_weights(memory)
    context, alignment = self._context(state, memory)
    projected += jnp.einsum("BD,DG->BG", context, weights.input[self.embedding_width :])
    return gru_step(weights, state, projected), context, alignment

  def _context(self, state: jax.Array, memory: DecoderMemory) -> tuple[jax.Array, jax.Array | None]:
    """Returns the context [B D] that the state [B H] finds, and the weights [B S]."""
    if self.look_up is None:
      return memory.summary, None
    has_heads = self.attention == "multi_head"
    lengths = memory.lengths[:, None] if has_heads else memory.lengths
    context, weights = self.look_up.attend_prepared(
      state[:, None, :], memory.prepared, mask=masks.lengths(source=lengths), return_weights=True
    )
    weights = jnp.mean(weights, axis=1) if has_heads else weights
    return context[:, 0], weights[:, 0]

  def _gru_weights(self, memory: DecoderMemory) -> GRUWeights:
    """Returns the GRU's weights; its input is an embedding and a context."""
    if memory.prepared is None:
      context_width = memory.summary.shape[-1]
    else:
      context_width = self.width if self.attention == "multi_head" else memory.prepared[1].shape[-1]
    return self.cell(self.embedding_width + context_width)

  def _read_out(
    self, states: jax.Array, contexts: jax.Array, embedded: jax.Array, *, deterministic: bool
  ) -> jax.Array:
    """Returns logits [... V]."""
    hidden = jnp.tanh(self.readout(jnp.concatenate([states, contexts, embedded], axis=-1)))
    return self.logits(self.dropout(hidden, deterministic=deterministic))


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
