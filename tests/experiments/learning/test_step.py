"""Tests of experiments/learning/step.py."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from helpers.model_reference import random_parameters
from jax.sharding import AxisType, Mesh

from attention.losses import alignment_loss, coverage_loss, linear_cross_entropy
from configs import base
from experiments.data.batches import make_batch
from experiments.devices.sharding import AXES
from experiments.learning.model import make_model
from experiments.learning.optimizer import make_optimizer, make_schedule
from experiments.learning.step import (
  LossSums,
  TrainSpec,
  TrainState,
  abstract_state,
  eval_params,
  init_state,
  is_finite,
  make_rngs,
  make_step,
  make_train_spec,
  zero_sums,
)

CLIP_NORM, EMA_DECAY, SMOOTHING = 0.7, 0.15, 0.3


@pytest.fixture
def standard_promotion():
  """Allows the implicit dtype promotion of optax.adam."""
  with jax.numpy_dtype_promotion("standard"):
    yield


def _model(dropout_rate):
  config = base.Model(attention="none", embed_dim=5, features=6, dropout_rate=dropout_rate)
  return make_model(config, source_vocabulary_size=11, target_vocabulary_size=13)


# Shared by the tests, because a step is compiled for each spec. The learning rate is nearly constant.
OPTIMIZER = make_optimizer(
  base.Train(num_train_steps=10**6, warmup_fraction=0.0, learning_rate=0.03125, grad_clip_norm=CLIP_NORM)
)
MESH = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), AXES, axis_types=(AxisType.Auto,) * 2)
PLAIN = TrainSpec(_model(0.0), OPTIMIZER, MESH, base.Train())
# Options that do not affect each other share a spec.
WITH_DROPOUT = TrainSpec(_model(0.5), OPTIMIZER, MESH, base.Train(ema_decay=EMA_DECAY))
ACCUMULATED = TrainSpec(
  _model(0.0), OPTIMIZER, MESH, base.Train(grad_accumulation_steps=3, label_smoothing=SMOOTHING)
)
BFLOAT16 = TrainSpec(_model(0.0), OPTIMIZER, MESH, base.Train(), "bfloat16")


def _batch(seed=0, num_rows=3):
  """Returns a batch of three sentences and padding rows."""
  rng = np.random.default_rng(seed)
  lengths = [2, 5, 3]
  return make_batch(
    [rng.integers(4, 11, length).tolist() for length in lengths],
    [rng.integers(4, 13, length).tolist() for length in reversed(lengths)],
    source_length=7,
    target_length=6,
    num_rows=num_rows,
  )


def _start(spec=PLAIN, step=0):
  """Returns a state with random parameters, equal for all specs."""
  batch = _batch()
  arguments = (batch.sources, batch.source_lengths, batch.inputs)
  params = random_parameters(PLAIN.model, *arguments)["params"]
  average = jax.tree.map(jnp.copy, params) if spec.train.ema_decay else None
  return TrainState(jnp.int32(step), params, average, spec.optimizer.init(params), zero_sums())


def _run(spec, state, batches, seed=0):
  """Runs steps on a copy of the state, because steps donate it."""
  state = jax.tree.map(jnp.copy, state)
  for batch in batches:
    state, _ = make_step(spec)(state, batch, jax.random.key(seed))
  return state


@jax.jit
def _logits(params, batch):
  return PLAIN.model.apply({"params": params}, batch.sources, batch.source_lengths, batch.inputs)[0]


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
  """Returns the gradient of the mean loss over tokens without padding."""
  log_probabilities = jax.nn.log_softmax(_logits(params, batch))
  chosen = jnp.take_along_axis(log_probabilities, batch.targets[..., None], axis=-1)[..., 0]
  is_real = batch.targets != 0
  return -jnp.sum(jnp.where(is_real, chosen, 0.0)) / jnp.sum(is_real.astype(jnp.float32))


def _float64(tree):
  return jax.tree.map(lambda leaf: np.asarray(leaf).astype(np.float64), tree)


def _norm(tree):
  return math.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(tree)))


@pytest.mark.usefixtures("standard_promotion")
def test_steps_match_adam():
  """Kingma and Ba 2015, arXiv:1412.6980, algorithm 1, with default hyperparameters."""
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
    state = _run(PLAIN, state, [batch])
    assert state.step == t
    _assert_close(state.params, params, rtol=1e-4)
  assert min(norms) < CLIP_NORM < max(norms), norms


@pytest.mark.usefixtures("standard_promotion")
def test_sums_are_accumulated():
  first = _run(PLAIN, _start(), [_batch(0)])
  alone = _run(PLAIN, first._replace(sums=zero_sums()), [_batch(1)]).sums
  both = _run(PLAIN, first, [_batch(1)]).sums
  np.testing.assert_allclose(both.loss, float(first.sums.loss) + float(alone.loss), rtol=1e-6)
  assert both.tokens == 2 * 13
  assert zero_sums() == LossSums(0.0, 0.0)


@pytest.mark.usefixtures("standard_promotion")
def test_gradient_norms_outlive_the_state():
  spec = dataclasses.replace(PLAIN, optimizer=optax.trace(decay=0.0))  # its state is the gradient
  step = make_step(spec)
  start = jax.tree.map(jnp.copy, init_state(spec, jax.random.key(0)))
  state, norm = step(start, _batch(), jax.random.key(0))
  squares = (np.sum(np.asarray(leaf, np.float64) ** 2) for leaf in jax.tree.leaves(state.optimizer.trace))
  expected = np.sqrt(sum(squares))
  step(state, _batch(), jax.random.key(0))
  np.testing.assert_allclose(norm, expected, rtol=1e-5)


def _loss(spec, *, step, seed):
  return float(_run(spec, _start(spec, step), [_batch()], seed=seed).sums.loss)


@pytest.mark.usefixtures("standard_promotion")
def test_dropout_depends_on_seed_and_step():
  losses = {(seed, step): _loss(WITH_DROPOUT, step=step, seed=seed) for seed, step in np.ndindex(2, 2)}
  assert len(set(losses.values())) == 4
  assert _loss(WITH_DROPOUT, step=1, seed=0) == losses[0, 1]


# Accumulation, losses and dtypes.


def _smoothed_loss(params, batch):
  """Returns the mean smoothed loss over tokens without padding."""
  logits, targets = _logits(params, batch).reshape(-1, 13), batch.targets.reshape(-1)
  identity, nothing = jnp.eye(13), jnp.zeros(13)
  return linear_cross_entropy(logits, identity, nothing, targets, SMOOTHING) / jnp.sum(
    (targets != 0).astype(jnp.float32)
  )


@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize("num_rows", [3, pytest.param(6, marks=pytest.mark.exhaustive)])
def test_accumulation_equals_full_batch(num_rows):
  """Three of 6 rows are padding, so microbatches have different numbers of tokens."""
  state = start = _start(ACCUMULATED)
  for t in range(2):
    batch = _batch(t, num_rows)
    gradient = jax.jit(jax.grad(_smoothed_loss))(start.params, _batch(t))
    updates, optimizer = OPTIMIZER.update(gradient, start.optimizer, start.params)
    start = start._replace(params=optax.apply_updates(start.params, updates), optimizer=optimizer)
    state = _run(ACCUMULATED, state, [batch])
  _assert_close(state.params, start.params, rtol=1e-4)
  _assert_close(state.optimizer, start.optimizer, rtol=1e-4)
  assert state.sums.tokens == 2 * 13


@pytest.mark.usefixtures("standard_promotion")
def test_label_smoothing_changes_the_loss():
  loss = _run(ACCUMULATED, _start(ACCUMULATED), [_batch()]).sums.loss
  np.testing.assert_allclose(loss, 13 * _smoothed_loss(_start().params, _batch()), rtol=1e-5)
  logits = np.asarray(_logits(_start().params, _batch()), np.float64)
  target_losses = _float64_losses(logits, _batch().targets)
  uniform_losses = np.mean(
    [_float64_losses(logits, np.full_like(_batch().targets, v)) for v in range(13)], axis=0
  )
  expected = ((1 - SMOOTHING) * target_losses + SMOOTHING * uniform_losses)[_batch().targets != 0].sum()
  np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.usefixtures("standard_promotion")
def test_attention_losses_are_added():
  config = base.Model(attention="additive", embed_dim=5, features=6)
  model = make_model(config, source_vocabulary_size=11, target_vocabulary_size=13)
  batch = _batch(num_rows=4)
  batch = batch._replace(links=np.random.default_rng(2).random((4, 6, 7)) < 0.3)
  arguments = (batch.sources, batch.source_lengths, batch.inputs)
  params = random_parameters(model, *arguments)["params"]

  def loss(**weights):
    spec = TrainSpec(model, OPTIMIZER, MESH, base.Train(**weights))
    state = TrainState(jnp.int32(0), params, None, OPTIMIZER.init(params), zero_sums())
    return float(_run(spec, state, [batch]).sums.loss)

  _, weights = model.apply({"params": params}, *arguments)
  lengths = np.sum(batch.targets != 0, axis=-1)
  extra = 0.5 * jnp.sum(alignment_loss(weights, batch.links)) + 3 * jnp.sum(coverage_loss(weights, lengths))
  np.testing.assert_allclose(
    loss(alignment_loss_weight=0.5, coverage_loss_weight=3.0) - loss(), extra, rtol=1e-4
  )
  assert extra > 1


def test_attention_losses_need_weights():
  with pytest.raises(ValueError, match="need a decoder that returns weights, got None"):
    make_step(dataclasses.replace(PLAIN, train=base.Train(coverage_loss_weight=1.0))).lower(
      _start(), _batch(), jax.random.key(0)
    )


@pytest.mark.usefixtures("standard_promotion")
def test_bfloat16_keeps_float32_parameters():
  exact, rounded = (_run(spec, _start(), [_batch(), _batch(1)]) for spec in (PLAIN, BFLOAT16))
  assert {leaf.dtype for leaf in jax.tree.leaves((rounded.params, rounded.sums))} == {jnp.dtype("float32")}
  # bfloat16 has 8 significant bits.
  np.testing.assert_allclose(rounded.sums.loss, exact.sums.loss, rtol=2**-7)
  assert rounded.sums.loss != exact.sums.loss
  for leaf, exact_leaf in zip(jax.tree.leaves(rounded.params), jax.tree.leaves(exact.params), strict=True):
    assert leaf.dtype == jnp.float32
    # Each of two Adam steps has the size of the learning rate. Gradients with equal signs give equal steps.
    assert np.mean(np.abs(leaf - exact_leaf)) < 0.3 * 0.03125
  rounded_params = optax.tree.cast(rounded.params, "bfloat16")
  assert {leaf.dtype for leaf in jax.tree.leaves(rounded_params)} == {jnp.dtype("bfloat16")}


# The moving average.


@pytest.mark.usefixtures("standard_promotion")
def test_average_follows_its_recurrence():
  """average' = d average + (1 - d) params' with d = min((1 + step) / (10 + step), ema_decay)."""
  state = _start(WITH_DROPOUT)
  average = _float64(state.params)
  for t, decay in enumerate([1 / 10, EMA_DECAY, EMA_DECAY]):
    state = _run(WITH_DROPOUT, state, [_batch(t)])
    new = _float64(state.params)
    average = jax.tree.map(lambda a, p, d=decay: d * a + (1 - d) * p, average, new)
    _assert_close(state.average, average, rtol=1e-5)
  assert _are_equal(eval_params(state), state.average)
  assert not _are_equal(state.average, state.params)


# The learning rate and the optimizer.


@pytest.mark.parametrize(
  ("schedule", "steps", "warmup", "rates"),
  [
    ("cosine", 12, 0.34, {0: 0.0, 1: 0.125, 4: 0.5, 6: 0.25 * (1 + math.cos(math.pi / 4)), 8: 0.25, 12: 0.0}),
    ("cosine", 4, 0.0, {0: 0.5, 2: 0.25, 4: 0.0}),
    ("linear", 12, 0.34, {0: 0.0, 3: 0.375, 4: 0.5, 5: 0.4375, 8: 0.25, 12: 0.0}),
    ("inverse_square_root", 100, 0.04, {0: 0.0, 3: 0.375, 4: 0.5, 9: 1 / 3, 16: 0.25, 64: 0.125}),
    ("inverse_square_root", 100, 0.0, {0: 0.5, 3: 0.25, 8: 1 / 6}),
    ("constant", 12, 0.34, {0: 0.0, 2: 0.25, 4: 0.5, 8: 0.5, 12: 0.5}),
  ],
)
def test_schedules_match_hand_computation(schedule, steps, warmup, rates):
  train = base.Train(num_train_steps=steps, warmup_fraction=warmup, learning_rate=0.5, schedule=schedule)
  computed = [make_schedule(train)(step) for step in rates]
  np.testing.assert_allclose(computed, list(rates.values()), atol=1e-7)


@pytest.mark.usefixtures("standard_promotion")
def test_biases_and_scales_are_not_decayed():
  params = {
    "kernel": jnp.array([[1.0, -2.0]]),
    "score_vector": jnp.array([1.0, -2.0]),
    "bias": jnp.array([[3.0, 4.0]]),  # like a bias of heads
    "recurrent_bias": jnp.array([3.0]),
    "scale": jnp.array(2.0),
  }
  train = base.Train(
    num_train_steps=10, warmup_fraction=0.0, learning_rate=0.5, schedule="constant", weight_decay=0.1
  )
  optimizer = make_optimizer(train)
  empty = jax.tree.map(jnp.zeros_like, params)
  updates, _ = optimizer.update(empty, optimizer.init(params), params)
  np.testing.assert_allclose(updates["kernel"], [[-0.05, 0.1]], rtol=1e-6)
  np.testing.assert_allclose(updates["score_vector"], [-0.05, 0.1], rtol=1e-6)
  for name in ("bias", "recurrent_bias", "scale"):
    assert not updates[name].any()


@pytest.mark.usefixtures("standard_promotion")
def test_optimizer_uses_the_schedule():
  optimizer = make_optimizer(base.Train(num_train_steps=12, warmup_fraction=0.34, learning_rate=0.5))
  gradient = {"w": jnp.array([0.3, -0.2])}
  params = {"w": jnp.array([1.0, -1.0])}
  state = optimizer.init(params)
  # With a constant gradient, the step of Adam is the learning rate, which is 0 at first.
  for rate in (0.0, 0.125, 0.25, 0.375, 0.5):
    updates, state = optimizer.update(gradient, state, params)
    np.testing.assert_allclose(updates["w"], [-rate, rate], atol=1e-5)


class Embedder(nn.Module):
  """A minimal model, because a real one takes seconds to compile."""

  @nn.compact
  def __call__(self, sources, source_lengths, inputs):
    return nn.Embed(11, 3)(sources)


def test_initial_state_depends_on_seed():
  spec = TrainSpec(Embedder(), OPTIMIZER, MESH, base.Train(ema_decay=0.9))
  first, same_seed, other_seed = (init_state(spec, make_rngs(seed).params) for seed in (0, 0, 1))
  assert _are_equal(first, same_seed)
  assert not _are_equal(first.params, other_seed.params)
  assert first.step == 0
  assert _are_equal(first.average, first.params)
  assert _are_equal(first.optimizer, OPTIMIZER.init(first.params))
  assert _are_equal(first.sums, zero_sums())


@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
def test_abstract_state_matches_state(ema_decay):
  spec = TrainSpec(Embedder(), OPTIMIZER, MESH, base.Train(ema_decay=ema_decay))
  state, abstract = init_state(spec, make_rngs(0).params), abstract_state(spec)
  assert jax.tree.structure(state) == jax.tree.structure(abstract)
  for leaf, shape in zip(jax.tree.leaves(state), jax.tree.leaves(abstract), strict=True):
    assert (leaf.shape, leaf.dtype, leaf.sharding) == (shape.shape, shape.dtype, shape.sharding)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nonfinite_parameters_are_detected(value):
  params = {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)}
  assert is_finite(params)
  assert not is_finite(params | {"bias": jnp.array([0.0, value, 0.0])})


def test_parameters_and_dropout_differ():
  keys = [np.asarray(jax.random.key_data(rng)).tolist() for seed in (0, 1) for rng in make_rngs(seed)]
  assert all(keys.count(key) == 1 for key in keys)


def test_spec_follows_the_config():
  config = base.Config(model=base.Model(dtype="bfloat16"), train=base.Train(label_smoothing=0.1))
  spec = make_train_spec(config, PLAIN.model, MESH)
  assert (spec.model, spec.mesh) == (PLAIN.model, MESH)
  assert (spec.train, spec.dtype) == (config.train, "bfloat16")
