"""The optimizer and its learning rate schedule."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from configs import base


def make_optimizer(config: base.Train) -> optax.GradientTransformation:
  """Returns Adam, or AdamW if `weight_decay` is positive, with gradient clipping.

  Biases and scales are excluded from weight decay.

  References:
    Kingma and Ba 2015, arXiv:1412.6980; Loshchilov and Hutter 2019, arXiv:1711.05101.
  """
  schedule = make_schedule(config)
  adam = optax.adam(schedule)
  if config.weight_decay:
    adam = optax.adamw(schedule, weight_decay=config.weight_decay, mask=_is_decayed)
  return optax.chain(optax.clip_by_global_norm(config.grad_clip_norm), adam)


def make_schedule(config: base.Train) -> optax.Schedule:
  """Returns the learning rate schedule."""
  peak, warmup = config.learning_rate, int(config.warmup_fraction * config.num_train_steps)
  if config.schedule == "cosine":
    return optax.warmup_cosine_decay_schedule(0.0, peak, warmup, config.num_train_steps)
  if config.schedule == "linear":
    decay = optax.linear_schedule(peak, 0.0, config.num_train_steps - warmup)
  elif config.schedule == "constant":
    decay = optax.constant_schedule(peak)
  else:
    first = max(warmup, 1)

    def decay(step):
      return peak * (first / jnp.maximum(first + step, first)) ** 0.5  # not used during warm-up

  return optax.join_schedules([optax.linear_schedule(0.0, peak, warmup), decay], [warmup])


def learning_rate(train: base.Train, step: int) -> float:
  """Returns the learning rate of a step. The first step is 1."""
  return float(make_schedule(train)(step - 1))


def _is_decayed(params: Any) -> Any:
  """Returns a mask that excludes biases and scales from weight decay."""
  return jax.tree_util.tree_map_with_path(
    lambda path, _: not any(part in path[-1].key for part in ("bias", "scale")), params
  )
