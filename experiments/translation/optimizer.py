"""The optimizer and its learning rate."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from configs import base

SCHEDULES = ("cosine", "linear", "inverse_square_root", "constant")


def make_optimizer(config: base.Train) -> optax.GradientTransformation:
  """Returns Adam with clipped gradients; with weight decay, of all but biases and scales, it is AdamW.

  Source: Kingma and Ba 2015, arXiv:1412.6980; Loshchilov and Hutter 2019, arXiv:1711.05101.
  """
  schedule = make_schedule(config)
  adam = optax.adam(schedule)
  if config.weight_decay:
    adam = optax.adamw(schedule, weight_decay=config.weight_decay, mask=_is_decayed)
  return optax.chain(optax.clip_by_global_norm(config.grad_clip_norm), adam)


def make_schedule(config: base.Train) -> optax.Schedule:
  """Returns the learning rate as a function of the step."""
  highest, warmup = config.learning_rate, int(config.warmup_fraction * config.num_train_steps)
  if config.schedule == "cosine":
    return optax.warmup_cosine_decay_schedule(0.0, highest, warmup, config.num_train_steps)
  if config.schedule == "linear":
    falling = optax.linear_schedule(highest, 0.0, config.num_train_steps - warmup)
  elif config.schedule == "constant":
    falling = optax.constant_schedule(highest)
  else:
    first = max(warmup, 1)

    def falling(step):
      return highest * (first / jnp.maximum(first + step, first)) ** 0.5  # in the warm-up nothing reads it

  return optax.join_schedules([optax.linear_schedule(0.0, highest, warmup), falling], [warmup])


def learning_rate(train: base.Train, step: int) -> float:
  """Returns the learning rate of a step, the first of which is 1."""
  return float(make_schedule(train)(step - 1))


def _is_decayed(params: Any) -> Any:
  """Returns whether each array is one of weights, and not of biases or of a norm's scales."""
  return jax.tree_util.tree_map_with_path(
    lambda path, _: not any(part in path[-1].key for part in ("bias", "scale")), params
  )
