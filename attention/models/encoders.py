"""Flax encoders: from source tokens to a memory that a decoder can attend to."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention import masks, positions
from attention.layers.dropout import StateDropout, WordDropout, unit_dropout
from attention.layers.encoder_layer import EncoderLayer
from attention.layers.parameters import LayerNorm, is_deterministic
from attention.models.parameters import GRUParameters
from attention.models.places import RelativeBias, make_self_attention
from attention.models.recurrent import gru


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

      output_i = norm(states_i(dropped(output_{i-1})) + output_{i-1})

  is what a layer hands to the next, and the last layer's is the memory, if it is `residual` and has a norm.
  The summary is made of the last layer's states as they are.

  Source: Bahdanau et al. 2015, arXiv:1409.0473, section 3.2; dropout: Gal and Ghahramani 2016,
  arXiv:1512.05287; residual layers: Wu et al. 2016, arXiv:1609.08144, section 3.1.

  Attributes:
    vocabulary_size: V.
    embedding_width: width of a word's vector.
    width: of each direction's state; D is twice that.
    num_layers: each reads the memory of the one below.
    dropout_rate: probability that a unit is dropped between the layers and after the embedding.
    residual: whether each layer from the second on adds its input to its output.
    use_norm: whether every layer's output is normalised, and so the memory.
    variational: whether a unit is dropped at all positions of a sentence or at none, not at each anew.
    recurrent_dropout_rate: probability that a unit of a state is dropped from its product with the recurrent
      weights, at all steps of a sentence.
    word_dropout_rate: probability that a word of a sentence is dropped, wherever it stands there.
    deterministic: as in `MultiHeadAttention`.

  Raises:
    ValueError: if `recurrent_dropout_rate` or `word_dropout_rate` is not in [0, 1).
  """

  vocabulary_size: int
  embedding_width: int
  width: int
  num_layers: int = 1
  dropout_rate: float = 0.0
  residual: bool = False
  use_norm: bool = False
  variational: bool = False
  recurrent_dropout_rate: float = 0.0
  word_dropout_rate: float = 0.0
  deterministic: bool | None = None

  @nn.compact
  def __call__(
    self, sources: jax.Array, source_lengths: jax.Array, *, deterministic: bool | None = None
  ) -> Encoded:
    """Encodes tokens [B S], of which the first source_lengths [B] are real."""
    deterministic = is_deterministic(self, deterministic)
    if self.num_layers < 1:
      raise ValueError(f"num_layers must be at least 1, got {self.num_layers}")
    dropout = unit_dropout(self.dropout_rate, variational=self.variational)
    drop_states = StateDropout(self.recurrent_dropout_rate)
    layer = nn.Embed(self.vocabulary_size, self.embedding_width, name="embedding")(sources)
    layer = WordDropout(self.word_dropout_rate)(layer, sources, deterministic=deterministic)
    start = jnp.zeros((sources.shape[0], self.width), layer.dtype)
    finals: list[jax.Array] = []
    for i in range(self.num_layers):
      inputs = dropout(layer, deterministic=deterministic)
      forward = GRUParameters(self.width, name=f"forward_{i}")(inputs.shape[-1])
      backward = GRUParameters(self.width, name=f"backward_{i}")(inputs.shape[-1])
      mask_ahead, mask_behind = (drop_states(start, deterministic=deterministic) for _ in range(2))
      last, ahead = gru(forward, start, inputs, lengths=source_lengths, recurrent_mask=mask_ahead)
      first, behind = gru(
        backward, start, inputs, lengths=source_lengths, reverse=True, recurrent_mask=mask_behind
      )
      finals = [last, first]
      outputs = jnp.concatenate([ahead, behind], axis=-1)
      outputs = outputs + layer if self.residual and i > 0 else outputs
      layer = LayerNorm(name=f"norm_{i}")(outputs) if self.use_norm else outputs
    return Encoded(memory=layer, summary=jnp.concatenate(finals, axis=-1))


class TransformerEncoder(nn.Module):
  """A stack of encoder layers over the words of the source.

  The summary is the mean of the memory over the real positions.

  Source: Vaswani et al. 2017, arXiv:1706.03762, sections 3.1, 3.4 and 3.5; relative positions: Raffel et al.
  2020, arXiv:1910.10683, section 2.1; rotary: Su et al. 2021, arXiv:2104.09864.

  Attributes:
    vocabulary_size: V.
    width: D.
    num_layers: number of `EncoderLayer`s.
    num_heads: N, a divisor of D.
    feed_forward_width: F.
    dropout_rate: as in `EncoderLayer`, and after the embedding.
    norm: "pre" or "post"; with "pre" the memory is normalised at the end.
    implementation: as in `attend`.
    variational: whether a unit of the embedding is dropped at all positions of a sentence or at none.
    word_dropout_rate: as in `RecurrentEncoder`; the position stays.
    positions: how it knows where a word stands: "sinusoidal" vectors are added to the words; "relative", a
      trained term of the scores for each distance, the same in all layers; "rotary", queries and keys are
      turned; or "none".
    normalize_qk: as in `MultiHeadAttention`.
    deterministic: likewise.

  Raises:
    ValueError: if `positions` is not one of these.
  """

  vocabulary_size: int
  width: int
  num_layers: int = 2
  num_heads: int = 4
  feed_forward_width: int = 256
  dropout_rate: float = 0.0
  norm: str = "pre"
  implementation: str = "auto"
  variational: bool = False
  word_dropout_rate: float = 0.0
  positions: str = "sinusoidal"
  normalize_qk: bool = False
  deterministic: bool | None = None

  @nn.compact
  def __call__(
    self,
    sources: jax.Array,
    source_lengths: jax.Array,
    *,
    deterministic: bool | None = None,
    return_weights: bool = False,
  ) -> Any:
    """Encodes tokens [B S], of which the first source_lengths [B] are real.

    Returns:
      `Encoded`; if asked for, a tuple of it and the weights of each layer and head, [B L N S S].
    """
    deterministic = is_deterministic(self, deterministic)
    embedding_init = nn.initializers.normal(self.width**-0.5)
    embed = nn.Embed(self.vocabulary_size, self.width, embedding_init=embedding_init, name="embedding")
    is_real = jnp.arange(sources.shape[1])[None, :] < source_lengths[:, None]
    tokens = jnp.where(is_real, sources, 0)
    layer = embed(tokens) * self.width**0.5
    layer = WordDropout(self.word_dropout_rate)(layer, tokens, deterministic=deterministic)
    if self.positions == "sinusoidal":
      layer += positions.sinusoidal(sources.shape[1], self.width)[None].astype(layer.dtype)
    dropout = unit_dropout(self.dropout_rate, variational=self.variational)
    layer = dropout(layer, deterministic=deterministic)
    mask = masks.lengths(source=source_lengths[:, None])
    bias = RelativeBias(self.num_heads, name="relative")() if self.positions == "relative" else None
    weights: list[jax.Array] = []
    for i in range(self.num_layers):
      encoder_layer = EncoderLayer(
        self.num_heads,
        self.feed_forward_width,
        self.dropout_rate,
        self.norm,
        self.implementation,
        make_attention=make_self_attention(self.positions, normalize_qk=self.normalize_qk),
        name=f"layer_{i}",
      )
      found = encoder_layer(
        layer, mask=mask, bias=bias, deterministic=deterministic, return_weights=return_weights
      )
      layer, *others = found if return_weights else (found,)
      weights += others
    memory = LayerNorm(name="norm")(layer) if self.norm == "pre" else layer
    total = jnp.einsum("BSD,BS->BD", memory, is_real.astype(memory.dtype))
    count = jnp.maximum(source_lengths, 1).astype(memory.dtype)
    encoded = Encoded(memory=memory, summary=total / count[:, None])
    return (encoded, jnp.stack(weights, axis=1)) if return_weights else encoded
