"""The GRU as a pure function."""

import dataclasses
import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import model_reference as reference
from helpers.model_reference import float64

import attention
from attention.models.gru import GRUModule, project_inputs

B, T, D, H = 3, 5, 7, 11
LENGTHS = np.array([2, 5, 0])
rng = np.random.default_rng(0)
STATE, INPUTS, MASK = (
  rng.normal(scale=0.7, size=shape).astype(np.float32) for shape in ((B, H), (B, T, D), (B, H))
)
WEIGHTS = attention.GRUWeights(
  *(
    rng.normal(scale=0.7, size=shape).astype(np.float32) for shape in ((D, 3 * H), (H, 3 * H), (3 * H,), (H,))
  )
)
directions = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
assert_close = functools.partial(chex.assert_trees_all_close, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mask", [None, 2.0])
def test_step_matches_hand_value(mask):
  # The state is 2. reset = sigmoid(0 + 2 ln(3)/2) = 3/4; update = sigmoid(0 - 2 ln(3)/2) = 1/4;
  # candidate = tanh(ln(3)/2 - 3 + 3/4 (2 + 2)) = 1/2; next = 3/4 * 1/2 + 1/4 * 2 = 7/8. With half
  # the weights, the mask restores the products; the update keeps a quarter of the 2.
  half = np.log(3) / 2
  weights = attention.GRUWeights(
    input=jnp.zeros((1, 3)),
    recurrent=jnp.array([[half, -half, 1.0]]) / (1 if mask is None else mask),
    bias=jnp.zeros(3),
    recurrent_bias=jnp.array([2.0]),
  )
  mask = None if mask is None else jnp.array([mask])
  state = attention.gru_step(weights, jnp.array([2.0]), jnp.array([0, 0, half - 3]), recurrent_mask=mask)
  np.testing.assert_allclose(state, [7 / 8], rtol=1e-6)


def test_step_matches_flax():
  gates = {}
  for i, gate in enumerate("rzn"):
    columns = slice(i * H, (i + 1) * H)
    gates[f"i{gate}"] = {"kernel": WEIGHTS.input[:, columns], "bias": WEIGHTS.bias[columns]}
    gates[f"h{gate}"] = {"kernel": WEIGHTS.recurrent[:, columns]}
  gates["hn"]["bias"] = WEIGHTS.recurrent_bias
  desired, _ = jax.jit(nn.GRUCell(H).apply)({"params": gates}, STATE, INPUTS[:, 0])
  step = jax.jit(lambda: attention.gru_step(WEIGHTS, STATE, project_inputs(WEIGHTS, INPUTS[:, 0])))
  assert_close(step(), desired)


def test_a_step_has_any_leading_axes():
  states = np.stack([STATE, -STATE], axis=1)
  actual = jax.jit(attention.gru_step)(WEIGHTS, states, project_inputs(WEIGHTS, INPUTS[:, :2]))
  params, states, inputs = float64((dataclasses.asdict(WEIGHTS), states, INPUTS[:, :2]))
  assert_close(actual, reference.gru_step(params, states, inputs))


@directions
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "lengths"])
def test_states_match_a_loop(reverse, lengths):
  options = {"lengths": None if lengths is None else jnp.asarray(lengths), "reverse": reverse}
  final, states = jax.device_get(attention.gru(WEIGHTS, STATE, INPUTS, **options))
  params, start, inputs = float64((dataclasses.asdict(WEIGHTS), STATE, INPUTS))
  way = slice(None, None, -1) if reverse else slice(None)
  for b, length in enumerate([T] * B if lengths is None else lengths):
    desired = reference.gru(params, start[b], inputs[b, :length][way])[way]
    assert_close(states[b, :length], desired)
    last = start[b] if length == 0 else desired[0 if reverse else -1]
    assert_close(final[b], last)
    padding = start[b] if reverse else last  # at which the state does not change
    assert_close(states[b, length:], np.broadcast_to(padding, (T - length, H)))


@directions
def test_masked_gru_matches_the_steps(reverse):
  def loss(function, *arguments):
    final, states = function(*arguments)
    return jnp.sum(final**2) + jnp.sum(jnp.sin(states)), (final, states)

  def whole(weights, state, inputs):
    options = {"lengths": LENGTHS, "reverse": reverse, "recurrent_mask": MASK}
    return attention.gru(weights, state, inputs, **options)

  def loop(weights, state, inputs):
    states = [None] * T
    for t in reversed(range(T)) if reverse else range(T):
      projected = project_inputs(weights, inputs[:, t])
      after = attention.gru_step(weights, state, projected, recurrent_mask=MASK)
      states[t] = state = jnp.where((t < LENGTHS)[:, None], after, state)
    return state, jnp.stack(states, axis=1)

  @jax.jit
  def run(*arguments):
    return [
      jax.grad(functools.partial(loss, function), argnums=(0, 1, 2), has_aux=True)(*arguments)
      for function in (whole, loop)
    ]

  assert_close(*run(WEIGHTS, STATE, INPUTS), rtol=1e-4, atol=1e-4)


@directions
def test_padding_has_no_effect(reverse):
  is_padding = (np.arange(T) >= LENGTHS[:, None])[:, :, None]

  @jax.jit
  def run(inputs):
    def loss(weights, state, inputs):
      final, states = attention.gru(weights, state, inputs, lengths=LENGTHS, reverse=reverse)
      return jnp.sum(final) + jnp.sum(states**2), (final, states)

    return jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(WEIGHTS, STATE, inputs)

  desired = jax.device_get(run(INPUTS))
  chex.assert_trees_all_equal(run(np.where(is_padding, np.float32(np.nan), INPUTS)), desired)
  np.testing.assert_array_equal(np.where(is_padding, desired[0][2], 0), 0)


def test_states_keep_their_dtype(float64):
  def states(state, inputs):
    with jax.numpy_dtype_promotion("standard"):
      return attention.gru(WEIGHTS, state, inputs)[1]

  halves = STATE.astype(jnp.bfloat16), INPUTS.astype(jnp.bfloat16)
  assert jax.eval_shape(states, *halves).dtype == jnp.bfloat16
  doubles = jax.tree.map(lambda leaf: leaf.astype(np.float64), (WEIGHTS, STATE, INPUTS))
  params, start, inputs = dataclasses.asdict(doubles[0]), *map(np.asarray, doubles[1:])
  actual = attention.gru(*doubles)[1]
  desired = [reference.gru(params, *item) for item in zip(start, inputs, strict=True)]
  np.testing.assert_allclose(actual, desired, rtol=1e-12, atol=1e-12)


def test_saturated_gradients_are_finite():
  weights = jax.tree.map(lambda leaf: 1e4 * leaf, WEIGHTS)
  loss = jax.jit(jax.value_and_grad(lambda weights: jnp.sum(attention.gru(weights, STATE, INPUTS)[1] ** 2)))
  chex.assert_tree_all_finite(loss(weights))


def test_initial_weights():
  weights, _ = jax.jit(lambda rng: GRUModule(H).init_with_output(rng, 211))(jax.random.key(0))
  assert abs(np.std(weights.input) * np.sqrt(211) - 1) < 5 / np.sqrt(2 * weights.input.size)
  gates = np.split(np.asarray(weights.recurrent), 3, axis=1)
  for gate in gates:
    assert_close(gate.T @ gate, np.eye(H, dtype=np.float32))
  assert np.max(np.abs(gates[0] - gates[1])) > 0.1
  assert not np.any(weights.bias) and not np.any(weights.recurrent_bias)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"state": jnp.ones((B, H + 1))}, r"H=11, .*state \(3, 12\)"),
    ({"state": jnp.ones((B + 1, H))}, r"H=11, .*state \(4, 11\)"),
    ({"inputs": jnp.ones((B, T, D + 1))}, r"H=11, .*inputs \(3, 5, 8\)"),
    ({"inputs": jnp.ones((B, D))}, r"inputs must be \[B T D\] and lengths \[B\], got inputs \(3, 7\)"),
    ({"lengths": jnp.ones(4, int)}, r"must be .* got inputs \(3, 5, 7\), lengths \(4,\)"),
    ({"recurrent_mask": jnp.ones(H)}, r"got recurrent_mask \(11,\), state \(3, 11\)"),
    ({"recurrent_mask": jnp.ones((1, H))}, r"got recurrent_mask \(1, 11\), state \(3, 11\)"),
  ],
)
def test_mismatched_shapes_raise(change, message):
  with pytest.raises(ValueError, match=message):
    attention.gru(**{"weights": WEIGHTS, "state": STATE, "inputs": INPUTS, **change})
