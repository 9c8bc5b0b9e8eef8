"""Flax decoder: a transformer that keeps the keys and values of the words it has read."""

import functools
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention import masks, positions
from attention.layers import KeyValueCache, MultiHeadAttention
from attention.layers.decoder_layer import DecoderLayer
from attention.layers.dropout import WordDropout, unit_dropout
from attention.layers.parameters import LayerNorm
from attention.models.encoders import Encoded
from attention.models.parameters import LinearParameters, logits_of
from attention.models.places import RelativeBias, make_self_attention

Caches: TypeAlias = tuple[KeyValueCache, ...]  # of each layer


class TransformerMemory(NamedTuple):
  """What a transformer decoder attends to; it stays the same for a whole sentence.

  Attributes:
    prepared: keys and values of each layer, [B N S H].
    lengths: how many of the S positions are real, [B].
  """

  prepared: tuple[tuple[jax.Array, jax.Array], ...]
  lengths: jax.Array


class TransformerDecoder(nn.Module):
  """A stack of decoder layers over the words of the target.

  The attention that it returns is the mean over the heads of the layer before the last, which finds the
  source of the word to come best (Garg et al. 2019, arXiv:1909.02074); of a single layer, its own.

  Source: Vaswani et al. 2017, arXiv:1706.03762, sections 3.1 and 3.4; tied embeddings: Press and Wolf 2017,
  arXiv:1608.05859.

  Attributes:
    vocabulary_size: V.
    width: D.
    num_layers: number of `DecoderLayer`s.
    num_heads: N, a divisor of D.
    feed_forward_width: F.
    dropout_rate: as in `DecoderLayer`, and after the embedding.
    norm: "pre" or "post"; with "pre" the features are normalised.
    implementation: as in `attend`.
    variational, word_dropout_rate, positions, normalize_qk: as in `TransformerEncoder`.
    tied_embeddings: whether the logits' kernel is the embedding, transposed.

  Raises:
    ValueError: if there is no layer, or `positions` is not one of these.
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
  tied_embeddings: bool = False

  def setup(self):
    if self.num_layers < 1:
      raise ValueError(f"num_layers must be at least 1, got {self.num_layers}")
    V, D = self.vocabulary_size, self.width
    self.embedding = nn.Embed(V, D, embedding_init=nn.initializers.normal(D**-0.5))
    self.layers = [
      DecoderLayer(
        self.num_heads,
        self.feed_forward_width,
        self.dropout_rate,
        self.norm,
        self.implementation,
        make_attention=make_self_attention(self.positions, normalize_qk=self.normalize_qk),
        width=D,
        make_source_attention=functools.partial(MultiHeadAttention, normalize_qk=self.normalize_qk),
        name=f"layer_{i}",
      )
      for i in range(self.num_layers)
    ]
    is_relative = self.positions == "relative"
    self.relative = RelativeBias(self.num_heads, bidirectional=False) if is_relative else None
    self.final_norm = LayerNorm(name="norm") if self.norm == "pre" else None
    if self.tied_embeddings:
      self.logits_bias = self.param("logits_bias", nn.initializers.zeros, (V,), jnp.float32)
    else:
      self.logits = LinearParameters(V)
    self.dropout = unit_dropout(self.dropout_rate, variational=self.variational)
    self.drop_words = WordDropout(self.word_dropout_rate)

  def prepare(
    self, encoded: Encoded, source_lengths: jax.Array, max_length: int | None = None
  ) -> tuple[Caches, TransformerMemory]:
    """Returns the state before the first step, and the memory of all steps.

    The state are caches with room for max_length words; none without it, which is enough to read whole
    targets.
    """
    memory = TransformerMemory(tuple(layer.prepare(encoded.memory) for layer in self.layers), source_lengths)
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
    cache = state[0]
    places = cache.length[:, None] + jnp.arange(tokens.shape[1])[None]
    words = self._embedded(tokens, places, cache.keys.shape[-2], deterministic=True)
    features, heads, caches = self._read(words, memory, state, deterministic=True)
    return caches, logits_of(features, *self.output_weights()), self._seen(heads)

  def __call__(
    self,
    state: Caches,
    targets: jax.Array,
    memory: TransformerMemory,
    *,
    deterministic: bool = True,
  ) -> tuple[jax.Array, jax.Array]:
    """Reads whole targets (teacher forcing): `step` for each token in turn, all at once.

    Args:
      state: from `prepare`; nothing of it is used.
      targets: the word before each position, integers [B T].
      memory: from `prepare`.
      deterministic: whether to leave the dropout out; otherwise it draws from the rng "dropout".

    Returns:
      Logits [B T V], and weights [B T S].
    """
    features, weights = self.features(state, targets, memory, deterministic=deterministic)
    return logits_of(features, *self.output_weights()), weights

  def features(
    self,
    state: Caches,
    targets: jax.Array,
    memory: TransformerMemory,
    *,
    deterministic: bool = True,
  ) -> tuple[jax.Array, jax.Array]:
    """Does what `__call__` does, and returns of what the logits are made in their place, [B T D]."""
    features, heads = self._read_whole(targets, memory, deterministic=deterministic)
    return features, self._seen(heads)

  def head_weights(self, state: Caches, targets: jax.Array, memory: TransformerMemory) -> jax.Array:
    """Returns the weights of each layer and head, [B L N T S]."""
    return jnp.stack(self._read_whole(targets, memory, deterministic=True)[1], axis=1)

  def output_weights(self) -> tuple[jax.Array, jax.Array]:
    """Returns the kernel [D V] and the bias [V] that make logits of features."""
    if self.tied_embeddings:
      return jnp.swapaxes(self.embedding.embedding, 0, 1), self.logits_bias
    return self.logits(self.width)

  def _read_whole(
    self, targets: jax.Array, memory: TransformerMemory, *, deterministic: bool
  ) -> tuple[jax.Array, list[jax.Array]]:
    """Returns the features [B T D], and the weights of each layer, [B N T S]."""
    places = jnp.broadcast_to(jnp.arange(targets.shape[1])[None], targets.shape)
    words = self._embedded(targets, places, targets.shape[1], deterministic=deterministic)
    return self._read(words, memory, None, deterministic=deterministic)[:2]

  def _embedded(
    self, tokens: jax.Array, places: jax.Array, max_length: int, *, deterministic: bool
  ) -> jax.Array:
    """Returns the vectors [B T D] of tokens at places [B T], which are less than max_length."""
    vectors = self.embedding(tokens) * self.width**0.5
    vectors = self.drop_words(vectors, tokens, deterministic=deterministic)
    if self.positions == "sinusoidal":
      vectors += jnp.take(positions.sinusoidal(max_length, self.width), places, axis=0).astype(vectors.dtype)
    return self.dropout(vectors, deterministic=deterministic)

  def _read(
    self, words: jax.Array, memory: TransformerMemory, caches: Caches | None, *, deterministic: bool
  ) -> tuple[jax.Array, list[jax.Array], Caches]:
    """Returns the features [B T D], the weights of each layer [B N T S], and the caches with these words."""
    bias = None if self.relative is None else self.relative()
    options: dict[str, Any] = {"source_mask": masks.lengths(source=memory.lengths[:, None]), "bias": bias}
    weights, after = [], []
    for i, layer in enumerate(self.layers):
      words, seen, *cache = layer.attend_prepared(
        words,
        memory.prepared[i],
        cache=None if caches is None else caches[i],
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
