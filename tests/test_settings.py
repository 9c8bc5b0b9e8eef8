"""Tests of experiments/translation/settings.py."""

import dataclasses
import functools
import math

import pytest

from configs import base
from experiments.translation.settings import ConfigError, check_config

ENCODERS = "one of recurrent, transformer"
ATTENTIONS = "one of additive, scaled_dot_product, bilinear, multi_head, none"
FILE = "the path of a file: source TAB target, one pair a line"

# field, impossible value, what is allowed
IMPOSSIBLE = [
  ("seed", -1, "in [0, 2^32)"),
  ("seed", 2**32, "in [0, 2^32)"),
  ("data.task", "toy", "one of toy_translation, parallel_text"),
  ("data.min_count", 0, "at least 1"),
  ("data.max_length", 0, "at least 1"),
  ("model.encoder", "Transformer", ENCODERS),
  ("model.attention", "", ATTENTIONS),
  ("model.embedding_width", 0, "at least 1"),
  ("model.width", -2, "at least 1"),
  ("model.num_layers", 0, "at least 1"),
  ("model.num_heads", 0, "at least 1"),
  ("model.feed_forward_width", 0, "at least 1"),
  ("model.dropout_rate", 1.0, "in [0, 1)"),
  ("model.dropout_rate", -0.1, "in [0, 1)"),
  ("model.dropout_rate", math.nan, "in [0, 1)"),
  ("train.steps", 0, "at least 1"),
  ("train.batch_size", 0, "at least 1"),
  ("train.steps_per_dispatch", 0, "at least 1"),
  ("train.log_every", 0, "at least 1"),
  ("train.validate_every", 0, "at least 1"),
  ("train.log_every", 25, "a multiple of config.train.steps_per_dispatch=10"),
  ("train.validate_every", 505, "a multiple of config.train.steps_per_dispatch=10"),
  ("train.warmup", -0.1, "in [0, 1)"),
  ("train.warmup", 1.0, "in [0, 1)"),
  ("train.steps", 1.5, "of type int"),
  ("train.steps", True, "of type int"),
  ("train.clip_norm", "1", "of type float"),
  ("data.lowercase", 1, "of type bool"),
  ("model.encoder", None, "of type str"),
  ("train.learning_rate", 0.0, "positive"),
  ("train.learning_rate", math.nan, "positive"),
  ("train.learning_rate", math.inf, "positive"),
  ("train.clip_norm", -1.0, "positive"),
  ("train.clip_norm", math.inf, "positive"),
  ("evaluation.sentences", -1, "at least 1"),
  ("evaluation.sentences", 0, "at least 1"),
  ("evaluation.validation_sentences", 0, "at least 1"),
  ("evaluation.batch_size", 0, "at least 1"),
  ("evaluation.max_target_length", 0, "at least 1"),
]

# The least or greatest values that are possible.
POSSIBLE = [
  {"seed": 2**32 - 1},
  {"data.min_count": 1, "data.max_length": 1},
  {"model.embedding_width": 1, "model.num_layers": 1, "model.feed_forward_width": 1},
  {"model.width": 7, "model.num_heads": 4},  # no part of this model has heads
  {"model.encoder": "transformer", "model.width": 2, "model.num_heads": 1},
  {"model.attention": "none"},
  {"train.learning_rate": 1},
  {"model.dropout_rate": 0.999},
  {"train.steps": 1, "train.batch_size": 1, "train.warmup": 0},
  {"train.steps_per_dispatch": 1, "train.log_every": 1, "train.validate_every": 1},
  {"evaluation.sentences": 1, "evaluation.validation_sentences": 1},
  {"evaluation.batch_size": 1, "evaluation.max_target_length": 1},
]


def _parallel_text():
  data = base.Data(task="parallel_text", train="train.tsv", validation="validation.tsv")
  return base.Config(data=data)


def _set(config, field, value):
  *groups, name = field.split(".")
  holder = functools.reduce(getattr, groups, config)
  assert hasattr(holder, name)
  setattr(holder, name, value)
  return config


@pytest.mark.parametrize(("field", "value", "allowed"), IMPOSSIBLE)
def test_an_impossible_value_is_told_with_its_field_and_what_is_allowed(field, value, allowed):
  with pytest.raises(ConfigError) as caught:
    check_config(_set(base.Config(), field, value))
  assert str(caught.value) == f"config.{field} must be {allowed}, got {value!r}"


@pytest.mark.parametrize("changes", POSSIBLE, ids=str)
def test_extreme_values_that_are_possible_are_accepted(changes):
  config = base.Config()
  for field, value in changes.items():
    _set(config, field, value)
  check_config(config)


@pytest.mark.parametrize("field", ["train", "validation"])
def test_parallel_text_needs_files(field):
  config = _set(_parallel_text(), f"data.{field}", "")
  with pytest.raises(ConfigError) as caught:
    check_config(config)
  assert str(caught.value) == f"config.data.{field} must be {FILE}, got ''"


def test_parallel_text_may_be_scored_on_all_there_is_and_have_no_test_file():
  config = _set(_parallel_text(), "evaluation.sentences", 0)
  check_config(config)
  with pytest.raises(ConfigError, match=r"config\.evaluation\.sentences must be at least 0, got -1"):
    check_config(_set(config, "evaluation.sentences", -1))


@pytest.mark.parametrize("changes", [{"encoder": "transformer"}, {"attention": "multi_head"}], ids=str)
def test_heads_must_divide_the_width_where_there_are_heads(changes):
  model = dataclasses.replace(base.Model(width=30, num_heads=4), **changes)
  with pytest.raises(ConfigError) as caught:
    check_config(base.Config(model=model))
  assert str(caught.value) == "config.model.width must be a multiple of config.model.num_heads=4, got 30"
