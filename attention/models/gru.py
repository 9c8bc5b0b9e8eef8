"""The gated recurrent unit as pure functions, and its parameters as a Flax module."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention.arrays.checks import check_size
from attention.arrays.eager_jit import eager_jit
from attention.arrays.named_axes import register_pytree
from attention.layers.projections import kernel_init
from attention.linear import linear


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


class GRUModule(nn.Module):
  """The weights of a GRU with states of width `features`, for functions that take all weights."""

  features: int

  @nn.compact
  def __call__(self, input_width: int) -> GRUWeights:
    check_size("features", self.features)
    H = self.features
    orthogonal = nn.initializers.orthogonal()

    def recurrent_init(rng, shape, dtype):
      blocks = [orthogonal(block_rng, (H, H), dtype) for block_rng in jax.random.split(rng, 3)]
      return jnp.concatenate(blocks, axis=1)

    return GRUWeights(
      input=self.param("input", kernel_init, (input_width, 3 * H), jnp.float32),
      recurrent=self.param("recurrent", recurrent_init, (H, 3 * H), jnp.float32),
      bias=self.param("bias", nn.initializers.zeros, (3 * H,), jnp.float32),
      recurrent_bias=self.param("recurrent_bias", nn.initializers.zeros, (H,), jnp.float32),
    )


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
    projected: the projected input W input + b of the three gates, [... 3H], from `project_inputs`. It does
      not depend on the state, so it can be computed for a whole sequence at once.
    recurrent_mask: as in `gru`, [... H], or None.

  Returns:
    [... H], in the dtype of the state.

  References:
    Cho et al. 2014, arXiv:1406.1078, section 2.3, with the reset gate after the recurrent product as in
    cuDNN, so that a single product serves all three gates.

  >>> weights = GRUWeights(jnp.zeros((2, 3)), jnp.zeros((1, 3)), jnp.zeros(3), jnp.zeros(1))
  >>> gru_step(weights, jnp.ones(1), jnp.zeros(3)).tolist()
  [0.5]
  """
  masked = state if recurrent_mask is None else state * recurrent_mask.astype(state.dtype)
  reset, update, candidate = jnp.split(projected, 3, axis=-1)
  state_reset, state_update, recurrent = jnp.split(linear(masked, weights.recurrent), 3, axis=-1)
  recurrent += jnp.broadcast_to(weights.recurrent_bias, recurrent.shape)
  reset = jax.nn.sigmoid(reset + state_reset)
  update = jax.nn.sigmoid(update + state_update)
  after = (1 - update) * jnp.tanh(candidate + reset * recurrent) + update * state
  return after.astype(state.dtype)


def project_inputs(weights: GRUWeights, inputs: jax.Array) -> jax.Array:
  """Projects inputs [... D] for the three gates, to [... 3H]."""
  return linear(inputs, weights.input, bias=weights.bias)


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
  if recurrent_mask is not None and recurrent_mask.shape != state.shape:
    raise ValueError(
      "recurrent_mask must have the shape of the state [B H], "
      f"got recurrent_mask {recurrent_mask.shape}, state {state.shape}"
    )
  is_valid = None
  if lengths is not None:
    is_valid = (jnp.arange(T)[None, :] < lengths[:, None])[:, :, None]
    inputs = jnp.where(is_valid, inputs, 0)  # NaN in padding must not reach gradients: 0 * NaN is NaN

  def step(state: jax.Array, step_inputs: tuple[jax.Array, jax.Array | None]) -> tuple[jax.Array, jax.Array]:
    projected, is_valid = step_inputs
    after = gru_step(weights, state, projected, recurrent_mask=recurrent_mask)
    state = after if is_valid is None else jnp.where(is_valid, after, state)
    return state, state

  by_time = jax.tree.map(lambda array: jnp.swapaxes(array, 0, 1), (project_inputs(weights, inputs), is_valid))
  final, states = jax.lax.scan(step, state, by_time, reverse=reverse)
  return final, jnp.swapaxes(states, 0, 1)
