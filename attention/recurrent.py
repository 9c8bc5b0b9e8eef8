"""The gated recurrent unit as pure functions."""

import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
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


def gru_step(weights: GRUWeights, state: jax.Array, projected: jax.Array) -> jax.Array:
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

  Returns:
    [... H].

  >>> weights = GRUWeights(jnp.zeros((2, 3)), jnp.zeros((1, 3)), jnp.zeros(3), jnp.zeros(1))
  >>> gru_step(weights, jnp.ones(1), jnp.zeros(3)).tolist()
  [0.5]
  """
  recurrent = jnp.einsum("...H,HG->...G", state, weights.recurrent)
  input_reset, input_update, input_candidate = jnp.split(projected, 3, axis=-1)
  state_reset, state_update, state_candidate = jnp.split(recurrent, 3, axis=-1)
  reset = jax.nn.sigmoid(input_reset + state_reset)
  update = jax.nn.sigmoid(input_update + state_update)
  bias = jnp.broadcast_to(weights.recurrent_bias, state_candidate.shape)
  candidate = jnp.tanh(input_candidate + reset * (state_candidate + bias))
  return (1 - update) * candidate + update * state


def project_inputs(weights: GRUWeights, inputs: jax.Array) -> jax.Array:
  """Returns the input's products with its weights, [... 3H], for inputs [... D]."""
  projected = jnp.einsum("...D,DG->...G", inputs, weights.input)
  return projected + jnp.broadcast_to(weights.bias, projected.shape)


def gru(
  weights: GRUWeights,
  state: jax.Array,
  inputs: jax.Array,
  *,
  lengths: jax.Array | None = None,
  reverse: bool = False,
) -> tuple[jax.Array, jax.Array]:
  """Reads a batch of sequences.

  Args:
    weights: of width H.
    state: before the first step, [B H].
    inputs: [B T D].
    lengths: how many of the T inputs are real, integers [B]; None for all. Padding leaves the state as
      it is, so that what follows a sequence, or precedes it in reverse, changes nothing.
    reverse: whether to read from the last input to the first.

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
  is_real = jnp.ones((B, T), bool)
  if lengths is not None:
    is_real = jnp.arange(T)[None, :] < lengths[:, None]
    inputs = jnp.where(is_real[:, :, None], inputs, 0)  # also for the gradient: 0 * NaN is NaN

  def step(state, step_inputs):
    projected, is_real = step_inputs
    state = jnp.where(is_real[:, None], gru_step(weights, state, projected), state)
    return state, state

  by_time = jnp.swapaxes(project_inputs(weights, inputs), 0, 1), jnp.swapaxes(is_real, 0, 1)
  final, states = jax.lax.scan(step, state, by_time, reverse=reverse)
  return final, jnp.swapaxes(states, 0, 1)
