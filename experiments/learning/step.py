"""The training step: loss, gradients and update."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec

import attention
from attention import losses
from attention.losses import linear_cross_entropy
from configs import base
from experiments.data.batches import Batch
from experiments.data.vocabularies import PAD_ID
from experiments.devices.sharding import AXES, replicated, state_shardings
from experiments.learning.optimizer import make_optimizer


class LossSums(NamedTuple):
  """Sums over training batches. Divide by `tokens` when they are reported.

  Attributes:
    loss: training loss summed over target tokens, in nats, including label smoothing and attention losses,
      float32 [].
    tokens: number of target tokens, including EOS and without padding, float32 [].
  """

  loss: jax.Array
  tokens: jax.Array


class TrainState(NamedTuple):
  """State of training.

  Attributes:
    step: number of updates, int32 [].
    params: parameters of the model, float32.
    average: exponential moving average of the parameters, or None.
    optimizer: state of the optimizer.
    sums: sums since the last log record.
  """

  step: jax.Array
  params: Any
  average: Any
  optimizer: optax.OptState
  sums: LossSums


@dataclasses.dataclass(frozen=True, eq=False)  # hashed by identity, as a static argument
class TrainSpec:
  """Constants of a training run.

  Attributes:
    model: the model.
    optimizer: the optimizer.
    mesh: devices.
    train: training config.
    dtype: dtype of computations.
  """

  model: attention.Seq2Seq
  optimizer: optax.GradientTransformation
  mesh: Mesh
  train: base.Train
  dtype: str = "float32"


def make_train_spec(config: base.Config, model: attention.Seq2Seq, mesh: Mesh) -> TrainSpec:
  """Returns the training spec of a config."""
  return TrainSpec(model, make_optimizer(config.train), mesh, config.train, config.model.dtype)


class Rngs(NamedTuple):
  """PRNG keys for initialization and for dropout."""

  params: jax.Array
  dropout: jax.Array


def make_rngs(seed: int) -> Rngs:
  """Returns the PRNG keys of a run."""
  return Rngs(*jax.random.split(jax.random.key(seed)))


def init_state(spec: TrainSpec, rng: jax.Array) -> TrainState:
  """Returns the state before the first step, sharded over the mesh."""
  shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract_state(spec))
  return jax.jit(_initializer(spec), out_shardings=shardings)(rng)


@functools.cache  # tracing the model takes time
def abstract_state(spec: TrainSpec) -> TrainState:
  """Returns the shapes, dtypes and shardings of the state. The result is cached; do not modify it."""
  shapes = _initializer(spec).eval_shape(jax.eval_shape(jax.random.key, 0))
  return jax.tree.map(
    lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
    shapes,
    state_shardings(shapes, spec.mesh),
  )


@functools.cache
def _initializer(spec: TrainSpec) -> Any:
  """Returns the compiled `_init`. `abstract_state` and `init_state` share its trace."""
  return jax.jit(functools.partial(_init, spec))


def _init(spec: TrainSpec, rng: jax.Array) -> TrainState:
  words = jnp.ones((1, 2), jnp.int32)  # shapes of parameters do not depend on the batch
  params = spec.model.init(rng, words, jnp.ones((1,), jnp.int32), words)["params"]
  average = params if spec.train.ema_decay else None
  return TrainState(jnp.int32(0), params, average, spec.optimizer.init(params), zero_sums())


def zero_sums() -> LossSums:
  """Returns sums of zero."""
  return LossSums(jnp.float32(0.0), jnp.float32(0.0))


def eval_params(state: TrainState) -> Any:
  """Returns the parameters for evaluation: the moving average if there is one."""
  return state.params if state.average is None else state.average


@functools.cache
def make_step(spec: TrainSpec) -> Any:
  """Returns the compiled `train_step`. It donates the state and keeps its sharding."""
  shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract_state(spec)), replicated(spec.mesh)
  return jax.jit(functools.partial(train_step, spec=spec), donate_argnames="state", out_shardings=shardings)


def train_step(
  state: TrainState, batch: Batch, rng: jax.Array, spec: TrainSpec
) -> tuple[TrainState, jax.Array]:
  """Updates the parameters on one batch.

  Args:
    state: state before the step.
    batch: training batch.
    rng: PRNG key for dropout of the whole run. Each step derives its key from it.
    spec: constants of the run.

  Returns:
    The new state, and the gradient norm of the mean loss per token before clipping. Unlike the state, the
    norm is never donated, so callers can block on it.
  """
  gradients, sums = _mean_gradients(state.params, batch, jax.random.fold_in(rng, state.step), spec)
  updates, optimizer = spec.optimizer.update(gradients, state.optimizer, state.params)
  params = optax.apply_updates(state.params, updates)
  average = None
  if spec.train.ema_decay:
    average = optax.incremental_update(params, state.average, 1 - _decay(state.step, spec.train.ema_decay))
  state = TrainState(state.step + 1, params, average, optimizer, jax.tree.map(jnp.add, state.sums, sums))
  return state, optax.tree.norm(gradients)


def _decay(step: jax.Array, max_decay: float) -> jax.Array:
  """Returns the decay of the moving average, which is smaller in the first steps."""
  step = step.astype(jnp.float32)
  return jnp.minimum((1 + step) / (10 + step), max_decay)


def _mean_gradients(params: Any, batch: Batch, rng: jax.Array, spec: TrainSpec) -> tuple[Any, LossSums]:
  """Returns the gradients of the mean loss per token, and the sums over the batch."""
  loss_and_gradients = jax.value_and_grad(functools.partial(summed_loss, spec=spec))
  sums = LossSums(jnp.float32(0.0), jnp.sum((batch.targets != PAD_ID).astype(jnp.float32)))
  if spec.train.grad_accumulation_steps == 1:
    loss, gradients = loss_and_gradients(params, batch, rng)
  else:

    def accumulate(carry, inputs):
      i, microbatch = inputs
      loss_and_grad = loss_and_gradients(params, microbatch, jax.random.fold_in(rng, i))
      return jax.tree.map(jnp.add, carry, loss_and_grad), None

    initial = jnp.float32(0.0), jax.tree.map(jnp.zeros_like, params)
    count = spec.train.grad_accumulation_steps
    microbatches = jnp.arange(count), _split_microbatches(batch, count)
    (loss, gradients), _ = jax.lax.scan(accumulate, initial, microbatches)
  return jax.tree.map(lambda leaf: leaf / sums.tokens, gradients), sums._replace(loss=loss)


def _split_microbatches(batch: Batch, count: int) -> Batch:
  """Returns microbatches [A B/A ...] of every A-th row, so that each device has rows of each microbatch."""
  return jax.tree.map(lambda array: jnp.swapaxes(array.reshape(-1, count, *array.shape[1:]), 0, 1), batch)


def summed_loss(params: Any, batch: Batch, rng: jax.Array, spec: TrainSpec) -> jax.Array:
  """Returns the training loss summed over target tokens, in nats."""
  # Parameters are gathered before use. Otherwise XLA would communicate activations at each position.
  params = jax.lax.with_sharding_constraint(optax.tree.cast(params, spec.dtype), replicated(spec.mesh))
  features: Any = spec.model.apply(
    {"params": params},
    batch.sources,
    batch.source_lengths,
    batch.inputs,
    deterministic=False,
    rngs={"dropout": rng},
    method="output_features",
  )

  def local_loss(vectors: jax.Array, kernel: jax.Array, bias: jax.Array, targets: jax.Array) -> jax.Array:
    vectors, targets = vectors.reshape(targets.size, -1), targets.reshape(-1)
    return linear_cross_entropy(vectors, kernel, bias, targets, spec.train.label_smoothing, PAD_ID)[None]

  # Without shard_map, XLA would compute all logits on each device, because the loss merges rows and time.
  rows, whole = PartitionSpec(AXES), PartitionSpec()
  sharded_loss = jax.shard_map(
    local_loss, mesh=spec.mesh, in_specs=(rows, whole, whole, rows), out_specs=rows, check_vma=False
  )
  if features.weights is None and (spec.train.alignment_loss_weight or spec.train.coverage_loss_weight):
    raise ValueError("attention losses need a decoder that returns weights, got None")
  loss = jnp.sum(sharded_loss(features.vectors, features.kernel, features.bias, jnp.asarray(batch.targets)))
  if spec.train.alignment_loss_weight:
    links = jnp.asarray(batch.links)
    loss += spec.train.alignment_loss_weight * jnp.sum(losses.alignment_loss(features.weights, links))
  if spec.train.coverage_loss_weight:
    lengths = jnp.sum(batch.targets != PAD_ID, axis=-1)
    loss += spec.train.coverage_loss_weight * jnp.sum(losses.coverage_loss(features.weights, lengths))
  return loss


@jax.jit
def is_finite(params: Any) -> jax.Array:
  """Returns whether all parameters are finite."""
  return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(params)]))
