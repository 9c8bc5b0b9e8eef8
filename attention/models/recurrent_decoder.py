"""A Flax decoder: a GRU that attends to the source at each step."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention.layers.dropout import StateDropout, WordDropout, unit_dropout
from attention.layers.projections import LayerNorm, Linear
from attention.linear import linear
from attention.models import decoder_attention
from attention.models.base import RecurrentModel, TokenDecoder, logits_of
from attention.models.decoder_attention import (
  STEP_RNGS,
  AttentionResult,
  DecoderMemory,
  is_stateful,
  mean_of_heads,
)
from attention.models.encoders import Encoded
from attention.models.gru import GRUModule, gru, gru_step
from attention.normalizers.base import Normalizer

ATTEND_ORDERS = ("before", "after")


class State(NamedTuple):
  """The state of a decoder between steps, a pytree of arrays [B ...].

  Attributes:
    layers: the state of each layer, [B H].
    attention_state: the state of stateful attention, or None.
    input_feed: the features of the previous step, [B F]; None without input feeding.
  """

  layers: tuple[jax.Array, ...]
  attention_state: Any = None
  input_feed: jax.Array | None = None


class DropoutMasks(NamedTuple):
  """Dropout masks: factors 0 or 1 / (1 - rate) for each unit, or None without dropout.

  Attributes:
    states: factors of each layer's state in the recurrent products, [B H]; the same at all steps.
    outputs: factors of the outputs of each layer but the last, [B T H].
  """

  states: tuple[jax.Array | None, ...]
  outputs: tuple[jax.Array | None, ...]


class RecurrentDecoder(RecurrentModel, TokenDecoder):
  """A GRU decoder with attention to the source.

      context_t = attention(state_{t-1}, memory)
      state_t = GRU(state_{t-1}, [embedding of the previous word; context_t])
      features_t = tanh(W_r [state_t; context_t; embedding of the previous word])
      logits_t = W_o features_t

  With `attend_order` "after":

      state_t = GRU(state_{t-1}, embedding of the previous word)
      context_t = attention(state_t, memory)

  With `input_feeding`, the features of the previous step are another input of the GRU.

  With attention "none", the context is the final state of the encoder at every step: the fixed-length vector
  of models without attention.

  Further layers are GRUs that read the layer below (see `RecurrentModel`). The features are then computed
  from the output of the last layer. With `attend_order` "before", the query is the state of the first layer;
  with "after", it is the output of the last layer.

  The other attributes are those of `RecurrentModel`.

  Attributes:
    attention: one of `ATTENTION_TYPES`, or a custom Flax module with two methods. `project_kv(inputs_kv)`
      takes [B S D] and returns a pair of keys and values, [B S *] each. `attend_with_kv(states, keys_values,
      mask=..., return_weights=True)` takes states [B T H] and returns contexts [B T *], as wide as the
      values, and weights [B T S]. Attention that depends on its past weights has the methods of
      `layers.stateful_attention.StatefulAttention`.
    qk_features: width of projected queries and keys. Default: the width of the state.
    num_heads: number of heads of "multi_head", which must divide qk_features.
    implementation, normalizer: as in `attend`; "monotonic", "local" and "none" do not support a normalizer.
    tied_embeddings: whether the output kernel is the transposed embedding. The features then have the width
      of the embedding.
    attend_order: "before" or "after": whether attention comes before or after reading the word.
    input_feeding: whether the features of a step are an input of the next step.

  Raises:
    ValueError: if `attention` or `attend_order` is unknown, num_layers is less than 1, or
      `recurrent_dropout_rate` or `word_dropout_rate` is not in [0, 1).

  References:
    Bahdanau et al. 2015, arXiv:1409.0473, A.2.2; attention after the step, and input feeding: Luong et al.
    2015, arXiv:1508.04025, sections 3 and 3.3; fixed-length vector: Cho et al. 2014, arXiv:1406.1078; tied
    embeddings: Press and Wolf 2017, arXiv:1608.05859.
  """

  attention: str | nn.Module = "additive"
  qk_features: int | None = None
  num_heads: int = 1
  _: dataclasses.KW_ONLY
  implementation: str = "auto"
  normalizer: Normalizer | None = None
  attend_order: str = "before"
  input_feeding: bool = False

  def setup(self):
    super().setup()
    if self.attend_order not in ATTEND_ORDERS:
      raise ValueError(f"attend_order must be one of {', '.join(ATTEND_ORDERS)}, got {self.attend_order!r}")
    self.embedding = nn.Embed(self.vocabulary_size, self.embed_dim)
    suffixes = ["", *(f"_{i}" for i in range(1, self.num_layers))]
    self.initials = [Linear(self.features, name=f"initial{suffix}") for suffix in suffixes]
    self.cells = [GRUModule(self.features, name=f"cell{suffix}") for suffix in suffixes]
    self.norm = [LayerNorm() for _ in suffixes if self.layer_norm]
    self.feature_width = self.embed_dim if self.tied_embeddings else self.features
    self.readout = Linear(self.feature_width)
    self.dropout = unit_dropout(self.dropout_rate, variational=self.variational_dropout)
    self.drop_words = WordDropout(self.word_dropout_rate)
    self.drop_states = StateDropout(self.recurrent_dropout_rate)
    self.attention_layer: Any = self.attention
    if isinstance(self.attention, str):
      self.attention_layer = decoder_attention.make_attention_layer(
        self.attention,
        features=self.qk_features or self.features,
        num_heads=self.num_heads,
        implementation=self.implementation,
        normalizer=self.normalizer,
      )

  def prepare(
    self, encoded: Encoded, source_lengths: jax.Array, max_length: int | None = None
  ) -> tuple[State, DecoderMemory]:
    """Returns the initial state, and the memory for all steps.

    `max_length` has no effect, since a recurrent state does not grow.
    """
    keys_values = None if self.attention_layer is None else self.attention_layer.project_kv(encoded.memory)
    memory = DecoderMemory(keys_values, source_lengths, encoded.final_state)
    layers = tuple(jnp.tanh(initial(encoded.final_state)) for initial in self.initials)
    attention_state = (
      self.attention_layer.initial_state(keys_values) if is_stateful(self.attention_layer) else None
    )
    input_feed = None
    if self.input_feeding:
      input_feed = jnp.zeros_like(layers[0], shape=(len(layers[0]), self.feature_width))
    return State(layers, attention_state, input_feed), memory

  def step(
    self, state: State, tokens: jax.Array, memory: DecoderMemory
  ) -> tuple[State, jax.Array, jax.Array | None]:
    """Decodes one token per sentence. Monotonic attention attends to a single key (`hard`).

    Args:
      state: from `prepare` or the previous step.
      tokens: the previous words, integers [B].
      memory: from `prepare`.

    Returns:
      The next state, logits [B V], and weights [B S] averaged over heads, or None without attention.
    """
    embedded = self.embedding(tokens[:, None])
    dropout_masks = self._draw_dropout_masks(state, embedded, deterministic=True)
    state, features, weights = self._decode(state, embedded, memory, dropout_masks, hard=True)
    weights = mean_of_heads(weights)
    logits = logits_of(features[:, 0], *self.output_projection())
    return state, logits, None if weights is None else weights[:, 0]

  def output_features(
    self, state: State, targets: jax.Array, memory: DecoderMemory, *, deterministic: bool = True
  ) -> tuple[jax.Array, jax.Array | None]:
    """Computes `__call__` up to the output projection.

    With a large vocabulary, the logits of all positions need most of the memory. A loss can compute them in
    chunks, with `output_projection`.

    Returns:
      Features [B T H], with tied embeddings [B T E], and weights [B T S], or None without attention.
    """
    features, weights = self._decode_all(state, targets, memory, deterministic=deterministic)
    return self.dropout(features, deterministic=deterministic), mean_of_heads(weights)

  def attention_weights(self, state: State, targets: jax.Array, memory: DecoderMemory) -> jax.Array | None:
    """Returns the weights of each head, [B L N T S] with L = 1 layer, or None without attention.

    N is 1 for attention without heads.
    """
    weights = self._decode_all(state, targets, memory, deterministic=True)[1]
    return None if weights is None else weights[:, None]

  def _decode_all(
    self, state: State, targets: jax.Array, memory: DecoderMemory, *, deterministic: bool
  ) -> tuple[jax.Array, jax.Array | None]:
    """Returns the features [B T H] at each position of the targets, and the weights [B N T S]."""
    embedded = self.drop_words(self.embedding(targets), targets, deterministic=deterministic)
    embedded = self.dropout(embedded, deterministic=deterministic)
    dropout_masks = self._draw_dropout_masks(state, embedded, deterministic=deterministic)
    if not self.input_feeding:
      return self._decode(state, embedded, memory, dropout_masks, deterministic=deterministic)[1:]

    def step(self: "RecurrentDecoder", state: State, inputs: Any) -> tuple[State, Any]:
      embedded, outputs = jax.tree.map(lambda array: array[:, None], inputs)
      state, features, weights = self._decode(
        state, embedded, memory, dropout_masks._replace(outputs=outputs), deterministic=deterministic
      )
      return state, (features[:, 0], None if weights is None else weights[:, :, 0])

    scan: Any = nn.scan(step, variable_broadcast="params", split_rngs=STEP_RNGS, in_axes=1, out_axes=(1, 2))
    return scan(self, state, (embedded, dropout_masks.outputs))[1]

  def _draw_dropout_masks(self, state: State, embedded: jax.Array, *, deterministic: bool) -> DropoutMasks:
    """Draws the dropout masks for words [B T E]."""
    states = tuple(self.drop_states(layer, deterministic=deterministic) for layer in state.layers)
    if deterministic or not self.dropout_rate:
      return DropoutMasks(states, (None,) * (self.num_layers - 1))
    ones = jnp.ones((*embedded.shape[:2], self.features), embedded.dtype)
    return DropoutMasks(states, tuple(self.dropout(ones, deterministic=False) for _ in states[1:]))

  def _decode(
    self,
    state: State,
    embedded: jax.Array,
    memory: DecoderMemory,
    dropout_masks: DropoutMasks,
    *,
    deterministic: bool = True,
    hard: bool = False,
  ) -> tuple[State, jax.Array, jax.Array | None]:
    """Decodes words [B T E]; T must be 1 with input feeding.

    Returns:
      The next state, the features [B T H], and the weights [B N T S], or None without attention.
    """

    options: Any = {"deterministic": deterministic, "hard": hard}
    inputs = [embedded] if state.input_feed is None else [embedded, state.input_feed[:, None]]
    recurrent_mask = dropout_masks.states[0]
    B, T, _ = embedded.shape
    if self.attend_order == "before" and T != 1 and self.attention_layer is not None:
      last, states, result = self._attend_and_read(state, inputs, memory, recurrent_mask, **options)
    else:
      if self.attend_order == "before":  # with one query, or without attention, the context is just an input
        queries = jnp.broadcast_to(state.layers[0][:, None], (B, T, self.features))
        result = decoder_attention.attend(
          self.attention_layer, queries, memory, state.attention_state, **options
        )
        inputs.insert(1, result.context)
      concatenated = jnp.concatenate(inputs, axis=-1)
      cell = self.cells[0](concatenated.shape[-1])
      last, states = gru(cell, state.layers[0], concatenated, recurrent_mask=recurrent_mask)
    layers, outputs = [last], self.norm[0](states) if self.layer_norm else states
    for i in range(1, self.num_layers):
      output_mask = dropout_masks.outputs[i - 1]
      dropped = outputs if output_mask is None else outputs * output_mask
      cell = self.cells[i](self.features)
      last, states = gru(cell, state.layers[i], dropped, recurrent_mask=dropout_masks.states[i])
      layers.append(last)
      outputs = states + outputs if self.residual else states
      outputs = self.norm[i](outputs) if self.layer_norm else outputs
    if self.attend_order == "after":
      result = decoder_attention.attend(
        self.attention_layer, outputs, memory, state.attention_state, **options
      )
    features = jnp.tanh(self.readout(jnp.concatenate([outputs, result.context, embedded], axis=-1)))
    input_feed = None if state.input_feed is None else features[:, 0]
    return State(tuple(layers), result.state, input_feed), features, result.weights

  def _attend_and_read(
    self,
    state: State,
    inputs: list[jax.Array],
    memory: DecoderMemory,
    recurrent_mask: jax.Array | None,
    **options: Any,
  ) -> tuple[jax.Array, jax.Array, AttentionResult]:
    """Runs the first layer, which attends before it reads an input.

    Args:
      state: the state of the decoder.
      inputs: words [B T E], and with input feeding the features of the previous step [B 1 F].
      memory: from `prepare`.
      recurrent_mask: factor of the state, [B H], or None.
      **options: of `decoder_attention.attend`.

    Returns:
      The last state [B H], all states [B T H], and the attention of each previous state.
    """
    E, C = self.embed_dim, decoder_attention.context_width(self.attention_layer, memory)
    cell = self.cells[0](sum(array.shape[-1] for array in inputs) + C)
    words, context, feed = jnp.split(cell.input, [E, E + C])
    projected = linear(jnp.concatenate(inputs, axis=-1), jnp.concatenate([words, feed]), bias=cell.bias)

    first = state.layers[0]
    # Other weights are computed for all queries at once, and not at all if they are unused.
    has_weights = is_stateful(self.attention_layer)

    def step(self: "RecurrentDecoder", carry: Any, projected: jax.Array) -> tuple[Any, Any]:
      state, attention_state = carry
      result = decoder_attention.attend(
        self.attention_layer, state[:, None], memory, attention_state, **options
      )
      projected += linear(result.context[:, 0], context)
      state = gru_step(cell, state, projected, recurrent_mask=recurrent_mask)
      weights = result.weights[:, :, 0] if has_weights else None
      return (state, result.state), (state, result.context[:, 0], weights)

    scan: Any = nn.scan(step, variable_broadcast="params", split_rngs=STEP_RNGS, in_axes=1, out_axes=1)
    carry, (states, contexts, weights) = scan(self, (first, state.attention_state), projected)
    if has_weights:
      weights = jnp.swapaxes(weights, 1, 2)
    else:
      queries = jnp.concatenate([first[:, None], states], axis=1)[:, :-1]
      weights = decoder_attention.attend(self.attention_layer, queries, memory, **options).weights
    return carry[0], states, AttentionResult(contexts, weights, carry[1])
