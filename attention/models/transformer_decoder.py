"""A Flax decoder: a Transformer with a cache of keys and values."""

import functools
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention import masks, positions
from attention.layers import KVCache, MultiHeadAttention
from attention.layers.decoder_layer import DecoderLayer
from attention.layers.dropout import WordDropout, unit_dropout
from attention.layers.projections import LayerNorm
from attention.models.base import RelativeBias, TokenDecoder, TransformerModel, logits_of
from attention.models.encoders import Encoded

Caches: TypeAlias = tuple[KVCache, ...]  # of each layer


class TransformerMemory(NamedTuple):
  """The encoded source that a Transformer decoder attends to, the same for all steps.

  Attributes:
    keys_values: keys and values of each layer, [B N S H].
    lengths: number of valid positions of S, [B].
  """

  keys_values: tuple[tuple[jax.Array, jax.Array], ...]
  lengths: jax.Array


class TransformerDecoder(TransformerModel, TokenDecoder):
  """A stack of Transformer decoder layers.

  It returns attention weights averaged over the heads of the penultimate layer, which align best with the
  source of the next word (Garg et al. 2019, arXiv:1909.02074), or of the only layer.

  The attributes are those of `TransformerModel` and `TokenDecoder`.

  Raises:
    ValueError: if num_layers is less than 1, or `position_encoding` is invalid.
  """

  def setup(self):
    super().setup()
    V, D = self.vocabulary_size, self.features
    self.embedding = nn.Embed(V, D, embedding_init=nn.initializers.normal(D**-0.5))
    cross_attention = functools.partial(MultiHeadAttention, normalize_qk=self.normalize_qk)
    self.layers = [
      self.make_layer(DecoderLayer, i, features=D, cross_attention_cls=cross_attention)
      for i in range(self.num_layers)
    ]
    is_relative = self.position_encoding == "relative"
    self.relative = RelativeBias(self.num_heads, bidirectional=False) if is_relative else None
    self.final_norm = LayerNorm(name="norm") if self.norm_position != "post" else None
    self.dropout = unit_dropout(self.dropout_rate, variational=self.variational_dropout)
    self.drop_words = WordDropout(self.word_dropout_rate)

  def prepare(
    self, encoded: Encoded, source_lengths: jax.Array, max_length: int | None = None
  ) -> tuple[Caches, TransformerMemory]:
    """Returns the initial state, and the memory for all steps.

    The state contains caches with `max_length` slots. Without `max_length` there are no caches, which
    suffices for teacher forcing.
    """
    memory = TransformerMemory(
      tuple(layer.project_kv(encoded.memory) for layer in self.layers), source_lengths
    )
    if max_length is None:
      return (), memory
    words = self.embedding(jnp.zeros((source_lengths.shape[0], 1), jnp.int32))
    return tuple(layer.init_cache(words, max_length) for layer in self.layers), memory

  def step(
    self, state: Caches, tokens: jax.Array, memory: TransformerMemory
  ) -> tuple[Caches, jax.Array, jax.Array]:
    """Decodes one token per sentence.

    Args:
      state: from `prepare`, `prefill` or the previous step.
      tokens: the previous words, integers [B].
      memory: from `prepare`.

    Returns:
      The next state, logits [B V], and weights [B S].
    """
    state, logits, weights = self.prefill(state, tokens[:, None], memory)
    return state, logits[:, 0], weights[:, 0]

  def prefill(
    self, state: Caches, tokens: jax.Array, memory: TransformerMemory
  ) -> tuple[Caches, jax.Array, jax.Array]:
    """Decodes several given tokens at once, [B T], such as the beginning of a translation.

    Returns:
      The next state, logits [B T V], and weights [B T S]. Under `jax.jit`, they are NaN for a sentence longer
      than its cache.

    Raises:
      ValueError: if the state has no caches, or, outside `jax.jit`, too few slots for the tokens.
    """
    if not state:
      raise ValueError(
        "state must contain caches, from prepare(encoded, source_lengths, max_length), got none"
      )
    features, heads, caches = self._decode(tokens, memory, state)
    return caches, logits_of(features, *self.output_projection()), self._summarize(heads)

  def output_features(
    self, state: Caches, targets: jax.Array, memory: TransformerMemory, *, deterministic: bool = True
  ) -> tuple[jax.Array, jax.Array]:
    """Computes `__call__` up to the output projection, features [B T D] and weights [B T S]."""
    features, heads, _ = self._decode(targets, memory, deterministic=deterministic)
    return features, self._summarize(heads)

  def attention_weights(self, state: Caches, targets: jax.Array, memory: TransformerMemory) -> jax.Array:
    """Returns the weights of each layer and head, [B L N T S]."""
    return jnp.stack(self._decode(targets, memory)[1], axis=1)

  def _decode(
    self, tokens: jax.Array, memory: TransformerMemory, caches: Caches = (), *, deterministic: bool = True
  ) -> tuple[jax.Array, list[jax.Array], Caches]:
    """Decodes tokens [B T], as whole sentences or appended to the caches.

    Returns:
      The features [B T D], the weights of each layer [B N T S], and the new caches.
    """
    words = self.embedding(tokens) * self.features**0.5
    words = self.drop_words(words, tokens, deterministic=deterministic)
    if self.position_encoding == "sinusoidal":
      indices, max_length = jnp.arange(tokens.shape[1])[None], tokens.shape[1]
      if caches:
        indices, max_length = caches[0].length[:, None] + indices, caches[0].keys.shape[-2]
      words += jnp.take(positions.sinusoidal(max_length, self.features), indices, axis=0).astype(words.dtype)
    words = self.dropout(words, deterministic=deterministic)
    bias = None if self.relative is None else self.relative()
    options: dict[str, Any] = {"source_mask": masks.lengths(source=memory.lengths[:, None]), "bias": bias}
    weights, new_caches = [], []
    for i, layer in enumerate(self.layers):
      words, layer_weights, *cache = layer.attend_with_kv(
        words,
        memory.keys_values[i],
        cache=caches[i] if caches else None,
        deterministic=deterministic,
        return_weights=True,
        **options,
      )
      weights.append(layer_weights)
      new_caches += cache
    return words if self.final_norm is None else self.final_norm(words), weights, tuple(new_caches)

  def _summarize(self, heads: list[jax.Array]) -> jax.Array:
    """Returns the mean over heads of the penultimate layer, [B T S]."""
    return jnp.mean(heads[max(self.num_layers - 2, 0)], axis=1)
