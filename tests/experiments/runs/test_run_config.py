"""Tests of experiments/runs/run_config.py: configs and languages of runs."""

import copy
import dataclasses
import json

import pytest

from configs import base
from experiments.data.text_processor import TextProcessor
from experiments.data.tokenizers import WordTokenizer
from experiments.data.vocabularies import Vocabulary
from experiments.runs.provenance import digests, record_launch
from experiments.runs.run_config import check_same_config, data_files, read_config, read_languages, write_run
from experiments.runs.workdir import WorkdirError

CONFIG = base.Config(
  seed=3,
  data=base.Data(
    task="parallel_text", train_file="train.tsv", validation_file="validation.tsv", lowercase=False
  ),
  train=base.Train(num_train_steps=7, learning_rate=0.5),
)


def _languages(source, target, lowercase=False):
  return tuple(TextProcessor(WordTokenizer(), Vocabulary(words), lowercase) for words in (source, target))


LANGUAGES = _languages(("the", "cat"), ("il", "gatto", "è"))


def _one_line(caught):
  text = str(caught.value)
  assert "\n" not in text
  return text


def test_configs_round_trip(tmp_path):
  write_run(tmp_path, CONFIG, LANGUAGES)
  config = read_config(tmp_path)
  assert config == CONFIG
  assert isinstance(config.train, base.Train)


def test_same_configs_write_nothing(tmp_path):
  write_run(tmp_path, CONFIG, LANGUAGES)
  before = (tmp_path / "config.json").stat()
  check_same_config(tmp_path, dataclasses.replace(CONFIG))
  write_run(tmp_path, dataclasses.replace(CONFIG), LANGUAGES)
  after = (tmp_path / "config.json").stat()
  assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)


def test_changed_fields_are_errors(tmp_path):
  write_run(tmp_path, CONFIG, LANGUAGES)
  before = (tmp_path / "config.json").read_bytes()
  changed = dataclasses.replace(CONFIG, seed=4, model=base.Model(attention="none"))
  with pytest.raises(WorkdirError) as caught:
    check_same_config(tmp_path, changed)
  text = _one_line(caught)
  assert str(tmp_path) in text
  assert "seed 3 (now 4)" in text
  assert "model.attention 'additive' (now 'none')" in text
  assert "steps" not in text
  assert (tmp_path / "config.json").read_bytes() == before


def test_files_may_be_moved(tmp_path):
  config = copy.deepcopy(CONFIG)
  for name in ("train", "validation"):
    setattr(config.data, f"{name}_file", str(tmp_path / f"{name}.tsv"))
    (tmp_path / f"{name}.tsv").write_text(f"{name}\tx\n", "utf-8")
  folder = tmp_path / "run"
  folder.mkdir()
  record_launch(folder, {"data": digests(data_files(config))})
  write_run(folder, config, LANGUAGES)
  moved = copy.deepcopy(config)
  moved.data.train_file = str(tmp_path / "moved.tsv")
  (tmp_path / "train.tsv").rename(moved.data.train_file)
  check_same_config(folder, moved)
  write_run(folder, moved, LANGUAGES)
  assert read_config(folder) == moved  # `evaluate` uses the new paths
  (tmp_path / "moved.tsv").rename(config.data.train_file)
  check_same_config(folder, config)
  moved = copy.deepcopy(config)
  moved.data.train_file, moved.data.validation_file = moved.data.validation_file, moved.data.train_file
  with pytest.raises(WorkdirError, match=r"a different config: data.train_file .*, data.validation_file "):
    check_same_config(folder, moved)


@pytest.mark.parametrize(
  "text",
  [
    "{",
    "[]",
    "3",
    json.dumps(dataclasses.asdict(CONFIG) | {"color": "red"}),
    json.dumps(dataclasses.asdict(CONFIG) | {"train": 3}),
    json.dumps(dataclasses.asdict(CONFIG) | {"seed": "0"}),
    json.dumps(dataclasses.asdict(CONFIG) | {"seed": True}),
    json.dumps(dataclasses.asdict(CONFIG) | {"seed": -1}),
  ],
)
def test_invalid_configs_are_errors(tmp_path, text):
  (tmp_path / "config.json").write_text(text, "utf-8")
  with pytest.raises(WorkdirError) as caught:
    read_config(tmp_path)
  assert _one_line(caught).startswith(str(tmp_path / "config.json"))


def test_languages_round_trip(tmp_path):
  assert read_languages(tmp_path, CONFIG.data) is None
  write_run(tmp_path, CONFIG, LANGUAGES)
  assert read_languages(tmp_path, CONFIG.data) == LANGUAGES
  assert (tmp_path / "vocabulary.target.txt").read_text("utf-8") == "il\ngatto\nè\n"
  # Tokenization and lowercasing are from the config.
  source, target = read_languages(tmp_path, base.Data(tokenization="character", lowercase=True))
  assert source.tokenize("The c") == ("t", "h", "e", "▁", "c")
  assert target.detokenize(("i", "▁", "l")) == "i l"


@pytest.mark.parametrize("side", ["source", "target"])
def test_configs_are_written_last(tmp_path, monkeypatch, side):
  save = TextProcessor.save

  def fail(language, folder, name):
    if name == side:
      raise OSError("disk full")
    save(language, folder, name)

  monkeypatch.setattr(TextProcessor, "save", fail)
  with pytest.raises(OSError):
    write_run(tmp_path, CONFIG, LANGUAGES)
  with pytest.raises(WorkdirError, match="no run here"):
    read_config(tmp_path)


@pytest.mark.parametrize("name", ["checkpoints", "metrics.jsonl"])
def test_leftovers_of_runs_are_errors(tmp_path, name):
  (tmp_path / name).mkdir()
  with pytest.raises(WorkdirError) as caught:
    check_same_config(tmp_path, CONFIG)
  assert name in _one_line(caught)


@pytest.mark.parametrize("side", ["source", "target"])
def test_missing_vocabularies_are_errors(tmp_path, side):
  write_run(tmp_path, CONFIG, LANGUAGES)
  path = tmp_path / f"vocabulary.{side}.txt"
  path.unlink()
  with pytest.raises(WorkdirError) as caught:
    read_languages(tmp_path, CONFIG.data)
  assert str(path) in _one_line(caught)
