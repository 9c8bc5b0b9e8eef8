"""Tests of experiments/translation/provenance.py."""

import datetime
import hashlib
import json
import pathlib
import platform
import subprocess
import sys

import jax
import numpy as np
import pytest
import scripts

from configs import base
from experiments.translation import provenance
from experiments.translation.mistakes import Mistake
from experiments.translation.pairs import DataError
from experiments.translation.provenance import check_same_data, describe_launch, digests, record_launch


@pytest.fixture
def data(tmp_path):
  """Gives data of two files."""
  for name in ("train", "validation"):
    (tmp_path / f"{name}.tsv").write_text(f"{name}\tx\n", "utf-8")
  return base.Data(
    task="parallel_text", train=str(tmp_path / "train.tsv"), validation=str(tmp_path / "validation.tsv")
  )


def test_a_launch_tells_the_versions_the_device_and_the_command():
  launch = describe_launch(base.Config())
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


def test_a_launch_tells_the_commit():
  head = subprocess.run(
    ["git", "rev-parse", "HEAD"], cwd=scripts.ROOT, capture_output=True, text=True, check=False
  )
  assert describe_launch(base.Config())["commit"] == (head.stdout.strip() or None)


@pytest.mark.parametrize("error", [FileNotFoundError(), subprocess.TimeoutExpired("git", 20)])
def test_without_git_there_is_no_commit(monkeypatch, error):
  def fail(*_, **__):
    raise error

  monkeypatch.setattr(subprocess, "run", fail)
  launch = describe_launch(base.Config())
  assert launch["commit"] is None
  assert launch["has_local_changes"] is None


def test_digests_are_those_of_the_files(data):
  paths = data.train, data.validation
  expected = {path: hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest() for path in paths}
  assert digests(data) == expected
  assert digests(base.Data()) == {}


def test_a_file_that_cannot_be_read_is_named(data, tmp_path):
  data.test = str(tmp_path / "nothing.tsv")
  with pytest.raises(DataError) as caught:
    digests(data)
  assert isinstance(caught.value, Mistake)
  assert str(caught.value) == f"{data.test}: expected a readable file, got: No such file or directory"


def test_a_changed_file_is_refused_for_good(data, tmp_path):
  check_same_data(tmp_path, digests(data))  # a run that begins
  record_launch(tmp_path, {"data": digests(data)})
  check_same_data(tmp_path, digests(data))
  with open(data.validation, "a", encoding="utf-8") as file:
    file.write("more\ty\n")
  record_launch(tmp_path, {"data": digests(data)})  # what counts is how the run began
  with pytest.raises(DataError) as caught:
    check_same_data(tmp_path, digests(data))
  expected = f"{data.validation}: expected the file that the run in {tmp_path} began with, got a changed one"
  assert str(caught.value) == expected


def test_each_launch_is_a_line(tmp_path):
  launches = [{"command": ["a\nb"]}, {"command": ["c"]}]
  for launch in launches:
    record_launch(tmp_path, launch)
  lines = (tmp_path / "launches.jsonl").read_text("utf-8").splitlines()
  assert [json.loads(line) for line in lines] == launches


def test_a_line_that_was_cut_short_is_no_obstacle(data, tmp_path):
  (tmp_path / "launches.jsonl").write_text('{"data": {"a', "utf-8")
  check_same_data(tmp_path, digests(data))
  record_launch(tmp_path, {"data": digests(data)})
  check_same_data(tmp_path, digests(data))
  with pytest.raises(DataError):
    check_same_data(tmp_path, dict.fromkeys(digests(data), "another"))


def test_files_that_are_not_asked_about_may_be_gone(data, tmp_path):
  record_launch(tmp_path, {"data": digests(data)})
  pathlib.Path(data.train).unlink()
  check_same_data(tmp_path, digests(data, ("validation", "test")))
