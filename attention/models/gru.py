"""The gated recurrent unit, alone and with attention to a memory, as pure functions."""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from attention.arrays.eager_jit import eager_jit
from attention.linear import linear
from attention.models.gru_rule import GRUInputs, GRUWeights, by_gate, gate_inputs, next_state, read

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
  return next_state(state, *gate_inputs(weights, state, by_gate(projected), recurrent_mask))


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
  is_real, order = None, slice(None, None, -1 if reverse else 1)
  if lengths is not None:
    is_real = (jnp.arange(T)[None, :] < lengths[:, None])[:, :, None]
    inputs = jnp.where(is_real, inputs, 0)  # also for the gradient: 0 * NaN is NaN
    is_real = is_real[:, order]
  projected = project_inputs(weights, inputs)[:, order]
  mask = _factors(recurrent_mask, state)
  states, _ = read(None, GRUInputs(weights, state, projected, mask, is_real))
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
  """Reads a batch of sequences, and at every step what the state before finds in a memory.

      context_t = attend_fn(memory, state_{t-1})
      state_t = GRU(state_{t-1}, [input_t; context_t])

  Source: Bahdanau et al. 2015, arXiv:1409.0473, A.2.2.

  Args:
    weights: of width H; `input` are the rows for the context, [D 3H].
    state: before the first step, [B H].
    projected: the products of the inputs with their rows of the weights, the bias included, [B T 3H].
    attend_fn: a pure function, `attend_fn(memory, queries [B T H])` for any T; its contexts are [B T D]. None
      for no attention.
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
  given = GRUInputs(weights, state, projected, _factors(recurrent_mask, state), memory=memory)
  if attend_fn is None:
    return read(None, given)
  return read(lambda memory, state: attend_fn(memory, state[:, None])[:, 0], given)


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
