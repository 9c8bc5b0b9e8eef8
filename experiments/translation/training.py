"""One training step: the loss, its gradient, the update."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import attention
from configs import base
from experiments.translation.batches import Batch
from experiments.translation.losses import linear_cross_entropy
from experiments.translation.vocabularies import PAD


class TrainState(NamedTuple):
  """All that changes in training.

  Attributes:
    step: how many updates were made, int32 [].
    params: of the model.
    optimizer: the optimiser's state.
  """

  step: jax.Array
  params: Any
  optimizer: optax.OptState


class Sums(NamedTuple):
  """What training steps measure: sums to be divided by `tokens` where they are reported.

  Attributes:
    loss: cross-entropy of the target tokens, in nats, float32 [].
    tokens: target tokens, the end symbols included and padding not, float32 [].
  """

  loss: jax.Array
  tokens: jax.Array


def make_optimizer(config: base.Train) -> optax.GradientTransformation:
  """Returns Adam with clipped gradients, a linear warm-up and a cosine down to 0."""
  schedule = make_schedule(config)
  return optax.chain(optax.clip_by_global_norm(config.clip_norm), optax.adam(schedule))


def make_schedule(config: base.Train) -> optax.Schedule:
  """Returns the learning rate as a function of the step."""
  return optax.warmup_cosine_decay_schedule(
    init_value=0.0,
    peak_value=config.learning_rate,
    warmup_steps=int(config.warmup * config.steps),
    decay_steps=config.steps,
  )


class Rngs(NamedTuple):
  """What draws the parameters, and what draws the dropout."""

  params: jax.Array
  dropout: jax.Array


def make_rngs(seed: int) -> Rngs:
  """Returns the random keys of a run."""
  return Rngs(*jax.random.split(jax.random.key(seed)))


def init_state(
  model: attention.Seq2Seq, optimizer: optax.GradientTransformation, batch: Batch, rng: jax.Array
) -> TrainState:
  """Returns the state before the first step; the batch is for its shapes."""
  params = jax.jit(model.init)(rng, batch.sources, batch.source_lengths, batch.inputs)["params"]
  return TrainState(jnp.int32(0), params, optimizer.init(params))


@functools.partial(jax.jit, static_argnames=("model", "optimizer"), donate_argnames="state")
def train_steps(
  state: TrainState,
  batches: Batch,
  rng: jax.Array,
  *,
  model: attention.Seq2Seq,
  optimizer: optax.GradientTransformation,
) -> tuple[TrainState, Sums]:
  """Makes one update for each of K batches, in one call.

  Args:
    state: before; its memory is used again, so it is gone afterwards.
    batches: arrays with an axis K in front.
    rng: of the dropout, for the whole run; each step derives its own.
    model: the translator.
    optimizer: from `make_optimizer`.

  Returns:
    The state after, and the sums over all K batches.
  """
  step = functools.partial(_train_step, rng=rng, model=model, optimizer=optimizer)
  state, sums = jax.lax.scan(step, state, batches)
  return state, jax.tree.map(jnp.sum, sums)


def _train_step(
  state: TrainState,
  batch: Batch,
  *,
  rng: jax.Array,
  model: attention.Seq2Seq,
  optimizer: optax.GradientTransformation,
) -> tuple[TrainState, Sums]:
  """Makes one update."""
  dropout_rng = jax.random.fold_in(rng, state.step)

  def mean_loss(params):
    outputs: Any = model.apply(
      {"params": params},
      batch.sources,
      batch.source_lengths,
      batch.inputs,
      deterministic=False,
      rngs={"dropout": dropout_rng},
      method="hidden",
    )
    hidden, (kernel, bias) = outputs
    targets = jnp.asarray(batch.targets).reshape(-1)
    loss = linear_cross_entropy(hidden.reshape(len(targets), -1), kernel, bias, targets)
    sums = Sums(loss, jnp.sum((targets != PAD).astype(jnp.float32)))
    return sums.loss / sums.tokens, sums

  gradients, sums = jax.grad(mean_loss, has_aux=True)(state.params)
  updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
  params = optax.apply_updates(state.params, updates)
  return TrainState(state.step + 1, params, optimizer_state), sums


@jax.jit
def is_finite(params: Any) -> jax.Array:
  """Returns whether all parameters are finite numbers."""
  return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(params)]))


def count_parameters(params: Any) -> int:
  """Returns how many numbers the parameters are."""
  return sum(leaf.size for leaf in jax.tree.leaves(params))
