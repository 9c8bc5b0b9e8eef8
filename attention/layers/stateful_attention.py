"""Flax: attention that depends on where it looked before, and so goes from one query to the next.

Such a layer is called for one query of each sequence. What it remembers is a pytree of arrays [B ...], so
that a search can reorder it.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention.arrays.checks import check_size
from attention.engines.attention_inputs import check_pairs
from attention.engines.bias import BiasLike
from attention.engines.normalizers import Monotonic
from attention.layers.attention_layers import AdditiveAttention, KeysValues
from attention.layers.projections import kernel_init
from attention.masks import Array, Mask, as_mask
from attention.scores import Additive, LocationAware, Score, location_features


class AttentionStep(NamedTuple):
  """What one look of each sequence at its keys has found.

  Attributes:
    context: [B D].
    weights: [B S]; None without attention.
    state: for the next look, a pytree of arrays [B ...].
  """

  context: jax.Array
  weights: Any
  state: Any


class StatefulAttention(AdditiveAttention):
  """What the layers share that remember where they looked.

  Called with queries [B T H] they look for one after the other, as in `attend_with_kv`. `step` is one
  look, of a decoder or another loop of one's own; it has options for what is drawn in training, and for looks
  at one key for certain. Subclasses define it, and `initial_state`.
  """

  def initial_state(self, keys_values: KeysValues) -> Any:
    """Returns what is remembered before the first look."""
    raise NotImplementedError

  def step(
    self,
    queries: jax.Array,
    keys_values: KeysValues,
    state: Any,
    *,
    mask: Mask | Array | None = None,
    deterministic: bool = True,
    hard: bool = False,
  ) -> AttentionStep:
    """Looks once.

    Args:
      queries: one of each sequence, [B H].
      keys_values: keys and values, from `project_kv`.
      state: what the look before has left, or `initial_state`.
      mask: broadcastable to [B 1 S].
      deterministic: whether to leave out what is drawn in training, from the rng "dropout".
      hard: whether to look at one key for certain, as in decoding, and not at all by their chances.
    """
    raise NotImplementedError

  def attend_with_kv(
    self,
    queries: jax.Array,
    keys_values: KeysValues,
    *,
    mask: Mask | Array | None = None,
    bias: BiasLike | None = None,
    return_weights: bool = False,
  ) -> Any:
    """Is `__call__` with the keys and values that `project_kv` returned; attends for each query in turn.

    Args:
      queries: [B T H].
      keys_values: keys and values, [B S *] each.
      mask: broadcastable to [B T S].
      bias: None: scores know where was looked, and nothing else is added.
      return_weights: whether to return a tuple of the contexts and the weights [B T S].

    Returns:
      The contexts, [B T D].

    Raises:
      ValueError: if the queries have other axes, or there is a bias.
    """
    if queries.ndim != 3:
      raise ValueError(f"queries must have axes [B T H], got shape {queries.shape}")
    if bias is not None:
      raise ValueError(f"bias must be None for attention that remembers, got {type(bias).__name__}")
    (B, T, _), S = queries.shape, keys_values[0].shape[-2]
    allowed = jnp.ones((T, S), bool) if mask is None else as_mask(mask).materialize(T, S)
    check_pairs("mask", allowed.shape, (B, T, S))
    allowed = jnp.broadcast_to(allowed, (B, T, S))

    def step(self: "StatefulAttention", state: Any, inputs: Any) -> tuple[Any, Any]:
      queries, allowed = inputs
      output = self.step(queries, keys_values, state, mask=allowed[:, None])
      return output.state, (output.context, output.weights)

    scan: Any = nn.scan(
      step, variable_broadcast="params", split_rngs={"params": False}, in_axes=1, out_axes=1
    )
    _, (contexts, weights) = scan(self, self.initial_state(keys_values), (queries, allowed))
    return (contexts, weights) if return_weights else contexts

  def _attend_one(self, score: Score, queries: jax.Array, keys_values: KeysValues, **options: Any) -> Any:
    """Returns what one query of each sequence [B H] finds: its context [B D], and its weights [B S]."""
    queries = self.project_queries(queries[:, None])
    context, weights = self._attend(score, queries, keys_values, return_weights=True, **options)
    return context[:, 0], weights[:, 0]


class LocationAwareAttention(StatefulAttention):
  """Additive attention to keys that know how much was looked around them, by the query before or by all.

  Source: Chorowski et al. 2015, arXiv:1506.07503, section 3.1. With `accumulate_weights` and one filter of
  one position it is coverage: Tu et al. 2016, arXiv:1601.04811; See et al. 2017, arXiv:1704.04368, section
  2.3.

  Attributes:
    features: A, of the alignment model's hidden layer.
    num_filters: C, features of a location.
    kernel_size: R, how many positions around a key a filter sees.
    accumulate_weights: whether what is seen are the weights of all queries before, summed; not of the last
      alone.
    implementation, normalizer: as in `attend`.
  """

  num_filters: int = 8
  kernel_size: int = 5
  accumulate_weights: bool = False

  def setup(self):
    super().setup()
    check_size("num_filters", self.num_filters)
    check_size("kernel_size", self.kernel_size)
    self.filters = self.param("filters", kernel_init, (self.kernel_size, self.num_filters), jnp.float32)
    shape = self.num_filters, self.features
    self.location_kernel = self.param("location_kernel", kernel_init, shape, jnp.float32)

  def initial_state(self, keys_values):
    keys, _ = keys_values
    return jnp.zeros(keys.shape[:-1], keys.dtype)

  def step(self, queries, keys_values, state, *, mask=None, deterministic=True, hard=False):
    keys, _ = keys_values
    locations = location_features(state[:, None], self.filters.astype(keys.dtype))
    score = LocationAware(self.score_vector, self.location_kernel, locations)
    context, weights = self._attend_one(score, queries, keys_values, mask=mask, normalizer=self.normalizer)
    return AttentionStep(context, weights, state + weights if self.accumulate_weights else weights)


class MonotonicAttention(StatefulAttention):
  """Additive attention that only goes forward, from the key at which the query before has stopped.

  It stops at a key with the probability sigmoid(energy + noise), noise in training alone:

      energy = gain score_vector / |score_vector| . tanh(query + key) + offset

  Training sees the expectation over all stops. Decoding (`hard`) stops at the first key of an energy of 0
  or more; a look that finds none, and all that follow, have weights of 0.

  Source: Raffel et al. 2017, arXiv:1704.00784, sections 2.3 to 2.5 and equation 16.

  Attributes:
    features: A, of the alignment model's hidden layer.
    offset: of the energy at first: the further below 0, the further a look goes.
    noise: standard deviation of what is added to the energy in training.
    normalizer: None; the weights are made as above.

  Raises:
    ValueError: if there is a normalizer.
  """

  offset: float = -1.0
  noise: float = 1.0

  def setup(self):
    super().setup()
    if self.normalizer is not None:
      raise ValueError(f"normalizer must be None for monotonic attention, got {self.normalizer!r}")
    self.gain = self.param("gain", nn.initializers.constant(self.features**-0.5), (), jnp.float32)
    self.energy_offset = self.param("offset", nn.initializers.constant(self.offset), (), jnp.float32)

  def initial_state(self, keys_values):
    keys, _ = keys_values
    return jnp.zeros(keys.shape[:-1], keys.dtype).at[:, :1].set(1)

  def step(self, queries, keys_values, state, *, mask=None, deterministic=True, hard=False):
    keys, _ = keys_values
    square = jnp.sum(self.score_vector**2)
    length = jnp.sqrt(jnp.maximum(square, jnp.finfo(square.dtype).tiny))  # of a vector of zeros, too
    vector = self.score_vector * self.gain / length
    bias = jnp.broadcast_to(self.energy_offset.astype(keys.dtype), (keys.shape[0], 1, keys.shape[1]))
    if not deterministic and self.noise:
      bias += self.noise * jax.random.normal(self.make_rng("dropout"), bias.shape, bias.dtype)
    options = {"mask": mask, "bias": bias, "normalizer": Monotonic(state[:, None], hard)}
    context, weights = self._attend_one(Additive(vector), queries, keys_values, **options)
    return AttentionStep(context, weights, weights)
