"""Flax decoder: a GRU that attends to the memory at every step."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention.engines.softmax import Normalizer
from attention.layers.dropout import StateDropout, WordDropout, unit_dropout
from attention.layers.parameters import LayerNorm, Linear
from attention.layers.stepwise import Looked
from attention.models.encoders import Encoded
from attention.models.looking import (
  DecoderMemory,
  context_width,
  look,
  look_next,
  make_attention,
  mean_of_heads,
  remembers,
)
from attention.models.parameters import GRUParameters, LinearParameters, logits_of
from attention.models.recurrent import GRUWeights, attentive_gru, gru, gru_step, project_inputs
from attention.projections import linear

LOOKS = ("before", "after")


class State(NamedTuple):
  """What a decoder's step hands to the next, a pytree of arrays [B ...].

  Attributes:
    layers: the state of each layer, [B H].
    remembered: of where was looked; None for attention that remembers nothing.
    fed: the features of the step before, [B F]; None without input feeding.
  """

  layers: tuple[jax.Array, ...]
  remembered: Any = None
  fed: jax.Array | None = None


class Drops(NamedTuple):
  """What is dropped at a step, a factor 0 or 1 / (1 - rate) of each unit; None where nothing is.

  Attributes:
    states: of each layer, where they meet the recurrent weights, [B H]; the same at all steps.
    outputs: of each layer, on their way to the next, [B H].
  """

  states: tuple[jax.Array | None, ...]
  outputs: tuple[jax.Array | None, ...]


class RecurrentDecoder(nn.Module):
  """A GRU language model of the target that attends to the source.

      context_t = attention(state_{t-1}, memory)
      state_t = GRU(state_{t-1}, [embedding of the word before; context_t])
      features_t = tanh(W_r [state_t; context_t; embedding of the word before])
      logits_t = W_o features_t

  With `looks` "after", the GRU reads the word alone, and it is the state after it that looks for the context
  of the features. With `input_feeding` the GRU reads the features of the step before, too.

  With attention "none" the context is the same at every step, the encoder's summary: the fixed-length
  vector whose limits attention was invented to overcome.

  Further layers are GRUs that read the layer below. In the formula of the features stands the last layer's
  output:

      output_i = norm(states_i(dropped(output_{i-1})) + output_{i-1})

  if it is `residual` and has a norm; a state is handed on from step to step as it is. What looks before is
  the first layer's state, what looks after is the last layer's output.

  Source: Bahdanau et al. 2015, arXiv:1409.0473, A.2.2; looking after and input feeding: Luong et al. 2015,
  arXiv:1508.04025, sections 3 and 3.3; the baseline: Cho et al. 2014, arXiv:1406.1078; residual layers: Wu et
  al. 2016, arXiv:1609.08144, section 3.1; dropout: Gal and Ghahramani 2016, arXiv:1512.05287; tied
  embeddings: Press and Wolf 2017, arXiv:1608.05859.

  Attributes:
    vocabulary_size: V.
    embedding_width: width of a word's vector.
    width: H of the state, also that of the read-out.
    attention: one of `ATTENTIONS`, or a layer of one's own: a Flax module with two methods.
      `prepare(sources)` takes [B S D], and returns a pair, keys
      and values [B S *]. `attend_prepared(states, prepared, mask=..., return_weights=True)` takes states
      [B T H], and returns contexts [B T *], as wide as the values, and weights [B T S]. Attention that
      remembers where it looked has the methods of `layers.stepwise.StepwiseAttention`.
    attention_width: to which queries and keys are projected; None for the width of the state.
    num_heads: for "multi_head", a divisor of the attention's width.
    dropout_rate: probability that a unit of the embedding or of the read-out is dropped, or between layers.
    implementation, normalizer: as in `attend`; "monotonic" and "local" make their weights in their own way.
    num_layers: at least 1.
    residual, use_norm, variational, recurrent_dropout_rate, word_dropout_rate: as in `RecurrentEncoder`.
    tied_embeddings: whether the logits' kernel is the embedding, transposed; the read-out then has its width.
    looks: whether it looks at the source "before" it reads a word, or "after".
    input_feeding: whether the features of a step are read at the next.

  Raises:
    ValueError: if `attention` or `looks` is not one of these, there is no layer, or `recurrent_dropout_rate`
      or `word_dropout_rate` is not in [0, 1).
  """

  vocabulary_size: int
  embedding_width: int
  width: int
  attention: str | nn.Module = "additive"
  attention_width: int | None = None
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
  looks: str = "before"
  input_feeding: bool = False

  def setup(self):
    if self.num_layers < 1:
      raise ValueError(f"num_layers must be at least 1, got {self.num_layers}")
    if self.looks not in LOOKS:
      raise ValueError(f"looks must be one of {', '.join(LOOKS)}, got {self.looks!r}")
    V = self.vocabulary_size
    self.embedding = nn.Embed(V, self.embedding_width)
    self.initial = Linear(self.width)
    self.cell = GRUParameters(self.width)
    upper = range(1, self.num_layers)
    self.upper_initials = [Linear(self.width, name=f"initial_{i}") for i in upper]
    self.upper_cells = [GRUParameters(self.width, name=f"cell_{i}") for i in upper]
    self.norm = [LayerNorm() for _ in range(self.num_layers if self.use_norm else 0)]
    self.feature_width = self.embedding_width if self.tied_embeddings else self.width
    self.readout = Linear(self.feature_width)
    if self.tied_embeddings:
      self.logits_bias = self.param("logits_bias", nn.initializers.zeros, (V,), jnp.float32)
    else:
      self.logits = LinearParameters(V)
    self.dropout = unit_dropout(self.dropout_rate, variational=self.variational)
    self.drop_words = WordDropout(self.word_dropout_rate)
    self.drop_states = StateDropout(self.recurrent_dropout_rate)
    self.look_up: Any = self.attention
    if isinstance(self.attention, str):
      self.look_up = make_attention(
        self.attention,
        width=self.attention_width or self.width,
        num_heads=self.num_heads,
        implementation=self.implementation,
        normalizer=self.normalizer,
      )

  def prepare(
    self, encoded: Encoded, source_lengths: jax.Array, max_length: int | None = None
  ) -> tuple[State, DecoderMemory]:
    """Returns the state before the first step, and the memory of all steps.

    A recurrent state holds any number of words: `max_length` has no effect.
    """
    prepared = None if self.look_up is None else self.look_up.prepare(encoded.memory)
    memory = DecoderMemory(prepared, source_lengths, encoded.summary)
    initials = [self.initial, *self.upper_initials]
    layers = tuple(jnp.tanh(initial(encoded.summary)) for initial in initials)
    remembered = self.look_up.remember_nothing(prepared) if remembers(self.look_up) else None
    fed = (
      jnp.zeros_like(layers[0], shape=(len(layers[0]), self.feature_width)) if self.input_feeding else None
    )
    return State(layers, remembered, fed), memory

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
    nothing = (None,) * self.num_layers
    state, features, weights = self._advance(
      state, self.embedding(tokens), memory, Drops(nothing, nothing), is_hard=True
    )
    return state, logits_of(features, *self.output_weights()), mean_of_heads(weights)

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
    return logits_of(features, *self.output_weights()), weights

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
    features, weights = self._read(state, targets, memory, deterministic=deterministic)
    return self.dropout(features, deterministic=deterministic), mean_of_heads(weights)

  def head_weights(self, state: State, targets: jax.Array, memory: DecoderMemory) -> jax.Array | None:
    """Returns the weights of each head, [B 1 N T S], of which `__call__` returns the mean over N.

    N is 1 where the attention has no heads. None without attention.
    """
    weights = self._read(state, targets, memory, deterministic=True)[1]
    return None if weights is None else weights[:, None]

  def _read(
    self, state: State, targets: jax.Array, memory: DecoderMemory, *, deterministic: bool
  ) -> tuple[jax.Array, jax.Array | None]:
    """Returns the features [B T H] at each position of the targets, and the weights [B N T S]."""
    embedded = self.drop_words(self.embedding(targets), targets, deterministic=deterministic)
    embedded = self.dropout(embedded, deterministic=deterministic)
    goes_in_turn = self.input_feeding or remembers(self.look_up)
    read = self._read_in_turn if goes_in_turn else self._read_at_once
    return read(state, embedded, memory, deterministic=deterministic)

  def _read_at_once(
    self, state: State, embedded: jax.Array, memory: DecoderMemory, *, deterministic: bool
  ) -> tuple[jax.Array, jax.Array | None]:
    """Does what `_read` does, layer by layer: a step needs of the one before the layer's own state alone."""

    def drop(i: int, outputs: jax.Array) -> jax.Array:
      return self.dropout(outputs, deterministic=deterministic)

    def read(i: int, cell: GRUWeights, inputs: jax.Array) -> jax.Array:
      mask = self.drop_states(state.layers[i], deterministic=deterministic)
      return gru(cell, state.layers[i], inputs, recurrent_mask=mask)[1]

    if self.looks == "after":
      outputs = self._ascend(read(0, self._cells(memory)[0], embedded), read, drop)[1]
      contexts, weights = look(self.look_up, outputs, memory)
    else:
      mask = self.drop_states(state.layers[0], deterministic=deterministic)
      first, contexts = self._read_attentively(state.layers[0], embedded, memory, mask)
      # The weights again, of all states at once: nothing is done for them if nobody asks.
      before = jnp.concatenate([state.layers[0][:, None], first], axis=1)[:, : embedded.shape[1]]
      weights = look(self.look_up, before, memory)[1]
      outputs = self._ascend(first, read, drop)[1]
    return self._read_out(outputs, contexts, embedded), weights

  def _read_attentively(
    self, state: jax.Array, embedded: jax.Array, memory: DecoderMemory, mask: jax.Array | None
  ) -> tuple[jax.Array, jax.Array]:
    """Returns the first layer's states [B T H], and what each was made of besides: contexts [B T D]."""
    words, context_cell, _ = self._cells(memory)
    projected = project_inputs(words, embedded)
    if self.look_up is None:  # the context is an input like any other
      contexts, _ = look(None, embedded, memory)
      projected += linear(contexts, context_cell.input)
      states, _ = attentive_gru(context_cell, state, projected, recurrent_mask=mask)
      return states, contexts
    if self.is_initializing():
      look(self.look_up, state[:, None], memory)  # makes the parameters
    layer, variables = self.look_up.unbind()

    def look_up(memory: tuple[Any, DecoderMemory], queries: jax.Array) -> jax.Array:
      return look(layer.bind(memory[0]), queries, memory[1])[0]

    return attentive_gru(context_cell, state, projected, look_up, (variables, memory), recurrent_mask=mask)

  def _read_in_turn(
    self, state: State, embedded: jax.Array, memory: DecoderMemory, *, deterministic: bool
  ) -> tuple[jax.Array, jax.Array | None]:
    """Does what `_read` does, step by step: a step needs all that the one before has found."""
    nothing = (None,) * self.num_layers
    states = tuple(self.drop_states(layer, deterministic=deterministic) for layer in state.layers)
    outputs: Any = nothing
    if self.dropout_rate and not deterministic:
      ones = jnp.ones((*embedded.shape[:2], self.width), embedded.dtype)
      outputs = (*(self.dropout(ones, deterministic=False) for _ in nothing[1:]), None)

    def step(self: "RecurrentDecoder", state: State, inputs: Any) -> tuple[State, Any]:
      embedded, outputs = inputs
      drops = Drops(states, outputs)
      state, *found = self._advance(state, embedded, memory, drops, deterministic=deterministic)
      return state, found

    rngs: Any = {"params": False, "dropout": True}
    scan: Any = nn.scan(step, variable_broadcast="params", split_rngs=rngs, in_axes=1, out_axes=1)
    features, weights = scan(self, state, (embedded, outputs))[1]
    return features, None if weights is None else jnp.moveaxis(weights, 1, 2)

  def _advance(
    self,
    state: State,
    embedded: jax.Array,
    memory: DecoderMemory,
    drops: Drops,
    *,
    deterministic: bool = True,
    is_hard: bool = False,
  ) -> tuple[State, jax.Array, jax.Array | None]:
    """Reads one embedded word of each sentence, [B E].

    Returns:
      The next state, the features [B H], and the weights [B N S], None without attention.
    """

    def look_from(queries: jax.Array) -> Looked:
      how: Any = {"deterministic": deterministic, "is_hard": is_hard}
      return look_next(self.look_up, queries, memory, state.remembered, **how)

    def drop(i: int, outputs: jax.Array) -> jax.Array:
      return _times(outputs, drops.outputs[i])

    def read(i: int, cell: GRUWeights, inputs: jax.Array) -> jax.Array:
      return gru_step(cell, state.layers[i], project_inputs(cell, inputs), recurrent_mask=drops.states[i])

    words, context_cell, fed_cell = self._cells(memory)
    projected = project_inputs(words, embedded)
    if state.fed is not None:
      projected += linear(state.fed, fed_cell.input)
    if self.looks == "before":
      looked = look_from(state.layers[0])
      projected += linear(looked.context, context_cell.input)
    first = gru_step(words, state.layers[0], projected, recurrent_mask=drops.states[0])
    layers, outputs = self._ascend(first, read, drop)
    if self.looks == "after":
      looked = look_from(outputs)
    features = self._read_out(outputs, looked.context, embedded)
    fed = None if state.fed is None else features
    return State(layers, looked.remembered, fed), features, looked.weights

  def _ascend(
    self,
    first: jax.Array,
    read: Callable[[int, GRUWeights, jax.Array], jax.Array],
    drop: Callable[[int, jax.Array], jax.Array],
  ) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """Goes from the first layer's states [... H] to the last's.

    Args:
      first: [... H].
      read: returns a layer's states [... H], given its number, its weights and what it reads.
      drop: returns what is left of a layer's output on its way to the next, given its number.

    Returns:
      The states of each layer, and the output of the last, [... H] each.
    """
    after, outputs = [first], self.norm[0](first) if self.use_norm else first
    for i, cell in enumerate(self.upper_cells, 1):
      after.append(read(i, cell(self.width), drop(i - 1, outputs)))
      outputs = after[i] + outputs if self.residual else after[i]
      outputs = self.norm[i](outputs) if self.use_norm else outputs
    return tuple(after), outputs

  def _cells(self, memory: DecoderMemory) -> list[GRUWeights]:
    """Returns the first GRU's weights with the rows for embeddings, for contexts, and for what is fed."""
    widths = [
      self.embedding_width,
      context_width(self.look_up, memory) if self.looks == "before" else 0,
      self.feature_width if self.input_feeding else 0,
    ]
    weights = self.cell(sum(widths))
    rows = jnp.split(weights.input, [widths[0], sum(widths[:2])])
    return [dataclasses.replace(weights, input=each) for each in rows]

  def _read_out(self, outputs: jax.Array, contexts: jax.Array, embedded: jax.Array) -> jax.Array:
    """Returns the features [... H], of which the logits are made."""
    return jnp.tanh(self.readout(jnp.concatenate([outputs, contexts, embedded], axis=-1)))

  def output_weights(self) -> tuple[jax.Array, jax.Array]:
    """Returns the kernel [H V], with tied embeddings [E V], and the bias [V] that make logits of features."""
    if self.tied_embeddings:
      return jnp.swapaxes(self.embedding.embedding, 0, 1), self.logits_bias
    return self.logits(self.width)


def _times(vectors: jax.Array, factors: jax.Array | None) -> jax.Array:
  """Returns vectors with what is dropped of them; None for nothing."""
  return vectors if factors is None else vectors * factors
