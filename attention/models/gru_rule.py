"""The equations of a GRU, and the loop over its steps with a custom differentiation rule.

The tangent of a state is a linear recurrence. Its terms that do not depend on the previous tangent are
computed for all steps at once, so gradients of the weights are single products over all B T vectors instead
of sums that grow step by step.

Without the rule, training takes 1.0 to 1.2 times the CPU time and 1.3 to 2.0 times the temporary memory (2
CPU cores, JAX 0.10.1): 1.0 times the time at B = 64, T = 30, H = 512 with attention, and 1.2 times at B = 8,
T = 50, H = 256.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from attention.arrays.named_axes import register_pytree
from attention.linear import linear

# attend_fn(memory, states [B H]) -> contexts [B D]
AttendStep: TypeAlias = Callable[[Any, jax.Array], jax.Array]


@register_pytree
@dataclasses.dataclass(frozen=True)
class GRUWeights:
  """The weights of a GRU of width H. The order of the gates is reset, update, candidate.

  Attributes:
    input: input kernel, [D 3H].
    recurrent: recurrent kernel, [H 3H].
    bias: bias of the input product, [3H].
    recurrent_bias: bias of the candidate's recurrent product, inside the reset gate, [H].
  """

  input: jax.Array
  recurrent: jax.Array
  bias: jax.Array
  recurrent_bias: jax.Array


class GRUInputs(NamedTuple):
  """The inputs of a GRU over a sequence.

  Attributes:
    weights: the weights; `input` are the rows for the context, [D 3H], and `bias` is not used.
    state: the initial state, [B H].
    projected: the projected inputs, [B T 3H].
    recurrent_mask: factor of the states in the recurrent products, [B H], or None.
    is_valid: which inputs are not padding, [B T 1]. None: all.
    memory: the memory for attention, or None.
  """

  weights: GRUWeights
  state: jax.Array
  projected: jax.Array
  recurrent_mask: jax.Array | None = None
  is_valid: jax.Array | None = None
  memory: Any = None


def gate_inputs(
  weights: GRUWeights,
  state: jax.Array,
  projected: list[jax.Array],
  recurrent_mask: jax.Array | None = None,
  context: Any = None,
) -> tuple[jax.Array, ...]:
  """Returns the arguments of the gates for `next_state`, [... H] each.

  Args:
    weights: the weights of a GRU of width H.
    state: [... H].
    projected: the projected input, [... H] for each gate.
    recurrent_mask: factor of the state, [... H], or None.
    context: a further input, [... D], or None.
  """
  reset, update, candidate = projected
  masked = state if recurrent_mask is None else state * recurrent_mask
  state_reset, state_update, recurrent = by_gate(linear(masked, weights.recurrent))
  recurrent += jnp.broadcast_to(weights.recurrent_bias, recurrent.shape)
  if context is not None:
    context_reset, context_update, context_candidate = by_gate(linear(context, weights.input))
    reset, update, candidate = reset + context_reset, update + context_update, candidate + context_candidate
  return reset + state_reset, update + state_update, candidate, recurrent


def next_state(state: jax.Array, *gates: jax.Array, is_valid: jax.Array | None = None) -> jax.Array:
  """Returns the state after a step, elementwise [... H]. The state does not change at padding."""
  reset, update, candidate, recurrent = gates
  reset, update = jax.nn.sigmoid(reset), jax.nn.sigmoid(update)
  after = (1 - update) * jnp.tanh(candidate + reset * recurrent) + update * state
  return after if is_valid is None else jnp.where(is_valid, after, state)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def run_gru(attend_fn: AttendStep | None, gru_inputs: GRUInputs) -> tuple[jax.Array, Any]:
  """Returns the state after each step [B T H], and the contexts [B T D], or None without attention."""
  states, contexts, _ = _steps(attend_fn, gru_inputs)
  return _swap((states, contexts))


@run_gru.defjvp
def _run_gru_tangent(attend_fn, primals, tangents):
  """The tangent of a state is the sum of the tangents of its inputs, each times a derivative [... H]."""
  (gru_inputs,), (d_gru_inputs,) = primals, tangents
  states, contexts, gates = _steps(attend_fn, gru_inputs)
  before = jnp.concatenate([gru_inputs.state[None], states[:-1]])
  next_of = functools.partial(next_state, is_valid=_swap(gru_inputs.is_valid))
  slopes = jax.vjp(next_of, before, *gates)[1](jnp.ones_like(before))  # elementwise

  def all_gates(weights, projected):
    mask = None if gru_inputs.recurrent_mask is None else gru_inputs.recurrent_mask[:, None]
    # Batch axis first, since `linear` flattens axes, and a batch that is sharded should stay so.
    states, context = _swap((before, contexts))
    return gate_inputs(weights, states, by_gate(projected), mask, context)

  arguments = (gru_inputs.weights, gru_inputs.projected), (d_gru_inputs.weights, d_gru_inputs.projected)
  d_driven = _weighted(slopes[1:], _swap(jax.jvp(all_gates, *arguments)[1]))

  def step(d_state, inputs):
    before, projected, slopes, d_driven = inputs

    def gates(state, memory, mask):
      context = None if attend_fn is None else attend_fn(memory, state)
      return gate_inputs(gru_inputs.weights, state, projected, mask, context), context

    primals = before, gru_inputs.memory, gru_inputs.recurrent_mask
    tangents = d_state, d_gru_inputs.memory, d_gru_inputs.recurrent_mask
    d_gates, d_context = jax.jvp(gates, primals, tangents)[1]
    d_state = _weighted(slopes, (d_state, *d_gates)) + d_driven
    return d_state, (d_state, d_context)

  inputs = before, by_gate(_swap(gru_inputs.projected)), slopes, d_driven
  d_outputs = jax.lax.scan(step, d_gru_inputs.state, inputs)[1]
  return _swap((states, contexts)), _swap(d_outputs)


def _steps(
  attend_fn: AttendStep | None, gru_inputs: GRUInputs
) -> tuple[jax.Array, Any, tuple[jax.Array, ...]]:
  """Returns the state after each step [T B H], the contexts [T B D], and the `gate_inputs` [T B H]."""

  def step(state, inputs):
    projected, is_valid = inputs
    context = None if attend_fn is None else attend_fn(gru_inputs.memory, state)
    gates = gate_inputs(gru_inputs.weights, state, projected, gru_inputs.recurrent_mask, context)
    state = next_state(state, *gates, is_valid=is_valid)
    return state, (state, context, gates)

  return jax.lax.scan(
    step, gru_inputs.state, (by_gate(_swap(gru_inputs.projected)), _swap(gru_inputs.is_valid))
  )[1]


def by_gate(array: jax.Array) -> list[jax.Array]:
  """Splits an array [... 3H] by gate. Loops read whole arrays faster than slices of rows."""
  return jnp.split(array, 3, axis=-1)


def _swap(arrays: Any) -> Any:
  """Swaps the first two axes, batch and time."""
  return jax.tree.map(lambda array: jnp.swapaxes(array, 0, 1), arrays)


def _weighted(slopes: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> jax.Array:
  """Returns the sum of tangents times derivatives."""
  return functools.reduce(jnp.add, map(jnp.multiply, slopes, tangents))
