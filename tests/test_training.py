"""Tests of experiments/translation/training.py."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from models import random_parameters

from configs import base
from experiments.translation.batches import make_batch, stack
from experiments.translation.models import make_model
from experiments.translation.training import (
  TrainState,
  count_parameters,
  init_state,
  make_optimizer,
  make_rngs,
  make_schedule,
  train_steps,
)

B, T, V = 2, 3, 5


def _model(dropout_rate):
  config = base.Model(attention="none", embedding_width=5, width=6, dropout_rate=dropout_rate)
  return make_model(config, source_vocabulary_size=11, target_vocabulary_size=13)


# Shared by the tests: a compiled step belongs to one model and one optimiser.
PLAIN, DROPPING = _model(0.0), _model(0.5)
# The learning rate is as good as constant.
CLIP_NORM = 0.7
OPTIMIZER = make_optimizer(base.Train(steps=10**6, warmup=0.0, learning_rate=0.03125, clip_norm=CLIP_NORM))


@pytest.fixture
def standard_promotion():
  """Lets optax divide numbers by integers, as it does in Adam."""
  with jax.numpy_dtype_promotion("standard"):
    yield


def _batch(seed=0):
  rng = np.random.default_rng(seed)
  lengths = [2, 5, 3]
  return make_batch(
    [rng.integers(4, 11, length).tolist() for length in lengths],
    [rng.integers(4, 13, length).tolist() for length in reversed(lengths)],
    source_length=7,
    target_length=6,
  )


def _start(step=0):
  """Returns a state with random parameters; they fit both models."""
  batch = _batch()
  arguments = (batch.sources, batch.source_lengths, batch.inputs)
  params = random_parameters(PLAIN, *arguments)["params"]
  return TrainState(jnp.int32(step), params, OPTIMIZER.init(params))


def _run(model, state, batches, seed=0):
  """Makes the steps on a copy: the state that goes in is gone afterwards."""
  copy = jax.tree.map(jnp.copy, state)
  return train_steps(copy, stack(batches), jax.random.key(seed), model=model, optimizer=OPTIMIZER)


@jax.jit
def _logits(params, batch):
  return PLAIN.apply({"params": params}, batch.sources, batch.source_lengths, batch.inputs)[0]


def _assert_close(actual, expected, rtol):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol), actual, expected)


def _are_equal(first, second):
  return all(map(np.array_equal, jax.tree.leaves(first), jax.tree.leaves(second)))


def _float64_losses(logits, targets):
  """Returns -log p(target), [B T], in float64."""
  logits = np.asarray(logits, np.float64)
  shifted = logits - logits.max(axis=-1, keepdims=True)
  log_probabilities = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
  return -np.take_along_axis(log_probabilities, targets[..., None], axis=-1)[..., 0]


@jax.jit
@jax.grad
def _gradient(params, batch):
  """Returns the gradient of the mean loss of the real tokens."""
  log_probabilities = jax.nn.log_softmax(_logits(params, batch))
  chosen = jnp.take_along_axis(log_probabilities, batch.targets[..., None], axis=-1)[..., 0]
  is_real = batch.targets != 0
  return -jnp.sum(jnp.where(is_real, chosen, 0.0)) / jnp.sum(is_real.astype(jnp.float32))


def _float64(tree):
  return jax.tree.map(lambda leaf: np.asarray(leaf).astype(np.float64), tree)


def _norm(tree):
  return math.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(tree)))


@pytest.mark.usefixtures("standard_promotion")
def test_steps_are_those_of_adam_on_the_clipped_gradient():
  """Kingma and Ba 2015, arXiv:1412.6980, algorithm 1, with its standard constants."""
  state, norms = _start(), []
  params = _float64(state.params)
  first = second = jax.tree.map(np.zeros_like, params)
  for t in (1, 2):
    batch = _batch(t)
    gradient = _float64(_gradient(state.params, batch))
    norms.append(_norm(gradient))
    factor = min(1.0, CLIP_NORM / norms[-1])
    gradient = jax.tree.map(lambda g, factor=factor: factor * g, gradient)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, second, gradient)
    params = jax.tree.map(
      lambda p, m, v, t=t: p - 0.03125 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8),
      params,
      first,
      second,
    )
    state, _ = _run(PLAIN, state, [batch])
    assert state.step == t
    _assert_close(state.params, params, rtol=1e-4)
  assert min(norms) < CLIP_NORM < max(norms), norms


@pytest.mark.usefixtures("standard_promotion")
def test_the_sums_are_those_of_the_model_before_the_step():
  batch, start = _batch(), _start()
  losses = _float64_losses(_logits(start.params, batch), batch.targets)[batch.targets != 0]
  _, sums = _run(PLAIN, start, [batch])
  np.testing.assert_allclose(sums.loss, losses.sum(), rtol=1e-5)
  assert sums.tokens == losses.size == 2 + 5 + 3 + 3


@pytest.mark.usefixtures("standard_promotion")
def test_three_steps_in_one_call_are_three_calls_of_one_step():
  batches = [_batch(seed) for seed in range(3)]
  state = _start()
  together, sums = _run(DROPPING, state, batches)
  single = []
  for batch in batches:
    state, step_sums = _run(DROPPING, state, [batch])
    single.append(step_sums)
  assert together.step == state.step == 3
  _assert_close(together.params, state.params, rtol=1e-5)
  np.testing.assert_allclose(sums.loss, sum(one.loss for one in single), rtol=1e-5)
  assert sums.tokens == 3 * 13


def _loss(model, *, step, seed):
  return float(_run(model, _start(step), [_batch()], seed=seed)[1].loss)


@pytest.mark.usefixtures("standard_promotion")
def test_dropout_is_a_function_of_seed_and_step():
  losses = {(seed, step): _loss(DROPPING, step=step, seed=seed) for seed, step in np.ndindex(2, 2)}
  assert len(set(losses.values())) == 4
  assert _loss(DROPPING, step=1, seed=0) == losses[0, 1]


@pytest.mark.usefixtures("standard_promotion")
def test_without_dropout_the_loss_does_not_depend_on_the_step():
  assert _loss(PLAIN, step=0, seed=0) == _loss(PLAIN, step=1, seed=0)


def test_the_schedule_rises_to_its_peak_and_falls_to_zero():
  schedule = make_schedule(base.Train(steps=12, warmup=0.34, learning_rate=0.5))
  rising = [0.0, 0.125, 0.25, 0.375, 0.5]
  falling = [0.25 * (1 + math.cos(math.pi * i / 8)) for i in range(1, 9)]
  np.testing.assert_allclose([schedule(step) for step in range(13)], rising + falling, atol=1e-7)
  assert schedule(12) == 0.0


def test_the_schedule_can_do_without_a_warm_up():
  schedule = make_schedule(base.Train(steps=8, warmup=0.0, learning_rate=0.5))
  np.testing.assert_allclose([schedule(0), schedule(4), schedule(8)], [0.5, 0.25, 0.0], atol=1e-7)


@pytest.mark.parametrize("steps", [1, 2, 60])
def test_fewer_steps_than_the_warm_up_are_possible(steps):
  schedule = make_schedule(base.Train(steps=steps, warmup=0.99, learning_rate=0.5))
  rates = [float(schedule(step)) for step in range(steps + 1)]
  assert max(rates) == rates[steps - 1] == 0.5
  assert rates[steps] == 0.0


@pytest.mark.usefixtures("standard_promotion")
def test_the_optimizer_follows_the_schedule():
  optimizer = make_optimizer(base.Train(steps=12, warmup=0.34, learning_rate=0.5))
  gradient = {"w": jnp.array([0.3, -0.2])}
  params = {"w": jnp.array([1.0, -1.0])}
  state = optimizer.init(params)
  # With the same gradient each time, Adam's step is the learning rate; at first it is 0.
  for rate in (0.0, 0.125, 0.25, 0.375, 0.5):
    updates, state = optimizer.update(gradient, state, params)
    np.testing.assert_allclose(updates["w"], [-rate, rate], atol=1e-5)


@pytest.mark.usefixtures("standard_promotion")
def test_one_batch_can_be_learnt_by_heart():
  state, losses = _start(), []
  for _ in range(200):
    state, sums = _run(PLAIN, state, [_batch()])
    losses.append(float(sums.loss / sums.tokens))
  assert losses[0] > 1.0
  assert losses[-1] < 0.1


class Embedder(nn.Module):
  """The least that can be initialised: a real model takes seconds to compile."""

  @nn.compact
  def __call__(self, sources, source_lengths, inputs):
    return nn.Embed(11, 3)(sources)


def test_parameters_and_dropout_are_drawn_from_different_keys_of_the_seed():
  keys = [np.asarray(jax.random.key_data(rng)).tolist() for seed in (0, 1) for rng in make_rngs(seed)]
  assert all(keys.count(key) == 1 for key in keys)


def test_the_first_state_is_a_function_of_the_seed():
  first, again, other = (
    init_state(Embedder(), OPTIMIZER, _batch(), make_rngs(seed).params) for seed in (0, 0, 1)
  )
  assert _are_equal(first, again)
  assert not _are_equal(first.params, other.params)
  assert first.step == 0
  assert _are_equal(first.optimizer, OPTIMIZER.init(first.params))


@pytest.mark.usefixtures("standard_promotion")
def test_training_is_the_same_bits_for_the_same_seed():
  batches = [_batch(seed) for seed in range(3)]
  ends = [_run(DROPPING, _start(), batches)[0] for _ in range(2)]
  assert isinstance(ends[0], TrainState)
  assert _are_equal(*ends)


def test_parameters_are_counted():
  assert count_parameters({"a": {"kernel": np.zeros((2, 3)), "bias": np.zeros(3)}, "b": np.zeros(())}) == 10
