"""The GRU as a pure function."""

import dataclasses

import chex
import flax.linen
import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import model_reference, reference
from helpers.fixtures import DIFFERENCES, FLOAT32, FLOAT64, assert_close

import attention
from attention.models.gru import project_inputs

DIMS = chex.Dimensions(B=3, T=5, D=7, H=11)
LENGTHS = np.array([2, 5, 0])
# Float64 derivatives of some tens of operations.
DERIVATIVES = 1e-11
directions = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


def draw(dtype=np.float32, seed=0):
  """Returns weights, state [B H] and inputs [B T D]."""
  rng = np.random.default_rng(seed)
  B, T, D, H = DIMS["BTDH"]

  def array(*shape):
    return jnp.asarray(rng.normal(scale=0.7, size=shape), dtype)

  weights = attention.GRUWeights(array(D, 3 * H), array(H, 3 * H), array(3 * H), array(H))
  return weights, array(B, H), array(B, T, D)


def expected(weights, state, inputs, lengths, reverse):
  """Returns final states [B H] and states [B T H] by the reference, which never sees padding."""
  parameters, state, inputs = model_reference.float64((dataclasses.asdict(weights), state, inputs))
  finals, states = [], np.zeros((*inputs.shape[:2], state.shape[-1]))
  for b, length in enumerate(lengths):
    order = slice(None, None, -1) if reverse else slice(None)
    own = model_reference.gru(parameters, state[b], inputs[b, :length][order])
    states[b, :length] = own[order]
    states[b, length:] = state[b] if reverse or length == 0 else own[-1]
    finals.append(own[-1] if length else state[b])
  return np.stack(finals), states


def test_step_matches_hand_value():
  # The state is 2. reset = sigmoid(0 + 2 ln(3)/2) = 3/4; update = sigmoid(0 - 2 ln(3)/2) = 1/4;
  # candidate = tanh(ln(3)/2 - 3 + 3/4 (2 + 2)) = 1/2; next = 3/4 * 1/2 + 1/4 * 2 = 7/8.
  half = np.log(3) / 2
  weights = attention.GRUWeights(
    input=jnp.zeros((1, 3)),
    recurrent=jnp.asarray([[half, -half, 1.0]], jnp.float32),
    bias=jnp.zeros(3),
    recurrent_bias=jnp.asarray([2.0]),
  )
  projected = jnp.asarray([0.0, 0.0, half - 3], jnp.float32)
  assert_close(attention.gru_step(weights, jnp.asarray([2.0]), projected), [7 / 8], FLOAT32)


def test_recurrent_mask_scales_the_state_product():
  # The products are those of the state 4 with half the weights above; the update keeps a quarter of the 2.
  half = np.log(3) / 2
  weights = attention.GRUWeights(
    input=jnp.zeros((1, 3)),
    recurrent=jnp.asarray([[half / 2, -half / 2, 0.5]], jnp.float32),
    bias=jnp.asarray([0.0, 0.0, half - 3], jnp.float32),
    recurrent_bias=jnp.asarray([2.0]),
  )
  state, inputs, mask = jnp.asarray([[2.0]]), jnp.zeros((1, 1, 1)), jnp.asarray([[2.0]])
  final, _ = attention.gru(weights, state, inputs, recurrent_mask=mask)
  assert_close(final, [[7 / 8]], FLOAT32)


@directions
def test_recurrent_masks_of_ones_and_zeros(reverse):
  weights, state, inputs = draw()
  options = {"lengths": jnp.asarray(LENGTHS), "reverse": reverse}
  without = dataclasses.replace(weights, recurrent=jnp.zeros_like(weights.recurrent))
  for factor, other in ((1, weights), (0, without)):
    mask = jnp.full(DIMS["BH"], factor, bool)
    actual = attention.gru(weights, state, inputs, recurrent_mask=mask, **options)
    desired = attention.gru(other, state, inputs, **options)
    jax.tree.map(lambda one, two: assert_close(one, two, FLOAT32), actual, desired)


def test_step_matches_flax():
  weights, state, inputs = draw()
  gates = {}
  for i, gate in enumerate("rzn"):
    columns = slice(i * DIMS.H, (i + 1) * DIMS.H)
    gates[f"i{gate}"] = {"kernel": weights.input[:, columns], "bias": weights.bias[columns]}
    gates[f"h{gate}"] = {"kernel": weights.recurrent[:, columns]}
  gates["hn"]["bias"] = weights.recurrent_bias
  cell = flax.linen.GRUCell(features=DIMS.H)
  desired, _ = cell.apply({"params": gates}, state, inputs[:, 0])
  actual = attention.gru_step(weights, state, project_inputs(weights, inputs[:, 0]))
  assert_close(actual, desired, FLOAT32)


def test_a_step_has_any_leading_axes():
  weights, state, inputs = draw()
  states = jnp.stack([state, -state, 2 * state], axis=1)
  actual = attention.gru_step(weights, states, project_inputs(weights, inputs[:, :3]))
  parameters, states, inputs = model_reference.float64((dataclasses.asdict(weights), states, inputs))
  for b, i in np.ndindex(*actual.shape[:2]):
    desired = model_reference.gru_step(parameters, states[b, i], inputs[b, i])
    assert_close(actual[b, i], desired, FLOAT32)


@directions
def test_masked_states_match_the_steps(reverse):
  weights, state, inputs = draw()
  mask = jnp.asarray(np.random.default_rng(3).normal(size=DIMS["BH"]), jnp.float32)
  options = {"lengths": jnp.asarray(LENGTHS), "reverse": reverse, "recurrent_mask": mask}
  actual = attention.gru(weights, state, inputs, **options)[1]
  order = range(DIMS.T)
  for t in reversed(order) if reverse else order:
    projected = project_inputs(weights, inputs[:, t])
    after = attention.gru_step(weights, state, projected, recurrent_mask=mask)
    state = jnp.where((t < LENGTHS)[:, None], after, state)
    assert_close(actual[:, t], state, FLOAT32)


def test_states_keep_their_dtype():
  weights, state, inputs = draw()
  with jax.numpy_dtype_promotion("standard"):
    states = attention.gru(weights, state.astype(jnp.bfloat16), inputs.astype(jnp.bfloat16))[1]
  assert states.dtype == jnp.bfloat16
  assert_close(states, attention.gru(weights, state, inputs)[1], 0.05)


@directions
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "lengths"])
def test_states_match_a_loop(reverse, lengths):
  weights, state, inputs = draw()
  read = jax.jit(attention.gru, static_argnames="reverse")
  options = {"lengths": None if lengths is None else jnp.asarray(lengths), "reverse": reverse}
  real = np.full(DIMS.B, DIMS.T) if lengths is None else lengths
  desired = expected(weights, state, inputs, real, reverse)
  for function in (attention.gru, read):
    final, states = function(weights, state, inputs, **options)
    assert_close(final, desired[0], model_reference.MODEL)
    assert_close(states, desired[1], model_reference.MODEL)


@directions
@pytest.mark.parametrize("content", [1e4, np.nan])
def test_padding_has_no_effect(reverse, content):
  weights, state, inputs = draw()
  is_padding = np.arange(DIMS.T)[None] >= LENGTHS[:, None]
  others = jnp.where(is_padding[:, :, None], content, inputs)

  def loss(weights, state, inputs):
    final, states = attention.gru(weights, state, inputs, lengths=jnp.asarray(LENGTHS), reverse=reverse)
    return jnp.sum(final) + jnp.sum(states**2), (final, states)

  differentiate = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)
  desired_gradients, desired = differentiate(weights, state, inputs)
  gradients, actual = differentiate(weights, state, others)
  jax.tree.map(np.testing.assert_array_equal, actual, desired)
  jax.tree.map(lambda one, other: assert_close(one, other, 0.0), gradients, desired_gradients)
  np.testing.assert_array_equal(gradients[2][is_padding], 0.0)


@directions
def test_gradients_are_those_of_the_reference(reverse, float64):
  weights, state, inputs = draw(np.float64)
  random = np.random.default_rng(1).normal(size=DIMS["BH"])

  def loss(weights, state, inputs):
    final, _ = attention.gru(weights, state, inputs, lengths=jnp.asarray(LENGTHS), reverse=reverse)
    return jnp.sum(jnp.asarray(random) * final)

  gradients = jax.grad(loss, argnums=(0, 1, 2))(weights, state, inputs)
  arguments = (weights, state, inputs)
  leaves, structure = jax.tree.flatten(arguments)
  rng = np.random.default_rng(2)
  for i, gradient in enumerate(jax.tree.leaves(gradients)):
    direction = rng.normal(size=leaves[i].shape)

    def reference_loss(leaf, i=i):
      changed = jax.tree.unflatten(structure, [*leaves[:i], leaf, *leaves[i + 1 :]])
      return np.sum(random * expected(*changed, LENGTHS, reverse)[0])

    slope = reference.derivative(reference_loss, leaves[i], direction)
    assert_close(np.sum(gradient * direction), slope, DIFFERENCES)


def test_float64_stays_float64(float64):
  weights, state, inputs = draw(np.float64)
  final, states = attention.gru(weights, state, inputs)
  desired = expected(weights, state, inputs, [DIMS.T] * DIMS.B, False)
  assert_close(final, desired[0], FLOAT64)
  assert_close(states, desired[1], FLOAT64)


def test_saturated_gradients_are_finite():
  weights, state, inputs = draw()
  weights = jax.tree.map(lambda leaf: 1e4 * leaf, weights)
  function = jax.value_and_grad(lambda weights: jnp.sum(attention.gru(weights, state, inputs)[1] ** 2))
  value, gradients = function(weights)
  assert value > 0
  chex.assert_tree_all_finite(gradients)


@pytest.mark.parametrize(
  ("what", "shape"),
  [
    ("state", (DIMS.B, DIMS.H + 1)),
    ("state", (DIMS.B + 1, DIMS.H)),
    ("inputs", (DIMS.B, DIMS.T, DIMS.D + 1)),
  ],
)
def test_mismatched_shapes_raise(what, shape):
  weights, state, inputs = draw()
  arguments = {"state": state, "inputs": inputs, what: jnp.ones(shape)}
  with pytest.raises(ValueError, match=rf"H=11, .*{what} \({', '.join(map(str, shape))}\)"):
    attention.gru(weights, **arguments)


@pytest.mark.parametrize("shape", [(DIMS.H,), (DIMS.B, DIMS.H + 1), (1, DIMS.H)], ids=str)
def test_mismatched_recurrent_mask_raises(shape):
  weights, state, inputs = draw()
  message = f"recurrent_mask must have .* got recurrent_mask {shape}, state {state.shape}"
  message = message.replace("(", r"\(").replace(")", r"\)")
  with pytest.raises(ValueError, match=message):
    attention.gru(weights, state, inputs, recurrent_mask=jnp.ones(shape))
