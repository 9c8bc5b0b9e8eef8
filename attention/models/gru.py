"""The gated recurrent unit, with and without attention, as pure functions."""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from attention.arrays.eager_jit import eager_jit
from attention.linear import linear
from attention.models.gru_rule import GRUInputs, GRUWeights, by_gate, gate_inputs, next_state, run_gru

# attend_fn(memory, queries [B T H]) -> contexts [B T D]
AttendFn: TypeAlias = Callable[[Any, jax.Array], jax.Array]


def gru_step(
  weights: GRUWeights, state: jax.Array, projected: jax.Array, *, recurrent_mask: jax.Array | None = None
) -> jax.Array:
  """Returns the next state of a GRU.

      reset = sigmoid(W_r input + U_r state + b_r)
      update = sigmoid(W_z input + U_z state + b_z)
      candidate = tanh(W input + b + reset * (U state + c))
      next state = (1 - update) * candidate + update * state

  Args:
    weights: the weights of a GRU of width H.
    state: [... H].
    projected: the projected input W input + b of the three gates, [... 3H]. It does not depend on the state,
      so it can be computed for a whole sequence at once.
    recurrent_mask: as in `gru`, [... H], or None.

  Returns:
    [... H].

  References:
    Cho et al. 2014, arXiv:1406.1078, section 2.3, with the reset gate after the recurrent product as in
    cuDNN, so that a single product serves all three gates.

  >>> weights = GRUWeights(jnp.zeros((2, 3)), jnp.zeros((1, 3)), jnp.zeros(3), jnp.zeros(1))
  >>> gru_step(weights, jnp.ones(1), jnp.zeros(3)).tolist()
  [0.5]
  """
  return next_state(state, *gate_inputs(weights, state, by_gate(projected), recurrent_mask))


def project_inputs(weights: GRUWeights, inputs: jax.Array) -> jax.Array:
  """Projects inputs [... D] for the three gates, to [... 3H]."""
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
  """Runs a GRU over a batch of sequences.

  Args:
    weights: the weights of a GRU of width H.
    state: the initial state, [B H].
    inputs: [B T D].
    lengths: number of valid inputs, integers [B]. Default: T. The state does not change at padding, so
      padding never affects results.
    reverse: whether to process inputs from last to first.
    recurrent_mask: factor of the state in the recurrent product, the same at all steps, [B H], or None. For
      variational dropout, see `StateDropout`.

  Returns:
    The final state [B H], and the state after each input [B T H], in the order of the inputs.

  Raises:
    ValueError: if the shapes are incompatible.

  References:
    Variational dropout: Gal and Ghahramani 2016, arXiv:1512.05287, section 4.1.
  """
  if inputs.ndim != 3 or (lengths is not None and lengths.shape != inputs.shape[:1]):
    got = f"inputs {inputs.shape}, lengths {None if lengths is None else lengths.shape}"
    raise ValueError(f"inputs must be [B T D] and lengths [B], got {got}")
  B, T, D = inputs.shape
  H = weights.recurrent.shape[0]
  if weights.input.shape != (D, 3 * H) or state.shape != (B, H):
    raise ValueError(
      f"input weights must be [D 3H] and state [B H] with H={H}, got inputs {inputs.shape}, "
      f"input weights {weights.input.shape}, state {state.shape}"
    )
  is_valid, order = None, slice(None, None, -1 if reverse else 1)
  if lengths is not None:
    is_valid = (jnp.arange(T)[None, :] < lengths[:, None])[:, :, None]
    inputs = jnp.where(is_valid, inputs, 0)  # NaN in padding must not reach gradients: 0 * NaN is NaN
    is_valid = is_valid[:, order]
  projected = project_inputs(weights, inputs)[:, order]
  mask = _check_mask(recurrent_mask, state)
  states, _ = run_gru(None, GRUInputs(weights, state, projected, mask, is_valid))
  return states[:, -1] if T else state, states[:, order]


def attention_gru(
  weights: GRUWeights,
  state: jax.Array,
  projected: jax.Array,
  attend_fn: AttendFn | None = None,
  memory: Any = None,
  *,
  recurrent_mask: jax.Array | None = None,
) -> tuple[jax.Array, Any]:
  """Runs a GRU that attends to a memory with its previous state at each step.

      context_t = attend_fn(memory, state_{t-1})
      state_t = GRU(state_{t-1}, [input_t; context_t])

  Args:
    weights: the weights of a GRU of width H, whose `input` are the rows for the context, [D 3H].
    state: the initial state, [B H].
    projected: the projected inputs including the bias, [B T 3H].
    attend_fn: a pure function, `attend_fn(memory, queries [B T H])`, that returns contexts [B T D] for any T.
      None: no attention.
    memory: a pytree with all arrays that `attend_fn` uses, including its parameters.
    recurrent_mask: as in `gru`; queries are not masked.

  Returns:
    The state after each input [B T H], and the context at each step [B T D], or None without attention.

  Raises:
    ValueError: if the shapes are incompatible.

  References:
    Bahdanau et al. 2015, arXiv:1409.0473, A.2.2.
  """
  H = weights.recurrent.shape[0]
  if state.shape[1:] != (H,) or projected.shape != (state.shape[0], *projected.shape[1:2], 3 * H):
    raise ValueError(
      f"state must be [B H] and projected [B T 3H] with H={H}, "
      f"got state {state.shape}, projected {projected.shape}"
    )
  gru_inputs = GRUInputs(weights, state, projected, _check_mask(recurrent_mask, state), memory=memory)
  if attend_fn is None:
    return run_gru(None, gru_inputs)
  return run_gru(lambda memory, state: attend_fn(memory, state[:, None])[:, 0], gru_inputs)


def _check_mask(recurrent_mask: jax.Array | None, state: jax.Array) -> jax.Array | None:
  """Returns a recurrent mask in the dtype of the state, or raises ValueError if the shapes differ."""
  if recurrent_mask is None:
    return None
  if recurrent_mask.shape != state.shape:
    raise ValueError(
      "recurrent_mask must have the shape of the state [B H], "
      f"got recurrent_mask {recurrent_mask.shape}, state {state.shape}"
    )
  return recurrent_mask.astype(state.dtype)
