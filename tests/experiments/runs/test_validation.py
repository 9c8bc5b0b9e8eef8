"""Validation of configs: each field by its rule in configs/base.py, and rules of several fields."""

import math

import pytest

from attention import models
from attention.models import decoder_attention, recurrent_decoder
from configs import base
from experiments.cli import config_fields
from experiments.cli.config_fields import ConfigError
from experiments.data import alignments, tasks, text_processor, tokenizers
from experiments.data.scan import scan_grammar
from experiments.evaluation import metrics
from experiments.learning import model
from experiments.runs.validation import validate

RULES = config_fields.rules()
RANGES = [(name, *rule["range"]) for name, rule in RULES.items() if "range" in rule]
FRACTIONS = [name for name, rule in RULES.items() if rule.get("allowed") == "in [0, 1)"]


def error_of(changes):
  """Returns the error of the default config with other values of some fields, or an empty string."""
  config = base.Config()
  for name, value in changes.items():
    config_fields.set_field(config, name, value)
  try:
    validate(config)
  except ConfigError as error:
    return str(error)
  return ""


def assert_is_allowed(name, value):
  """Checks that a value passes the rule of its field. It may not fit other fields."""
  assert RULES[name]["allowed"] not in error_of({name: value})


def test_all_numbers_have_a_rule():
  defaults = config_fields.flat(base.Config())
  numbers = {name for name, value in defaults.items() if type(value) in (int, float)}
  assert numbers == {name for name, *_ in RANGES} | {*FRACTIONS}
  assert all(RULES[name]["is_allowed"](value) for name, value in defaults.items() if RULES[name])


@pytest.mark.parametrize(("name", "low", "high"), RANGES)
def test_numbers_have_bounds(name, low, high):
  is_float = type(config_fields.flat(base.Config())[name]) is float
  floats = math.nextafter(low, -1.0), high * 2.0, math.nan
  for value in (low - 1, *floats) if is_float else (low - 1, high + 1):
    assert error_of({name: value}) == f"config.{name} must be {RULES[name]['allowed']}, got {value!r}"
  assert_is_allowed(name, low)
  assert_is_allowed(name, high)
  assert f"{low:,}" in RULES[name]["allowed"] and f"{high:,}" in RULES[name]["allowed"]


@pytest.mark.parametrize("name", FRACTIONS)
def test_fractions_are_below_1(name):
  for value in (-0.1, 1.0, math.nan):
    assert error_of({name: value}) == f"config.{name} must be in [0, 1), got {value!r}"
  assert_is_allowed(name, 0)
  assert_is_allowed(name, 0.999)


CHOICES = {
  "data.task": tasks.TASKS,
  "data.split": scan_grammar.SPLITS,
  "data.tokenization": text_processor.TOKENIZATIONS,
  "data.subword_model": tokenizers.SUBWORD_MODELS,
  "data.alignment_tokens": alignments.ALIGNMENT_TOKENS,
  "model.attention": decoder_attention.ATTENTION_TYPES,
  "model.normalizer": model.NORMALIZERS,
  "model.attend_order": recurrent_decoder.ATTEND_ORDERS,
  "model.position_encoding": models.base.POSITION_ENCODINGS,
  "train.best_metric": metrics.HIGHER_IS_BETTER,
}


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if "choices" in rule])
def test_names_are_choices(name):
  rule = RULES[name]
  if name in CHOICES:  # the others have no table in the code
    assert {*rule["choices"]} == {*CHOICES[name]}
  assert error_of({name: "Nothing"}) == f"config.{name} must be {rule['allowed']}, got 'Nothing'"
  for choice in rule["choices"]:
    assert_is_allowed(name, choice)


@pytest.mark.parametrize(
  ("name", "value", "expected"),
  [("train.num_train_steps", 1.5, "int"), ("seed", True, "int"), ("model.encoder", None, "str")],
)
def test_types_are_checked(name, value, expected):
  assert error_of({name: value}) == f"config.{name} must be of type {expected}, got {value!r}"


RECURRENT, TRANSFORMER = ({"encoder": kind, "decoder": kind} for kind in ("recurrent", "transformer"))
CUSTOM = {"encoder": "mine:encoder", "decoder": "transformer", "mlp_dim": 32, "embed_dim": 5}


UNUSED = [
  (RECURRENT, {"position_encoding": "rotary", "num_heads": 8, "mlp_dim": 8, "normalize_qk": True}),
  (RECURRENT | {"attention": "none"}, {"normalizer": "sigmoid", "qk_features": 8}),
  (RECURRENT | {"attention": "local"}, {"normalizer": "sigmoid", "qk_features": 8}),
  (RECURRENT | {"attention": "monotonic"}, {"normalizer": "sigmoid"}),
  (RECURRENT | {"attention": "bilinear"}, {"qk_features": 8}),
  (TRANSFORMER, {"attention": "none", "attend_order": "after", "input_feeding": True, "embed_dim": 5}),
  (TRANSFORMER, {"normalizer": "sigmoid", "qk_features": 8, "residual": True, "layer_norm": True}),
  (TRANSFORMER, {"recurrent_dropout_rate": 0.1}),
  (CUSTOM, {"attention": "mine:layer", "attend_order": "after", "normalizer": "sigmoid"}),
]


@pytest.mark.parametrize(("fields", "unused"), UNUSED)
def test_unused_fields_are_errors(fields, unused):
  fields = {f"model.{name}": value for name, value in fields.items()}
  assert not error_of(fields)
  for name, value in unused.items():
    default = getattr(base.Model(), name)
    message = f"must be {default!r}, because it has no effect on this model, got {value!r}"
    assert error_of(fields | {f"model.{name}": value}) == f"config.model.{name} {message}"
    # A custom decoder may use it.
    assert not error_of(fields | {"model.decoder": "mine:decoder", f"model.{name}": value})


TEXT_FILES = {"data.train_file": "a.tsv", "data.validation_file": "b.tsv"}
ROTARY = {"model.encoder": "transformer", "model.position_encoding": "rotary"}


FITTING = [
  TEXT_FILES | {"data.task": "parallel_text", "train.alignment_loss_weight": 0.5},
  {"data.task": "scan", "data.split": "length", "data.scan_max_train_actions": 47},
  {"data.task": "scan", "evaluation.num_eval_examples": 0, "evaluation.num_validation_examples": 0},
  {"model.features": 7},  # no heads
  {"model.attention": "multi_head", "model.features": 9, "model.num_heads": 3},
  {"model.attention": "multi_head", "model.features": 30, "model.qk_features": 8},
  {"model.encoder": "transformer", "model.features": 2, "model.num_heads": 1},
  ROTARY | {"model.normalize_qk": True},
  {"model.attend_order": "after", "model.input_feeding": True, "model.normalizer": "mine:normalizer"},
  {"train.grad_accumulation_steps": 128, "train.train_eos": False},
  {"train.alignment_loss_weight": 0.5, "train.coverage_loss_weight": 1},
  {"model.normalizer": "sparsemax", "train.coverage_loss_weight": 0.5},
  {"evaluation.custom_metrics": "a:one, b:two"},
]


@pytest.mark.parametrize("changes", FITTING)
def test_fitting_fields_are_allowed(changes):
  assert not error_of(changes)


# The last field does not fit the others.
UNFITTING = [
  ({"data.task": "parallel_text", "data.train_file": ""}, "the path of a file with one source TAB target"),
  ({"data.task": "parallel_text", "data.train_file": "a", "data.validation_file": ""}, "the path of a fil"),
  ({"data.train_file": "a.tsv"}, "'' for config.data.task=toy_translation (text files are for configs/par"),
  ({"data.split": "length"}, "'simple' for config.data.task=toy_translation, got 'length'"),
  ({"data.tokenization": "subword"}, "'word' for config.data.task=toy_translation, got 'subword'"),
  ({"data.scan_max_train_actions": 21}, "22 unless config.data.split is length, got 21"),
  ({"evaluation.num_eval_examples": 0}, "at least 1, because the task has unlimited sentences, got 0"),
  ({"evaluation.num_validation_examples": 0}, "at least 1, because the task has unlimited sentences, got"),
  ({"data.task": "scan", "train.alignment_loss_weight": 1}, "0 for a task without `has_alignments = True`"),
  ({"model.attention": "multi_head", "model.features": 30}, "a multiple of config.model.num_heads=4, got"),
  ({"model.attention": "multi_head", "model.qk_features": 6}, "a multiple of config.model.num_heads=4, go"),
  ({"model.encoder": "transformer", "model.features": 30}, "a multiple of config.model.num_heads=4, got 3"),
  ({"model.decoder": "transformer", "model.features": 30}, "a multiple of config.model.num_heads=4, got 3"),
  ({"model.decoder": "transformer", "model.num_heads": 1, "model.features": 7}, "even, got 7"),
  (ROTARY | {"model.features": 12}, "an even multiple of config.model.num_heads for rotary positions, got"),
  ({"model.attention": "mine:layer", "model.normalizer": "mine:normalizer"}, "softmax, because a custom o"),
  ({"train.grad_accumulation_steps": 129}, "at most config.train.batch_size, got 129"),
  ({"train.train_eos": False, "train.best_metric": "bleu"}, "loss with config.train.train_eos=False, got"),
  ({"model.attention": "none", "train.alignment_loss_weight": 0.5}, "0 without attention, got 0.5"),
  ({"model.attention": "none", "train.coverage_loss_weight": 0.5}, "0 without attention, got 0.5"),
  ({"train.alignment_loss_weight": 1, "model.normalizer": "sparsemax"}, "softmax with config.train.alignm"),
  ({"evaluation.custom_metrics": "a:one, b:one"}, "distinct after the colon, and none of sentences, loss,"),
  ({"evaluation.custom_metrics": "a:bleu"}, "distinct after the colon, and none of sentences, loss, "),
  ({"evaluation.custom_metrics": "one"}, "a list of package.module:Name, separated by commas, got 'one'"),
]


@pytest.mark.parametrize(("changes", "allowed"), UNFITTING)
def test_fields_must_fit_together(changes, allowed):
  assert error_of(changes).startswith(f"config.{[*changes][-1]} must be {allowed}")
