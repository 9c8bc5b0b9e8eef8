"""Tests of all files in configs/."""

import dataclasses
import importlib
import pathlib

import pytest

from configs import base
from experiments.cli.config_fields import flat
from experiments.comparison.sweep import make_runs
from experiments.learning.model import make_model
from experiments.runs.validation import validate

FOLDER = pathlib.Path(base.__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("__init__", "base"))

# The main changes of each config, and other fields that may differ from configs/base.py.
MAIN_CHANGES = {
  "toy_translation": {},
  "toy_translation_scores": {},
  "toy_translation_transformer": {"model.encoder": "transformer", "model.attention": "multi_head"},
  "toy_translation_fixed_context": {"model.attention": "none"},
  "parallel_text": {"data.task": "parallel_text", "data.tokenization": "subword"},
  "scan": {"data.task": "scan"},
  "multi30k": {"data.task": "parallel_text", "data.tokenization": "subword", "train.best_metric": "bleu"},
  "multi30k_long": {"train.num_train_steps": 11_000, "evaluation.length_penalty": 1.4},
  "multi30k_transformer": {"model.encoder": "transformer", "model.decoder": "transformer"},
}
DATA, MODEL, TRAIN, EVALUATION = (
  {f"{kind.__name__.lower()}.{field.name}" for field in dataclasses.fields(kind)}
  for kind in (base.Data, base.Model, base.Train, base.Evaluation)
)
SIZES = {"model.embed_dim", "model.features", "model.num_layers", "model.dropout_rate"}
OTHER_FIELDS = {
  "toy_translation": set(),
  "toy_translation_scores": set(),
  "toy_translation_transformer": {*TRAIN, "model.num_layers"},
  "toy_translation_fixed_context": set(),
  "parallel_text": {
    *TRAIN,
    *SIZES,
    "data.max_train_length",
    "data.num_buckets",
    "evaluation.num_eval_examples",
  },
  "scan": {*MODEL, *TRAIN, *EVALUATION, "data.split", "data.num_buckets"},
  **dict.fromkeys(
    ("multi30k", "multi30k_long", "multi30k_transformer"),
    {*DATA, *MODEL, *TRAIN, *EVALUATION} - {"data.train_file", "data.validation_file", "data.test_file"},
  ),
}


def _module(name):
  return importlib.import_module(f"configs.{name}")


def _with_paths(config):
  if config.data.task == "parallel_text":
    config.data.train_file, config.data.validation_file = "train.tsv", "validation.tsv"
  return config


def test_all_configs_are_there():
  assert set(MAIN_CHANGES) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_config_is_possible(name):
  validate(_with_paths(_module(name).get_config()))


@pytest.mark.parametrize("name", NAMES)
def test_a_config_builds_a_model(name):
  config = _module(name).get_config()
  model = make_model(config.model, source_vocabulary_size=11, target_vocabulary_size=13)
  assert model.decoder.features == config.model.features


@pytest.mark.parametrize("name", NAMES)
def test_configs_are_fresh_objects(name):
  first, second = _module(name).get_config(), _module(name).get_config()
  assert first == second
  for group in ("data", "model", "train", "evaluation"):
    assert getattr(first, group) is not getattr(second, group)


@pytest.mark.parametrize("name", MAIN_CHANGES)
def test_configs_change_the_named_fields(name):
  defaults, fields = flat(base.Config()), flat(_module(name).get_config())
  changed = {field: value for field, value in fields.items() if value != defaults[field]}
  assert MAIN_CHANGES[name].items() <= changed.items()
  assert set(changed) <= set(MAIN_CHANGES[name]) | OTHER_FIELDS[name]


@pytest.mark.parametrize("name", ["toy_translation", "toy_translation_fixed_context"])
def test_baseline_trains_like_the_toy_config(name):
  assert _module(name).get_config().train == base.Train()


def test_config_names_are_flat():
  assert set(flat(base.Config())) >= {
    "seed",
    "train.num_train_steps",
    "train.batch_size",
    "train.learning_rate",
    "model.encoder",
    "model.attention",
    "data.train_file",
    "data.validation_file",
  }


@pytest.mark.parametrize("name", NAMES)
def test_docstrings_have_the_command(name):
  # The command must have the name of this file, not of a config that it was copied from.
  script = "sweep" if hasattr(_module(name), "get_sweep") else "train"
  assert f"python -m experiments.{script} --config=configs/{name}.py" in _module(name).__doc__


@pytest.mark.parametrize("name", [name for name in NAMES if hasattr(_module(name), "get_sweep")])
def test_sweep_choices_are_valid(name):
  module = _module(name)
  assert len(make_runs(module.get_config(), module.get_sweep())) > 1


@pytest.mark.parametrize(
  "kind", [base.Data, base.Model, base.Train, base.Evaluation], ids=lambda kind: kind.__name__
)
def test_all_fields_are_documented(kind):
  documented = {line.split(":")[0].strip() for line in kind.__doc__.splitlines() if ":" in line}
  assert {field.name for field in dataclasses.fields(kind)} <= documented
