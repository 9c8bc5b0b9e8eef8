"""Custom components: names, objects in config files, and errors."""

import re
import sys

import pytest

from configs import base
from examples import custom_components
from experiments.cli import components
from experiments.cli.config_fields import ConfigError
from experiments.cli.flags import load_config
from experiments.data.tasks import make_task
from experiments.learning.model import make_model

MODULE = "examples.custom_components"
NOT_A_NAME = r"config\.model\.attention must be a name, or a function or class of a module that Python can"


def config_of(attention):
  return base.Config(model=base.Model(attention=attention))


def test_components_are_objects_of_modules():
  config = base.Config(data=base.Data(task="experiments.data.scan.scan:Scan", split="simple"))
  assert str(make_task(config)).startswith("SCAN")
  assert components.resolve("model.attention", f"{MODULE}:gaussian") is custom_components.gaussian
  assert components.custom_components(config) == [("data.task", "experiments.data.scan.scan:Scan")]


def test_config_files_hold_objects(tmp_path, write_module):
  module = write_module("def half(*_):\n  return 0.5\n")
  path = tmp_path / f"config_of_{tmp_path.name}.py"
  path.write_text(
    f"import {module}\n"
    "from configs import base\n"
    "from examples.custom_components import gaussian, length_ratio\n"
    "def own(config):\n  return gaussian(config)\n"
    "def get_config():\n"
    f"  evaluation = base.Evaluation(custom_metrics=[length_ratio, {module}.half])\n"
    "  return base.Config(model=base.Model(attention=own), evaluation=evaluation)\n",
    "utf-8",
  )
  config = load_config(str(path))
  assert config.model.attention == f"{path.stem}:own"
  assert config.evaluation.custom_metrics == f"{MODULE}:length_ratio,{module}:half"
  assert components.resolve("model.attention", config.model.attention).__name__ == "own"
  assert load_config(str(path)) == config  # the file has been imported as a module, too


def test_outside_config_files_hold_no_objects(tmp_path):
  path = tmp_path / "my_config.py"
  path.write_text(
    "from configs import base\ndef own(config):\n  pass\n"
    "def get_config():\n  return base.Config(model=base.Model(attention=own))\n",
    "utf-8",
  )
  with pytest.raises(ConfigError, match=rf"{NOT_A_NAME} import, got <function own at"):
    load_config(str(path))


def test_objects_without_a_name_are_errors(write_module, monkeypatch):
  module = write_module(
    "import functools\nfrom examples.custom_components import gaussian\n"
    "@functools.wraps(gaussian)\ndef decorated(config):\n  return gaussian(config)\n"
    "class First:\n  @classmethod\n  def make(cls, config):\n    return cls()\n"
    "class Second(First):\n  pass\n"
  )
  names = "First.make", "Second.make", "decorated"
  first, second, decorated = (components.resolve("model.attention", f"{module}:{name}") for name in names)
  in_notebook = type("Mine", (), {"__module__": "__main__"})
  monkeypatch.setattr(sys.modules["__main__"], "Mine", in_notebook, raising=False)
  for value in (second, decorated, in_notebook, lambda config: 3, type("Local", (), {})(), 3):
    with pytest.raises(ConfigError, match=NOT_A_NAME):
      components.with_names(config_of(value))
  config = config_of(first)
  assert components.with_names(config).model.attention == f"{module}:First.make"
  assert config.model.attention == first  # unchanged


def test_invalid_components_are_one_line(write_module, tmp_path):
  text = "def wrong(config, *_):\n  return 3\ndef fails(config):\n  raise KeyError('mine')\n"
  module = write_module(text)
  layer = "must return a Flax module with the methods project_kv, attend_with_kv"
  for field, name, message in (
    ("attention", f"{module}:layer", "has no attribute 'layer'"),
    ("attention", "no_module:layer", "ModuleNotFoundError: No module named 'no_module'; Python searches"),
    ("attention", f"{module}:wrong", layer),
    ("attention", f"{module}:fails", f"KeyError: 'mine' ({tmp_path / module}.py, line 4)"),
    ("attention", f"{MODULE}:GaussianAttention", "must be a function that returns a Flax module, got a"),
    ("normalizer", f"{module}:wrong", "must return an attention.Normalizer, got int"),
    ("decoder", f"{module}:wrong", "with the methods prepare, step, __call__, output_features, output_proj"),
  ):
    with pytest.raises(
      ConfigError, match=f"^config.model.{field}={name}.*{re.escape(message)}.*$"
    ):  # one line
      make_model(base.Model(**{field: name}), source_vocabulary_size=5, target_vocabulary_size=5)


@pytest.mark.parametrize("name", ["collections:OrderedDict", "math:sqrt"])
def test_tasks_must_be_subclasses(name):
  message = f"^config.data.task={name} must be a subclass of experiments.data.task.Task, got <"
  with pytest.raises(ConfigError, match=message):
    make_task(base.Config(data=base.Data(task=name)))
