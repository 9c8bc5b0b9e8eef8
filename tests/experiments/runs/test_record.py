"""The record of a run."""

import copy
import dataclasses
import json
import pathlib
import re

import pytest

from configs import base
from experiments.cli import config_fields
from experiments.cli.errors import DataError
from experiments.data.text_processor import TextProcessor
from experiments.data.tokenizers import WordTokenizer
from experiments.data.vocabularies import Vocabulary
from experiments.runs import record
from experiments.runs.workdir import WorkdirError

LANGUAGES = tuple(
  TextProcessor(WordTokenizer(), Vocabulary(words), lowercase=False)
  for words in (("the", "cat"), ("il", "gatto", "è"))
)


def record_of(config):
  return record.Record(config, record.file_digests(config), record.language_digest(LANGUAGES))


@pytest.fixture
def config(tmp_path):
  """A config with two data files."""
  files = {f"{name}_file": str(tmp_path / f"{name}.tsv") for name in ("train", "validation")}
  for name, path in files.items():
    pathlib.Path(path).write_text(f"{name}\tx\n", "utf-8")
  data = base.Data(task="parallel_text", lowercase=False, **files)
  train = base.Train(num_train_steps=8, learning_rate=0.5, schedule="constant", warmup_fraction=0.375)
  return base.Config(seed=3, data=data, train=train)


@pytest.fixture
def folder(tmp_path, config):
  """A run of the config."""
  folder = tmp_path / "run"
  folder.mkdir()
  record.write_run(folder, record_of(config), LANGUAGES)
  return folder


def changed(config, changes):
  config = copy.deepcopy(config)
  for name, value in changes.items():
    config_fields.set_field(config, name, value)
  return config


def test_records_round_trip(folder, config):
  saved = record.read_record(folder)
  assert saved == record_of(config)
  assert isinstance(saved.config.train, base.Train)
  assert set(saved.data) == {"data.train_file", "data.validation_file"}
  assert record.read_languages(folder, config.data) == LANGUAGES
  # The tokenization is that of the config.
  source, _ = record.read_languages(folder, changed(config, {"data.tokenization": "character"}).data)
  assert source.tokenize("The c") == ("T", "h", "e", "▁", "c")


def test_same_runs_write_nothing(folder, config):
  before = (folder / "run.json").stat()
  record.check_same(folder, dataclasses.replace(config), record.file_digests(config))
  record.write_run(folder, record_of(dataclasses.replace(config)), LANGUAGES)
  after = (folder / "run.json").stat()
  assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)
  assert record.check_same(folder.parent / "another", config, record.file_digests(config)) is None


def test_all_differences_are_in_one_line(folder, config):
  pathlib.Path(config.data.validation_file).write_text("more\ty\n", "utf-8")
  other = changed(config, {"seed": 4, "model.attention": "none", "train.early_stopping_patience": 5})
  changes = "seed 3 (now 4), model.attention 'additive' (now 'none'); pass another --workdir"
  line = f"{folder} has a run with a different config: data.validation_file (the file has changed), {changes}"
  with pytest.raises(WorkdirError, match=f"^{re.escape(line)}$"):
    record.check_same(folder, other, record.file_digests(other))


def test_files_may_be_moved(tmp_path, folder, config):
  moved = changed(config, {"data.train_file": str(tmp_path / "moved.tsv")})
  (tmp_path / "train.tsv").rename(moved.data.train_file)
  record.check_same(folder, moved, record.file_digests(moved))
  record.write_run(folder, record_of(moved), LANGUAGES)
  assert record.read_record(folder).config == moved  # `evaluate` uses the new paths
  with pytest.raises(WorkdirError, match=r"data\.test_file '' \(now '.*moved\.tsv'\); pass another"):
    other = changed(moved, {"data.test_file": moved.data.train_file})
    record.check_same(folder, other, record.file_digests(moved))
  # Without checksums, paths are compared.
  record.check_same(folder, moved)
  with pytest.raises(WorkdirError, match=r"data\.train_file '.*moved\.tsv' \(now '.*train\.tsv'\)"):
    record.check_same(folder, config)


MORE_STEPS = [
  ("constant", 7, ""),
  ("constant", 19, ", or keep the warm-up of 3 steps with --config.train.warmup_fraction=0.184210526316"),
  ("linear", 9, "; only a run with config.train.schedule=constant can get more steps"),
]


@pytest.mark.parametrize(("schedule", "steps", "hint"), MORE_STEPS)
def test_more_steps_keep_the_warm_up(tmp_path, config, schedule, steps, hint):
  config = changed(config, {"train.schedule": schedule})
  record.write_run(tmp_path, record_of(config), LANGUAGES)
  other = changed(config, {"train.num_train_steps": steps})
  with pytest.raises(WorkdirError, match=f"; pass another --workdir{hint}$"):
    record.check_same(tmp_path, other)
  if "=0." in hint:
    longer = changed(other, {"train.warmup_fraction": float(hint.rpartition("=")[2])})
    record.check_same(tmp_path, longer)
    with pytest.raises(WorkdirError, match="learning_rate"):
      record.check_same(tmp_path, changed(longer, {"train.learning_rate": 0.25}))


def test_evaluated_files_must_not_change(folder, config):
  assert record.check_same_data(folder, "validation", "test") == config
  pathlib.Path(config.data.train_file).write_text("more\ty\n", "utf-8")
  record.check_same_data(folder, "validation")
  message = f"^config.data.train_file: the file has changed since the run in {folder} began$"
  with pytest.raises(DataError, match=message):
    record.check_same_data(folder, "train")
  with pytest.raises(DataError, match=r"nothing\.tsv: cannot read the file: No such file or directory$"):
    record.file_digests(changed(config, {"data.test_file": "nothing.tsv"}))


INVALID = [
  lambda record: [],
  lambda record: record | {"color": "red"},
  lambda record: {"config": record["config"]},
  lambda record: record | {"data": 3},
  lambda record: record | {"languages": 3},
  lambda record: record | {"config": record["config"] | {"color": "red"}},
  lambda record: record | {"config": record["config"] | {"seed": "0"}},
  lambda record: record | {"config": record["config"] | {"seed": -1}},
]


@pytest.mark.parametrize("change", INVALID)
def test_invalid_records_are_errors(folder, change):
  path = folder / "run.json"
  path.write_text(json.dumps(change(json.loads(path.read_text("utf-8")))), "utf-8")
  with pytest.raises(WorkdirError, match=f"^{re.escape(str(path))}.*$"):  # one line
    record.read_record(folder)


def test_missing_records_list_subfolders(folder):
  with pytest.raises(WorkdirError, match=r"no run here \(run.json is missing\); its subfolders .*: run$"):
    record.read_record(folder.parent)
  (folder / "run.json").write_text("{", "utf-8")
  with pytest.raises(WorkdirError, match=r"run\.json: invalid in this version: "):
    record.read_record(folder)


@pytest.mark.parametrize("side", ["source", "target"])
def test_records_are_written_last(tmp_path, config, side):
  (tmp_path / f"vocabulary.{side}.txt").mkdir()  # it cannot be written
  with pytest.raises(IsADirectoryError):
    record.write_run(tmp_path, record_of(config), LANGUAGES)
  with pytest.raises(WorkdirError, match="no run here"):
    record.read_record(tmp_path)


def test_language_digests_have_tokenizers_and_models():
  options = {"tokenization": "subword", "lowercase": True, "min_count": 1, "vocabulary_size": 0}
  texts = ["the cat sleeps", "a dog barks"] * 20
  first, second = (TextProcessor.learn(texts, subword_model=kind, **options) for kind in ("unigram", "bpe"))
  changes = [{}, {"vocabulary": second.vocabulary}, {"lowercase": False}]
  changes += [{"tokenizer": tokenizer} for tokenizer in (second.tokenizer, WordTokenizer())]
  digests = {record.language_digest((first, dataclasses.replace(first, **change))) for change in changes}
  assert len(digests) == 5


@pytest.mark.parametrize("side", ["source", "target"])
def test_changed_vocabularies_are_errors(folder, side):
  path, saved = folder / f"vocabulary.{side}.txt", record.read_record(folder)
  assert record.make_run_task(folder, saved).source == LANGUAGES[0]
  for text, message in (
    ("b\na\n", "the vocabularies or tokenizers are not"),
    ("b b\n", "invalid vocabulary"),
  ):
    path.write_text(text, "utf-8")
    with pytest.raises(WorkdirError, match=message):
      record.make_run_task(folder, saved)
  path.unlink()
  with pytest.raises(WorkdirError, match=re.escape(f"the vocabulary of the run is missing ({path})")):
    record.make_run_task(folder, saved)
