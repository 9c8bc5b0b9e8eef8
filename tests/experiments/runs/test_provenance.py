"""Tests of experiments/runs/provenance.py."""

import datetime
import json
import pathlib
import platform
import subprocess
import sys

import jax
import numpy as np
import pytest

from configs import base
from experiments.cli.errors import DataError, UserError
from experiments.runs import provenance
from experiments.runs.provenance import (
  check_same_data,
  check_same_vocabularies,
  describe_launch,
  digests,
  record_launch,
  vocabulary_digest,
)
from experiments.runs.workdir import WorkdirError


@pytest.fixture
def data(tmp_path):
  """A data config with two files."""
  for name in ("train", "validation"):
    (tmp_path / f"{name}.tsv").write_text(f"{name}\tx\n", "utf-8")
  return base.Data(
    task="parallel_text",
    train_file=str(tmp_path / "train.tsv"),
    validation_file=str(tmp_path / "validation.tsv"),
  )


def test_launches_describe_the_process():
  launch = describe_launch({})
  assert launch == json.loads(json.dumps(launch))
  assert launch["versions"]["jax"] == jax.__version__
  assert launch["versions"]["numpy"] == np.__version__
  assert set(launch["versions"]) == set(provenance.PACKAGES)
  assert launch["python"] == platform.python_version()
  assert launch["device"] == f"cpu: {jax.devices()[0].device_kind}"
  assert (launch["devices"], launch["processes"]) == (8, 1)
  assert launch["command"][0] == sys.executable
  assert launch["data"] == {}
  age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(launch["time"])
  assert -1 < age.total_seconds() < 60


@pytest.mark.parametrize("error", [FileNotFoundError(), subprocess.TimeoutExpired("git", 20)])
def test_git_is_optional(monkeypatch, error):
  def fail(*_, **__):
    raise error

  monkeypatch.setattr(subprocess, "run", fail)
  launch = describe_launch({})
  assert launch["commit"] is None
  assert launch["has_local_changes"] is None


def test_unreadable_files_are_errors(data, tmp_path):
  data.test_file = str(tmp_path / "nothing.tsv")
  with pytest.raises(DataError) as caught:
    digests(paths(data))
  assert isinstance(caught.value, UserError)
  assert str(caught.value) == f"{data.test_file}: cannot read the file: No such file or directory"


def paths(data):
  return {name: getattr(data, name) for name in ("train_file", "validation_file", "test_file")}


def start_run(folder, launch):
  """Starts a run like training does."""
  record_launch(folder, launch)
  (folder / "config.json").write_text("{}", "utf-8")


def test_changed_files_are_errors(data, tmp_path):
  check_same_data(tmp_path, paths(data))  # a new run
  start_run(tmp_path, {"data": digests(paths(data))})
  check_same_data(tmp_path, paths(data))
  with open(data.validation_file, "a", encoding="utf-8") as file:
    file.write("more\ty\n")
  record_launch(tmp_path, {"data": digests(paths(data))})  # the first launch counts
  with pytest.raises(DataError) as caught:
    check_same_data(tmp_path, paths(data))
  message = f"file has changed since the run in {tmp_path} began; pass another --workdir"
  assert str(caught.value) == f"{data.validation_file}: {message}"


def test_files_may_be_moved(data, tmp_path):
  start_run(tmp_path, {"data": digests(paths(data))})
  moved = tmp_path / "elsewhere.tsv"
  pathlib.Path(data.train_file).rename(moved)
  check_same_data(tmp_path, paths(data) | {"train_file": str(moved)})
  with pytest.raises(DataError, match=r"elsewhere\.tsv: file has changed since the run"):
    check_same_data(tmp_path, {"validation_file": str(moved)})


def test_killed_starts_do_not_count(data, tmp_path):
  record_launch(tmp_path, {"data": dict.fromkeys(digests(paths(data)), "another")})
  start_run(tmp_path, {"data": digests(paths(data))})
  check_same_data(tmp_path, paths(data))
  assert len((tmp_path / "launches.jsonl").read_text("utf-8").splitlines()) == 1


def test_missing_launches_are_errors(data, tmp_path):
  start_run(tmp_path, {"data": digests(paths(data))})
  (tmp_path / "launches.jsonl").unlink()
  check_same_data(tmp_path, {})  # a run without files
  with pytest.raises(WorkdirError) as caught:
    check_same_data(tmp_path, paths(data))
  assert str(caught.value) == (
    f"{tmp_path}: launches.jsonl is missing, so the data of the run cannot be checked"
  )


@pytest.mark.parametrize("line", ["[]", "3", "null", '{"data": []}', "{}"])
def test_invalid_launches_are_errors(data, tmp_path, line):
  start_run(tmp_path, {"data": digests(paths(data))})
  (tmp_path / "launches.jsonl").write_text(f"{line}\n", "utf-8")
  with pytest.raises(WorkdirError, match=r"launches.jsonl: .*line 1 (is not an object|has no valid 'data')$"):
    check_same_data(tmp_path, paths(data))


def test_truncated_lines_are_ignored(data, tmp_path):
  start_run(tmp_path, {"data": digests(paths(data))})
  with (tmp_path / "launches.jsonl").open("a", encoding="utf-8") as file:
    file.write('{"data": {"a')
  record_launch(tmp_path, {"data": {}})
  check_same_data(tmp_path, paths(data))
  with pytest.raises(DataError):
    check_same_data(tmp_path, {"train_file": data.validation_file})


def test_changed_vocabularies_are_errors(tmp_path):
  first, second = ("a", "b"), ("b", "a")
  record_launch(tmp_path, {"data": {}, "vocabularies": vocabulary_digest((second, first))})
  check_same_vocabularies(tmp_path, (first, second))  # that start was killed before the run began
  start_run(tmp_path, {"data": {}, "vocabularies": vocabulary_digest((first, second))})
  check_same_vocabularies(tmp_path, (first, second))
  for words in ((second, first), (first, first)):
    with pytest.raises(WorkdirError, match="the vocabularies have changed since the run began"):
      check_same_vocabularies(tmp_path, words)
