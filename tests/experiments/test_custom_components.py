"""Parts of a person's own, named in a config: docs/custom_components.py, from training to translation."""

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
from experiments.tasks import make_task
from experiments.translation import load, run_config
from experiments.translation.model import make_model
from experiments.translation.validation import validate

FILE = str(scripts.ROOT / "docs" / "custom_components.py")
FLAGS = (
  f"--config.data.task={FILE}:Reversal",
  f"--config.model.attention={FILE}:gaussian",
  f"--config.model.encoder={FILE}:bag_of_words",
  f"--config.evaluation.custom_metrics={FILE}:length_ratio",
  "--config.data.num_buckets=1",
  "--config.train.grad_accumulation_steps=3",  # not a divisor of the batch size: the last part is padded
  "--config.model.features=8",
  "--config.model.embed_dim=8",
  "--config.train.num_train_steps=4",
  "--config.train.eval_every_steps=2",
  "--config.train.batch_size=8",
  "--config.evaluation.num_eval_examples=8",
  "--config.evaluation.num_validation_examples=8",
  "--config.evaluation.batch_size=8",
)


def test_custom_parts_from_training_to_translation(tmp_path):
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
  other = scripts.run("evaluate", f"--workdir={folder}", f"--metrics={tmp_path}/mine.py:first")
  assert other.code == 0, other.errors
  assert other.output.split("\n")[0].split()[-1] == "first" and "length_ratio" not in other.output


@pytest.mark.exhaustive
def test_failing_metrics_can_be_mended(tmp_path):
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
  assert "continuing after step 2 of 4" in resumed.output


@pytest.mark.exhaustive
def test_alignment_loss_needs_links(tmp_path):
  text = "class Part(custom_components.Reversal):\n  def training_batch(self, step):\n"
  path = _mine(tmp_path, f"{text}    return super().training_batch(step)._replace(links=None)")
  flags = [flag for flag in FLAGS if "data.task" not in flag] + [f"--config.data.task={path}:Part"]
  folder, weight = tmp_path / "run", "--config.train.alignment_loss_weight=0.5"
  finished = scripts.run("train", f"--workdir={folder}", *flags, weight)
  assert (finished.code, folder.exists()) == (2, False), finished
  words = "config.train.alignment_loss_weight must be 0 if the batches of a task have no links"
  assert finished.errors.startswith(f"error: {words}") and finished.errors.count("\n") == 1


def test_module_classes_are_no_functions(tmp_path):
  name = f"{FILE}:GaussianAttention"
  with pytest.raises(ConfigError) as caught:
    make_model(base.Model(attention=name), source_vocabulary_size=5, target_vocabulary_size=5)
  assert str(caught.value) == (
    f"config.model.attention={name} must be a function that returns a Flax module, got the class itself"
  )


@pytest.mark.exhaustive
def test_custom_normalizer_with_any_weights(tmp_path, monkeypatch):
  path = tmp_path / "mine.py"
  path.write_text(
    "import dataclasses, attention\n"
    "@attention.register_pytree\n"
    "@dataclasses.dataclass(frozen=True)\n"
    "class Doubled(attention.Normalizer):\n"
    "  def weights(self, rows):\n"
    "    return 20 * rows.scores\n"
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
  sides = [each["sides"]["decoder"] for each in data["runs"][0]["sentences"]]
  assert min(each["low"] for each in sides) < 0 and max(each["high"] for each in sides) > 1
  monkeypatch.chdir(tmp_path)  # a file below the current folder is trusted
  with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
    (found,) = load(folder).translate(["a b c d"])
  assert found.attention.min() < 0 or found.attention.max() > 1


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
    assert warnings[0] == f"warning: {path} could not be drawn: RuntimeError: no fonts"
    assert len(warnings) == 6 and "wrote" not in trained.output


@pytest.mark.parametrize(
  ("name", "words"), [("wrong", "must make an attention.Normalizer, got int"), ("none", "has no 'none'")]
)
def test_invalid_normalizer_raises(tmp_path, name, words):
  (tmp_path / "mine.py").write_text("def wrong(config):\n  return 3\n", "utf-8")
  name = f"{tmp_path / 'mine.py'}:{name}"
  with pytest.raises(ConfigError) as caught:
    make_model(base.Model(normalizer=name), source_vocabulary_size=5, target_vocabulary_size=5)
  assert f"config.model.normalizer={name}" in str(caught.value) and words in str(caught.value)


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
    ConfigError, match=r"config\.model\.normalizer must be softmax, for no part of this model"
  ):
    validate(config)


def test_invalid_parts_are_one_line(tmp_path):
  broken = tmp_path / "broken.py"
  broken.write_text("def nothing(config):\n  return config\nclass Raises:\n  pass\n", "utf-8")
  for name, words in (
    (f"{tmp_path}/none.py:layer", "FileNotFoundError"),
    (f"{broken}:layer", "has no 'layer'"),
    ("no_such_module:layer", "ModuleNotFoundError"),
    (f"{broken}:nothing", "must make a Flax module with the methods project_kv, attend_with_kv"),
  ):
    with pytest.raises(ConfigError) as caught:
      make_model(base.Model(attention=name), source_vocabulary_size=5, target_vocabulary_size=5)
    assert words in str(caught.value) and "config.model.attention" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_parts_in_modules_are_cached():
  name = "experiments.tasks.scan:Scan"
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
def test_custom_decoder_in_a_search(tmp_path):
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
    translator = load(folder, search={"beam_size": 3})
    assert type(translator.model.decoder).__name__ == "FeedbackDecoder"
    (found,) = translator.translate([text])
    (given,) = translator.score([(text, found.text)])
  # What a search finds, step by step and in the order of its beams, has the weights of the whole.
  assert not found.is_truncated
  np.testing.assert_allclose(found.score * given.num_tokens, given.log_probability, rtol=1e-4)
  np.testing.assert_allclose(found.attention, given.attention, rtol=1e-4, atol=1e-6)


def test_invalid_decoder_raises(tmp_path):
  (tmp_path / "mine.py").write_text("def make(config, vocabulary_size):\n  return 3\n", "utf-8")
  name = f"{tmp_path}/mine.py:make"
  with pytest.raises(ConfigError) as caught:
    make_model(base.Model(decoder=name), source_vocabulary_size=5, target_vocabulary_size=5)
  assert str(caught.value) == (
    f"config.model.decoder={name} must make a Flax module with the methods prepare, step, __call__, "
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
    "it has no target, splits, validation_split",
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
    "padding must not change the logits",
  ),
  "encoder_divides_by_length": (
    "model.encoder",
    "import attention\n"
    "class Mine(attention.RecurrentEncoder):\n"
    "  def __call__(self, tokens, lengths, *, deterministic=True):\n"
    "    encoded = super().__call__(tokens, lengths)\n"
    "    return encoded._replace(final_state=encoded.final_state / lengths[:, None].astype('float32'))\n"
    "def Part(config, size):\n  return Mine(size, 8, 8)",
    "the logits must be finite, also for rows of length 0",
  ),
  "metric_is_text": (
    "evaluation.custom_metrics",
    "def Part(*_):\n  return 'good'",
    "could not convert string to float: 'good'",
  ),
  "metric_arguments": (
    "evaluation.custom_metrics",
    "def Part(translations):\n  return 1",
    "takes 1 positional argument but 3 were given",
  ),
  "metric_name": (
    "evaluation.custom_metrics",
    "",
    "must be of different names after the colon, none of them sentences, loss,",
  ),
}


@pytest.mark.parametrize(
  "case",
  always("attention_ignores_mask", "metric_is_text", of=FAILING),
)
def test_failing_parts_are_found_first(tmp_path, case):
  part, text, words = FAILING[case]
  name = f"{_mine(tmp_path, text)}:{'Part' if text else 'loss'}"
  flags = [flag for flag in FLAGS if part not in flag]
  folder = tmp_path / "run"
  finished = scripts.run("train", f"--workdir={folder}", *flags, f"--config.{part}={name}")
  assert (finished.code, finished.output) == (2, ""), finished
  words = words.format(mine=tmp_path / "mine.py")
  assert finished.errors.count("\n") == 1 and words in finished.errors and part in finished.errors
  assert not folder.exists()


@pytest.mark.exhaustive
def test_changed_parts_are_detected(tmp_path):
  path = _mine(tmp_path, "Part = custom_components.Reversal")
  folder = tmp_path / "run"
  flags = [flag for flag in FLAGS if "data.task" not in flag] + [f"--config.data.task={path}:Part"]
  trained = scripts.run("train", f"--workdir={folder}", *flags)
  assert trained.code == 0, trained.errors
  path.write_text(path.read_text("utf-8") + "# changed\n", "utf-8")
  evaluated = scripts.run("evaluate", f"--workdir={folder}", "--trust_workdir")
  assert evaluated.code == 0, evaluated.errors
  assert f"{path}: changed since {folder} was trained\n" in evaluated.errors
  again = scripts.run("train", f"--workdir={folder}", *flags)
  assert again.code == 2 and "got a changed one; take another --workdir" in again.errors
  path.unlink()
  gone = scripts.run("evaluate", f"--workdir={folder}", "--trust_workdir")
  assert gone.code == 2 and "not a config of this version" not in gone.errors
  assert f"config.data.task={path}:Part: FileNotFoundError" in gone.errors


# Parts that someone else's run names


@pytest.fixture
def stranger(tmp_path):
  """Gives a run that names a file which says that it was imported, and the file."""
  folder, file = tmp_path / "run", tmp_path / "elsewhere.py"
  file.write_text("print('imported')\ndef part(*_):\n  return 1\n", "utf-8")
  config = base.Config()
  config.data.task = config.model.attention = config.evaluation.custom_metrics = f"{file}:part"
  folder.mkdir()
  (folder / "config.json").write_text(json.dumps(dataclasses.asdict(config)), "utf-8")
  (folder / "results.json").write_text('{"test": {"bleu": 40.0}}', "utf-8")
  return folder, file


def test_compare_imports_nothing_that_runs_name(stranger):
  finished = scripts.run("compare", f"--workdirs={stranger[0]}")
  assert finished.code == 0, finished.errors
  assert "40.000" in finished.output and "imported" not in finished.output


def test_parts_from_elsewhere_need_trust_workdir(stranger):
  folder, file = stranger
  refused = scripts.run("translate", f"--workdir={folder}", "--text=a")
  assert refused.code == 2 and refused.errors.count("\n") == 1
  assert str(file) in refused.errors and "--trust_workdir" in refused.errors
  assert "imported" not in refused.output
  trusted = scripts.run("translate", f"--workdir={folder}", "--text=a", "--trust_workdir")
  assert "imported" in trusted.output
  assert f"{folder}: imports {file} (config.data.task)" in trusted.errors


def test_part_files_are_found_without_import(tmp_path, monkeypatch):
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


def test_untrusted_packages_are_refused(tmp_path, monkeypatch):
  (tmp_path / "mine").mkdir()
  (tmp_path / "mine" / "part.py").touch()
  theirs = tmp_path / "run" / "theirs"
  theirs.mkdir(parents=True)
  (theirs / "__init__.py").write_text("raise RuntimeError", "utf-8")
  (theirs / "part.py").symlink_to(tmp_path / "mine" / "part.py")
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
