"""The GRU as a pure function."""

import dataclasses
import functools

import chex
import flax.linen
import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import model_reference, reference
from helpers.fixtures import DIFFERENCES, FLOAT32, FLOAT64, always, assert_close

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


@jax.vmap
def masked_step(mask, weights, state, projected):
  """Computes `gru_step` with the rows of the recurrent weights times the factors of a mask [B H]."""
  return attention.gru_step(
    dataclasses.replace(weights, recurrent=mask[:, None] * weights.recurrent), state, projected
  )


def step_with(mask, weights, state, projected):
  """Returns the next state with a mask [B H], or None."""
  if mask is None:
    return attention.gru_step(weights, state, projected)
  repeated = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (DIMS.B, *leaf.shape)), weights)
  return masked_step(mask, repeated, state, projected)


def by_steps(weights, state, inputs, lengths, reverse, mask):
  """Returns the states [B T H] of a Python loop over steps, with JAX's derivatives."""
  states, order = [], range(inputs.shape[1])
  for t in reversed(order) if reverse else order:
    after = step_with(mask, weights, state, project_inputs(weights, inputs[:, t]))
    state = jnp.where((t < lengths)[:, None], after, state)
    states.append(state)
  return jnp.stack(states[::-1] if reverse else states, axis=1)


def masks(is_masked):
  """Returns masks [B H] and their directions, or None."""
  rng = np.random.default_rng(3)
  return [jnp.asarray(rng.normal(size=DIMS["BH"])) if is_masked else None for _ in range(2)]


masked = pytest.mark.parametrize("is_masked", [False, True], ids=["whole", "masked"])


@directions
@masked
@pytest.mark.parametrize("order", always("gradient", of=["jvp", "gradient", "hessian"]))
def test_derivatives_match_the_steps(order, is_masked, reverse, float64):
  mask, other_mask = masks(is_masked)
  arguments, others = (*draw(np.float64), mask), (*draw(np.float64, seed=1), other_mask)
  lengths = jnp.asarray(LENGTHS)

  def whole(weights, state, inputs, mask):
    options = {"lengths": lengths, "reverse": reverse, "recurrent_mask": mask}
    return attention.gru(weights, state, inputs, **options)[1]

  def steps(weights, state, inputs, mask):
    return by_steps(weights, state, inputs, lengths, reverse, mask)

  assert_close(whole(*arguments), steps(*arguments), FLOAT64)
  assert_derivatives_agree(order, whole, steps, arguments, others)


@masked
@pytest.mark.parametrize("order", always("gradient", of=["jvp", "gradient", "hessian"]))
def test_attending_while_reading_matches_steps(order, is_masked, float64):
  weights, state, inputs = draw(np.float64)
  B, T, H = DIMS["BTH"]
  S, D, A = 13, 17, 19
  rng = np.random.default_rng(2)

  def array(*shape):
    return jnp.asarray(rng.normal(scale=0.5, size=shape))

  memory = (array(A), array(H, A), array(B, S, A), array(B, S, D), jnp.asarray([13, 4, 7]))
  context_weights = array(D, 3 * H)
  projected = project_inputs(weights, inputs)

  def attend_fn(memory, queries):
    score_vector, kernel, keys, values, lengths = memory
    return attention.additive_attention(
      queries @ kernel, keys, values, score_vector=score_vector, mask=attention.masks.lengths(source=lengths)
    )

  def whole(weights, state, projected, floats, mask):
    seen = (*floats, memory[-1])
    return attention.attention_gru(weights, state, projected, attend_fn, seen, recurrent_mask=mask)

  def steps(weights, state, projected, floats, mask):
    states, contexts = [], []
    for t in range(T):
      contexts.append(attend_fn((*floats, memory[-1]), state[:, None])[:, 0])
      state = step_with(mask, weights, state, projected[:, t] + contexts[-1] @ weights.input)
      states.append(state)
    return jnp.stack(states, axis=1), jnp.stack(contexts, axis=1)

  weights = dataclasses.replace(weights, input=context_weights)
  arguments = (weights, state, projected, memory[:-1], masks(is_masked)[0])
  others = jax.tree.map(lambda leaf: array(*leaf.shape), arguments)
  jax.tree.map(lambda one, other: assert_close(one, other, FLOAT64), whole(*arguments), steps(*arguments))
  assert_derivatives_agree(order, whole, steps, arguments, others)


def assert_derivatives_agree(order, function, other, arguments, directions):
  """Asserts that two functions have the same gradients, and the same forward-mode derivatives along a
  direction.
  """

  def loss(function, arguments):
    return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(function(*arguments)))

  def derivative(function):
    gradient = jax.grad(functools.partial(loss, function))
    if order == "jvp":
      return jax.jvp(lambda arguments: function(*arguments), (arguments,), (directions,))[1]
    if order == "gradient":
      return gradient(arguments)
    return jax.jvp(gradient, (arguments,), (directions,))[1]

  one, two = derivative(function), derivative(other)
  jax.tree.map(lambda one, two: assert_close(one, two, DERIVATIVES), one, two)


@pytest.mark.parametrize(
  "shapes",
  [((DIMS.B, 4), (DIMS.B, DIMS.T, 33)), ((DIMS.B, 11), (DIMS.B, DIMS.T, 11)), ((2, 11), (3, 5, 33))],
  ids=str,
)
def test_mismatched_projected_inputs_raise(shapes):
  state, projected = map(jnp.ones, shapes)
  message = rf"H=11, .*state {shapes[0]}, projected {shapes[1]}".replace("(", r"\(").replace(")", r"\)")
  with pytest.raises(ValueError, match=message):
    attention.attention_gru(draw()[0], state, projected)


@pytest.mark.parametrize("shape", [(DIMS.H,), (DIMS.B, DIMS.H + 1), (1, DIMS.H)], ids=str)
def test_mismatched_recurrent_mask_raises(shape):
  weights, state, inputs = draw()
  message = f"recurrent_mask must have .* got recurrent_mask {shape}, state {state.shape}"
  message = message.replace("(", r"\(").replace(")", r"\)")
  with pytest.raises(ValueError, match=message):
    attention.gru(weights, state, inputs, recurrent_mask=jnp.ones(shape))
  with pytest.raises(ValueError, match=message):
    attention.attention_gru(weights, state, project_inputs(weights, inputs), recurrent_mask=jnp.ones(shape))


def test_loops_carry_no_weight_gradient():
  weights, state, inputs = draw()

  def loss(weights):
    return jnp.sum(attention.gru(weights, state, inputs)[1] ** 2)

  carried = shapes_carried(jax.make_jaxpr(jax.grad(loss))(weights).jaxpr)
  assert (DIMS.B, DIMS.H) in carried
  assert not carried & {leaf.shape for leaf in jax.tree.leaves(weights)}


def shapes_carried(jaxpr):
  """Returns the shapes that the scans of a program carry from step to step."""
  result = set()
  for equation in jaxpr.eqns:
    if equation.primitive.name == "scan":
      # Carried arrays are outputs of the last step; all others are stacked.
      results = zip(equation.outvars, equation.params["jaxpr"].out_avals, strict=True)
      result |= {one.aval.shape for one, of_a_step in results if one.aval.shape == of_a_step.shape}
    for inner in jax.extend.core.jaxprs_in_params(equation.params):
      result |= shapes_carried(inner)
  return result
