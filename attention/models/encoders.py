"""Flax encoders: from source tokens to a memory that a decoder can attend to."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention import masks, positions
from attention.layers.dropout import StateDropout, WordDropout, unit_dropout
from attention.layers.encoder_layer import EncoderLayer
from attention.layers.projections import LayerNorm, is_deterministic
from attention.models.base import RecurrentModel, RelativeBias, TransformerModel
from attention.models.gru import gru
from attention.models.gru_params import GRUModule


class Encoded(NamedTuple):
  """What an encoder returns.

  Attributes:
    memory: one vector for each source position, [B S D]. What stands at padding means nothing.
    final_state: one vector for the whole source, [B D].
  """

  memory: jax.Array
  final_state: jax.Array


class RecurrentEncoder(RecurrentModel):
  """A bidirectional GRU, in layers (see `RecurrentModel`).

  The memory of each position is the forward and the backward state there, or the last layer's output made of
  them, with a norm or `residual`. The summary is the forward state after the last word and the backward state
  after the first, as they are.

  Source: Bahdanau et al. 2015, arXiv:1409.0473, section 3.2.

  The other fields are those of `RecurrentModel`. The width is of each direction's state; D is twice that.

  Attributes:
    deterministic: as in `MultiHeadAttention`.

  Raises:
    ValueError: if there is no layer, or `recurrent_dropout_rate` or `word_dropout_rate` is not in [0, 1).
  """

  _: dataclasses.KW_ONLY
  deterministic: bool | None = None

  @nn.compact
  def __call__(
    self, sources: jax.Array, source_lengths: jax.Array, *, deterministic: bool | None = None
  ) -> Encoded:
    """Encodes tokens [B S], of which the first source_lengths [B] are real."""
    deterministic = is_deterministic(self, deterministic)
    if self.num_layers < 1:
      raise ValueError(f"num_layers must be at least 1, got {self.num_layers}")
    dropout = unit_dropout(self.dropout_rate, variational=self.variational_dropout)
    drop_states = StateDropout(self.recurrent_dropout_rate)
    layer = nn.Embed(self.vocabulary_size, self.embed_dim, name="embedding")(sources)
    layer = WordDropout(self.word_dropout_rate)(layer, sources, deterministic=deterministic)
    start = jnp.zeros((sources.shape[0], self.features), layer.dtype)
    finals: list[jax.Array] = []
    for i in range(self.num_layers):
      inputs = dropout(layer, deterministic=deterministic)
      forward = GRUModule(self.features, name=f"forward_{i}")(inputs.shape[-1])
      backward = GRUModule(self.features, name=f"backward_{i}")(inputs.shape[-1])
      mask_ahead, mask_behind = (drop_states(start, deterministic=deterministic) for _ in range(2))
      last, ahead = gru(forward, start, inputs, lengths=source_lengths, recurrent_mask=mask_ahead)
      first, behind = gru(
        backward, start, inputs, lengths=source_lengths, reverse=True, recurrent_mask=mask_behind
      )
      finals = [last, first]
      outputs = jnp.concatenate([ahead, behind], axis=-1)
      outputs = outputs + layer if self.residual and i > 0 else outputs
      layer = LayerNorm(name=f"norm_{i}")(outputs) if self.layer_norm else outputs
    return Encoded(memory=layer, final_state=jnp.concatenate(finals, axis=-1))


class TransformerEncoder(TransformerModel):
  """A stack of encoder layers over the words of the source.

  The summary is the mean of the memory over the real positions.

  The other fields are those of `TransformerModel`.

  Attributes:
    deterministic: as in `MultiHeadAttention`.

  Raises:
    ValueError: if `position_encoding` is not one of these.
  """

  _: dataclasses.KW_ONLY
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
    embedding_init = nn.initializers.normal(self.features**-0.5)
    embed = nn.Embed(self.vocabulary_size, self.features, embedding_init=embedding_init, name="embedding")
    is_real = jnp.arange(sources.shape[1])[None, :] < source_lengths[:, None]
    tokens = jnp.where(is_real, sources, 0)
    layer = embed(tokens) * self.features**0.5
    layer = WordDropout(self.word_dropout_rate)(layer, tokens, deterministic=deterministic)
    if self.position_encoding == "sinusoidal":
      layer += positions.sinusoidal(sources.shape[1], self.features)[None].astype(layer.dtype)
    dropout = unit_dropout(self.dropout_rate, variational=self.variational_dropout)
    layer = dropout(layer, deterministic=deterministic)
    mask = masks.lengths(source=source_lengths[:, None])
    bias = RelativeBias(self.num_heads, name="relative")() if self.position_encoding == "relative" else None
    weights: list[jax.Array] = []
    for i in range(self.num_layers):
      encoder_layer = self.make_layer(EncoderLayer, i)
      found = encoder_layer(
        layer, mask=mask, bias=bias, deterministic=deterministic, return_weights=return_weights
      )
      layer, *others = found if return_weights else (found,)
      weights += others
    memory = LayerNorm(name="norm")(layer) if self.norm_position == "pre" else layer
    total = jnp.einsum("BSD,BS->BD", memory, is_real.astype(memory.dtype))
    count = jnp.maximum(source_lengths, 1).astype(memory.dtype)
    encoded = Encoded(memory=memory, final_state=total / count[:, None])
    return (encoded, jnp.stack(weights, axis=1)) if return_weights else encoded
