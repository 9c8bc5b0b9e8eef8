"""Flax: an encoder and a decoder make a translator."""

from typing import NamedTuple

import jax
from flax import linen as nn

from attention.models.encoders import TransformerEncoder
from attention.models.recurrent_decoder import DecoderMemory, RecurrentDecoder, State


class Features(NamedTuple):
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
    decoder: each target position to the source, [B N T S]; None without attention.
  """

  encoder: jax.Array | None
  decoder: jax.Array | None


class Seq2Seq(nn.Module):
  """Translates token sequences: p(target | source), one target token after another.

  Source: Sutskever et al. 2014, arXiv:1409.3215; Bahdanau et al. 2015, arXiv:1409.0473.

  Attributes:
    encoder: a `RecurrentEncoder`, a `TransformerEncoder`, or a module called like them.
    decoder: a `RecurrentDecoder`, or a module with its methods `prepare`, `step`, `__call__`, `features` and
      `output_weights`. What `prepare` returns as the state is a pytree of arrays [B ...] that it alone knows:
      the weights of the step before, say. A search gives it to `step`, in the order of its hypotheses.
      A length may be 0: a batch that is shared by devices may end with rows that have no words.
  """

  encoder: nn.Module
  decoder: RecurrentDecoder

  def __call__(
    self,
    sources: jax.Array,
    source_lengths: jax.Array,
    targets: jax.Array,
    *,
    deterministic: bool = True,
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
    state, memory = self.decoder.prepare(encoded, source_lengths)
    return self.decoder(state, targets, memory, deterministic=deterministic)

  def features(
    self,
    sources: jax.Array,
    source_lengths: jax.Array,
    targets: jax.Array,
    *,
    deterministic: bool = True,
  ) -> Features:
    """Returns of what the logits are made, and with what. The arguments are those of `__call__`.

    Logits of all positions at once may be too many to store.
    """
    encoded = self.encoder(sources, source_lengths, deterministic=deterministic)
    state, memory = self.decoder.prepare(encoded, source_lengths)
    vectors, weights = self.decoder.features(state, targets, memory, deterministic=deterministic)
    return Features(vectors, *self.decoder.output_weights(), weights)

  def attention_weights(
    self, sources: jax.Array, source_lengths: jax.Array, targets: jax.Array
  ) -> AttentionWeights:
    """Returns the weights of each layer and head along known targets; arguments as in `__call__`."""
    own = None
    if isinstance(self.encoder, TransformerEncoder):
      encoded, own = self.encoder(sources, source_lengths, return_weights=True)
    else:
      encoded = self.encoder(sources, source_lengths)
    state, memory = self.decoder.prepare(encoded, source_lengths)
    if isinstance(self.decoder, RecurrentDecoder):
      return AttentionWeights(own, self.decoder.head_weights(state, targets, memory))
    _, weights = self.decoder(state, targets, memory)
    return AttentionWeights(own, None if weights is None else weights[:, None])

  def encode(self, sources: jax.Array, source_lengths: jax.Array) -> tuple[State, DecoderMemory]:
    """Returns the decoder's first state and the memory, for `step`."""
    return self.decoder.prepare(self.encoder(sources, source_lengths), source_lengths)

  def step(
    self, state: State, tokens: jax.Array, memory: DecoderMemory
  ) -> tuple[State, jax.Array, jax.Array | None]:
    """Returns the next state, logits [B V] and weights [B S] after the tokens [B]."""
    return self.decoder.step(state, tokens, memory)
