"""Base classes of encoders and decoders: shared fields, position encodings and output projections."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention import positions
from attention.arrays.dtypes import compute_dtype
from attention.layers import MultiHeadAttention
from attention.layers.projections import kernel_init
from attention.linear import linear

POSITION_ENCODINGS = ("sinusoidal", "relative", "rotary", "none")


class RecurrentModel(nn.Module):
  """The fields of `RecurrentEncoder` and `RecurrentDecoder`.

  With `residual` and `layer_norm`, the output of layer i is

      output_i = norm(states_i(dropout(output_{i-1})) + output_{i-1})

  Attributes:
    vocabulary_size: V.
    embed_dim: width of the word embeddings, E.
    features: width of the state, H.
    num_layers: number of layers, at least 1.
    dropout_rate: probability of dropping a unit after the embedding, between layers, or in the decoder's
      readout.
    residual: whether each layer from the second on adds its input to its output.
    layer_norm: whether the output of each layer is normalized.
    variational_dropout: if True, a unit is dropped at all positions of a sentence or at none. If False,
      positions are independent.
    recurrent_dropout_rate: probability of dropping a unit of the state in the recurrent products, at all
      steps of a sentence.
    word_dropout_rate: probability of dropping a word of a sentence, at all its positions.

  References:
    Dropout: Gal and Ghahramani 2016, arXiv:1512.05287; residual layers: Wu et al. 2016, arXiv:1609.08144,
    section 3.1.
  """

  vocabulary_size: int
  embed_dim: int
  features: int
  _: dataclasses.KW_ONLY
  num_layers: int = 1
  dropout_rate: float = 0.0
  residual: bool = False
  layer_norm: bool = False
  variational_dropout: bool = False
  recurrent_dropout_rate: float = 0.0
  word_dropout_rate: float = 0.0


class TransformerModel(nn.Module):
  """The fields of `TransformerEncoder` and `TransformerDecoder`.

  Attributes:
    vocabulary_size: V.
    features: D.
    num_layers: number of layers; at least 1 in a decoder.
    num_heads: N, which must divide D.
    mlp_dim: F.
    dropout_rate: as in `EncoderLayer` and `DecoderLayer`, and after the embedding.
    norm_position: as in `EncoderLayer`. Unless it is "post", the output of the last layer is normalized, too.
    implementation: as in `attend`.
    variational_dropout: if True, a unit of the embedding is dropped at all positions of a sentence or at
      none.
    word_dropout_rate: as in `RecurrentModel`; position encodings are kept.
    position_encoding: "sinusoidal" encodings are added to the embeddings; "relative" adds a trained bias per
      distance to the scores, shared by all layers; "rotary" rotates queries and keys; or "none".
    normalize_qk: as in `MultiHeadAttention`.

  References:
    Vaswani et al. 2017, arXiv:1706.03762, sections 3.1, 3.4 and 3.5; relative positions: Raffel et al. 2020,
    arXiv:1910.10683, section 2.1; rotary: Su et al. 2021, arXiv:2104.09864.
  """

  vocabulary_size: int
  features: int
  _: dataclasses.KW_ONLY
  num_layers: int = 2
  num_heads: int = 4
  mlp_dim: int = 256
  dropout_rate: float = 0.0
  norm_position: str = "pre"
  implementation: str = "auto"
  variational_dropout: bool = False
  word_dropout_rate: float = 0.0
  position_encoding: str = "sinusoidal"
  normalize_qk: bool = False

  def make_layer(self, layer_class: Callable[..., Any], number: int, **options: Any) -> Any:
    """Returns an `EncoderLayer` or `DecoderLayer`, or raises ValueError if `position_encoding` is invalid."""
    if self.position_encoding not in POSITION_ENCODINGS:
      raise ValueError(
        f"position_encoding must be one of {', '.join(POSITION_ENCODINGS)}, got {self.position_encoding!r}"
      )
    position_fn = positions.rotary if self.position_encoding == "rotary" else None
    self_attention = functools.partial(
      MultiHeadAttention, position_fn=position_fn, normalize_qk=self.normalize_qk
    )
    return layer_class(
      self.num_heads,
      self.mlp_dim,
      self.dropout_rate,
      self.norm_position,
      self.implementation,
      self_attention_cls=self_attention,
      name=f"layer_{number}",
      **options,
    )


class RelativeBias(nn.Module):
  """The table [N R] of a `positions.RelativePositionBias`, shared by all layers of a model.

  Attributes:
    num_heads: N.
    bidirectional: as in `positions.RelativePositionBias`.
    num_buckets: R.

  References:
    Raffel et al. 2020, arXiv:1910.10683, section 2.1.
  """

  num_heads: int
  bidirectional: bool = True
  num_buckets: int = 32

  @nn.compact
  def __call__(self) -> positions.RelativePositionBias:
    table = self.param("table", nn.initializers.zeros, (self.num_heads, self.num_buckets), jnp.float32)
    return positions.RelativePositionBias(table, bidirectional=self.bidirectional)


class LinearParameters(nn.Module):
  """The kernel [D X] and the bias [X] of a linear layer with inputs of any width D."""

  features: int

  @nn.compact
  def __call__(self, input_width: int) -> tuple[jax.Array, jax.Array]:
    kernel = self.param("kernel", kernel_init, (input_width, self.features), jnp.float32)
    return kernel, self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32)


def logits_of(features: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
  """Returns logits [... V] of features [... H], in at least float32."""
  logits = linear(features, kernel, compute_dtype(features.dtype))
  return logits + jnp.broadcast_to(bias.astype(logits.dtype), logits.shape)


class TokenDecoder(nn.Module):
  """Base class of decoders: output projection, and optionally tied embeddings.

  Attributes:
    vocabulary_size: V.
    tied_embeddings: whether the output kernel is the transposed embedding.
    num_layers: number of layers, at least 1.

  References:
    Press and Wolf 2017, arXiv:1608.05859.
  """

  vocabulary_size: int
  _: dataclasses.KW_ONLY
  tied_embeddings: bool = False
  num_layers: int = 1

  def setup(self):
    if self.num_layers < 1:
      raise ValueError(f"num_layers must be at least 1, got {self.num_layers}")
    if self.tied_embeddings:
      self.logits_bias = self.param(
        "logits_bias", nn.initializers.zeros, (self.vocabulary_size,), jnp.float32
      )
    else:
      self.logits = LinearParameters(self.vocabulary_size)

  def __call__(
    self, state: Any, targets: jax.Array, memory: Any, *, deterministic: bool = True
  ) -> tuple[jax.Array, Any]:
    """Decodes whole targets with teacher forcing.

    Args:
      state: from `prepare`.
      targets: the previous word at each position, integers [B T].
      memory: from `prepare`.
      deterministic: whether dropout is off; otherwise it uses the rng "dropout".

    Returns:
      Logits [B T V], and weights [B T S], or None without attention.
    """
    features, weights = self.output_features(state, targets, memory, deterministic=deterministic)
    return logits_of(features, *self.output_projection()), weights

  def output_features(
    self, state: Any, targets: jax.Array, memory: Any, *, deterministic: bool = True
  ) -> tuple[jax.Array, Any]:
    """Returns the inputs of the output projection, [B T H], and weights [B T S]."""
    raise NotImplementedError

  def output_projection(self) -> tuple[jax.Array, jax.Array]:
    """Returns the kernel [H V] (with tied embeddings [E V]) and the bias [V] of the output projection."""
    if self.tied_embeddings:
      return jnp.swapaxes(self.embedding.embedding, 0, 1), self.logits_bias
    return self.logits(self.features)
