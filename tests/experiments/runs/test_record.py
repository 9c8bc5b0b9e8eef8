"""Tests of experiments/runs/record.py."""

import copy
import dataclasses
import json

import pytest

from configs import base
from experiments.cli.errors import DataError
from experiments.data.text_processor import TextProcessor
from experiments.data.tokenizers import WordTokenizer
from experiments.data.vocabularies import Vocabulary
from experiments.runs.record import (
  Record,
  check_same,
  check_same_data,
  file_digests,
  language_digest,
  make_run_task,
  read_config,
  read_languages,
  read_record,
  write_run,
)
from experiments.runs.workdir import WorkdirError


def _languages(source, target, lowercase=False):
  return tuple(TextProcessor(WordTokenizer(), Vocabulary(words), lowercase) for words in (source, target))


LANGUAGES = _languages(("the", "cat"), ("il", "gatto", "è"))


def make_record(config, languages):
  return Record(config, file_digests(config), language_digest(languages))


@pytest.fixture
def config(tmp_path):
  """A config with two data files."""
  for name in ("train", "validation"):
    (tmp_path / f"{name}.tsv").write_text(f"{name}\tx\n", "utf-8")
  return base.Config(
    seed=3,
    data=base.Data(
      task="parallel_text",
      train_file=str(tmp_path / "train.tsv"),
      validation_file=str(tmp_path / "validation.tsv"),
      lowercase=False,
    ),
    train=base.Train(num_train_steps=7, learning_rate=0.5),
  )


@pytest.fixture
def folder(tmp_path, config):
  """A run of the config."""
  folder = tmp_path / "run"
  folder.mkdir()
  write_run(folder, make_record(config, LANGUAGES), LANGUAGES)
  return folder


def _changed(config, **fields):
  """Returns a config with other fields, such as data__lowercase=True."""
  config = copy.deepcopy(config)
  for name, value in fields.items():
    *groups, last = name.split("__")
    setattr(getattr(config, groups[0]) if groups else config, last, value)
  return config


def _one_line(caught):
  text = str(caught.value)
  assert "\n" not in text
  return text


def test_records_round_trip(folder, config):
  record = read_record(folder)
  assert record == make_record(config, LANGUAGES) and record.config == config
  assert isinstance(record.config.train, base.Train)
  assert set(record.data) == {"data.train_file", "data.validation_file"}
  assert read_languages(folder, config.data) == LANGUAGES
  assert (folder / "vocabulary.target.txt").read_text("utf-8") == "il\ngatto\nè\n"


def test_same_runs_write_nothing(folder, config):
  before = (folder / "run.json").stat()
  check_same(folder, dataclasses.replace(config), file_digests(config))
  write_run(folder, make_record(dataclasses.replace(config), LANGUAGES), LANGUAGES)
  after = (folder / "run.json").stat()
  assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)


def test_all_differences_are_in_one_line(folder, config):
  before = (folder / "run.json").read_bytes()
  with open(config.data.validation_file, "a", encoding="utf-8") as file:
    file.write("more\ty\n")
  changed = _changed(config, seed=4, model__attention="none")
  with pytest.raises(WorkdirError) as caught:
    check_same(folder, changed, file_digests(changed))
  assert _one_line(caught) == (
    f"{folder} has a run with a different config: data.validation_file (the file has changed), "
    "seed 3 (now 4), model.attention 'additive' (now 'none'); pass another --workdir"
  )
  assert (folder / "run.json").read_bytes() == before


def test_folders_without_a_run_may_get_any(tmp_path, config):
  check_same(tmp_path / "another", config, file_digests(config))


def test_files_may_be_moved(tmp_path, folder, config):
  moved = _changed(config, data__train_file=str(tmp_path / "moved.tsv"))
  (tmp_path / "train.tsv").rename(moved.data.train_file)
  check_same(folder, moved, file_digests(moved))
  write_run(folder, make_record(moved, LANGUAGES), LANGUAGES)
  assert read_config(folder) == moved  # `evaluate` uses the new paths
  files = {"data__train_file": config.data.validation_file, "data__validation_file": moved.data.train_file}
  exchanged = _changed(moved, **files)
  with pytest.raises(
    WorkdirError, match=r"data\.train_file \(the file has changed\), data\.validation_file \("
  ):
    check_same(folder, exchanged, file_digests(exchanged))
  with pytest.raises(WorkdirError, match=r"data\.test_file '' \(now '.*moved\.tsv'\); pass another"):
    check_same(folder, _changed(moved, data__test_file=moved.data.train_file), file_digests(moved))


@pytest.mark.parametrize(("steps", "more_steps"), [(8, 19), (6_468_999, 116_960_062)])
def test_hints_keep_the_warm_up(tmp_path, config, steps, more_steps):
  fields = {"train__schedule": "constant", "train__num_train_steps": steps, "train__warmup_fraction": 0.375}
  config = _changed(config, **fields)
  write_run(tmp_path, make_record(config, LANGUAGES), LANGUAGES)
  longer = _changed(config, train__num_train_steps=more_steps)
  with pytest.raises(WorkdirError, match=f"or keep the warm-up of {int(0.375 * steps)} steps") as caught:
    check_same(tmp_path, longer)
  fraction = float(_one_line(caught).rpartition("warmup_fraction=")[2])
  check_same(tmp_path, _changed(longer, train__warmup_fraction=fraction))
  with pytest.raises(WorkdirError):
    check_same(tmp_path, _changed(longer, train__warmup_fraction=fraction, train__learning_rate=0.25))


def test_paths_are_compared_without_files(folder, config):
  check_same(folder, config)
  with pytest.raises(WorkdirError, match=r"data\.train_file '.*train\.tsv' \(now 'other\.tsv'\)"):
    check_same(folder, _changed(config, data__train_file="other.tsv"))


def test_evaluated_files_must_not_change(folder, config):
  assert check_same_data(folder, "validation", "test") == config
  with open(config.data.train_file, "a", encoding="utf-8") as file:
    file.write("more\ty\n")
  check_same_data(folder, "validation")
  with pytest.raises(DataError) as caught:
    check_same_data(folder, "train")
  message = f"config.data.train_file: the file has changed since the run in {folder} began"
  assert _one_line(caught) == message


def test_unreadable_files_are_errors(tmp_path, config):
  config.data.test_file = str(tmp_path / "nothing.tsv")
  with pytest.raises(DataError) as caught:
    file_digests(config)
  assert _one_line(caught) == f"{config.data.test_file}: cannot read the file: No such file or directory"


@pytest.mark.parametrize(
  "change",
  [
    lambda record: "{",
    lambda record: "[]",
    lambda record: "3",
    lambda record: {**record, "color": "red"},
    lambda record: {"config": record["config"]},
    lambda record: {**record, "data": 3},
    lambda record: {**record, "languages": 3},
    lambda record: {**record, "config": 3},
    lambda record: {**record, "config": record["config"] | {"color": "red"}},
    lambda record: {**record, "config": record["config"] | {"train": 3}},
    lambda record: {**record, "config": record["config"] | {"seed": "0"}},
    lambda record: {**record, "config": record["config"] | {"seed": True}},
    lambda record: {**record, "config": record["config"] | {"seed": -1}},
  ],
)
def test_invalid_records_are_errors(folder, change):
  path = folder / "run.json"
  value = change(json.loads(path.read_text("utf-8")))
  path.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")
  with pytest.raises(WorkdirError) as caught:
    read_record(folder)
  assert _one_line(caught).startswith(str(path))


def test_tokenization_is_from_the_config(folder, config):
  changed = _changed(config, data__tokenization="character", data__lowercase=True)
  source, target = read_languages(folder, changed.data)
  assert source.tokenize("The c") == ("t", "h", "e", "▁", "c")
  assert target.detokenize(("i", "▁", "l")) == "i l"


@pytest.mark.parametrize("side", ["source", "target"])
def test_records_are_written_last(tmp_path, config, monkeypatch, side):
  save = TextProcessor.save

  def fail(language, folder, name):
    if name == side:
      raise OSError("disk full")
    save(language, folder, name)

  monkeypatch.setattr(TextProcessor, "save", fail)
  with pytest.raises(OSError):
    write_run(tmp_path, make_record(config, LANGUAGES), LANGUAGES)
  with pytest.raises(WorkdirError, match="no run here"):
    read_record(tmp_path)


def test_language_digests_have_tokenizers_and_models():
  texts = ["the cat sleeps", "a dog barks"] * 20
  options = {"tokenization": "subword", "lowercase": True, "min_count": 1, "vocabulary_size": 0}
  first, second = (TextProcessor.learn(texts, subword_model=kind, **options) for kind in ("unigram", "bpe"))
  languages = (
    first,
    dataclasses.replace(second, vocabulary=first.vocabulary),
    dataclasses.replace(first, lowercase=False),
    dataclasses.replace(first, tokenizer=WordTokenizer()),
  )
  assert len({language_digest((first, language)) for language in languages}) == len(languages)


@pytest.mark.parametrize("side", ["source", "target"])
def test_changed_vocabularies_are_errors(folder, side):
  path, record = folder / f"vocabulary.{side}.txt", read_record(folder)
  assert make_run_task(folder, record).source == LANGUAGES[0]
  path.write_text("b\na\n", "utf-8")
  with pytest.raises(WorkdirError, match="the vocabularies or tokenizers are not those with which the run"):
    make_run_task(folder, record)
  path.unlink()
  with pytest.raises(WorkdirError) as caught:
    make_run_task(folder, record)
  assert str(path) in _one_line(caught)
