"""The gated recurrent unit, alone and with attention to a memory, as pure functions.

Reading a sequence has one rule of differentiation, that of forward mode; JAX transposes it. The tangent of a
state is a linear recurrence, whose terms without the state before are found for all steps at once. So the
gradients of a GRU's weights are single products over all T B vectors, and not sums that grow step by step.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from attention.arrays.eager_jit import eager_jit
from attention.arrays.pytrees import register_pytree
from attention.projections import linear

# look_up(memory, queries [B T H]) -> contexts [B T D]
LookUp: TypeAlias = Callable[[Any, jax.Array], jax.Array]


@register_pytree
@dataclasses.dataclass(frozen=True)
class GRUWeights:
  """The weights of a GRU with states of width H; the gates stand in the order reset, update, candidate.

  Attributes:
    input: [D 3H].
    recurrent: [H 3H].
    bias: of the products with the input, [3H].
    recurrent_bias: of the candidate's product with the state, inside the reset gate, [H].
  """

  input: jax.Array
  recurrent: jax.Array
  bias: jax.Array
  recurrent_bias: jax.Array


def gru_step(
  weights: GRUWeights, state: jax.Array, projected: jax.Array, *, recurrent_mask: jax.Array | None = None
) -> jax.Array:
  """Returns the next state of a GRU.

      reset = sigmoid(W_r input + U_r state + b_r)
      update = sigmoid(W_z input + U_z state + b_z)
      candidate = tanh(W input + b + reset * (U state + c))
      next state = (1 - update) * candidate + update * state

  Source: Cho et al. 2014, arXiv:1406.1078, section 2.3, with the reset gate after the recurrent product
  (as in cuDNN), so that one product serves all three gates.

  Args:
    weights: of width H.
    state: [... H].
    projected: the products of the input with its weights, W input + b, for the three gates: [... 3H].
      They do not depend on the state, so a whole sequence's are computed at once.
    recurrent_mask: as in `gru`, [... H]; None for none.

  Returns:
    [... H].

  >>> weights = GRUWeights(jnp.zeros((2, 3)), jnp.zeros((1, 3)), jnp.zeros(3), jnp.zeros(1))
  >>> gru_step(weights, jnp.ones(1), jnp.zeros(3)).tolist()
  [0.5]
  """
  products = linear(state if recurrent_mask is None else state * recurrent_mask, weights.recurrent)
  return _after(state, _gates(_by_gate(projected), products, weights.recurrent_bias))


def project_inputs(weights: GRUWeights, inputs: jax.Array) -> jax.Array:
  """Returns the input's products with its weights, [... 3H], for inputs [... D]."""
  projected = linear(inputs, weights.input)
  return projected + jnp.broadcast_to(weights.bias, projected.shape)


@functools.partial(eager_jit, static_argnames=("reverse",))
def gru(
  weights: GRUWeights,
  state: jax.Array,
  inputs: jax.Array,
  *,
  lengths: jax.Array | None = None,
  reverse: bool = False,
  recurrent_mask: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Reads a batch of sequences.

  Args:
    weights: of width H.
    state: before the first step, [B H].
    inputs: [B T D].
    lengths: how many of the T inputs are real, integers [B]; None for all. Padding leaves the state as
      it is, so that what follows a sequence, or precedes it in reverse, changes nothing.
    reverse: whether to read from the last input to the first.
    recurrent_mask: a factor of the state before its product with the recurrent weights, and nowhere else, the
      same at all steps, [B H]; None for none. Drawn as dropout it is variational dropout: Gal and Ghahramani
      2016, arXiv:1512.05287, section 4.1.

  Returns:
    The final state [B H], and the state after each input [B T H], in the order of the inputs.

  Raises:
    ValueError: if the shapes do not fit.
  """
  if inputs.ndim != 3 or (lengths is not None and lengths.shape != inputs.shape[:1]):
    got = f"inputs {inputs.shape}, lengths {None if lengths is None else lengths.shape}"
    raise ValueError(f"a GRU must have inputs [B T D] and lengths [B], got {got}")
  B, T, D = inputs.shape
  H = weights.recurrent.shape[0]
  if weights.input.shape != (D, 3 * H) or state.shape != (B, H):
    raise ValueError(
      f"a GRU of width {H} must have input weights [D 3H] and a state [B H], got inputs {inputs.shape}, "
      f"input weights {weights.input.shape}, state {state.shape}"
    )
  is_real = None
  if lengths is not None:
    is_real = jnp.arange(T)[None, :] < lengths[:, None]
    inputs = jnp.where(is_real[:, :, None], inputs, 0)  # also for the gradient: 0 * NaN is NaN
  order = slice(None, None, -1) if reverse else slice(None)
  reading = Reading(
    state=state,
    projected=_by_gate(jnp.swapaxes(project_inputs(weights, inputs), 0, 1)[order]),
    recurrent=weights.recurrent,
    recurrent_bias=weights.recurrent_bias,
    is_real=None if is_real is None else jnp.swapaxes(is_real, 0, 1)[order],
    recurrent_mask=_factors(recurrent_mask, state),
  )
  states, _ = _read(None, reading)
  final = states[-1] if T else state
  return final, jnp.swapaxes(states[order], 0, 1)


def attentive_gru(
  weights: GRUWeights,
  state: jax.Array,
  projected: jax.Array,
  look_up: LookUp | None = None,
  memory: Any = None,
  *,
  recurrent_mask: jax.Array | None = None,
) -> tuple[jax.Array, Any]:
  """Reads a batch of sequences, and at every step what the state before finds in a memory.

      context_t = look_up(memory, state_{t-1})
      state_t = GRU(state_{t-1}, [input_t; context_t])

  Source: Bahdanau et al. 2015, arXiv:1409.0473, A.2.2.

  Args:
    weights: of width H; `input` are the rows for the context, [D 3H].
    state: before the first step, [B H].
    projected: the products of the inputs with their rows of the weights, the bias included, [B T 3H].
    look_up: a pure function, `look_up(memory, queries [B T H])` for any T; its contexts are [B T D]. None
      to look up nothing.
    memory: a pytree with all that is looked at, the parameters of the looking included.
    recurrent_mask: as in `gru`; what looks up sees the state as it is.

  Returns:
    The state after each input [B T H], and the context that each was made of [B T D], None without.

  Raises:
    ValueError: if the shapes do not fit.
  """
  H = weights.recurrent.shape[0]
  if state.shape[1:] != (H,) or projected.shape != (state.shape[0], *projected.shape[1:2], 3 * H):
    raise ValueError(
      f"a GRU of width {H} must have a state [B H] and projected inputs [B T 3H], "
      f"got state {state.shape}, projected {projected.shape}"
    )
  reading = Reading(
    state=state,
    projected=_by_gate(jnp.swapaxes(projected, 0, 1)),
    recurrent=weights.recurrent,
    recurrent_bias=weights.recurrent_bias,
    memory=memory,
    context_weights=None if look_up is None else weights.input,
    recurrent_mask=_factors(recurrent_mask, state),
  )
  states, contexts = _read(look_up, reading)
  return jnp.swapaxes(states, 0, 1), None if contexts is None else jnp.swapaxes(contexts, 0, 1)


class Reading(NamedTuple):
  """All that the states of a sequence depend on, time in front.

  Attributes:
    state: before the first step, [B H].
    projected: the inputs' products with their weights, [T B H] for each gate. So a loop over the steps reads
      whole arrays, which is several times faster on a CPU than parts of rows.
    recurrent: [H 3H].
    recurrent_bias: [H].
    is_real: which inputs are no padding, [T B]; None for all.
    memory: what is looked up, None for nothing.
    context_weights: [D 3H]; None where nothing is looked up.
    recurrent_mask: a factor of the states in their products, [B H]; None for none.
  """

  state: jax.Array
  projected: list[jax.Array]
  recurrent: jax.Array
  recurrent_bias: jax.Array
  is_real: jax.Array | None = None
  memory: Any = None
  context_weights: Any = None
  recurrent_mask: jax.Array | None = None

  def masked(self, states: jax.Array) -> jax.Array:
    """Returns what the recurrent weights see of states [... B H]."""
    if self.recurrent_mask is None:
      return states
    return states * jnp.broadcast_to(self.recurrent_mask, states.shape)


class Steps(NamedTuple):
  """What happened at the steps of a reading.

  Attributes:
    states: after each, [T B H].
    contexts: found at each, [T B D]; None where nothing is looked up.
    pre_activations: the inputs' and contexts' products with their weights, [T B H] for each gate.
    products: the products of the states before, masked, with their weights, [T B 3H].
  """

  states: jax.Array
  contexts: Any
  pre_activations: list[jax.Array]
  products: jax.Array


class Gates(NamedTuple):
  """The parts of a step, each [... H]; `inner` is what the reset gate is applied to."""

  reset: jax.Array
  update: jax.Array
  candidate: jax.Array
  inner: jax.Array


def _factors(recurrent_mask: jax.Array | None, state: jax.Array) -> jax.Array | None:
  """Returns a mask of a state as numbers, or raises ValueError if it has another shape."""
  if recurrent_mask is None:
    return None
  if recurrent_mask.shape != state.shape:
    raise ValueError(
      "recurrent_mask must have a factor for each unit of the state [B H], "
      f"got recurrent_mask {recurrent_mask.shape}, state {state.shape}"
    )
  return recurrent_mask.astype(state.dtype)


def _find(look_up: LookUp, memory: Any, state: jax.Array) -> jax.Array:
  """Returns the context [B D] that a state [B H] finds."""
  return look_up(memory, state[:, None])[:, 0]


def _products(vectors: jax.Array, weights: jax.Array) -> jax.Array:
  """Returns vectors [T B D] times weights [D G], [T B G].

  `linear` puts all vectors in one axis. The batch stands in front meanwhile, so that rows which are spread
  over devices stay so.
  """
  return jnp.swapaxes(linear(jnp.swapaxes(vectors, 0, 1), weights), 0, 1)


def _by_gate(array: jax.Array) -> list[jax.Array]:
  """Returns the parts [... H] of an array [... 3H]."""
  return jnp.split(array, 3, axis=-1)


def _sums(ones: list[jax.Array], others: list[jax.Array]) -> list[jax.Array]:
  return [one + other for one, other in zip(ones, others, strict=True)]


def _gates(projected: list[jax.Array], products: jax.Array, recurrent_bias: jax.Array) -> Gates:
  """Returns the gates, from the products of the input [... H] each and of the state [... 3H]."""
  input_reset, input_update, input_candidate = projected
  state_reset, state_update, state_candidate = _by_gate(products)
  reset = jax.nn.sigmoid(input_reset + state_reset)
  update = jax.nn.sigmoid(input_update + state_update)
  inner = state_candidate + jnp.broadcast_to(recurrent_bias, state_candidate.shape)
  return Gates(reset, update, jnp.tanh(input_candidate + reset * inner), inner)


def _after(state: jax.Array, gates: Gates) -> jax.Array:
  """Returns the state after a step, [... H]."""
  return (1 - gates.update) * gates.candidate + gates.update * state


def _steps(look_up: LookUp | None, reading: Reading) -> Steps:
  """Returns what happens at each step, one after the other."""

  def step(state, inputs):
    projected, is_real = inputs
    context = None
    if look_up is not None:
      context = _find(look_up, reading.memory, state)
      projected = _sums(projected, _by_gate(linear(context, reading.context_weights)))
    products = linear(reading.masked(state), reading.recurrent)
    after = _after(state, _gates(projected, products, reading.recurrent_bias))
    state = after if is_real is None else jnp.where(is_real[:, None], after, state)
    return state, Steps(state, context, projected, products)

  return jax.lax.scan(step, reading.state, (reading.projected, reading.is_real))[1]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _read(look_up: LookUp | None, reading: Reading) -> tuple[jax.Array, jax.Array | None]:
  """Returns the state after each step [T B H], and the contexts [T B D]."""
  steps = _steps(look_up, reading)
  return steps.states, steps.contexts


@_read.defjvp
def _read_tangent(look_up: LookUp | None, primals, tangents):
  """The linear recurrence of the tangents; what does not need the tangent before is found at once.

  d state_t = update d state_{t-1} + gained(W d context_t, U d (mask state_{t-1})) + driven_t
  """
  (reading,), (d_reading,) = primals, tangents
  steps = _steps(look_up, reading)
  before = jnp.concatenate([reading.state[None], steps.states[:-1]])
  slopes = _slopes(steps, before, reading)

  d_input = d_reading.projected
  if look_up is not None:
    d_input = _sums(d_input, _by_gate(_products(steps.contexts, d_reading.context_weights)))
  d_recurrent = _products(reading.masked(before), d_reading.recurrent)
  d_bias = jnp.pad(d_reading.recurrent_bias, (d_recurrent.shape[-1] - before.shape[-1], 0))
  driven = slopes.gained(d_input, d_recurrent + jnp.broadcast_to(d_bias, d_recurrent.shape))

  def step(d_state, inputs):
    before, slopes, driven = inputs
    d_masked = reading.masked(d_state)
    if reading.recurrent_mask is not None:
      d_masked += d_reading.masked(before)
    d_recurrent, d_context, d_input = linear(d_masked, reading.recurrent), None, None
    if look_up is not None:
      find = functools.partial(_find, look_up)
      d_context = jax.jvp(find, (reading.memory, before), (d_reading.memory, d_state))[1]
      d_input = _by_gate(linear(d_context, reading.context_weights))
    d_state = slopes.update * d_state + slopes.gained(d_input, d_recurrent) + driven
    return d_state, (d_state, d_context)

  _, found = jax.lax.scan(step, d_reading.state, (before, slopes, driven))
  return (steps.states, steps.contexts), found


class Slopes(NamedTuple):
  """How fast a state changes with what it is made of; each [... H].

  Attributes:
    update: with the state before, everything else fixed.
    by_reset: with what is summed up inside the reset gate.
    by_update: with that inside the update gate.
    by_candidate: with that inside the candidate.
    reset: the gate, with which the candidate's product with the state before counts.
  """

  update: jax.Array
  by_reset: jax.Array
  by_update: jax.Array
  by_candidate: jax.Array
  reset: jax.Array

  def gained(self, d_input: list[jax.Array] | None, d_recurrent: jax.Array) -> jax.Array:
    """Returns by how much a state changes with its products, [... H] for each gate and [... 3H]."""
    to_reset, to_update, to_candidate = _by_gate(d_recurrent)
    inside = [to_reset, to_update, self.reset * to_candidate]
    inside = inside if d_input is None else _sums(inside, d_input)
    return self.by_reset * inside[0] + self.by_update * inside[1] + self.by_candidate * inside[2]


def _slopes(steps: Steps, before: jax.Array, reading: Reading) -> Slopes:
  """Returns the slopes of all steps, [T B H]; padding keeps the state as it is."""
  reset, update, candidate, inner = _gates(steps.pre_activations, steps.products, reading.recurrent_bias)
  by_candidate = (1 - update) * (1 - candidate**2)
  slopes = Slopes(
    update=update,
    by_reset=by_candidate * inner * reset * (1 - reset),
    by_update=(before - candidate) * update * (1 - update),
    by_candidate=by_candidate,
    reset=reset,
  )
  if reading.is_real is None:
    return slopes
  kept = 1.0, 0.0, 0.0, 0.0, 0.0
  is_real = reading.is_real[..., None]
  return Slopes(*(jnp.where(is_real, *each) for each in zip(slopes, kept, strict=True)))
