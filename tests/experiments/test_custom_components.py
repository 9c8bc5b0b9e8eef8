"""Tests of custom components, with docs/custom_components.py."""

import argparse
import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest
from helpers import scripts
from helpers.fixtures import always

from configs import base
from experiments.cli import plugins
from experiments.cli.config_fields import ConfigError
from experiments.data.tasks import make_task
from experiments.learning.model import make_model
from experiments.runs import load, run_config
from experiments.runs.validation import validate

FILE = str(scripts.ROOT / "docs" / "custom_components.py")
FLAGS = (
  f"--config.data.task={FILE}:Reversal",
  f"--config.model.attention={FILE}:gaussian",
  f"--config.model.encoder={FILE}:bag_of_words",
  f"--config.evaluation.custom_metrics={FILE}:length_ratio",
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


def test_custom_components_train_and_translate(tmp_path):
  folder = tmp_path / "run"
  trained = scripts.run("train", f"--workdir={folder}", *FLAGS)
  assert trained.code == 0, trained.errors
  assert "reversal of letters" in trained.output
  results = json.loads((folder / "results.json").read_text("utf-8"))
  assert results["test"]["length_ratio"] > 0
  (launch,) = (folder / "launches.jsonl").read_text("utf-8").splitlines()
  assert set(json.loads(launch)["data"]) == {"data.task", "model.attention", "model.encoder"}
  evaluated = scripts.run("evaluate", f"--workdir={folder}")
  assert evaluated.code == 0, evaluated.errors
  assert evaluated.output.strip() in trained.output
  assert "length_ratio" in evaluated.output
  translated = scripts.run("translate", f"--workdir={folder}", "--text=a b c")
  assert translated.code == 0, translated.errors
  (tmp_path / "mine.py").write_text("def first(translations, *_):\n  return len(translations)\n", "utf-8")
  custom = scripts.run("evaluate", f"--workdir={folder}", f"--custom_metrics={tmp_path}/mine.py:first")
  assert custom.code == 0, custom.errors
  assert custom.output.split("\n")[0].split()[-1] == "first" and "length_ratio" not in custom.output


@pytest.mark.exhaustive
def test_failed_metrics_can_be_fixed(tmp_path):
  path, folder = tmp_path / "mine.py", tmp_path / "run"
  calls = "calls = []\ndef late(*_):\n  calls.append(0)\n  return {}\n"
  flags = [flag for flag in FLAGS if "metrics" not in flag] + [
    f"--config.evaluation.custom_metrics={path}:late"
  ]
  path.write_text(calls.format("1 / (len(calls) < 3)"), "utf-8")  # before training, then at steps 2 and 4
  failed = scripts.run("train", f"--workdir={folder}", *flags)
  assert failed.code == 2 and failed.errors.splitlines()[-1] == (
    f"error: config.evaluation.custom_metrics={path}:late: ZeroDivisionError: division by zero "
    f"({path}, line 4)"
  )
  path.write_text(calls.format("1"), "utf-8")
  resumed = scripts.run("train", f"--workdir={folder}", *flags)
  assert resumed.code == 0, resumed.errors
  assert "resuming after step 2 of 4" in resumed.output


@pytest.mark.exhaustive
def test_alignment_loss_needs_links(tmp_path):
  text = "class Part(custom_components.Reversal):\n  def training_batch(self, step):\n"
  path = _mine(tmp_path, f"{text}    return super().training_batch(step)._replace(links=None)")
  flags = [flag for flag in FLAGS if "data.task" not in flag] + [f"--config.data.task={path}:Part"]
  folder, weight = tmp_path / "run", "--config.train.alignment_loss_weight=0.5"
  finished = scripts.run("train", f"--workdir={folder}", *flags, weight)
  assert (finished.code, folder.exists()) == (2, False), finished
  message = "config.train.alignment_loss_weight must be 0 if the batches of the task have no links"
  assert finished.errors.startswith(f"error: {message}") and finished.errors.count("\n") == 1


def test_module_classes_are_errors(tmp_path):
  name = f"{FILE}:GaussianAttention"
  with pytest.raises(ConfigError) as caught:
    make_model(base.Model(attention=name), source_vocabulary_size=5, target_vocabulary_size=5)
  assert str(caught.value) == (
    f"config.model.attention={name} must be a function that returns a Flax module, got a module class"
  )


@pytest.mark.exhaustive
def test_custom_normalizer_with_any_weights(tmp_path, monkeypatch):
  path = tmp_path / "mine.py"
  path.write_text(
    "import dataclasses, attention\n"
    "@attention.register_pytree\n"
    "@dataclasses.dataclass(frozen=True)\n"
    "class Doubled(attention.Normalizer):\n"
    "  def weights(self, tile, state):\n"
    "    return 20 * tile.scores\n"
    "def doubled(config):\n  return Doubled()\n",
    "utf-8",
  )
  folder, page = tmp_path / "run", tmp_path / "explore.html"
  flags = [flag for flag in FLAGS if "attention" not in flag]
  trained = scripts.run("train", f"--workdir={folder}", *flags, f"--config.model.normalizer={path}:doubled")
  assert (trained.code, trained.errors.count("warning")) == (0, 0), trained
  (launch,) = (folder / "launches.jsonl").read_text("utf-8").splitlines()
  assert "model.normalizer" in json.loads(launch)["data"]
  assert len([*(folder / "figures").glob("attention_*.png")]) == 5
  explored = scripts.run("explore", f"--workdir={folder}", f"--output={page}", "--trust_workdir")
  assert explored.code == 0, explored.errors
  data = json.loads(page.read_text("utf-8").split('id="data"')[1].split(">", 1)[1].split("</script>")[0])
  sides = [side["sides"]["decoder"] for side in data["runs"][0]["sentences"]]
  assert min(side["low"] for side in sides) < 0 and max(side["high"] for side in sides) > 1
  monkeypatch.chdir(tmp_path)  # files below the current folder are trusted
  with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
    (translation,) = load(folder).translate(["a b c d"])
  assert translation.attention.min() < 0 or translation.attention.max() > 1


@pytest.mark.parametrize(("error", "code"), [("RuntimeError('no fonts')", 0), ("SystemExit(3)", 3)])
@pytest.mark.exhaustive
def test_failing_figures_keep_the_results(tmp_path, error, code):
  metric = (
    "import matplotlib.figure\n"
    f"def fail(*_, **__):\n  raise {error}\n"
    "matplotlib.figure.Figure.savefig = fail\n"
    "def zero(*_):\n  return 0\n"
  )
  (tmp_path / "mine.py").write_text(metric, "utf-8")
  flags = [flag for flag in FLAGS if "metrics" not in flag]
  folder, name = tmp_path / "run", f"--config.evaluation.custom_metrics={tmp_path / 'mine.py'}:zero"
  trained = scripts.run("train", f"--workdir={folder}", *flags, name)
  assert trained.code == code, trained.errors
  assert json.loads((folder / "results.json").read_text("utf-8"))["test"]["zero"] == 0
  if code == 0:
    warnings = [line for line in trained.errors.splitlines() if line.startswith("warning")]
    path = folder / "figures" / "training_curves.png"
    assert warnings[0] == f"warning: could not draw {path}: RuntimeError: no fonts"
    assert len(warnings) == 6 and "wrote" not in trained.output


@pytest.mark.parametrize(
  ("name", "message"), [("wrong", "must return an attention.Normalizer, got int"), ("none", "has no 'none'")]
)
def test_invalid_normalizer_raises(tmp_path, name, message):
  (tmp_path / "mine.py").write_text("def wrong(config):\n  return 3\n", "utf-8")
  name = f"{tmp_path / 'mine.py'}:{name}"
  with pytest.raises(ConfigError) as caught:
    make_model(base.Model(normalizer=name), source_vocabulary_size=5, target_vocabulary_size=5)
  assert f"config.model.normalizer={name}" in str(caught.value) and message in str(caught.value)


@pytest.mark.parametrize(
  "fields",
  [
    {"attention": "monotonic"},
    {"attention": "local"},
    {"attention": "none"},
    {"attention": f"{FILE}:gaussian"},
    {"decoder": "transformer"},
    {"decoder": f"{FILE}:feedback_decoder"},
  ],
)
def test_unused_normalizer_raises(fields):
  config = base.Config(model=base.Model(normalizer=f"{FILE}:linear", **fields))
  with pytest.raises(
    ConfigError, match=r"config\.model\.normalizer must be softmax, because a custom one has no effect"
  ):
    validate(config)


def test_invalid_components_are_one_line(tmp_path):
  broken = tmp_path / "broken.py"
  broken.write_text("def nothing(config):\n  return config\nclass Raises:\n  pass\n", "utf-8")
  for name, message in (
    (f"{tmp_path}/none.py:layer", "cannot read the file: No such file or directory"),
    (f"{broken}:layer", "has no 'layer'"),
    ("no_such_module:layer", "ModuleNotFoundError"),
    (f"{broken}:nothing", "must return a Flax module with the methods project_kv, attend_with_kv"),
  ):
    with pytest.raises(ConfigError) as caught:
      make_model(base.Model(attention=name), source_vocabulary_size=5, target_vocabulary_size=5)
    assert message in str(caught.value) and "config.model.attention" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_components_are_imported_once():
  name = "experiments.data.scan.scan:Scan"
  config = base.Config(data=base.Data(task=name, split="simple"))
  assert str(make_task(config)).startswith("SCAN")
  assert plugins.resolve("model.attention", f"{FILE}:gaussian") is plugins.resolve(
    "model.attention", f"{FILE}:gaussian"
  )


def test_failing_custom_attention_writes_nothing(tmp_path):
  broken = tmp_path / "broken.py"
  broken.write_text(
    "from flax import linen as nn\n"
    "class Layer(nn.Module):\n"
    "  def project_kv(self, sources):\n"
    "    return sources, sources\n"
    "  def attend_with_kv(self, states, keys_values, **options):\n"
    "    return states @ keys_values[0]\n"
    "def layer(config):\n"
    "  return Layer()\n",
    "utf-8",
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
  decoder = f"--config.model.decoder={FILE}:feedback_decoder"
  trained = scripts.run("train", f"--workdir={folder}", *flags, decoder)
  assert trained.code == 0, trained.errors
  assert (
    json.loads((folder / "config.json").read_text("utf-8"))["model"]["decoder"] == f"{FILE}:feedback_decoder"
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


def test_invalid_decoder_raises(tmp_path):
  (tmp_path / "mine.py").write_text("def make(config, vocabulary_size):\n  return 3\n", "utf-8")
  name = f"{tmp_path}/mine.py:make"
  with pytest.raises(ConfigError) as caught:
    make_model(base.Model(decoder=name), source_vocabulary_size=5, target_vocabulary_size=5)
  assert str(caught.value) == (
    f"config.model.decoder={name} must return a Flax module with the methods prepare, step, __call__, "
    "output_features, output_projection (see attention.models.Decoder), got int"
  )


def _mine(tmp_path, text):
  path = tmp_path / "mine.py"
  path.write_text(f"from docs import custom_components\n{text}\n", "utf-8")
  return path


FAILING = {
  "task_raises": (
    "data.task",
    "class Part:\n  def __init__(self, *_):\n    1 / 0",
    "ZeroDivisionError: division by zero",
  ),
  "task_lacks_members": (
    "data.task",
    "class Part:\n  def __init__(self, *_):\n    self.source = 1",
    "got one without target, splits, validation_split",
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
    "KeyError: 'mine' ({mine}, line 3)",
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
    "must return a number, got 'good'",
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
def test_failing_components_are_detected_early(tmp_path, case):
  field, text, message = FAILING[case]
  name = f"{_mine(tmp_path, text)}:{'Part' if text else 'loss'}"
  flags = [flag for flag in FLAGS if field not in flag]
  folder = tmp_path / "run"
  finished = scripts.run("train", f"--workdir={folder}", *flags, f"--config.{field}={name}")
  assert (finished.code, finished.output) == (2, ""), finished
  message = message.format(mine=tmp_path / "mine.py")
  assert finished.errors.count("\n") == 1 and message in finished.errors and field in finished.errors
  assert not folder.exists()


@pytest.mark.exhaustive
def test_changed_components_are_detected(tmp_path):
  path = _mine(tmp_path, "Part = custom_components.Reversal")
  folder = tmp_path / "run"
  flags = [flag for flag in FLAGS if "data.task" not in flag] + [f"--config.data.task={path}:Part"]
  trained = scripts.run("train", f"--workdir={folder}", *flags)
  assert trained.code == 0, trained.errors
  path.write_text(path.read_text("utf-8") + "# changed\n", "utf-8")
  evaluated = scripts.run("evaluate", f"--workdir={folder}", "--trust_workdir")
  assert evaluated.code == 0, evaluated.errors
  assert f"{path}: changed since {folder} was trained\n" in evaluated.errors
  retrained = scripts.run("train", f"--workdir={folder}", *flags)
  assert retrained.code == 2 and "file has changed since the run" in retrained.errors
  path.unlink()
  missing = scripts.run("evaluate", f"--workdir={folder}", "--trust_workdir")
  assert missing.code == 2 and "invalid config for this version" not in missing.errors
  assert f"config.data.task={path}:Part: cannot read the file" in missing.errors


# Components named by untrusted runs.


@pytest.fixture
def untrusted_run(tmp_path):
  """A run that names a file outside the current folder, and the file, which prints when it is imported."""
  folder, file = tmp_path / "run", tmp_path / "elsewhere.py"
  file.write_text("print('imported')\ndef part(*_):\n  return 1\n", "utf-8")
  config = base.Config()
  config.data.task = config.model.attention = config.evaluation.custom_metrics = f"{file}:part"
  folder.mkdir()
  (folder / "config.json").write_text(json.dumps(dataclasses.asdict(config)), "utf-8")
  (folder / "results.json").write_text('{"test": {"bleu": 40.0}}', "utf-8")
  return folder, file


def test_compare_does_not_import_components(untrusted_run):
  finished = scripts.run("compare", f"--workdir={untrusted_run[0]}")
  assert finished.code == 0, finished.errors
  assert "40.000" in finished.output and "imported" not in finished.output


def test_untrusted_files_need_trust_workdir(untrusted_run):
  folder, file = untrusted_run
  failed = scripts.run("translate", f"--workdir={folder}", "--text=a")
  assert failed.code == 2 and failed.errors.count("\n") == 1
  assert str(file) in failed.errors and "--trust_workdir" in failed.errors
  assert "imported" not in failed.output
  trusted = scripts.run("translate", f"--workdir={folder}", "--text=a", "--trust_workdir")
  assert "imported" in trusted.output
  assert f"{folder}: importing {file} (config.data.task)" in trusted.errors


def test_imported_files_are_found_without_import(tmp_path, monkeypatch):
  (tmp_path / "package").mkdir()
  for file in ("__init__.py", "module.py"):
    (tmp_path / "package" / file).write_text("raise RuntimeError", "utf-8")
  (tmp_path / "runs" / "theirs").mkdir(parents=True)
  (tmp_path / "runs" / "theirs" / "part.py").write_text("raise RuntimeError", "utf-8")
  monkeypatch.syspath_prepend(tmp_path)
  package = tmp_path / "package"
  assert plugins.imported_files("package:Name") == [package / "__init__.py"]
  assert plugins.imported_files("package.module:Name") == [package / "__init__.py", package / "module.py"]
  assert plugins.imported_files("runs.theirs.part:Name") == [tmp_path / "runs" / "theirs" / "part.py"]
  assert plugins.imported_files("folder/file.py:Name") == [pathlib.Path("folder/file.py")]
  for name in ("package.none:Name", "no_such_module:Name", "sys:exit"):
    assert plugins.imported_files(name) == []


def test_untrusted_packages_are_errors(tmp_path, monkeypatch):
  (tmp_path / "mine").mkdir()
  (tmp_path / "mine" / "part.py").touch()
  package = tmp_path / "run" / "theirs"
  package.mkdir(parents=True)
  (package / "__init__.py").write_text("raise RuntimeError", "utf-8")
  (package / "part.py").symlink_to(tmp_path / "mine" / "part.py")
  config = base.Config()
  config.data.task = "run.theirs.part:Name"
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(plugins.flags, "FLAGS", _Flags())
  with pytest.raises(run_config.WorkdirError, match=r"__init__\.py"):
    run_config.check_trusted(tmp_path / "run", config)


def test_trusted_files_are_below_current_folder(tmp_path, monkeypatch):
  monkeypatch.setattr(plugins.flags, "FLAGS", _Flags())
  monkeypatch.chdir(tmp_path)
  folder = tmp_path / "run"
  assert plugins.is_trusted(pathlib.Path("mine.py"), folder)
  (tmp_path / "loop.py").symlink_to("loop.py")
  for path in ("../theirs.py", "run/theirs.py", "/theirs.py", "loop.py", "\0.py"):
    assert not plugins.is_trusted(pathlib.Path(path), folder)
  assert not plugins.is_trusted(None, folder)


class _Flags(dict):
  def __getitem__(self, name):
    return argparse.Namespace(value=False)

  def is_parsed(self):
    return True
