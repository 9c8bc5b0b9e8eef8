"""Small runs in this process: one config, whose step is compiled once."""

import dataclasses
import os

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from configs import base
from experiments.devices.sharding import AXES
from experiments.learning.step import make_step

STEPS = 6
CONFIG = base.Config(
  data=base.Data(num_buckets=1),  # one program for all
  model=base.Model(attention="none", embed_dim=2, features=3),
  train=base.Train(num_train_steps=STEPS, batch_size=2, ema_decay=0.9, log_every_steps=1, eval_every_steps=2),
  evaluation=base.Evaluation(num_validation_examples=2, batch_size=2, max_decode_length=3),
)
ONE_DEVICE = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), AXES, axis_types=(AxisType.Auto,) * 2)


class Steps:
  """Replaces `make_step`, compiled once for all runs; `damage` changes the result of a step."""

  step = None

  def __init__(self, damage):
    self.damage = damage

  def __call__(self, spec):
    Steps.step = Steps.step or make_step(spec)

    def damaged_step(*arguments):
      state, gradient_norm = Steps.step(*arguments)
      return self.damage(state), gradient_norm

    return damaged_step


def config_with(train=None, evaluation=None):
  return dataclasses.replace(
    CONFIG,
    train=dataclasses.replace(CONFIG.train, **(train or {})),
    evaluation=dataclasses.replace(CONFIG.evaluation, **(evaluation or {})),
  )


def send(number):
  def send(state):
    os.kill(os.getpid(), number)
    return state

  return send


def params_of(translator):
  return jax.tree.leaves(translator.params)
