"""Tests of experiments/runs/workdir.py."""

import dataclasses
import errno
import json
import os
import pathlib

import pytest

from configs import base
from experiments.runs import workdir
from experiments.runs.workdir import WorkdirError
from experiments.text.languages import Language
from experiments.text.tokenizers import Words
from experiments.text.vocabularies import Vocabulary

CONFIG = base.Config(
  seed=3,
  data=base.Data(task="parallel_text", train="train.tsv", validation="validation.tsv", lowercase=False),
  train=base.Train(steps=7, learning_rate=0.5),
)


def _languages(source, target, lowercase=False):
  return tuple(Language(Words(), Vocabulary(words), lowercase) for words in (source, target))


LANGUAGES = _languages(("the", "cat"), ("il", "gatto", "è"))


def _one_line(caught):
  text = str(caught.value)
  assert "\n" not in text
  return text


def test_a_config_is_read_as_it_was_written(tmp_path):
  workdir.write_run(tmp_path, CONFIG, LANGUAGES)
  config = workdir.read_config(tmp_path)
  assert config == CONFIG
  assert isinstance(config.train, base.Train)


def test_config_json_holds_every_field(tmp_path):
  workdir.write_run(tmp_path, CONFIG, LANGUAGES)
  values = json.loads((tmp_path / "config.json").read_text("utf-8"))
  assert values == dataclasses.asdict(CONFIG)
  assert values["train"]["steps"] == 7


def test_the_same_config_again_is_no_error_and_writes_nothing(tmp_path):
  workdir.write_run(tmp_path, CONFIG, LANGUAGES)
  before = (tmp_path / "config.json").stat()
  workdir.check_same_config(tmp_path, dataclasses.replace(CONFIG))
  workdir.write_run(tmp_path, dataclasses.replace(CONFIG), LANGUAGES)
  after = (tmp_path / "config.json").stat()
  assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)


def test_another_config_is_an_error_that_names_the_fields(tmp_path):
  workdir.write_run(tmp_path, CONFIG, LANGUAGES)
  before = (tmp_path / "config.json").read_bytes()
  other = dataclasses.replace(CONFIG, seed=4, model=base.Model(attention="none"))
  with pytest.raises(WorkdirError) as caught:
    workdir.check_same_config(tmp_path, other)
  text = _one_line(caught)
  assert str(tmp_path) in text
  assert "seed 3 (here 4)" in text
  assert "model.attention 'additive' (here 'none')" in text
  assert "steps" not in text
  assert (tmp_path / "config.json").read_bytes() == before


def test_a_folder_without_a_run_is_an_error_that_names_it(tmp_path):
  with pytest.raises(WorkdirError, match="holds no run") as caught:
    workdir.read_config(tmp_path / "nothing")
  assert str(tmp_path / "nothing") in _one_line(caught)
  assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(
  "text",
  [
    "{",
    "[]",
    "3",
    '{"seed": 0}',
    json.dumps(dataclasses.asdict(CONFIG) | {"colour": "red"}),
    json.dumps(dataclasses.asdict(CONFIG) | {"train": {"steps": 3}}),
    json.dumps(dataclasses.asdict(CONFIG) | {"train": 3}),
    json.dumps(dataclasses.asdict(CONFIG) | {"seed": "0"}),
    json.dumps(dataclasses.asdict(CONFIG) | {"seed": True}),
    json.dumps(dataclasses.asdict(CONFIG) | {"seed": -1}),
  ],
)
def test_what_is_no_config_is_an_error_that_names_the_file(tmp_path, text):
  (tmp_path / "config.json").write_text(text, "utf-8")
  with pytest.raises(WorkdirError) as caught:
    workdir.read_config(tmp_path)
  assert _one_line(caught).startswith(str(tmp_path / "config.json"))


def test_languages_are_read_as_they_were_written(tmp_path):
  assert workdir.read_languages(tmp_path, CONFIG.data) is None
  workdir.write_run(tmp_path, CONFIG, LANGUAGES)
  assert workdir.read_languages(tmp_path, CONFIG.data) == LANGUAGES
  assert (tmp_path / "vocabulary.target.txt").read_text("utf-8") == "il\ngatto\nè\n"
  # What a text is cut into, and whether it is lower-cased, is told by the config.
  source, target = workdir.read_languages(tmp_path, base.Data(unit="character", lowercase=True))
  assert source.tokenize("The c") == ("t", "h", "e", "▁", "c")
  assert target.detokenize(("i", "▁", "l")) == "i l"


def test_subwords_are_read_as_they_were_written(tmp_path):
  options = {"unit": "subword", "min_count": 1, "vocabulary_size": 280, "subwords": "bpe"}
  languages = tuple(
    Language.learn([text] * 3, lowercase=False, **options)
    for text in ("the cat sees the dog", "il gatto vede il cane")
  )
  data = dataclasses.replace(CONFIG.data, unit="subword")
  workdir.write_run(tmp_path, dataclasses.replace(CONFIG, data=data), languages)
  assert workdir.read_languages(tmp_path, data) == languages
  (tmp_path / "subwords.target.model").unlink()
  with pytest.raises(WorkdirError, match=r"there is no .*subwords\.target\.model$"):
    workdir.read_languages(tmp_path, data)
  (tmp_path / "subwords.target.model").write_bytes(b"mine")
  with pytest.raises(WorkdirError, match=r"subwords\.target\.model: model must be a sentencepiece model"):
    workdir.read_languages(tmp_path, data)


def test_languages_without_a_config_are_no_run(tmp_path):
  # What is left of a run that was killed while its folder was made; the next one may be another.
  workdir.write_run(tmp_path, CONFIG, LANGUAGES)
  (tmp_path / "config.json").unlink()
  assert workdir.read_languages(tmp_path, CONFIG.data) is None
  others = tuple(reversed(LANGUAGES))
  workdir.write_run(tmp_path, CONFIG, others)
  assert workdir.read_languages(tmp_path, CONFIG.data) == others


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_folder_is_no_run_before_its_languages_are_written(tmp_path, monkeypatch, side):
  save = Language.save

  def fail(language, folder, name):
    if name == side:
      raise OSError("disk full")
    save(language, folder, name)

  monkeypatch.setattr(Language, "save", fail)
  with pytest.raises(OSError):
    workdir.write_run(tmp_path, CONFIG, LANGUAGES)
  with pytest.raises(WorkdirError, match="holds no run"):
    workdir.read_config(tmp_path)


@pytest.mark.parametrize("name", ["checkpoints", "metrics.jsonl"])
def test_what_is_left_of_a_run_without_its_config_is_no_place_for_another(tmp_path, name):
  (tmp_path / name).mkdir()
  with pytest.raises(WorkdirError) as caught:
    workdir.check_same_config(tmp_path, CONFIG)
  assert name in _one_line(caught)


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_run_that_lost_a_vocabulary_is_an_error_that_names_the_file(tmp_path, side):
  workdir.write_run(tmp_path, CONFIG, LANGUAGES)
  path = tmp_path / f"vocabulary.{side}.txt"
  path.unlink()
  with pytest.raises(WorkdirError) as caught:
    workdir.read_languages(tmp_path, CONFIG.data)
  assert str(path) in _one_line(caught)


def test_json_replaces_the_file_and_leaves_no_other(tmp_path):
  path = tmp_path / "results.json"
  workdir.write_json(path, {"test": {"bleu": 1.0}})
  workdir.write_json(path, {"test": {"bleu": 2.5, "parola": "è"}})
  assert json.loads(path.read_text("utf-8")) == {"test": {"bleu": 2.5, "parola": "è"}}
  assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("fails", ["write", "replace"])
def test_json_that_cannot_be_written_leaves_the_old(tmp_path, monkeypatch, fails):
  path = tmp_path / "results.json"
  workdir.write_json(path, {"test": {"bleu": 1.0}})

  def fail_half_way(self, text, encoding):
    self.write_bytes(text[: len(text) // 2].encode(encoding))
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  def fail(*_):
    raise OSError(errno.EIO, os.strerror(errno.EIO))

  if fails == "write":
    monkeypatch.setattr(pathlib.Path, "write_text", fail_half_way)
  else:
    monkeypatch.setattr(os, "replace", fail)
  with pytest.raises(OSError, match=str(path)):
    workdir.write_json(path, {"test": {"bleu": 2.0}})
  assert json.loads(path.read_text("utf-8")) == {"test": {"bleu": 1.0}}
  assert list(tmp_path.iterdir()) == [path]


def test_text_that_cannot_be_written_names_the_file_and_leaves_no_other(tmp_path):
  path = tmp_path / "results.json"
  path.mkdir()
  with pytest.raises(IsADirectoryError) as caught:
    workdir.write_text(path, "text")
  assert caught.value.filename == str(path)
  assert list(tmp_path.iterdir()) == [path]


def test_metrics_are_one_object_a_line(tmp_path):
  with workdir.MetricsWriter(tmp_path, 0) as metrics:
    metrics.write(5, {"train/loss": 2.5, "train/error": 1.0})
    metrics.write(5, {"validation/bleu": 50.0})
  lines = (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()
  assert [json.loads(line) for line in lines] == [
    {"step": 5, "train/loss": 2.5, "train/error": 1.0},
    {"step": 5, "validation/bleu": 50.0},
  ]
  assert len(list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))) == 1


def test_speeds_are_for_tensorboard_alone(tmp_path):
  with workdir.MetricsWriter(tmp_path, 0) as metrics:
    metrics.write(5, {"train/loss": 2.5}, {"train/tokens_per_second": 731.0})
  assert workdir.read_metrics(tmp_path) == [{"step": 5, "train/loss": 2.5}]
  (events,) = (tmp_path / "tensorboard").glob("events.out.tfevents.*")
  content = events.read_bytes()
  assert b"train/loss" in content
  assert b"train/tokens_per_second" in content


def test_metrics_can_be_read_while_they_are_written(tmp_path):
  with workdir.MetricsWriter(tmp_path, 0) as metrics:
    metrics.write(5, {"train/loss": 2.5})
    assert workdir.read_metrics(tmp_path) == [{"step": 5, "train/loss": 2.5}]


def test_going_on_drops_the_records_of_steps_that_are_made_again(tmp_path):
  with workdir.MetricsWriter(tmp_path, 0) as metrics:
    for step in (5, 10, 15):
      metrics.write(step, {"train/loss": 20.0 - step})
  with workdir.MetricsWriter(tmp_path, 10) as metrics:
    metrics.write(15, {"train/loss": 0.5})
  assert workdir.read_metrics(tmp_path) == [
    {"step": 5, "train/loss": 15.0},
    {"step": 10, "train/loss": 10.0},
    {"step": 15, "train/loss": 0.5},
  ]


def test_a_last_line_that_was_cut_short_is_left_out(tmp_path):
  (tmp_path / "metrics.jsonl").write_text('{"step": 5, "train/loss": 2.5}\n{"step": 10, "tr', "utf-8")
  assert workdir.read_metrics(tmp_path) == [{"step": 5, "train/loss": 2.5}]
  with workdir.MetricsWriter(tmp_path, 10) as metrics:
    metrics.write(10, {"train/loss": 2.0})
  assert [record["step"] for record in workdir.read_metrics(tmp_path)] == [5, 10]


@pytest.mark.parametrize("part", ["_file", "_board"])
def test_a_full_disk_is_told_in_one_line_and_closing_hides_nothing(tmp_path, part):
  class Full:
    def __getattr__(self, name):
      return lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device"))

  with pytest.raises(WorkdirError) as caught, workdir.MetricsWriter(tmp_path, 0) as metrics:
    whole = getattr(metrics, part)
    setattr(metrics, part, Full())
    metrics.write(5, {"train/loss": 2.5})
  whole.close()
  assert _one_line(caught) == f"could not write {tmp_path}: No space left on device"


def test_damaged_metrics_are_told_in_one_line(tmp_path):
  (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 5}\n' + bytes(7) + b'\n{"step": 10}\n')
  with pytest.raises(WorkdirError, match=r"metrics\.jsonl: expected one JSON object a line") as caught:
    workdir.read_metrics(tmp_path)
  _one_line(caught)


def test_a_last_line_without_its_newline_is_read(tmp_path):
  (tmp_path / "metrics.jsonl").write_text('{"step": 5, "train/loss": 2.5}\n{"step": 7}', "utf-8")
  assert [record["step"] for record in workdir.read_metrics(tmp_path)] == [5, 7]


def test_metrics_that_are_no_numbers_are_told(tmp_path):
  (tmp_path / "metrics.jsonl").write_text('{"step": 5, "train/loss": "2.5"}\n', "utf-8")
  with pytest.raises(WorkdirError, match=r"metrics.jsonl: expected numbers, got .*'2.5'"):
    workdir.read_metrics(tmp_path)


@pytest.mark.parametrize("line", ["[]", "7", '{"loss": 0.5}', '{"step": "7"}'])
def test_metrics_of_another_shape_are_told(tmp_path, line):
  (tmp_path / "metrics.jsonl").write_text(f"{line}\n", "utf-8")
  with pytest.raises(WorkdirError, match=r"metrics.jsonl: .*line 1 (is no object|has no 'step')$"):
    workdir.read_metrics(tmp_path)


def test_later_files_without_the_earlier_ones_are_a_mistake(tmp_path):
  workdir.check_nothing_lost(tmp_path)
  workdir.write_json(tmp_path / "results.json", {})
  with pytest.raises(WorkdirError) as caught:
    workdir.check_nothing_lost(tmp_path)
  assert "holds the results of a run without its checkpoints" in _one_line(caught)
  (tmp_path / "checkpoints" / "30").mkdir(parents=True)
  with pytest.raises(WorkdirError) as caught:
    workdir.check_nothing_lost(tmp_path)
  assert _one_line(caught) == f"{tmp_path} holds the checkpoints of a run without its metrics.jsonl"
  (tmp_path / "metrics.jsonl").touch()
  workdir.check_nothing_lost(tmp_path)


def test_a_folder_without_metrics_has_none(tmp_path):
  assert workdir.read_metrics(tmp_path) == []


def test_the_closest_name_is_named_only_if_it_is_close():
  assert workdir.closest("batchsize", ["steps", "batch_size"]) == "; did you mean 'batch_size'?"
  assert workdir.closest("colour", ["steps", "batch_size"]) == ""
