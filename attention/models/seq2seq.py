"""Flax: an encoder and a decoder make a translator."""

from typing import Any, NamedTuple, Protocol

import jax
from flax import linen as nn

from attention.models.encoders import Encoded, TransformerEncoder


class OutputFeatures(NamedTuple):
  """What the logits are made of: `vectors @ kernel + bias`.

  Attributes:
    vectors: [B T H]; with tied embeddings H is the embedding's width.
    kernel: [H V].
    bias: [V].
    weights: attention, [B T S]; None without attention.
  """

  vectors: jax.Array
  kernel: jax.Array
  bias: jax.Array
  weights: jax.Array | None


class AttentionWeights(NamedTuple):
  """Who attends to whom, by each layer and head.

  Attributes:
    encoder: each source position to each other, [B L N S S]; None for an encoder without self-attention.
    decoder: each target position to the source, [B L N T S]; None without attention.
  """

  encoder: jax.Array | None
  decoder: jax.Array | None


class Decoder(Protocol):
  """What `Seq2Seq` asks of a decoder, a Flax module.

  Its state is a pytree of arrays [B ...] that it alone knows: of a GRU, of where it looked, of the words that
  it has read. A search gives it to `step`, in the order of its hypotheses. A source may have no words: a
  batch that is shared by devices may end with rows of padding.

  A decoder of several layers or heads may also have `attention_weights(state, targets, memory)`, which
  returns their weights [B L N T S].
  """

  def prepare(
    self, encoded: Encoded, source_lengths: jax.Array, max_length: int | None, /
  ) -> tuple[Any, Any]:
    """Returns the state before the first step, and what is the same for all steps.

    Args:
      encoded: the source.
      source_lengths: how many of its positions are real, [B].
      max_length: how often `step` will be called at most; None if it will not.
    """

  def step(self, state: Any, tokens: jax.Array, memory: Any, /) -> tuple[Any, jax.Array, jax.Array | None]:
    """Returns the next state, logits [B V] and weights [B S], if it has any, after the tokens [B]."""

  def __call__(
    self, state: Any, targets: jax.Array, memory: Any, /, *, deterministic: bool = True
  ) -> tuple[jax.Array, jax.Array | None]:
    """Returns logits [B T V] and weights [B T S] after each of the tokens [B T]."""

  def output_features(
    self, state: Any, targets: jax.Array, memory: Any, /, *, deterministic: bool = True
  ) -> tuple[jax.Array, jax.Array | None]:
    """Returns of what the logits are made, [B T H], and weights [B T S]."""

  def output_projection(self) -> tuple[jax.Array, jax.Array]:
    """Returns the kernel [H V] and the bias [V] that make logits of features."""


class Seq2Seq(nn.Module):
  """Translates token sequences: p(target | source), one target token after another.

  Source: Sutskever et al. 2014, arXiv:1409.3215; Bahdanau et al. 2015, arXiv:1409.0473.

  Attributes:
    encoder: a `RecurrentEncoder`, a `TransformerEncoder`, or a module called like them.
    decoder: a `RecurrentDecoder`, a `TransformerDecoder`, or a module with the methods of `Decoder`.

  >>> import jax.numpy as jnp
  >>> from attention import RecurrentEncoder, TransformerDecoder, decoding
  >>> encoder = RecurrentEncoder(vocabulary_size=11, embed_dim=4, features=8)
  >>> model = Seq2Seq(encoder, TransformerDecoder(vocabulary_size=13, features=8))
  >>> sources, lengths = jnp.array([[3, 4, 5], [6, 7, 0]]), jnp.array([3, 2])
  >>> params = model.init(jax.random.key(0), sources, lengths, jnp.ones((2, 1), int))
  >>> logits, weights = model.apply(params, sources, lengths, jnp.array([[1, 8, 9], [1, 10, 0]]))
  >>> logits.shape, weights.shape
  ((2, 3, 13), (2, 3, 3))

  A search calls a step as often as a translation may have tokens:

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
    """Returns what may come at each position of targets that are known (teacher forcing).

    Args:
      sources: tokens [B S].
      source_lengths: how many of the S are real, [B].
      targets: the token before each position, [B T]: the start symbol, then the sentence.
      deterministic: whether to leave the dropout out; otherwise it draws from the rng "dropout".

    Returns:
      Logits [B T V], and attention weights [B T S], None without attention.
    """
    encoded = self.encoder(sources, source_lengths, deterministic=deterministic)
    state, memory = self.decoder.prepare(encoded, source_lengths, None)
    return self.decoder(state, targets, memory, deterministic=deterministic)

  def output_features(
    self, sources: jax.Array, source_lengths: jax.Array, targets: jax.Array, *, deterministic: bool = True
  ) -> OutputFeatures:
    """Returns of what the logits are made, and with what. The arguments are those of `__call__`.

    Logits of all positions at once may be too many to store.
    """
    encoded = self.encoder(sources, source_lengths, deterministic=deterministic)
    state, memory = self.decoder.prepare(encoded, source_lengths, None)
    vectors, weights = self.decoder.output_features(state, targets, memory, deterministic=deterministic)
    return OutputFeatures(vectors, *self.decoder.output_projection(), weights)

  def attention_weights(
    self, sources: jax.Array, source_lengths: jax.Array, targets: jax.Array
  ) -> AttentionWeights:
    """Returns the weights of each layer and head along known targets; arguments as in `__call__`."""
    own = None
    if isinstance(self.encoder, TransformerEncoder):
      encoded, own = self.encoder(sources, source_lengths, return_weights=True)
    else:
      encoded = self.encoder(sources, source_lengths)
    state, memory = self.decoder.prepare(encoded, source_lengths, None)
    attention_weights = getattr(self.decoder, "attention_weights", None)
    if attention_weights is not None:
      return AttentionWeights(own, attention_weights(state, targets, memory))
    _, weights = self.decoder(state, targets, memory)
    return AttentionWeights(own, None if weights is None else weights[:, None, None])

  def encode(
    self, sources: jax.Array, source_lengths: jax.Array, max_length: int | None = None
  ) -> tuple[Any, Any]:
    """Returns the decoder's first state and the memory, for at most max_length calls of `step`.

    A recurrent decoder does without this number; one that keeps what it has read needs it.
    """
    return self.decoder.prepare(self.encoder(sources, source_lengths), source_lengths, max_length)

  def step(self, state: Any, tokens: jax.Array, memory: Any) -> tuple[Any, jax.Array, jax.Array | None]:
    """Returns the next state, logits [B V] and weights [B S] after the tokens [B]."""
    return self.decoder.step(state, tokens, memory)
