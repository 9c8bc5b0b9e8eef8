"""Translators with random parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import base
from experiments.data.tasks import make_task
from experiments.inference.translator import make_translator
from experiments.learning.model import make_task_model


@pytest.fixture(scope="package")
def make():
  """Returns a function that makes the config of a model, and its translator."""

  def make(attention, **options):
    config = base.Config(data=base.Data(num_buckets=1))  # one program for all lengths
    config.model = base.Model(attention=attention, embed_dim=13, features=17, **options)
    config.evaluation.max_decode_length = 23
    task = make_task(config)
    model = make_task_model(config, task)
    arguments = jnp.ones((1, 3), jnp.int32), jnp.array([3]), jnp.ones((1, 2), jnp.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), *arguments)["params"]
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0, 0.4, leaf.shape), leaf.dtype), shapes)
    return config, make_translator(config, task, model, params)

  return make
