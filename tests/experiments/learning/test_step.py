"""The training step, and the optimizer."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from attention.losses import alignment_loss, coverage_loss
from attention.models.seq2seq import OutputFeatures
from configs import base
from experiments.data.batches import make_batch
from experiments.devices.sharding import make_mesh
from experiments.learning import step
from experiments.learning.optimizer import learning_rate, make_optimizer, make_schedule

pytestmark = pytest.mark.usefixtures("as_users_run")

CLIP_NORM, EMA_DECAY, SMOOTHING, RATE = 1.95, 0.15, 0.3, 0.03125


class SmallModel(nn.Module):
  """One attention layer, since the step of a real model compiles for seconds."""

  dropout_rate: float = 0.0
  has_weights: bool = True

  @nn.compact
  def output_features(self, sources, source_lengths, inputs, deterministic=True):
    memory_BSD, vectors_BTD = nn.Embed(11, 5)(sources), nn.Embed(13, 5)(inputs)
    weights = jax.nn.softmax(jnp.einsum("BTD,BSD->BTS", vectors_BTD, memory_BSD))
    context_BTD = jnp.einsum("BTS,BSD->BTD", weights, memory_BSD)
    context_BTD = nn.Dropout(self.dropout_rate)(context_BTD, deterministic=deterministic)
    kernel = self.param("kernel", nn.initializers.normal(), (5, 13))
    bias = self.param("bias", nn.initializers.zeros, (13,))
    return OutputFeatures(vectors_BTD + context_BTD, kernel, bias, weights if self.has_weights else None)

  def __call__(self, *arguments):
    return self.output_features(*arguments)


# The learning rate is nearly constant.
OPTIMIZER = make_optimizer(
  base.Train(num_train_steps=10**6, warmup_fraction=0.0, learning_rate=RATE, grad_clip_norm=CLIP_NORM)
)


@functools.cache  # a spec is compiled once
def make_spec(model=SmallModel(), dtype="float32", **train):  # noqa: B008 (a Flax module is constant)
  config = base.Config(model=base.Model(dtype=dtype), train=base.Train(**train))
  return dataclasses.replace(step.make_train_spec(config, model, make_mesh()), optimizer=OPTIMIZER)


def batch_of(seed=0, num_rows=3):
  """Returns a batch of three sentences with 13 target tokens, and padding rows."""
  rng = np.random.default_rng(seed)
  return make_batch(
    [rng.integers(4, 11, length).tolist() for length in (2, 5, 3)],
    [rng.integers(4, 13, length).tolist() for length in (3, 5, 2)],
    source_length=7,
    target_length=6,
    num_rows=num_rows,
    alignments=[{(0, 1), (2, 2)}, {(5, 5)}, {(1, 0)}],
  )


def start_of(spec, num_steps=0):
  """Returns a state with random parameters, equal for all specs."""
  rng = np.random.default_rng(0)
  shapes = step.abstract_state(spec).params
  params = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), shapes)
  average = jax.tree.map(jnp.copy, params) if spec.train.ema_decay else None
  return step.TrainState(jnp.int32(num_steps), params, average, spec.optimizer.init(params), step.zero_sums())


def run(spec, state, *batches, seed=0):
  """Runs steps on a copy of the state, because steps donate it. Returns the state and gradient norms."""
  state, norms = jax.tree.map(jnp.copy, state), []
  for batch in batches:
    state, norm = step.make_step(spec)(state, batch, jax.random.key(seed))
    norms.append(norm)
  return state, norms  # norms are not donated


@jax.jit
def features_of(params, batch):
  return SmallModel().apply({"params": params}, batch.sources, batch.source_lengths, batch.inputs)


@functools.partial(jax.jit, static_argnames="smoothing")
def loss_and_gradient(params, batch, smoothing=0.0):
  """Returns the summed loss, and the gradient of the mean loss per token."""

  def summed_loss(params):
    features, labels = features_of(params, batch), jax.nn.one_hot(batch.targets, 13)
    logits = features.vectors @ features.kernel + features.bias
    losses = optax.softmax_cross_entropy(logits, optax.smooth_labels(labels, smoothing))
    return jnp.sum(jnp.where(batch.targets != 0, losses, 0.0))

  loss, gradient = jax.value_and_grad(summed_loss)(params)
  return loss, jax.tree.map(lambda leaf: leaf / 13, gradient)


@functools.partial(jax.jit, static_argnums=0)
def update(optimizer, gradient, moments, params):
  updates, moments = optimizer.update(gradient, moments, params)
  return optax.apply_updates(params, updates), moments


def test_steps_match_adam():
  # Kingma and Ba 2015, arXiv:1412.6980, with default hyperparameters, and gradient clipping.
  spec, batches, adam = make_spec(), [batch_of(1), batch_of(2)], optax.adam(RATE)
  start = start_of(spec)
  state, norms = run(spec, start, *batches)
  params, moments, total = start.params, adam.init(start.params), 0.0  # of both steps
  for batch, norm in zip(batches, norms, strict=True):
    loss, gradient = loss_and_gradient(params, batch)
    total += loss
    np.testing.assert_allclose(norm, optax.tree.norm(gradient), rtol=1e-5)
    clipped = jax.tree.map(lambda leaf, norm=norm: min(1.0, CLIP_NORM / norm) * leaf, gradient)
    params, moments = update(adam, clipped, moments, params)
  assert min(norms) < CLIP_NORM < max(norms)
  chex.assert_trees_all_close(state.params, params, rtol=1e-4, atol=1e-4)
  chex.assert_trees_all_close((state.step, *state.sums), (2, total, 2.0 * 13), rtol=1e-5)
  assert step.eval_params(state) is state.params


def test_dropout_depends_on_seed_and_step():
  spec = make_spec(SmallModel(dropout_rate=0.5), ema_decay=EMA_DECAY)
  keys = [(0, 0), (0, 1), (1, 0), (1, 1)]
  states = [run(spec, start_of(spec, count), batch_of(), seed=seed)[0] for seed, count in keys * 2]
  losses = [float(state.sums.loss) for state in states]
  assert losses[:4] == losses[4:] and len(set(losses)) == 4


def test_average_follows_its_recurrence():
  # average' = d average + (1 - d) params' with d = min((1 + step) / (10 + step), ema_decay).
  spec = make_spec(SmallModel(dropout_rate=0.5), ema_decay=EMA_DECAY)
  state = start_of(spec)
  average = state.params
  for t, decay in enumerate([1 / 10, EMA_DECAY, EMA_DECAY]):
    state, _ = run(spec, state, batch_of(t))
    average = jax.tree.map(lambda a, p, d=decay: d * a + (1 - d) * p, average, state.params)
    chex.assert_trees_all_close(state.average, average, rtol=1e-5, atol=1e-5)
  assert step.eval_params(state) is state.average


def test_accumulation_equals_full_batch():
  # Three of 6 rows are padding, so microbatches have different numbers of tokens.
  spec = make_spec(grad_accumulation_steps=3, label_smoothing=SMOOTHING)
  start = start_of(spec)
  state, _ = run(spec, start, batch_of(num_rows=6))
  loss, gradient = loss_and_gradient(start.params, batch_of(), SMOOTHING)
  expected = update(OPTIMIZER, gradient, start.optimizer, start.params)
  chex.assert_trees_all_close((state.params, state.optimizer), expected, rtol=1e-4, atol=1e-4)
  np.testing.assert_allclose(state.sums.loss, loss, rtol=1e-5)
  assert state.sums.tokens == 13


def test_microbatches_have_different_dropout():
  # Equal rows in two microbatches have equal losses without dropout.
  batch = jax.tree.map(lambda array: np.repeat(array[:1], 2, axis=0), batch_of())
  half = batch._replace(targets=batch.targets * np.array([[1], [0]], np.int32))
  spec = make_spec(SmallModel(dropout_rate=0.5), grad_accumulation_steps=2)
  twice, once = (run(spec, start_of(spec), rows)[0].sums.loss for rows in (batch, half))
  assert not np.allclose(twice, 2 * once, rtol=1e-6)


def test_attention_losses_are_added():
  spec = make_spec(alignment_loss_weight=0.5, coverage_loss_weight=3.0)
  start, batch = start_of(spec), batch_of(num_rows=4)
  loss = run(spec, start, batch)[0].sums.loss
  weights = features_of(start.params, batch).weights
  aligned = jnp.sum(alignment_loss(weights, batch.links))
  covered = jnp.sum(coverage_loss(weights, jnp.array([4, 6, 3, 0])))
  assert min(aligned, covered) > 0.5
  expected = loss_and_gradient(start.params, batch)[0] + 0.5 * aligned + 3 * covered
  np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["alignment_loss_weight", "coverage_loss_weight"])
def test_attention_losses_need_weights(name):
  spec = make_spec(SmallModel(has_weights=False), **{name: 1.0})
  with pytest.raises(ValueError, match="need a decoder that returns weights, got None"):
    step.make_step(spec).lower(start_of(spec), batch_of(), jax.random.key(0))


def test_bfloat16_keeps_float32_parameters():
  spec, exact_spec = make_spec(dtype="bfloat16"), make_spec()
  batches = batch_of(), batch_of(1)
  rounded, exact = (run(s, start_of(exact_spec), *batches)[0] for s in (spec, exact_spec))
  assert {leaf.dtype for leaf in jax.tree.leaves((rounded.params, rounded.sums))} == {jnp.dtype("float32")}
  # bfloat16 has 8 significant bits.
  np.testing.assert_allclose(rounded.sums.loss, exact.sums.loss, rtol=2**-6)
  assert rounded.sums.loss != exact.sums.loss
  # Each of two Adam steps has the size of the learning rate. Gradients with equal signs give equal steps.
  differences = jax.tree.map(lambda a, b: np.mean(np.abs(a - b)), rounded.params, exact.params)
  assert max(jax.tree.leaves(differences)) < 0.3 * RATE


def test_initial_state_depends_on_seed():
  spec = make_spec(ema_decay=0.9)
  first, same_seed, other_seed = (step.init_state(spec, step.make_rngs(seed).params) for seed in (0, 0, 1))
  assert len({str(jax.random.key_data(rng)) for seed in (0, 1) for rng in step.make_rngs(seed)}) == 4
  chex.assert_trees_all_equal(first, same_seed)
  assert not np.array_equal(first.params["kernel"], other_seed.params["kernel"])
  assert first.step == 0
  chex.assert_trees_all_equal(first.average, first.params)
  chex.assert_trees_all_equal(first.optimizer, OPTIMIZER.init(first.params))
  assert first.sums == step.zero_sums() == (0.0, 0.0)
  for leaf, shape in zip(jax.tree.leaves(first), jax.tree.leaves(step.abstract_state(spec)), strict=True):
    assert (leaf.shape, leaf.dtype, leaf.sharding) == (shape.shape, shape.dtype, shape.sharding)
  assert step.abstract_state(make_spec()).average is None


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nonfinite_parameters_are_detected(value):
  params = {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)}
  assert step.is_finite(params)
  assert not step.is_finite(params | {"bias": jnp.array([0.0, value, 0.0])})


SCHEDULES = [
  ("cosine", 12, 0.34, {0: 0.0, 1: 0.125, 4: 0.5, 6: 0.25 * (1 + 0.5**0.5), 8: 0.25, 12: 0.0}),
  ("cosine", 4, 0.0, {0: 0.5, 2: 0.25, 4: 0.0}),
  ("linear", 12, 0.34, {0: 0.0, 3: 0.375, 4: 0.5, 5: 0.4375, 8: 0.25, 12: 0.0}),
  ("inverse_square_root", 100, 0.04, {0: 0.0, 3: 0.375, 4: 0.5, 9: 1 / 3, 16: 0.25, 64: 0.125}),
  ("inverse_square_root", 100, 0.0, {0: 0.5, 3: 0.25, 8: 1 / 6}),
  ("constant", 12, 0.34, {0: 0.0, 2: 0.25, 4: 0.5, 8: 0.5, 12: 0.5}),
]


@pytest.mark.parametrize(("schedule", "steps", "warmup", "rates"), SCHEDULES)
def test_schedules_match_hand_computation(schedule, steps, warmup, rates):
  train = base.Train(num_train_steps=steps, warmup_fraction=warmup, learning_rate=0.5, schedule=schedule)
  computed = [make_schedule(train)(count) for count in rates]
  np.testing.assert_allclose(computed, list(rates.values()), atol=1e-7)
  # Reported steps are counted from 1.
  np.testing.assert_allclose([learning_rate(train, count + 1) for count in rates], computed)


def test_biases_and_scales_are_not_decayed():
  params = {
    "kernel": jnp.array([[1.0, -2.0]]),
    "score_vector": jnp.array([1.0, -2.0]),
    "bias": jnp.array([[3.0, 4.0]]),  # like a bias of heads
    "recurrent_bias": jnp.array([3.0]),
    "scale": jnp.array(2.0),
  }
  train = base.Train(warmup_fraction=0.0, learning_rate=0.5, schedule="constant", weight_decay=0.1)
  optimizer = make_optimizer(train)
  decayed, _ = update(optimizer, jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
  expected = params | {name: 0.95 * params[name] for name in ("kernel", "score_vector")}
  chex.assert_trees_all_close(decayed, expected, rtol=1e-6)


@pytest.mark.parametrize("weight_decay", [0.0, 1e-9])
def test_optimizer_uses_the_schedule(weight_decay):
  train = base.Train(num_train_steps=12, warmup_fraction=0.34, learning_rate=0.5, weight_decay=weight_decay)
  optimizer, params = make_optimizer(train), {"w": jnp.array([1.0, -1.0])}
  state = optimizer.init(params)
  # With a constant gradient, the step of Adam is the learning rate, which is 0 at first.
  for total in (0.0, 0.125, 0.375, 0.75, 1.25):
    params, state = update(optimizer, {"w": jnp.array([0.3, -0.2])}, state, params)
    np.testing.assert_allclose(params["w"], [1 - total, -1 + total], atol=1e-4)
