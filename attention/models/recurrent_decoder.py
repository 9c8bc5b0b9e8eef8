"""Flax decoder: a GRU that attends to the memory at every step."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention import masks
from attention.arrays.precision import compute_dtype
from attention.engines.normalizers import Normalizer
from attention.layers import (
  AdditiveAttention,
  BilinearAttention,
  CosineAttention,
  DotProductAttention,
  MultiHeadAttention,
)
from attention.layers.dropout import StateDropout, WordDropout, unit_dropout
from attention.layers.parameters import LayerNorm, Linear
from attention.layers.single_head import LocalAttention
from attention.layers.stepwise import LocationAwareAttention, Looked, MonotonicAttention
from attention.models.encoders import Encoded
from attention.models.parameters import GRUParameters, LinearParameters
from attention.models.recurrent import GRUWeights, attentive_gru, gru, gru_step, project_inputs
from attention.projections import linear

ATTENTIONS = (
  *("additive", "scaled_dot_product", "bilinear", "cosine", "multi_head"),
  *("location_aware", "coverage", "monotonic", "local", "none"),
)


class State(NamedTuple):
  """What a decoder's step hands to the next.

  Attributes:
    layers: the state of each layer, [B H].
    remembered: of where was looked, a pytree of arrays [B ...]; None for attention that remembers nothing.
  """

  layers: tuple[jax.Array, ...]
  remembered: Any = None


class DecoderMemory(NamedTuple):
  """What a decoder's steps attend to; it stays the same for a whole sentence.

  Attributes:
    prepared: keys and values, which the attention computes once for the source; None without attention.
    lengths: how many of the S positions are real, [B].
    summary: the encoder's summary, [B D].
  """

  prepared: tuple[jax.Array, jax.Array] | None
  lengths: jax.Array
  summary: jax.Array


class RecurrentDecoder(nn.Module):
  """A GRU language model of the target that attends to the source.

      context_t = attention(state_{t-1}, memory)
      state_t = GRU(state_{t-1}, [embedding of the word before; context_t])
      logits_t = W_o tanh(W_r [state_t; context_t; embedding of the word before])

  With attention "none" the context is the same at every step, the encoder's summary: the fixed-length
  vector whose limits attention was invented to overcome.

  Further layers are GRUs that read the layer below. The first layer's state looks for the context; in the
  formula of the logits stands the last layer's output:

      output_i = norm(states_i(dropped(output_{i-1})) + output_{i-1})

  if it is `residual` and has a norm; a state is handed on from step to step as it is.

  Source: Bahdanau et al. 2015, arXiv:1409.0473, A.2.2; the baseline: Cho et al. 2014, arXiv:1406.1078;
  residual layers: Wu et al. 2016, arXiv:1609.08144, section 3.1; dropout: Gal and Ghahramani 2016,
  arXiv:1512.05287; tied embeddings: Press and Wolf 2017, arXiv:1608.05859.

  Attributes:
    vocabulary_size: V.
    embedding_width: width of a word's vector.
    width: H of the state, also that of the attention and of the read-out.
    attention: one of `ATTENTIONS`, or a layer of one's own: a Flax module with two methods.
      `prepare(sources)` takes [B S D], and returns a pair, keys
      and values [B S *]. `attend_prepared(states, prepared, mask=..., return_weights=True)` takes states
      [B T H], and returns contexts [B T *], as wide as the values, and weights [B T S].
    num_heads: for "multi_head", a divisor of the width.
    dropout_rate: probability that a unit of the embedding or of the read-out is dropped, or between layers.
    implementation, normalizer: as in `attend`.
    num_layers: at least 1.
    residual, use_norm, variational, recurrent_dropout_rate, word_dropout_rate: as in `RecurrentEncoder`.
    tied_embeddings: whether the logits' kernel is the embedding, transposed; the read-out then has its width.

  Raises:
    ValueError: if `attention` is not one of these, there is no layer, or `recurrent_dropout_rate` or
      `word_dropout_rate` is not in [0, 1).
  """

  vocabulary_size: int
  embedding_width: int
  width: int
  attention: str | nn.Module = "additive"
  num_heads: int = 1
  dropout_rate: float = 0.0
  implementation: str = "auto"
  normalizer: Normalizer | None = None
  num_layers: int = 1
  residual: bool = False
  use_norm: bool = False
  variational: bool = False
  recurrent_dropout_rate: float = 0.0
  word_dropout_rate: float = 0.0
  tied_embeddings: bool = False

  def setup(self):
    if self.num_layers < 1:
      raise ValueError(f"num_layers must be at least 1, got {self.num_layers}")
    V = self.vocabulary_size
    self.embedding = nn.Embed(V, self.embedding_width)
    self.initial = Linear(self.width)
    self.cell = GRUParameters(self.width)
    upper = range(1, self.num_layers)
    self.upper_initials = [Linear(self.width, name=f"initial_{i}") for i in upper]
    self.upper_cells = [GRUParameters(self.width, name=f"cell_{i}") for i in upper]
    self.norm = [LayerNorm() for _ in range(self.num_layers if self.use_norm else 0)]
    self.readout = Linear(self.embedding_width if self.tied_embeddings else self.width)
    if self.tied_embeddings:
      self.logits_bias = self.param("logits_bias", nn.initializers.zeros, (V,), jnp.float32)
    else:
      self.logits = LinearParameters(V)
    self.dropout = unit_dropout(self.dropout_rate, variational=self.variational)
    self.drop_words = WordDropout(self.word_dropout_rate)
    self.drop_states = StateDropout(self.recurrent_dropout_rate)
    self.look_up: Any = self._make_attention()

  def _make_attention(self) -> nn.Module | None:
    """Returns the layer that the name of an attention stands for, None for "none"; a layer as it is."""
    if isinstance(self.attention, nn.Module):
      return self.attention
    options: dict[str, Any] = {"implementation": self.implementation, "normalizer": self.normalizer}
    match self.attention:
      case "additive":
        return AdditiveAttention(width=self.width, **options)
      case "scaled_dot_product":
        return DotProductAttention(width=self.width, **options)
      case "bilinear":
        return BilinearAttention(**options)
      case "cosine":
        return CosineAttention(width=self.width, **options)
      case "location_aware":
        return LocationAwareAttention(width=self.width, **options)
      case "coverage":
        seen: dict[str, Any] = {"num_filters": 1, "filter_width": 1, "accumulates": True}
        return LocationAwareAttention(width=self.width, **seen, **options)
      case "local":
        return LocalAttention()
      case "monotonic":
        return MonotonicAttention(width=self.width)
      case "multi_head":
        return MultiHeadAttention(self.num_heads, self.width, **options)
      case "none":
        return None
    raise ValueError(f"attention must be one of {', '.join(ATTENTIONS)}, got {self.attention!r}")

  def prepare(self, encoded: Encoded, source_lengths: jax.Array) -> tuple[State, DecoderMemory]:
    """Returns the state before the first step, and the memory of all steps."""
    prepared = None if self.look_up is None else self.look_up.prepare(encoded.memory)
    memory = DecoderMemory(prepared, source_lengths, encoded.summary)
    initials = [self.initial, *self.upper_initials]
    layers = tuple(jnp.tanh(initial(encoded.summary)) for initial in initials)
    return State(layers, self.look_up.remember_nothing(prepared) if self._remembers else None), memory

  def step(
    self, state: State, tokens: jax.Array, memory: DecoderMemory
  ) -> tuple[State, jax.Array, jax.Array | None]:
    """Reads one token of each sentence and says what may come next.

    Args:
      state: from `prepare` or the step before.
      tokens: the words before, integers [B].
      memory: from `prepare`.

    Returns:
      The next state, logits [B V], and weights [B S], None without attention. The weights
      of several heads are averaged.
    """
    embedded = self.embedding(tokens)
    if self._remembers:
      looked = _look_next(self.look_up, state, memory, is_hard=True)
    else:
      contexts, rows = self._look_up(state.layers[0][:, None], memory)
      looked = Looked(contexts[:, 0], None if rows is None else rows[:, 0], None)
    cell, context_cell = self._cells(memory)
    projected = project_inputs(cell, embedded) + linear(looked.context, context_cell.input)
    first = gru_step(cell, state.layers[0], projected)

    def advance(cell: GRUWeights, state: jax.Array, inputs: jax.Array) -> jax.Array:
      return gru_step(cell, state, project_inputs(cell, inputs))

    layers, outputs = self._ascend(first, state.layers, advance, deterministic=True)
    features = self._read_out(outputs, looked.context, embedded, deterministic=True)
    return State(layers, looked.remembered), self._logits(features), looked.weights

  def __call__(
    self,
    state: State,
    targets: jax.Array,
    memory: DecoderMemory,
    *,
    deterministic: bool = True,
  ) -> tuple[jax.Array, jax.Array | None]:
    """Reads whole targets (teacher forcing): `step` for each token in turn.

    Args:
      state: from `prepare`.
      targets: the word before each position, integers [B T].
      memory: from `prepare`.
      deterministic: whether to leave the dropout out; otherwise it draws from the rng "dropout".

    Returns:
      Logits [B T V], and weights [B T S], None without attention.
    """
    features, weights = self.features(state, targets, memory, deterministic=deterministic)
    return self._logits(features), weights

  def features(
    self,
    state: State,
    targets: jax.Array,
    memory: DecoderMemory,
    *,
    deterministic: bool = True,
  ) -> tuple[jax.Array, jax.Array | None]:
    """Does what `__call__` does, and returns of what the logits are made in their place.

    Where the vocabulary is large, logits of all positions are the largest array of all. A loss may find them
    a part at a time, with `output_weights`.

    Returns:
      Features [B T H], with tied embeddings [B T E], and weights [B T S], None without attention.
    """
    embedded = self.drop_words(self.embedding(targets), targets, deterministic=deterministic)
    embedded = self.dropout(embedded, deterministic=deterministic)

    def mask(state: jax.Array) -> jax.Array | None:
      return self.drop_states(state, deterministic=deterministic)

    def read(cell: GRUWeights, state: jax.Array, inputs: jax.Array) -> jax.Array:
      return gru(cell, state, inputs, recurrent_mask=mask(state))[1]

    look = self._read_in_turn if self._remembers else self._read
    first, contexts, weights = look(
      state, embedded, memory, mask(state.layers[0]), deterministic=deterministic
    )
    _, outputs = self._ascend(first, state.layers, read, deterministic=deterministic)
    return self._read_out(outputs, contexts, embedded, deterministic=deterministic), weights

  def head_weights(self, state: State, targets: jax.Array, memory: DecoderMemory) -> jax.Array | None:
    """Returns the weights of each head, [B N T S], of which `__call__` returns the mean over N.

    N is 1 where the attention has no heads. None without attention.
    """
    if self.look_up is None:
      return None
    embedded = self.embedding(targets)
    if self._remembers:
      return self._read_in_turn(state, embedded, memory, None, deterministic=True)[2][:, None]
    first, _, _ = self._read(state, embedded, memory, None, deterministic=True)
    before = jnp.concatenate([state.layers[0][:, None], first[:, :-1]], axis=1)
    _, weights = _attend(self.look_up, before, memory)
    return weights

  def _read(
    self,
    state: State,
    embedded: jax.Array,
    memory: DecoderMemory,
    recurrent_mask: jax.Array | None,
    *,
    deterministic: bool,
  ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Returns the first layer's states [B T H] after embedded words, contexts [B T D], weights [B T S]."""
    before = state.layers[0]
    cell, context_cell = self._cells(memory)
    projected = project_inputs(cell, embedded)
    if self.look_up is None:  # the context is an input like any other
      contexts, _ = self._look_up(embedded, memory)
      projected += linear(contexts, context_cell.input)
      states, _ = attentive_gru(context_cell, before, projected, recurrent_mask=recurrent_mask)
      return states, contexts, None
    if self.is_initializing():
      self._look_up(before[:, None], memory)  # makes the parameters
    layer, variables = self.look_up.unbind()

    def look_up(memory: tuple[Any, DecoderMemory], queries: jax.Array) -> jax.Array:
      return _find(layer.bind(memory[0]), queries, memory[1])[0]

    states, contexts = attentive_gru(
      context_cell, before, projected, look_up, (variables, memory), recurrent_mask=recurrent_mask
    )
    # The weights again, of all states at once: nothing is done for them if nobody asks.
    weights = self._look_up(jnp.concatenate([before[:, None], states[:, :-1]], axis=1), memory)[1]
    return states, contexts, weights

  @property
  def _remembers(self) -> bool:
    """Whether the attention depends on where it looked before."""
    return hasattr(self.look_up, "attend_next")

  def _read_in_turn(
    self,
    state: State,
    embedded: jax.Array,
    memory: DecoderMemory,
    recurrent_mask: jax.Array | None,
    *,
    deterministic: bool,
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Does what `_read` does, with attention that goes from one look to the next."""
    cell, context_cell = self._cells(memory)

    def step(look_up: nn.Module, state: State, projected: jax.Array) -> tuple[State, Any]:
      looked = _look_next(look_up, state, memory, deterministic=deterministic)
      projected += linear(looked.context, context_cell.input)
      after = gru_step(cell, state.layers[0], projected, recurrent_mask=recurrent_mask)
      return State((after,), looked.remembered), (after, looked.context, looked.weights)

    rngs: Any = {"params": False, "dropout": True}
    scan: Any = nn.scan(step, variable_broadcast="params", split_rngs=rngs, in_axes=1, out_axes=1)
    start = State(state.layers[:1], state.remembered)
    return scan(self.look_up, start, project_inputs(cell, embedded))[1]

  def _ascend(
    self,
    first: jax.Array,
    state: tuple[jax.Array, ...],
    read: Callable[[GRUWeights, jax.Array, jax.Array], jax.Array],
    *,
    deterministic: bool,
  ) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """Goes from the first layer's states to the last's.

    Args:
      first: [... H].
      state: of each layer, before.
      read: returns a layer's states [... H], given its weights, its state before and what it reads.
      deterministic: as in `__call__`.

    Returns:
      The states of each layer, and the output of the last, [... H] each.
    """
    after, outputs = [first], self.norm[0](first) if self.use_norm else first
    for i, cell in enumerate(self.upper_cells, 1):
      inputs = self.dropout(outputs, deterministic=deterministic)
      after.append(read(cell(self.width), state[i], inputs))
      outputs = after[i] + outputs if self.residual else after[i]
      outputs = self.norm[i](outputs) if self.use_norm else outputs
    return tuple(after), outputs

  def _look_up(self, states: jax.Array, memory: DecoderMemory) -> tuple[jax.Array, jax.Array | None]:
    """Returns the contexts [B T D] that states [B T H] find, and the weights [B T S]."""
    if self.look_up is None:
      B, D = memory.summary.shape
      return jnp.broadcast_to(memory.summary[:, None], (B, states.shape[1], D)), None
    return _find(self.look_up, states, memory)

  def _cells(self, memory: DecoderMemory) -> tuple[GRUWeights, GRUWeights]:
    """Returns the GRU's weights with the rows of the input that are for embeddings, and for contexts."""
    if memory.prepared is None:
      context_width = memory.summary.shape[-1]
    else:
      has_heads = isinstance(self.look_up, MultiHeadAttention)
      context_width = self.width if has_heads else memory.prepared[1].shape[-1]
    weights = self.cell(self.embedding_width + context_width)
    rows = jnp.split(weights.input, [self.embedding_width])
    return dataclasses.replace(weights, input=rows[0]), dataclasses.replace(weights, input=rows[1])

  def _read_out(
    self, outputs: jax.Array, contexts: jax.Array, embedded: jax.Array, *, deterministic: bool
  ) -> jax.Array:
    """Returns the features [... H], of which the logits are made."""
    features = jnp.tanh(self.readout(jnp.concatenate([outputs, contexts, embedded], axis=-1)))
    return self.dropout(features, deterministic=deterministic)

  def _logits(self, features: jax.Array) -> jax.Array:
    """Returns logits [... V] of features [... H], in float32 also where they are of fewer bits."""
    kernel, bias = self.output_weights()
    logits = linear(features, kernel, compute_dtype(features.dtype))
    return logits + jnp.broadcast_to(bias.astype(logits.dtype), logits.shape)

  def output_weights(self) -> tuple[jax.Array, jax.Array]:
    """Returns the kernel [H V], with tied embeddings [E V], and the bias [V] that make logits of features."""
    if self.tied_embeddings:
      return jnp.swapaxes(self.embedding.embedding, 0, 1), self.logits_bias
    return self.logits(self.width)


def _look_next(
  layer: nn.Module,
  state: State,
  memory: DecoderMemory,
  *,
  deterministic: bool = True,
  is_hard: bool = False,
) -> Looked:
  """Returns what the first layer's state finds, by a layer that remembers where it looked."""
  return layer.attend_next(
    state.layers[0],
    memory.prepared,
    state.remembered,
    mask=masks.lengths(source=memory.lengths),
    deterministic=deterministic,
    is_hard=is_hard,
  )


def _find(layer: nn.Module, states: jax.Array, memory: DecoderMemory) -> tuple[jax.Array, jax.Array]:
  """Returns the contexts [B T D] that states [B T H] find by a layer, and the heads' mean weights [B T S]."""
  contexts, weights = _attend(layer, states, memory)
  return contexts, jnp.mean(weights, axis=1) if weights.shape[1] > 1 else weights[:, 0]


def _attend(layer: nn.Module, states: jax.Array, memory: DecoderMemory) -> tuple[jax.Array, jax.Array]:
  """Returns the contexts [B T D] that states [B T H] find by a layer, and the weights [B N T S]."""
  has_heads = isinstance(layer, MultiHeadAttention)
  lengths = memory.lengths[:, None] if has_heads else memory.lengths
  contexts, weights = layer.attend_prepared(
    states, memory.prepared, mask=masks.lengths(source=lengths), return_weights=True
  )
  return contexts, weights if has_heads else weights[:, None]
