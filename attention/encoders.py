"""Flax encoders: from source tokens to a memory that a decoder can attend to."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention import masks, positions
from attention.layers import EncoderLayer, GRUParameters
from attention.recurrent import gru


class Encoded(NamedTuple):
  """What an encoder returns.

  Attributes:
    memory: one vector for each source position, [B S D]. What stands at padding means nothing.
    summary: one vector for the whole source, [B D].
  """

  memory: jax.Array
  summary: jax.Array


class RecurrentEncoder(nn.Module):
  """A bidirectional GRU, in layers.

  The memory of each position is the forward and the backward state there; the summary is the forward
  state after the last word and the backward state after the first.

  Source: Bahdanau et al. 2015, arXiv:1409.0473, section 3.2.

  Attributes:
    vocabulary_size: V.
    embedding_width: width of a word's vector.
    width: of each direction's state; D is twice that.
    num_layers: each reads the memory of the one below.
    dropout_rate: probability that a unit is dropped between the layers and after the embedding.
  """

  vocabulary_size: int
  embedding_width: int
  width: int
  num_layers: int = 1
  dropout_rate: float = 0.0

  @nn.compact
  def __call__(self, sources: jax.Array, source_lengths: jax.Array, *, deterministic: bool = True) -> Encoded:
    """Encodes tokens [B S], of which the first source_lengths [B] are real."""
    dropout = nn.Dropout(self.dropout_rate, deterministic=deterministic)
    layer = nn.Embed(self.vocabulary_size, self.embedding_width, name="embedding")(sources)
    start = jnp.zeros((sources.shape[0], self.width), layer.dtype)
    finals: list[jax.Array] = []
    for i in range(self.num_layers):
      layer = dropout(layer)
      input_width = layer.shape[-1]
      forward = GRUParameters(self.width, name=f"forward_{i}")(input_width)
      backward = GRUParameters(self.width, name=f"backward_{i}")(input_width)
      last, ahead = gru(forward, start, layer, lengths=source_lengths)
      first, behind = gru(backward, start, layer, lengths=source_lengths, reverse=True)
      layer = jnp.concatenate([ahead, behind], axis=-1)
      finals = [last, first]
    return Encoded(memory=layer, summary=jnp.concatenate(finals, axis=-1))


class TransformerEncoder(nn.Module):
  """A stack of encoder layers over embeddings with sinusoidal positions.

  The summary is the mean of the memory over the real positions.

  Source: Vaswani et al. 2017, arXiv:1706.03762, sections 3.1, 3.4 and 3.5.

  Attributes:
    vocabulary_size: V.
    width: D.
    num_layers: number of `EncoderLayer`s.
    num_heads: N, a divisor of D.
    feed_forward_width: F.
    dropout_rate: as in `EncoderLayer`, and after the embedding.
    norm: "pre" or "post"; with "pre" the memory is normalised at the end.
    implementation: as in `attend`.
  """

  vocabulary_size: int
  width: int
  num_layers: int = 2
  num_heads: int = 4
  feed_forward_width: int = 256
  dropout_rate: float = 0.0
  norm: str = "pre"
  implementation: str = "auto"

  @nn.compact
  def __call__(self, sources: jax.Array, source_lengths: jax.Array, *, deterministic: bool = True) -> Encoded:
    """Encodes tokens [B S], of which the first source_lengths [B] are real."""
    embedding_init = nn.initializers.normal(self.width**-0.5)
    embed = nn.Embed(self.vocabulary_size, self.width, embedding_init=embedding_init, name="embedding")
    encodings = positions.sinusoidal(sources.shape[1], self.width)
    is_real = jnp.arange(sources.shape[1])[None, :] < source_lengths[:, None]
    layer = embed(jnp.where(is_real, sources, 0)) * self.width**0.5
    layer += encodings[None].astype(layer.dtype)
    layer = nn.Dropout(self.dropout_rate)(layer, deterministic=deterministic)
    mask = masks.lengths(source=source_lengths[:, None])
    for i in range(self.num_layers):
      layer = EncoderLayer(
        self.num_heads,
        self.feed_forward_width,
        self.dropout_rate,
        self.norm,
        self.implementation,
        name=f"layer_{i}",
      )(layer, mask=mask, deterministic=deterministic)
    memory = nn.LayerNorm(name="norm")(layer) if self.norm == "pre" else layer
    total = jnp.einsum("BSD,BS->BD", memory, is_real.astype(memory.dtype))
    count = jnp.maximum(source_lengths, 1).astype(memory.dtype)
    return Encoded(memory=memory, summary=total / count[:, None])
