"""Checks of custom components. scripts/test_custom_scripts.py trains with correct ones."""

import re

import pytest

from configs import base
from experiments.cli.config_fields import ConfigError
from experiments.data.tasks import make_task
from experiments.devices.sharding import make_mesh
from experiments.evaluation.evaluate import load_custom_metrics
from experiments.learning.model import make_task_model
from experiments.learning.step import make_train_spec
from experiments.runs.component_checks import check_custom_components

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("as_users_run")]

IMPORTS = """
import dataclasses
import attention, jax.numpy as jnp
from flax import linen as nn
from examples.custom_components import *
"""
ENCODER = """
class Mine(BagOfWords):
  def __call__(self, tokens, lengths, **options):
    encoded = super().__call__(tokens, lengths, **options)
    return {}
def part(config, size):
  return Mine(size, config.features)
"""
ATTENTION = """
class Mine(GaussianAttention):
  def attend_with_kv(self, queries, keys_values, **options):
    context, weights = super().attend_with_kv(queries, keys_values, **options)
    return {}
def part(config):
  return Mine(features=config.features)
"""
SCORE = """
class Mine(attention.ProjectedAttention):
  {}
def part(config):
  return Mine(features=config.features)
"""
DECODER = """
class Mine(FeedbackDecoder):
  def {}(self, *inputs, **options):
    return {}
def part(config, size):
  return Mine(size, config.features)
"""
TASK = """
class part(Reversal):
  {}
"""
BATCH_SCORE = """def score(self, queries, keys):
    return attention.ScaledDotProduct(5 / jnp.max(jnp.abs(queries)))"""
MEAN_STATE = "encoded._replace(final_state=encoded.memory.mean(1))"


def check(**components):
  """Checks a small config with custom components."""
  names = {"task": "examples.custom_components:Reversal"} | components
  data = base.Data(task=names.pop("task"), num_buckets=1)
  evaluation = base.Evaluation(batch_size=2, custom_metrics=names.pop("custom_metrics", ""))
  model = base.Model(features=4, embed_dim=3, **names)
  config = base.Config(data=data, model=model, train=base.Train(batch_size=1), evaluation=evaluation)
  task = make_task(config)
  check_custom_components(config, task, make_train_spec(config, make_task_model(config, task), make_mesh()))


# fmt: off
WRONG = [
  ("encoder", ENCODER.format("None"), "Mine.__call__ must return attention.Encoded(memory [B S D], "),
  ("encoder", ENCODER.format("tuple(encoded)"), "for B=2, T=3, S=5, V=12, got tuple([2 5 4], [2 4])"),
  ("encoder", ENCODER.format("encoded._replace(final_state=encoded.memory)"), "Encoded([2 5 4], [2 5 4])"),
  ("encoder", "def part(*_):\n  pass", "must return a Flax module with the methods __call__"),
  ("encoder", "from flax.linen import Dense as part", "must be a function that returns a Flax module, got"),
  ("attention", SCORE.format("pass"), "NotImplementedError: Mine must define score(queries, keys)"),
  ("attention", ATTENTION.format("None"), "Mine.attend_with_kv must return contexts [B T D] and weights"),
  ("attention", ATTENTION.format("context, weights[..., :1]"), "T=1, S=5, V=12, got tuple([2 1 8], [2 1 1])"),
  ("attention", ATTENTION.format("context, jnp.nan * weights"), "attention weights must be finite"),
  ("decoder", DECODER.format("step", "None"), "Mine.step must return the state, logits [B V] and weights"),
  ("decoder", DECODER.format("output_projection", "self.kernel"), "kernel [H V] and bias [V]"),
  ("decoder", DECODER.format("prepare", "None"), "must return the initial state and the memory"),
  ("attention", SCORE.format(BATCH_SCORE), "logits must not depend on other sentences of the batch, got a"),
  ("encoder", ENCODER.format(MEAN_STATE), "logits must not depend on source padding, got a"),
  ("task", TASK.format("splits = 'test'"), "splits must be a tuple of at least one name, got 'test'"),
  ("task", TASK.format("splits = ()"), "splits must be a tuple of at least one name, got ()"),
  ("task", TASK.format("validation_split = None"), "validation_split must be a name, got None"),
  ("task", TASK.format("training_batch = print"), "training_batch must return a Batch (see `make_batch`)"),
  ("task", TASK.format("examples = print"), "examples('test', 2) must return a list of Example, got None"),
]
# fmt: on


@pytest.mark.parametrize(("field", "text", "message"), WRONG)
def test_wrong_results_are_named(write_module, field, text, message):
  name = f"{write_module(IMPORTS + text)}:part"
  with pytest.raises(ConfigError, match=f"^.*{field}={name}.*{re.escape(message)}.*$"):  # one line
    check(**{field: name})


METRICS = {"None": "must return a finite number, got None", "float('nan')": "a finite number, got nan"}
METRICS |= {"[1.0]": "got [1.0]", "sys.exit()": "SystemExit ("}


@pytest.mark.parametrize(("result", "message"), METRICS.items())
def test_wrong_metrics_are_named(write_module, result, message):
  name = write_module(f"import sys\ndef part(*_):\n  return {result}\n") + ":part"
  metric = load_custom_metrics(base.Evaluation(custom_metrics=name))["part"]
  with pytest.raises(ConfigError, match=f"^config.evaluation.custom_metrics={name}.*{re.escape(message)}"):
    metric([], [], [])


def test_documented_components_pass():
  names = {"encoder": "bag_of_words", "attention": "gaussian", "custom_metrics": "length_ratio"}
  check(**{field: f"examples.custom_components:{name}" for field, name in names.items()})
