"""Tests of custom components, with examples/custom_components.py."""

import json
import sys

import jax
import numpy as np
import pytest
from helpers import scripts
from helpers.fixtures import always

from configs import base
from examples import custom_components
from experiments.cli import components
from experiments.cli.config_fields import ConfigError
from experiments.cli.flags import load_config
from experiments.data.tasks import make_task
from experiments.learning.model import make_model
from experiments.runs import load
from experiments.runs.record import Record, write_record
from experiments.runs.validation import validate
from experiments.runs.workdir import WorkdirError
from experiments.training.loop import train

MODULE = "examples.custom_components"
IMPORT = "from examples import custom_components\n"
FLAGS = (
  f"--config.data.task={MODULE}:Reversal",
  f"--config.model.attention={MODULE}:gaussian",
  f"--config.model.encoder={MODULE}:bag_of_words",
  f"--config.evaluation.custom_metrics={MODULE}:length_ratio",
  "--config.data.num_buckets=1",
  "--config.train.grad_accumulation_steps=3",  # does not divide the batch size, so rows are padded
  "--config.model.features=8",
  "--config.model.embed_dim=8",
  "--config.train.num_train_steps=4",
  "--config.train.eval_every_steps=2",
  "--config.train.batch_size=8",
  "--config.evaluation.num_eval_examples=8",
  "--config.evaluation.num_validation_examples=8",
  "--config.evaluation.batch_size=8",
)


def test_custom_components_train_and_translate(tmp_path, write_module):
  folder = tmp_path / "run"
  trained = scripts.run("train", f"--workdir={folder}", *FLAGS)
  assert trained.code == 0, trained.errors
  assert "reversal of letters" in trained.output
  results = json.loads((folder / "results.json").read_text("utf-8"))
  assert results["test"]["length_ratio"] > 0
  evaluated = scripts.run("evaluate", f"--workdir={folder}")
  assert evaluated.code == 0, evaluated.errors
  assert evaluated.output.strip() in trained.output
  assert "length_ratio" in evaluated.output
  translated = scripts.run("translate", f"--workdir={folder}", "--text=a b c")
  assert translated.code == 0, translated.errors
  module = write_module("def first(translations, *_):\n  return len(translations)\n")
  custom = scripts.run("evaluate", f"--workdir={folder}", f"--custom_metrics={module}:first")
  assert custom.code == 0, custom.errors
  assert custom.output.split("\n")[0].split()[-1] == "first" and "length_ratio" not in custom.output


@pytest.mark.exhaustive
def test_failed_metrics_can_be_fixed(tmp_path, write_module):
  folder = tmp_path / "run"
  calls = "calls = []\ndef late(*_):\n  calls.append(0)\n  return {}\n"
  module = write_module(calls.format("1 / (len(calls) < 3)"))  # before training, then at steps 2 and 4
  flags = [flag for flag in FLAGS if "metrics" not in flag]
  flags += [f"--config.evaluation.custom_metrics={module}:late"]
  failed = scripts.run("train", f"--workdir={folder}", *flags)
  assert failed.code == 2 and failed.errors.splitlines()[-1] == (
    f"error: config.evaluation.custom_metrics={module}:late: ZeroDivisionError: division by zero "
    f"({tmp_path / module}.py, line 4)"
  )
  write_module(calls.format("1"))
  resumed = scripts.run("train", f"--workdir={folder}", *flags)
  assert resumed.code == 0, resumed.errors
  assert "resuming after step 2 of 4" in resumed.output


@pytest.mark.exhaustive
def test_alignment_loss_needs_links(tmp_path, write_module):
  text = "class Part(custom_components.Reversal):\n  def training_batch(self, step):\n"
  module = write_module(f"{IMPORT}{text}    return super().training_batch(step)._replace(links=None)\n")
  flags = [flag for flag in FLAGS if "data.task" not in flag] + [f"--config.data.task={module}:Part"]
  folder, weight = tmp_path / "run", "--config.train.alignment_loss_weight=0.5"
  finished = scripts.run("train", f"--workdir={folder}", *flags, weight)
  assert (finished.code, folder.exists()) == (2, False), finished
  message = "config.train.alignment_loss_weight must be 0 if the batches of the task have no links"
  assert finished.errors.startswith(f"error: {message}") and finished.errors.count("\n") == 1


def test_module_classes_are_errors():
  name = f"{MODULE}:GaussianAttention"
  with pytest.raises(ConfigError) as caught:
    make_model(base.Model(attention=name), source_vocabulary_size=5, target_vocabulary_size=5)
  assert str(caught.value) == (
    f"config.model.attention={name} must be a function that returns a Flax module, got a module class"
  )


@pytest.mark.exhaustive
def test_custom_normalizer_with_any_weights(tmp_path, write_module):
  module = write_module(
    "import dataclasses, attention\n"
    "@attention.register_pytree\n"
    "@dataclasses.dataclass(frozen=True)\n"
    "class Doubled(attention.Normalizer):\n"
    "  def weights(self, tile, state):\n"
    "    return 20 * tile.scores\n"
    "def doubled(config):\n  return Doubled()\n"
  )
  folder, page = tmp_path / "run", tmp_path / "explore.html"
  flags = [flag for flag in FLAGS if "attention" not in flag]
  trained = scripts.run("train", f"--workdir={folder}", *flags, f"--config.model.normalizer={module}:doubled")
  assert (trained.code, trained.errors.count("warning")) == (0, 0), trained
  assert len([*(folder / "figures").glob("attention_*.png")]) == 5
  explored = scripts.run("explore", f"--workdir={folder}", f"--output={page}")
  assert explored.code == 0, explored.errors
  data = json.loads(page.read_text("utf-8").split('id="data"')[1].split(">", 1)[1].split("</script>")[0])
  sides = [side["sides"]["decoder"] for side in data["runs"][0]["sentences"]]
  assert min(side["low"] for side in sides) < 0 and max(side["high"] for side in sides) > 1
  with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
    (translation,) = load(folder).translate(["a b c d"])
  assert translation.attention.min() < 0 or translation.attention.max() > 1


@pytest.mark.parametrize(("error", "code"), [("RuntimeError('no fonts')", 0), ("SystemExit(3)", 3)])
@pytest.mark.exhaustive
def test_failing_figures_keep_the_results(tmp_path, write_module, error, code):
  metric = (
    "import matplotlib.figure\n"
    f"def fail(*_, **__):\n  raise {error}\n"
    "matplotlib.figure.Figure.savefig = fail\n"
    "def zero(*_):\n  return 0\n"
  )
  module = write_module(metric)
  flags = [flag for flag in FLAGS if "metrics" not in flag]
  folder, name = tmp_path / "run", f"--config.evaluation.custom_metrics={module}:zero"
  trained = scripts.run("train", f"--workdir={folder}", *flags, name)
  assert trained.code == code, trained.errors
  assert json.loads((folder / "results.json").read_text("utf-8"))["test"]["zero"] == 0
  if code == 0:
    warnings = [line for line in trained.errors.splitlines() if line.startswith("warning")]
    path = folder / "figures" / "training_curves.png"
    assert warnings[0] == f"warning: could not draw {path}: RuntimeError: no fonts"
    assert len(warnings) == 6 and "wrote" not in trained.output


@pytest.mark.parametrize(
  ("name", "message"),
  [("wrong", "must return an attention.Normalizer, got int"), ("none", "has no attribute 'none'")],
)
def test_invalid_normalizer_raises(write_module, name, message):
  module = write_module("def wrong(config):\n  return 3\n")
  name = f"{module}:{name}"
  with pytest.raises(ConfigError) as caught:
    make_model(base.Model(normalizer=name), source_vocabulary_size=5, target_vocabulary_size=5)
  assert f"config.model.normalizer={name}" in str(caught.value) and message in str(caught.value)


@pytest.mark.parametrize(
  "fields",
  [
    {"attention": "monotonic"},
    {"attention": "local"},
    {"attention": "none"},
    {"attention": f"{MODULE}:gaussian"},
    {"decoder": "transformer"},
    {"decoder": f"{MODULE}:feedback_decoder"},
  ],
)
def test_unused_normalizer_raises(fields):
  config = base.Config(model=base.Model(normalizer=f"{MODULE}:linear", **fields))
  with pytest.raises(
    ConfigError, match=r"config\.model\.normalizer must be softmax, because a custom one has no effect"
  ):
    validate(config)


def test_invalid_components_are_one_line(write_module):
  broken = write_module("def nothing(config):\n  return config\n")
  for name, message in (
    (f"{broken}:layer", "has no attribute 'layer'"),
    ("no_such_module:layer", "ModuleNotFoundError"),
    (f"{broken}:nothing", "must return a Flax module with the methods project_kv, attend_with_kv"),
  ):
    with pytest.raises(ConfigError) as caught:
      make_model(base.Model(attention=name), source_vocabulary_size=5, target_vocabulary_size=5)
    assert message in str(caught.value) and "config.model.attention" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_components_are_objects_of_modules():
  name = "experiments.data.scan.scan:Scan"
  config = base.Config(data=base.Data(task=name, split="simple"))
  assert str(make_task(config)).startswith("SCAN")
  assert components.resolve("model.attention", f"{MODULE}:gaussian") is custom_components.gaussian


def test_failing_custom_attention_writes_nothing(tmp_path, write_module):
  broken = write_module(
    "from flax import linen as nn\n"
    "class Layer(nn.Module):\n"
    "  def project_kv(self, sources):\n"
    "    return sources, sources\n"
    "  def attend_with_kv(self, states, keys_values, **options):\n"
    "    return states @ keys_values[0]\n"
    "def layer(config):\n"
    "  return Layer()\n"
  )
  finished = scripts.run("train", f"--workdir={tmp_path / 'run'}", f"--config.model.attention={broken}:layer")
  assert finished.code == 2
  assert finished.errors.startswith(f"error: config.model.attention={broken}:layer")
  assert finished.errors.count("\n") == 1
  assert not (tmp_path / "run").exists()


@pytest.mark.exhaustive
def test_custom_decoder_with_beam_search(tmp_path):
  folder = tmp_path / "run"
  flags = [flag for flag in FLAGS if "attention" not in flag]
  decoder = f"--config.model.decoder={MODULE}:feedback_decoder"
  trained = scripts.run("train", f"--workdir={folder}", *flags, decoder)
  assert trained.code == 0, trained.errors
  assert (
    json.loads((folder / "run.json").read_text("utf-8"))["config"]["model"]["decoder"]
    == f"{MODULE}:feedback_decoder"
  )
  text = "a b c d"
  with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
    translator = load(folder, decode_options={"beam_size": 3})
    assert type(translator.model.decoder).__name__ == "FeedbackDecoder"
    (translation,) = translator.translate([text])
    (scored,) = translator.score([(text, translation.text)])
  # Beam search gives the same scores and weights as teacher forcing.
  assert not translation.is_truncated
  np.testing.assert_allclose(translation.score * scored.num_tokens, scored.log_probability, rtol=1e-4)
  np.testing.assert_allclose(translation.attention, scored.attention, rtol=1e-4, atol=1e-6)


def test_invalid_decoder_raises(write_module):
  module = write_module("def make(config, vocabulary_size):\n  return 3\n")
  name = f"{module}:make"
  with pytest.raises(ConfigError) as caught:
    make_model(base.Model(decoder=name), source_vocabulary_size=5, target_vocabulary_size=5)
  assert str(caught.value) == (
    f"config.model.decoder={name} must return a Flax module with the methods prepare, step, __call__, "
    "output_features, output_projection (see attention.models.Decoder), got int"
  )


FAILING = {
  "task_raises": (
    "data.task",
    "class Part(custom_components.Task):\n  def __init__(self, *_):\n    1 / 0",
    "ZeroDivisionError: division by zero",
  ),
  "task_is_no_task": (
    "data.task",
    "class Part:\n  def __init__(self, *_):\n    self.source = 1",
    "must be a subclass of experiments.data.task.Task, got <class",
  ),
  "task_lacks_members": (
    "data.task",
    "class Part(custom_components.Task):\n  splits = ('test',)\n  validation_split = 'test'",
    "source must be a TextProcessor, got None",
  ),
  "batch_raises": (
    "data.task",
    "class Part(custom_components.Reversal):\n  def training_batch(self, step):\n    return nothing",
    "NameError: name 'nothing' is not defined",
  ),
  "encoder_arguments": (
    "model.encoder",
    "def Part():\n  pass",
    "takes 0 positional arguments but 2 were given",
  ),
  "encoder_raises_in_training": (
    "model.encoder",
    "import attention\n"
    "class Mine(attention.RecurrentEncoder):\n"
    "  def __call__(self, *inputs, deterministic=True):\n"
    "    return super().__call__(*inputs) if deterministic else in_training\n"
    "def Part(config, size):\n  return Mine(size, 8, 8)",
    "NameError: name 'in_training' is not defined",
  ),
  "attention_raises": (
    "model.attention",
    "def Part(config):\n  raise KeyError('mine')",
    "KeyError: 'mine' ({module}, line 3)",
  ),
  "attention_ignores_mask": (
    "model.attention",
    "class Careless(custom_components.GaussianAttention):\n"
    "  def attend_with_kv(self, queries, keys_values, *, mask, **options):\n"
    "    return super().attend_with_kv(queries, keys_values, **options)\n"
    "def Part(config):\n  return Careless(features=8)",
    "logits must not depend on source padding",
  ),
  "encoder_divides_by_length": (
    "model.encoder",
    "import attention\n"
    "class Mine(attention.RecurrentEncoder):\n"
    "  def __call__(self, tokens, lengths, *, deterministic=True):\n"
    "    encoded = super().__call__(tokens, lengths)\n"
    "    return encoded._replace(final_state=encoded.final_state / lengths[:, None].astype('float32'))\n"
    "def Part(config, size):\n  return Mine(size, 8, 8)",
    "logits must be finite, also for padding rows",
  ),
  "metric_is_text": (
    "evaluation.custom_metrics",
    "def Part(*_):\n  return 'good'",
    "must return a finite number, got 'good'",
  ),
  "metric_arguments": (
    "evaluation.custom_metrics",
    "def Part(translations):\n  return 1",
    "takes 1 positional argument but 3 were given",
  ),
  "metric_name": (
    "evaluation.custom_metrics",
    "",
    "must be distinct after the colon, and none of sentences, loss,",
  ),
}


@pytest.mark.parametrize(
  "case",
  always("attention_ignores_mask", "metric_is_text", of=FAILING),
)
def test_failing_components_are_detected_early(tmp_path, write_module, case):
  field, text, message = FAILING[case]
  module = write_module(f"{IMPORT}{text}\n")
  name = f"{module}:{'Part' if text else 'loss'}"
  flags = [flag for flag in FLAGS if field not in flag]
  folder = tmp_path / "run"
  finished = scripts.run("train", f"--workdir={folder}", *flags, f"--config.{field}={name}")
  assert (finished.code, finished.output) == (2, ""), finished
  message = message.format(module=tmp_path / f"{module}.py")
  assert finished.errors.count("\n") == 1 and message in finished.errors and field in finished.errors
  assert not folder.exists()


def test_config_files_hold_objects(tmp_path, write_module):
  module = write_module("def half(*_):\n  return 0.5\n")
  (tmp_path / "my_config.py").write_text(
    f"import {module}\n"
    "from configs import base\n"
    "from examples.custom_components import gaussian, length_ratio\n"
    "def own(config):\n  return gaussian(config)\n"
    "def get_config():\n"
    f"  metrics = [length_ratio, {module}.half]\n"
    "  evaluation = base.Evaluation(custom_metrics=metrics)\n"
    "  return base.Config(model=base.Model(attention=own), evaluation=evaluation)\n",
    "utf-8",
  )
  config = load_config(str(tmp_path / "my_config.py"))
  assert config.model.attention == "my_config:own"
  assert config.evaluation.custom_metrics == f"{MODULE}:length_ratio,{module}:half"
  assert components.resolve("model.attention", "my_config:own").__name__ == "own"


@pytest.mark.parametrize(
  "value", ["lambda config: 3", "type('Local', (), {'__qualname__': 'f.<locals>.Local'})"]
)
def test_objects_without_a_name_are_errors(value):
  config = base.Config(model=base.Model(attention=eval(value)))
  with pytest.raises(
    ConfigError, match=r"config\.model\.attention must be a name, or a function or class of a"
  ):
    components.with_names(config)


def test_decorated_objects_with_another_name_are_errors(write_module):
  module = write_module(
    "import functools\nfrom examples.custom_components import gaussian\n"
    "@functools.wraps(gaussian)\ndef mine(config):\n  return gaussian(config)\n"
  )
  mine = components.resolve("model.attention", f"{module}:mine")
  with pytest.raises(ConfigError, match=r"config\.model\.attention must be a name, or a function"):
    components.with_names(base.Config(model=base.Model(attention=mine)))


def test_config_files_outside_the_path_hold_no_objects(tmp_path):
  path = tmp_path / "my_config.py"
  path.write_text(
    "from configs import base\ndef own(config):\n  pass\n"
    "def get_config():\n  return base.Config(model=base.Model(attention=own))\n",
    "utf-8",
  )
  with pytest.raises(ConfigError, match=r"of a module that Python can import, got <function own at"):
    load_config(str(path))


# Nothing in the folder of a run is imported.


def _write_run(folder, name):
  config = base.Config()
  config.data.task = config.model.attention = config.evaluation.custom_metrics = name
  folder.mkdir(exist_ok=True)
  write_record(folder, Record(config, {}, ""))
  (folder / "results.json").write_text('{"test": {"bleu": 40.0}}', "utf-8")


def test_compare_does_not_import_components(tmp_path, write_module):
  _write_run(tmp_path / "run", f"{write_module('print(3 * 7)')}:part")
  finished = scripts.run("compare", f"--workdir={tmp_path / 'run'}")
  assert finished.code == 0, finished.errors
  assert "40.000" in finished.output and "21" not in finished.output


@pytest.mark.parametrize("name", ["run.part", "theirs", "run.package.part", "link.part"])
def test_modules_in_the_folder_of_a_run_are_not_imported(tmp_path, monkeypatch, name):
  folder = tmp_path / "run"
  (folder / "package").mkdir(parents=True)
  for file in ("part.py", "theirs.py", "package/__init__.py", "package/part.py"):
    (folder / file).write_text("raise RuntimeError", "utf-8")
  (tmp_path / "link").symlink_to(folder)
  (tmp_path / "theirs.py").symlink_to(folder / "theirs.py")
  monkeypatch.syspath_prepend(tmp_path)
  _write_run(folder, f"{name}:Name")
  message = f"config.data.task={name}:Name must not be in the folder of a run, from which nothing is imported"
  with pytest.raises(WorkdirError, match=message):
    load(folder)
  for path in folder.glob("*.json"):
    path.unlink()
  config = base.Config(data=base.Data(task=f"{name}:Name"))
  with pytest.raises(WorkdirError, match=r"config\.data\.task=.* must not be in the folder of a run"):
    train(config, folder)


def test_modules_in_the_folder_of_another_run_are_not_imported(tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(tmp_path)
  for folder in (tmp_path / "run", tmp_path / "other"):
    _write_run(folder, "other.part:Name")
  (tmp_path / "other" / "part.py").write_text("raise RuntimeError", "utf-8")
  with pytest.raises(WorkdirError, match="must not be in the folder of a run"):
    load(tmp_path / "run")


def test_languages_must_be_those_of_a_resumed_run(tmp_path, write_module):
  module = write_module(
    f"{IMPORT}from experiments.data.tokenizers import CharacterTokenizer\n"
    "class Part(custom_components.Reversal):\n"
    "  def __init__(self, config, languages=None):\n"
    "    super().__init__(config)\n"
    "    mine = custom_components.dataclasses.replace(self.source, tokenizer=CharacterTokenizer())\n"
    "    self.source, self.target = languages or (mine, mine)\n"
  )
  flags = [flag for flag in FLAGS if "data.task" not in flag]
  flags.append(f"--config.data.task={module}:Part")
  finished = scripts.run("train", f"--workdir={tmp_path / 'run'}", *flags)
  assert (finished.code, finished.errors.count("\n")) == (2, 1), finished
  assert "source and target must be the same for a resumed run" in finished.errors


def test_config_files_can_be_loaded_twice(tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(tmp_path)
  path = tmp_path / f"twice_{tmp_path.name}.py"
  path.write_text(
    "from configs import base\ndef own(config):\n  pass\n"
    "def get_config():\n  return base.Config(model=base.Model(attention=own))\n",
    "utf-8",
  )
  (first, again) = (load_config(str(path)) for _ in range(2))
  components.resolve("model.attention", first.model.attention)
  assert load_config(str(path)) == first == again


def test_components_of_the_same_run_elsewhere_are_imported(tmp_path, write_module):
  _write_run(tmp_path / "run", f"{write_module('raise OSError(3 * 7)')}:part")
  with pytest.raises(ConfigError, match=r"OSError: 21 \(.*, line 1\)"):
    load(tmp_path / "run")


def test_objects_of_notebooks_are_errors(monkeypatch):
  def mine(config):
    return 3

  mine.__module__, mine.__qualname__ = "__main__", "mine"
  monkeypatch.setattr(sys.modules["__main__"], "mine", mine, raising=False)
  with pytest.raises(ConfigError, match=r"config\.model\.attention must be a name, or a function"):
    components.with_names(base.Config(model=base.Model(attention=mine)))


def test_inherited_methods_are_errors(write_module):
  module = write_module(
    "class First:\n  @classmethod\n  def make(cls, config):\n    return cls()\nclass Second(First):\n  pass\n"
  )
  first, second = (
    components.resolve("model.attention", f"{module}:{name}.make") for name in ("First", "Second")
  )
  config = base.Config(model=base.Model(attention=first))
  assert components.with_names(config).model.attention == f"{module}:First.make"
  assert config.model.attention == first  # unchanged
  with pytest.raises(ConfigError, match=r"config\.model\.attention must be a name, or a function"):
    components.with_names(base.Config(model=base.Model(attention=second)))


@pytest.mark.parametrize("name", ["collections:OrderedDict", "math:sqrt"])
def test_tasks_must_be_subclasses(name):
  with pytest.raises(ConfigError) as caught:
    make_task(base.Config(data=base.Data(task=name)))
  message = f"config.data.task={name} must be a subclass of experiments.data.task.Task, got <"
  assert str(caught.value).startswith(message)
