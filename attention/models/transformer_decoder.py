"""Flax decoder: a transformer that keeps the keys and values of the words it has read."""

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
  """What a transformer decoder attends to; it stays the same for a whole sentence.

  Attributes:
    keys_values: keys and values of each layer, [B N S H].
    lengths: how many of the S positions are real, [B].
  """

  keys_values: tuple[tuple[jax.Array, jax.Array], ...]
  lengths: jax.Array


class TransformerDecoder(TransformerModel, TokenDecoder):
  """A stack of decoder layers over the words of the target.

  The attention that it returns is the mean over the heads of the layer before the last, which finds the
  source of the word to come best (Garg et al. 2019, arXiv:1909.02074); of a single layer, its own.

  The fields are those of `TransformerModel` and `TokenDecoder`.

  Raises:
    ValueError: if there is no layer, or `positions` is not one of these.
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
    self.final_norm = LayerNorm(name="norm") if self.norm_position == "pre" else None
    self.dropout = unit_dropout(self.dropout_rate, variational=self.variational_dropout)
    self.drop_words = WordDropout(self.word_dropout_rate)

  def prepare(
    self, encoded: Encoded, source_lengths: jax.Array, max_length: int | None = None
  ) -> tuple[Caches, TransformerMemory]:
    """Returns the state before the first step, and the memory of all steps.

    The state are caches with room for max_length words; none without it, which is enough to read whole
    targets.
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
    """Reads one token of each sentence and says what may come next.

    Args:
      state: from `prepare`, `read` or the step before.
      tokens: the words before, integers [B].
      memory: from `prepare`.

    Returns:
      The next state, logits [B V], and weights [B S].
    """
    state, logits, weights = self.read(state, tokens[:, None], memory)
    return state, logits[:, 0], weights[:, 0]

  def read(
    self, state: Caches, tokens: jax.Array, memory: TransformerMemory
  ) -> tuple[Caches, jax.Array, jax.Array]:
    """Reads several tokens at once, [B T], as the beginning of a sentence that is given.

    Returns:
      The next state, logits [B T V], and weights [B T S]. Under `jax.jit` they are NaN for a sentence longer
      than its cache.

    Raises:
      ValueError: if the state has no caches, or, outside of `jax.jit`, too few slots for the tokens.
    """
    if not state:
      raise ValueError(
        "a state must have caches, from prepare(encoded, source_lengths, max_length); got none"
      )
    features, heads, caches = self._read(tokens, memory, state)
    return caches, logits_of(features, *self.output_projection()), self._seen(heads)

  def output_features(
    self, state: Caches, targets: jax.Array, memory: TransformerMemory, *, deterministic: bool = True
  ) -> tuple[jax.Array, jax.Array]:
    """Does what `__call__` does, and returns of what the logits are made in their place, [B T D]."""
    features, heads, _ = self._read(targets, memory, deterministic=deterministic)
    return features, self._seen(heads)

  def attention_weights(self, state: Caches, targets: jax.Array, memory: TransformerMemory) -> jax.Array:
    """Returns the weights of each layer and head, [B L N T S]."""
    return jnp.stack(self._read(targets, memory)[1], axis=1)

  def _read(
    self, tokens: jax.Array, memory: TransformerMemory, caches: Caches = (), *, deterministic: bool = True
  ) -> tuple[jax.Array, list[jax.Array], Caches]:
    """Reads tokens [B T], as whole sentences or after those that are in the caches.

    Returns:
      The features [B T D], the weights of each layer [B N T S], and the caches with these words.
    """
    words = self.embedding(tokens) * self.features**0.5
    words = self.drop_words(words, tokens, deterministic=deterministic)
    if self.position_encoding == "sinusoidal":
      places, max_length = jnp.arange(tokens.shape[1])[None], tokens.shape[1]
      if caches:
        places, max_length = caches[0].length[:, None] + places, caches[0].keys.shape[-2]
      words += jnp.take(positions.sinusoidal(max_length, self.features), places, axis=0).astype(words.dtype)
    words = self.dropout(words, deterministic=deterministic)
    bias = None if self.relative is None else self.relative()
    options: dict[str, Any] = {"source_mask": masks.lengths(source=memory.lengths[:, None]), "bias": bias}
    weights, after = [], []
    for i, layer in enumerate(self.layers):
      words, seen, *cache = layer.attend_with_kv(
        words,
        memory.keys_values[i],
        cache=caches[i] if caches else None,
        deterministic=deterministic,
        return_weights=True,
        **options,
      )
      weights.append(seen)
      after += cache
    return words if self.final_norm is None else self.final_norm(words), weights, tuple(after)

  def _seen(self, heads: list[jax.Array]) -> jax.Array:
    """Returns the weights [B T S] that stand for those of each layer and head."""
    return jnp.mean(heads[max(self.num_layers - 2, 0)], axis=1)
