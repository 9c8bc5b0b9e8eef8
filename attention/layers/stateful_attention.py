"""Flax layers for attention that depends on previous attention weights.

Such a layer processes one query per sequence at a time. Its state is a pytree of arrays [B ...], so that a
search can reorder it.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention.arrays.checks import check_size
from attention.arrays.shapes import check_pairs
from attention.biases.base import BiasLike
from attention.layers.attention_layers import AdditiveAttention, KeysValues
from attention.layers.projections import kernel_init
from attention.masks import Array, Mask, as_mask
from attention.normalizers.monotonic import Monotonic
from attention.scores import Additive, LocationAware, Score, location_features


class AttentionStep(NamedTuple):
  """The result of one attention step.

  Attributes:
    context: [B D].
    weights: [B S]; None without attention.
    state: for the next step, a pytree of arrays [B ...].
  """

  context: jax.Array
  weights: Any
  state: Any


class StatefulAttention(AdditiveAttention):
  """Base class of layers whose weights depend on previous weights.

  Called with queries [B T H], they attend for one query after another. `step` computes one query, in a
  decoder or another loop. Subclasses define `step` and `initial_state`.
  """

  def initial_state(self, keys_values: KeysValues) -> Any:
    """Returns the state before the first step."""
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
    """Computes attention for one query per sequence.

    Args:
      queries: [B H].
      keys_values: keys and values from `project_kv`.
      state: from `initial_state` or the previous step.
      mask: broadcastable to [B 1 S].
      deterministic: whether to omit noise, which otherwise uses the rng "dropout".
      hard: whether to attend to a single key, as in decoding, instead of computing expected weights.
    """
    raise NotImplementedError

  def attend_with_kv(
    self,
    inputs_q: jax.Array,
    keys_values: KeysValues,
    *,
    mask: Mask | Array | None = None,
    bias: BiasLike | None = None,
    return_weights: bool = False,
  ) -> Any:
    """Computes `__call__` with keys and values from `project_kv`, for one query after another.

    Args:
      inputs_q: [B T H].
      keys_values: keys and values, [B S *] each.
      mask: broadcastable to [B T S].
      bias: must be None.
      return_weights: also return the weights.

    Returns:
      The contexts, [B T D]. With `return_weights`, a tuple of the contexts and the weights [B T S].

    Raises:
      ValueError: if the queries have other axes, or a bias is given.
    """
    if inputs_q.ndim != 3:
      raise ValueError(f"inputs_q must have axes [B T H], got shape {inputs_q.shape}")
    if bias is not None:
      raise ValueError(f"bias must be None for stateful attention, got {type(bias).__name__}")
    (B, T, _), S = inputs_q.shape, keys_values[0].shape[-2]
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
    _, (contexts, weights) = scan(self, self.initial_state(keys_values), (inputs_q, allowed))
    return (contexts, weights) if return_weights else contexts

  def _attend_one(self, score: Score, queries: jax.Array, keys_values: KeysValues, **options: Any) -> Any:
    """Returns the context [B D] and the weights [B S] of one query per sequence, [B H]."""
    queries = self.project_queries(queries[:, None])
    context, weights = self._attend(score, queries, keys_values, return_weights=True, **options)
    return context[:, 0], weights[:, 0]


class LocationAwareAttention(StatefulAttention):
  """Additive attention whose keys include features of previous attention weights around them.

  With `accumulate_weights` and one filter of size 1 it is coverage attention.

  Attributes:
    features: A, the width of the hidden layer.
    num_filters: C, the number of location features.
    kernel_size: R, the number of positions of a filter.
    accumulate_weights: if True, location features are computed from the sum of all previous weights,
      otherwise from the weights of the previous query.
    implementation, normalizer: as in `attend`.

  References:
    Chorowski et al. 2015, arXiv:1506.07503, section 3.1; coverage: Tu et al. 2016, arXiv:1601.04811, and See
    et al. 2017, arXiv:1704.04368, section 2.3.
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
  """Monotonic additive attention: each query starts at the key at which the previous query stopped.

  It stops at a key with probability sigmoid(energy + noise), with noise only in training:

      energy = gain score_vector / |score_vector| . tanh(query + key) + offset

  Training computes expected weights. Decoding (`hard`) stops at the first key whose energy is at least 0; if
  there is none, the weights of this and all later queries are 0.

  Attributes:
    features: A, the width of the hidden layer.
    offset: initial value of the trained offset. Lower values move attention forward faster.
    noise: standard deviation of the noise that is added to the energy in training.
    normalizer: must be None.

  Raises:
    ValueError: if a normalizer is given.

  References:
    Raffel et al. 2017, arXiv:1704.00784, sections 2.3 to 2.5 and equation 16.
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
    norm = jnp.sqrt(jnp.maximum(square, jnp.finfo(square.dtype).tiny))  # positive for a zero vector, too
    vector = self.score_vector * self.gain / norm
    bias = jnp.broadcast_to(self.energy_offset.astype(keys.dtype), (keys.shape[0], 1, keys.shape[1]))
    if not deterministic and self.noise:
      bias += self.noise * jax.random.normal(self.make_rng("dropout"), bias.shape, bias.dtype)
    options = {"mask": mask, "bias": bias, "normalizer": Monotonic(state[:, None], hard)}
    context, weights = self._attend_one(Additive(vector), queries, keys_values, **options)
    return AttentionStep(context, weights, weights)
