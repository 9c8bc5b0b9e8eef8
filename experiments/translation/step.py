"""One training step: the loss, its gradient, the update."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec

import attention
from attention import losses
from configs import base
from experiments.runs.sharding import AXES, replicated, state_shardings
from experiments.text.batches import Batch
from experiments.text.vocabularies import PAD_ID
from experiments.translation.loss import linear_cross_entropy
from experiments.translation.optimizer import make_optimizer


class LossSums(NamedTuple):
  """What training steps measure: sums to be divided by `tokens` where they are reported.

  Attributes:
    loss: what is trained, summed over the target tokens: cross-entropy, in nats, with label smoothing,
      dropout and losses of the attention if there are any, float32 [].
    tokens: target tokens, the end symbols included and padding not, float32 [].
  """

  loss: jax.Array
  tokens: jax.Array


class TrainState(NamedTuple):
  """All that changes in training.

  Attributes:
    step: how many updates were made, int32 [].
    params: of the model, float32.
    average: moving average of the parameters; None if there is none.
    optimizer: the optimiser's state.
    sums: what was measured since the last record.
  """

  step: jax.Array
  params: Any
  average: Any
  optimizer: optax.OptState
  sums: LossSums


@dataclasses.dataclass(frozen=True, eq=False)  # a constant of a run: equal to itself alone
class TrainSpec:
  """What a training step does, and where.

  Attributes:
    model: the translator.
    optimizer: from `make_optimizer`.
    mesh: the devices.
    train: the other settings.
    dtype: what is computed in.
  """

  model: attention.Seq2Seq
  optimizer: optax.GradientTransformation
  mesh: Mesh
  train: base.Train
  dtype: str = "float32"


def make_train_spec(config: base.Config, model: attention.Seq2Seq, mesh: Mesh) -> TrainSpec:
  """Returns what a config asks for."""
  return TrainSpec(model, make_optimizer(config.train), mesh, config.train, config.model.dtype)


class Rngs(NamedTuple):
  """What draws the parameters, and what draws the dropout."""

  params: jax.Array
  dropout: jax.Array


def make_rngs(seed: int) -> Rngs:
  """Returns the random keys of a run."""
  return Rngs(*jax.random.split(jax.random.key(seed)))


def init_state(spec: TrainSpec, rng: jax.Array) -> TrainState:
  """Returns the state before the first step, on the recipe's devices."""
  shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract_state(spec))
  return jax.jit(functools.partial(_init, spec), out_shardings=shardings)(rng)


def abstract_state(spec: TrainSpec) -> TrainState:
  """Returns shapes, dtypes and places of what `init_state` returns."""
  shapes = jax.eval_shape(functools.partial(_init, spec), jax.random.key(0))
  return jax.tree.map(
    lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
    shapes,
    state_shardings(shapes, spec.mesh),
  )


def _init(spec: TrainSpec, rng: jax.Array) -> TrainState:
  words = jnp.ones((1, 2), jnp.int32)  # the parameters' shapes do not depend on the batch's
  params = spec.model.init(rng, words, jnp.ones((1,), jnp.int32), words)["params"]
  average = params if spec.train.ema_decay else None
  return TrainState(jnp.int32(0), params, average, spec.optimizer.init(params), zero_sums())


def zero_sums() -> LossSums:
  """Returns the sums before the first step."""
  return LossSums(jnp.float32(0.0), jnp.float32(0.0))


def eval_params(state: TrainState) -> Any:
  """Returns the parameters to translate with: the average, if there is one."""
  return state.params if state.average is None else state.average


def cast(params: Any, dtype: str) -> Any:
  """Returns parameters in another dtype, in which the model then computes."""
  return jax.tree.map(lambda leaf: leaf.astype(dtype), params)


@functools.cache
def make_step(spec: TrainSpec) -> Any:
  """Returns `train_step` under jit: the state stays where it is, and its memory is used again."""
  places = jax.tree.map(lambda leaf: leaf.sharding, abstract_state(spec)), replicated(spec.mesh)
  return jax.jit(functools.partial(train_step, spec=spec), donate_argnames="state", out_shardings=places)


def train_step(
  state: TrainState, batch: Batch, rng: jax.Array, spec: TrainSpec
) -> tuple[TrainState, jax.Array]:
  """Makes one update.

  Args:
    state: before.
    batch: what to learn from.
    rng: of the dropout, for the whole run; each step derives its own.
    spec: what to do.

  Returns:
    The state after, whose sums have grown by those of the batch; and the norm of the gradient of a token's
    loss, before it is clipped, which can still be waited for when `make_step` has taken the state's memory.
  """
  gradients, sums = _mean_gradients(state.params, batch, jax.random.fold_in(rng, state.step), spec)
  updates, optimizer = spec.optimizer.update(gradients, state.optimizer, state.params)
  params = optax.apply_updates(state.params, updates)
  average = None
  if spec.train.ema_decay:
    average = optax.incremental_update(params, state.average, 1 - _decay(state.step, spec.train.ema_decay))
  state = TrainState(state.step + 1, params, average, optimizer, jax.tree.map(jnp.add, state.sums, sums))
  return state, optax.tree.norm(gradients)


def _decay(step: jax.Array, highest: float) -> jax.Array:
  """Returns the average's decay at a step: smaller at first, to soon forget the initial values."""
  step = step.astype(jnp.float32)
  return jnp.minimum((1 + step) / (10 + step), highest)


def _mean_gradients(params: Any, batch: Batch, rng: jax.Array, spec: TrainSpec) -> tuple[Any, LossSums]:
  """Returns the gradients of the loss of a token, and the sums over the batch."""
  gradients_of = jax.value_and_grad(functools.partial(loss_of, spec=spec))
  sums = LossSums(jnp.float32(0.0), jnp.sum((batch.targets != PAD_ID).astype(jnp.float32)))
  if spec.train.grad_accumulation_steps == 1:
    loss, gradients = gradients_of(params, batch, rng)
  else:

    def add(carry, inputs):
      i, part = inputs
      found = gradients_of(params, part, jax.random.fold_in(rng, i))
      return jax.tree.map(jnp.add, carry, found), None

    nothing = jnp.float32(0.0), jax.tree.map(jnp.zeros_like, params)
    parts = (
      jnp.arange(spec.train.grad_accumulation_steps),
      _parts(batch, spec.train.grad_accumulation_steps),
    )
    (loss, gradients), _ = jax.lax.scan(add, nothing, parts)
  return jax.tree.map(lambda leaf: leaf / sums.tokens, gradients), sums._replace(loss=loss)


def _parts(batch: Batch, count: int) -> Batch:
  """Returns a batch in parts, [A B/A ...]: every A-th row, so that each device has rows of each part."""
  return jax.tree.map(lambda array: jnp.swapaxes(array.reshape(-1, count, *array.shape[1:]), 0, 1), batch)


def loss_of(params: Any, batch: Batch, rng: jax.Array, spec: TrainSpec) -> jax.Array:
  """Returns the loss summed over the target tokens, in nats."""
  # Whole while they are used: with parts of them XLA would send activations at every position of a sentence.
  params = jax.lax.with_sharding_constraint(cast(params, spec.dtype), replicated(spec.mesh))
  features: Any = spec.model.apply(
    {"params": params},
    batch.sources,
    batch.source_lengths,
    batch.inputs,
    deterministic=False,
    rngs={"dropout": rng},
    method="output_features",
  )

  def own_loss(vectors: jax.Array, kernel: jax.Array, bias: jax.Array, targets: jax.Array) -> jax.Array:
    vectors, targets = vectors.reshape(targets.size, -1), targets.reshape(-1)
    return linear_cross_entropy(vectors, kernel, bias, targets, spec.train.label_smoothing)[None]

  # By itself XLA would make the logits of all rows on every device: the loss has one axis for rows and time.
  rows, whole = PartitionSpec(AXES), PartitionSpec()
  share = jax.shard_map(
    own_loss, mesh=spec.mesh, in_specs=(rows, whole, whole, rows), out_specs=rows, check_vma=False
  )
  if features.weights is None and (spec.train.alignment_loss_weight or spec.train.coverage_loss_weight):
    raise ValueError("losses of the attention need a decoder that returns weights, got None")
  loss = jnp.sum(share(features.vectors, features.kernel, features.bias, jnp.asarray(batch.targets)))
  if spec.train.alignment_loss_weight:
    links = jnp.asarray(batch.links)
    loss += spec.train.alignment_loss_weight * jnp.sum(losses.alignment_loss(features.weights, links))
  if spec.train.coverage_loss_weight:
    lengths = jnp.sum(batch.targets != PAD_ID, axis=-1)
    loss += spec.train.coverage_loss_weight * jnp.sum(losses.coverage_loss(features.weights, lengths))
  return loss


@jax.jit
def is_finite(params: Any) -> jax.Array:
  """Returns whether all parameters are finite numbers."""
  return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(params)]))
