"""All files in configs/."""

import dataclasses
import importlib
import pathlib

import pytest

from configs import base
from experiments.comparison.sweep import make_runs
from experiments.learning.model import make_model
from experiments.runs.validation import validate

FOLDER = pathlib.Path(base.__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("__init__", "base"))
each_config = pytest.mark.parametrize("name", NAMES)


def module_of(name):
  return importlib.import_module(f"configs.{name}")


@each_config
def test_configs_are_valid(name):
  config = module_of(name).get_config()
  model = make_model(config.model, source_vocabulary_size=11, target_vocabulary_size=13)
  assert model.decoder.features == config.model.features
  if config.data.task == "parallel_text":
    config.data.train_file, config.data.validation_file = "train.tsv", "validation.tsv"
  validate(config)
  if get_sweep := getattr(module_of(name), "get_sweep", None):
    assert len(make_runs(config, get_sweep())) > 1


@each_config
def test_configs_are_fresh_objects(name):
  first, second = module_of(name).get_config(), module_of(name).get_config()
  assert first == second
  for group in ("data", "model", "train", "evaluation"):
    assert getattr(first, group) is not getattr(second, group)


@each_config
def test_docstrings_have_the_command(name):
  # The command must have the name of this file, not of a config that it was copied from.
  script = "sweep" if hasattr(module_of(name), "get_sweep") else "train"
  assert f"python -m experiments.{script} --config=configs/{name}.py" in module_of(name).__doc__


@pytest.mark.parametrize("group", [base.Data, base.Model, base.Train, base.Evaluation])
def test_all_fields_are_documented(group):
  documented = {line.split(":")[0].strip() for line in group.__doc__.splitlines() if ":" in line}
  assert {field.name for field in dataclasses.fields(group)} <= documented
