"""Flax: the fields that an encoder and a decoder share, and how a decoder makes logits."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention import positions
from attention.arrays.sharding import compute_dtype
from attention.layers import MultiHeadAttention
from attention.layers.projections import kernel_init
from attention.linear import linear

# How the layers of a transformer know where a word stands.
POSITION_ENCODINGS = ("sinusoidal", "relative", "rotary", "none")


class RecurrentModel(nn.Module):
  """The fields of `RecurrentEncoder` and `RecurrentDecoder`.

  A layer hands to the next

      output_i = norm(states_i(dropped(output_{i-1})) + output_{i-1})

  if it is `residual` and has a norm.

  Source: dropout: Gal and Ghahramani 2016, arXiv:1512.05287; residual layers: Wu et al. 2016,
  arXiv:1609.08144, section 3.1.

  Attributes:
    vocabulary_size: V.
    embed_dim: width of a word's vector, E.
    features: of a state, H.
    num_layers: at least 1; each reads the outputs of the one below.
    dropout_rate: probability that a unit is dropped after the embedding, between the layers, or from the
      decoder's read-out.
    residual: whether each layer from the second on adds its input to its output.
    layer_norm: whether every layer's output is normalised.
    variational_dropout: whether a unit is dropped at all positions of a sentence or at none, not at each
      anew.
    recurrent_dropout_rate: probability that a unit of a state is dropped from its product with the recurrent
      weights, at all steps of a sentence.
    word_dropout_rate: probability that a word of a sentence is dropped, wherever it stands there.
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

  Source: Vaswani et al. 2017, arXiv:1706.03762, sections 3.1, 3.4 and 3.5; relative positions: Raffel et al.
  2020, arXiv:1910.10683, section 2.1; rotary: Su et al. 2021, arXiv:2104.09864.

  Attributes:
    vocabulary_size: V.
    features: D.
    num_layers: at least 1 in a decoder.
    num_heads: N, a divisor of D.
    mlp_dim: F.
    dropout_rate: as in `EncoderLayer` and `DecoderLayer`, and after the embedding.
    norm_position: "pre" or "post"; with "pre" the last layer's output is normalised, too.
    implementation: as in `attend`.
    variational_dropout: whether a unit of the embedding is dropped at all positions of a sentence or at none.
    word_dropout_rate: as in `RecurrentModel`; the position stays.
    position_encoding: how it knows where a word stands: "sinusoidal" vectors are added to the words;
      "relative", a trained term of the scores for each distance, the same in all layers; "rotary", queries
      and keys are turned; or "none".
    normalize_qk: as in `MultiHeadAttention`.
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
    """Returns an `EncoderLayer` or `DecoderLayer`, or raises ValueError if `position_encoding` is unknown."""
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
  """Holds the table [N R] of `positions.RelativePositionBias`, which all layers of a stack share.

  Source: Raffel et al. 2020, arXiv:1910.10683, section 2.1.

  Attributes:
    num_heads: N.
    bidirectional: as in `positions.RelativePositionBias`.
    num_buckets: R.
  """

  num_heads: int
  bidirectional: bool = True
  num_buckets: int = 32

  @nn.compact
  def __call__(self) -> positions.RelativePositionBias:
    table = self.param("table", nn.initializers.zeros, (self.num_heads, self.num_buckets), jnp.float32)
    return positions.RelativePositionBias(table, bidirectional=self.bidirectional)


class LinearParameters(nn.Module):
  """Holds the kernel [D X] and the bias [X] of a product with vectors of any width D."""

  features: int

  @nn.compact
  def __call__(self, input_width: int) -> tuple[jax.Array, jax.Array]:
    kernel = self.param("kernel", kernel_init, (input_width, self.features), jnp.float32)
    return kernel, self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32)


def logits_of(features: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
  """Returns logits [... V] of features [... H], in float32 also where these are of fewer bits."""
  logits = linear(features, kernel, compute_dtype(features.dtype))
  return logits + jnp.broadcast_to(bias.astype(logits.dtype), logits.shape)


class TokenDecoder(nn.Module):
  """What decoders share: logits of their features, and an embedding that may be tied.

  Source: Press and Wolf 2017, arXiv:1608.05859.

  Attributes:
    vocabulary_size: V.
    tied_embeddings: whether the logits' kernel is the embedding, transposed.
    num_layers: at least 1.
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
    """Reads whole targets (teacher forcing): `step` for each token in turn.

    Args:
      state: from `prepare`.
      targets: the word before each position, integers [B T].
      memory: from `prepare`.
      deterministic: whether to leave the dropout out; otherwise it draws from the rng "dropout".

    Returns:
      Logits [B T V], and weights [B T S], None without attention.
    """
    features, weights = self.output_features(state, targets, memory, deterministic=deterministic)
    return logits_of(features, *self.output_projection()), weights

  def output_features(
    self, state: Any, targets: jax.Array, memory: Any, *, deterministic: bool = True
  ) -> tuple[jax.Array, Any]:
    """Returns of what the logits are made, and weights [B T S]."""
    raise NotImplementedError

  def output_projection(self) -> tuple[jax.Array, jax.Array]:
    """Returns the kernel [H V], with tied embeddings [E V], and the bias [V] that make logits of features."""
    if self.tied_embeddings:
      return jnp.swapaxes(self.embedding.embedding, 0, 1), self.logits_bias
    return self.logits(self.features)
