"""Flax encoders, which map source tokens to a memory that a decoder can attend to."""

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
from attention.models.gru import GRUModule, gru


class Encoded(NamedTuple):
  """The result of an encoder.

  Attributes:
    memory: one vector per source position, [B S D]; arbitrary at padding.
    final_state: one vector per source, [B D].
  """

  memory: jax.Array
  final_state: jax.Array


class RecurrentEncoder(RecurrentModel):
  """A bidirectional GRU with one or more layers (see `RecurrentModel`).

  The memory is the output of the last layer: at each position, the concatenation of the forward and backward
  states, or with `layer_norm` or `residual` the output computed from them. The final state is the
  concatenation of the forward state after the last word and the backward state after the first word.

  The other attributes are those of `RecurrentModel`. `features` is the width of each direction; D is twice
  that.

  Attributes:
    deterministic: as in `MultiHeadAttention`.

  Raises:
    ValueError: if num_layers is less than 1, or `recurrent_dropout_rate` or `word_dropout_rate` is not in
      [0, 1).

  References:
    Bahdanau et al. 2015, arXiv:1409.0473, section 3.2.
  """

  _: dataclasses.KW_ONLY
  deterministic: bool | None = None

  @nn.compact
  def __call__(
    self, sources: jax.Array, source_lengths: jax.Array, *, deterministic: bool | None = None
  ) -> Encoded:
    """Encodes tokens [B S] with lengths [B]."""
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
  """A stack of Transformer encoder layers.

  The final state is the mean of the memory over valid positions. The other attributes are those of
  `TransformerModel`.

  Attributes:
    deterministic: as in `MultiHeadAttention`.

  Raises:
    ValueError: if `position_encoding` is invalid.
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
    """Encodes tokens [B S] with lengths [B].

    Returns:
      `Encoded`. With `return_weights`, a tuple of it and the weights of each layer and head, [B L N S S].
    """
    deterministic = is_deterministic(self, deterministic)
    embedding_init = nn.initializers.normal(self.features**-0.5)
    embed = nn.Embed(self.vocabulary_size, self.features, embedding_init=embedding_init, name="embedding")
    is_valid = jnp.arange(sources.shape[1])[None, :] < source_lengths[:, None]
    tokens = jnp.where(is_valid, sources, 0)
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
      output = encoder_layer(
        layer, mask=mask, bias=bias, deterministic=deterministic, return_weights=return_weights
      )
      layer, *extras = output if return_weights else (output,)
      weights += extras
    memory = LayerNorm(name="norm")(layer) if self.norm_position != "post" else layer
    total = jnp.einsum("BSD,BS->BD", memory, is_valid.astype(memory.dtype))
    count = jnp.maximum(source_lengths, 1).astype(memory.dtype)
    encoded = Encoded(memory=memory, final_state=total / count[:, None])
    return (encoded, jnp.stack(weights, axis=1)) if return_weights else encoded
