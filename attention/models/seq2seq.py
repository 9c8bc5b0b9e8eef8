"""Sequence-to-sequence models, of an encoder and a decoder."""

from typing import Any, NamedTuple, Protocol

import jax
from flax import linen as nn

from attention.models.encoders import Encoded, TransformerEncoder


class OutputFeatures(NamedTuple):
  """The inputs of the output projection: logits are `vectors @ kernel + bias`.

  Attributes:
    vectors: [B T H]; with tied embeddings, H is the width of the embedding.
    kernel: [H V].
    bias: [V].
    weights: attention weights, [B T S]; None without attention.
  """

  vectors: jax.Array
  kernel: jax.Array
  bias: jax.Array
  weights: jax.Array | None


class AttentionWeights(NamedTuple):
  """The attention weights of each layer and head.

  Attributes:
    encoder: self-attention, [B L N S S]; None for an encoder without self-attention.
    decoder: attention to the source, [B L N T S]; None without attention.
  """

  encoder: jax.Array | None
  decoder: jax.Array | None


class Decoder(Protocol):
  """The interface of decoders for `Seq2Seq`, Flax modules.

  The state is a pytree of arrays [B ...], which a search reorders with its hypotheses. A source may have
  length 0: a batch that is sharded over devices may end with rows of padding.

  A decoder with several layers or heads can also define `attention_weights(state, targets, memory)`, which
  returns their weights [B L N T S].
  """

  def prepare(
    self, encoded: Encoded, source_lengths: jax.Array, max_length: int | None, /
  ) -> tuple[Any, Any]:
    """Returns the initial state, and the memory for all steps.

    Args:
      encoded: the encoded source.
      source_lengths: number of valid source positions, [B].
      max_length: maximum number of calls of `step`, or None if it is not called.
    """

  def step(self, state: Any, tokens: jax.Array, memory: Any, /) -> tuple[Any, jax.Array, jax.Array | None]:
    """Returns the next state, logits [B V], and weights [B S] or None, after the tokens [B]."""

  def __call__(
    self, state: Any, targets: jax.Array, memory: Any, /, *, deterministic: bool = True
  ) -> tuple[jax.Array, jax.Array | None]:
    """Returns logits [B T V], and weights [B T S] or None, after each of the tokens [B T]."""

  def output_features(
    self, state: Any, targets: jax.Array, memory: Any, /, *, deterministic: bool = True
  ) -> tuple[jax.Array, jax.Array | None]:
    """Returns the inputs of the output projection, [B T H], and weights [B T S] or None."""

  def output_projection(self) -> tuple[jax.Array, jax.Array]:
    """Returns the kernel [H V] and the bias [V] of the output projection."""


class Seq2Seq(nn.Module):
  """A sequence-to-sequence model, p(target | source).

  Attributes:
    encoder: a `RecurrentEncoder`, a `TransformerEncoder`, or a module with the same interface.
    decoder: a `RecurrentDecoder`, a `TransformerDecoder`, or a module with the methods of `Decoder`.

  References:
    Sutskever et al. 2014, arXiv:1409.3215; Bahdanau et al. 2015, arXiv:1409.0473.

  >>> import jax.numpy as jnp
  >>> from attention import RecurrentEncoder, TransformerDecoder, decoding
  >>> encoder = RecurrentEncoder(vocabulary_size=11, embed_dim=4, features=8)
  >>> model = Seq2Seq(encoder, TransformerDecoder(vocabulary_size=13, features=8))
  >>> sources, lengths = jnp.array([[3, 4, 5], [6, 7, 0]]), jnp.array([3, 2])
  >>> params = model.init(jax.random.key(0), sources, lengths, jnp.ones((2, 1), int))
  >>> logits, weights = model.apply(params, sources, lengths, jnp.array([[1, 8, 9], [1, 10, 0]]))
  >>> logits.shape, weights.shape
  ((2, 3, 13), (2, 3, 3))

  To decode, encode the source for at most 6 tokens, and pass the step function to a search:

  >>> state, memory = model.apply(params, sources, lengths, 6, method="encode")
  >>> def step(state, tokens):
  ...   return model.apply(params, state, tokens, memory, method="step")
  >>> decoding.greedy(step, state, batch_size=2, max_length=6, bos_id=1, eos_id=2).tokens.shape
  (2, 6)
  """

  encoder: nn.Module
  decoder: Decoder

  def __call__(
    self, sources: jax.Array, source_lengths: jax.Array, targets: jax.Array, *, deterministic: bool = True
  ) -> tuple[jax.Array, jax.Array | None]:
    """Computes the logits of known targets (teacher forcing).

    Args:
      sources: tokens [B S].
      source_lengths: number of valid source tokens, [B].
      targets: the previous token at each position, [B T]: the start symbol, then the sentence.
      deterministic: whether dropout is off; otherwise it uses the rng "dropout".

    Returns:
      Logits [B T V], and attention weights [B T S], or None without attention.
    """
    encoded = self.encoder(sources, source_lengths, deterministic=deterministic)
    state, memory = self.decoder.prepare(encoded, source_lengths, None)
    return self.decoder(state, targets, memory, deterministic=deterministic)

  def output_features(
    self, sources: jax.Array, source_lengths: jax.Array, targets: jax.Array, *, deterministic: bool = True
  ) -> OutputFeatures:
    """Returns the inputs of the output projection; arguments as in `__call__`.

    Use it if the logits of all positions need too much memory.
    """
    encoded = self.encoder(sources, source_lengths, deterministic=deterministic)
    state, memory = self.decoder.prepare(encoded, source_lengths, None)
    vectors, weights = self.decoder.output_features(state, targets, memory, deterministic=deterministic)
    return OutputFeatures(vectors, *self.decoder.output_projection(), weights)

  def attention_weights(
    self, sources: jax.Array, source_lengths: jax.Array, targets: jax.Array
  ) -> AttentionWeights:
    """Returns the weights of each layer and head for known targets; arguments as in `__call__`."""
    self_attention = None
    if isinstance(self.encoder, TransformerEncoder):
      encoded, self_attention = self.encoder(sources, source_lengths, return_weights=True)
    else:
      encoded = self.encoder(sources, source_lengths)
    state, memory = self.decoder.prepare(encoded, source_lengths, None)
    attention_weights = getattr(self.decoder, "attention_weights", None)
    if attention_weights is not None:
      return AttentionWeights(self_attention, attention_weights(state, targets, memory))
    _, weights = self.decoder(state, targets, memory)
    return AttentionWeights(self_attention, None if weights is None else weights[:, None, None])

  def encode(
    self, sources: jax.Array, source_lengths: jax.Array, max_length: int | None = None
  ) -> tuple[Any, Any]:
    """Returns the decoder's initial state and the memory, for at most max_length calls of `step`.

    A decoder with caches requires max_length; a recurrent decoder does not.
    """
    return self.decoder.prepare(self.encoder(sources, source_lengths), source_lengths, max_length)

  def step(self, state: Any, tokens: jax.Array, memory: Any) -> tuple[Any, jax.Array, jax.Array | None]:
    """Returns the next state, logits [B V], and weights [B S] or None, after the tokens [B]."""
    return self.decoder.step(state, tokens, memory)
