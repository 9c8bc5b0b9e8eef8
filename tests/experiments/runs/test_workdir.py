"""Tests of experiments/runs/workdir.py."""

import errno
import fcntl
import json
import multiprocessing
import os
import pathlib
import threading

import pytest

from experiments.cli.io import write_text
from experiments.runs import workdir
from experiments.runs.workdir import WorkdirError, workdir_lock


def _one_line(caught):
  text = str(caught.value)
  assert "\n" not in text
  return text


@pytest.mark.parametrize("fails", ["write", "replace"])
def test_failed_writes_keep_old_files(tmp_path, monkeypatch, fails):
  path = tmp_path / "results.json"
  workdir.write_json(path, {"test": {"bleu": 1.0}})

  def fail_half_way(self, content):
    with self.open("wb") as file:
      file.write(content[: len(content) // 2])
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  def fail(*_):
    raise OSError(errno.EIO, os.strerror(errno.EIO))

  if fails == "write":
    monkeypatch.setattr(pathlib.Path, "write_bytes", fail_half_way)
  else:
    monkeypatch.setattr(os, "replace", fail)
  with pytest.raises(OSError, match=str(path)):
    workdir.write_json(path, {"test": {"bleu": 2.0}})
  assert json.loads(path.read_text("utf-8")) == {"test": {"bleu": 1.0}}
  assert list(tmp_path.iterdir()) == [path]


def test_failed_writes_name_the_file(tmp_path):
  path = tmp_path / "results.json"
  path.mkdir()
  with pytest.raises(IsADirectoryError) as caught:
    write_text(path, "text")
  assert caught.value.filename == str(path)
  assert list(tmp_path.iterdir()) == [path]


def test_metrics_are_json_lines(tmp_path):
  with workdir.MetricsWriter(tmp_path, 0) as metrics:
    metrics.write(5, {"train/loss": 2.5, "train/error": 1.0})
    metrics.write(5, {"validation/bleu": 50.0})
  lines = (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()
  assert [json.loads(line) for line in lines] == [
    {"step": 5, "train/loss": 2.5, "train/error": 1.0},
    {"step": 5, "validation/bleu": 50.0},
  ]
  assert len(list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))) == 1


def test_speeds_are_only_in_tensorboard(tmp_path):
  with workdir.MetricsWriter(tmp_path, 0) as metrics:
    metrics.write(5, {"train/loss": 2.5}, {"train/tokens_per_second": 731.0})
  assert workdir.read_metrics(tmp_path) == [{"step": 5, "train/loss": 2.5}]
  (events,) = (tmp_path / "tensorboard").glob("events.out.tfevents.*")
  content = events.read_bytes()
  assert b"train/loss" in content
  assert b"train/tokens_per_second" in content


def test_resuming_drops_later_records(tmp_path):
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


def test_truncated_lines_are_removed(tmp_path):
  (tmp_path / "metrics.jsonl").write_text('{"step": 5, "train/loss": 2.5}\n{"step": 10, "tr', "utf-8")
  assert workdir.read_metrics(tmp_path) == [{"step": 5, "train/loss": 2.5}]
  with workdir.MetricsWriter(tmp_path, 10) as metrics:
    metrics.write(10, {"train/loss": 2.0})
  assert [record["step"] for record in workdir.read_metrics(tmp_path)] == [5, 10]


@pytest.mark.parametrize("part", ["_file", "_board"])
def test_full_disks_are_one_line(tmp_path, part):
  class Full:
    def __getattr__(self, name):
      return lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device"))

  with pytest.raises(WorkdirError) as caught, workdir.MetricsWriter(tmp_path, 0) as metrics:
    original = getattr(metrics, part)
    setattr(metrics, part, Full())
    metrics.write(5, {"train/loss": 2.5})
  original.close()
  assert _one_line(caught) == f"cannot write to {tmp_path}: No space left on device"


def test_invalid_metrics_are_one_line(tmp_path):
  (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 5}\n' + bytes(7) + b'\n{"step": 10}\n')
  with pytest.raises(WorkdirError, match=r"metrics\.jsonl:2: invalid JSON") as caught:
    workdir.read_metrics(tmp_path)
  _one_line(caught)


def test_metrics_must_be_numbers(tmp_path):
  (tmp_path / "metrics.jsonl").write_text('{"step": 5, "train/loss": "2.5"}\n', "utf-8")
  with pytest.raises(WorkdirError, match=r"metrics\.jsonl:1: expected an object of numbers .*'2.5'"):
    workdir.read_metrics(tmp_path)


@pytest.mark.parametrize("line", ["[]", "7", '{"loss": 0.5}', '{"step": "7"}'])
def test_metrics_must_be_objects(tmp_path, line):
  (tmp_path / "metrics.jsonl").write_text(f"{line}\n", "utf-8")
  with pytest.raises(
    WorkdirError, match=r"metrics\.jsonl:1: expected an object of numbers with 'step', got "
  ):
    workdir.read_metrics(tmp_path)


def test_incomplete_runs_are_errors(tmp_path):
  workdir.check_complete(tmp_path)
  (tmp_path / "checkpoints" / "0").mkdir(parents=True)
  with pytest.raises(WorkdirError) as caught:
    workdir.check_complete(tmp_path)
  assert (
    _one_line(caught) == f"{tmp_path}: run.json is missing but checkpoints/ exists; pass another --workdir"
  )
  (tmp_path / "run.json").touch()  # a warm start that was killed immediately
  workdir.check_complete(tmp_path)
  workdir.write_json(tmp_path / "results.json", {})
  with pytest.raises(WorkdirError) as caught:
    workdir.check_complete(tmp_path)
  assert "checkpoints/ is missing but results.json exists" in _one_line(caught)
  (tmp_path / "checkpoints" / "30").mkdir(parents=True)
  with pytest.raises(WorkdirError) as caught:
    workdir.check_complete(tmp_path)
  assert "metrics.jsonl is missing but checkpoints/ exists" in _one_line(caught)
  (tmp_path / "metrics.jsonl").touch()
  workdir.check_complete(tmp_path)


_SERVER = multiprocessing.get_context("forkserver")


def _hold(folder, connection):
  with workdir_lock(folder):
    connection.send("locked")
    connection.recv()  # never returns


def test_locks_end_with_the_process(tmp_path):
  folder = tmp_path / "runs" / "first"
  receiver, sender = _SERVER.Pipe()
  process = _SERVER.Process(target=_hold, args=(folder, sender))
  process.start()
  try:
    assert receiver.poll(60)
    receiver.recv()
    with (
      pytest.raises(WorkdirError, match=rf"^{folder}: another process is training this run$"),
      workdir_lock(folder),
    ):
      pass
  finally:
    process.kill()
    process.join()
  with workdir_lock(folder):
    pass


def test_locks_end_with_the_block(tmp_path):
  with pytest.raises(KeyError), workdir_lock(tmp_path):
    raise KeyError
  with workdir_lock(tmp_path):
    pass


def test_short_locks_are_awaited(tmp_path):
  with workdir_lock(tmp_path):
    pass
  descriptor = os.open(tmp_path / ".lock", os.O_RDWR)
  fcntl.flock(descriptor, fcntl.LOCK_EX)
  threading.Timer(0.03, lambda: os.close(descriptor)).start()
  with workdir_lock(tmp_path):
    pass


def test_unfinished_last_lines_are_read(tmp_path):
  (tmp_path / "metrics.jsonl").write_text('{"step": 5, "train/loss": 2.5}\n{"step": 7}', "utf-8")
  assert [record["step"] for record in workdir.read_metrics(tmp_path)] == [5, 7]


def test_metrics_are_flushed(tmp_path):
  with workdir.MetricsWriter(tmp_path, 0) as metrics:
    metrics.write(5, {"train/loss": 2.5})
    assert workdir.read_metrics(tmp_path) == [{"step": 5, "train/loss": 2.5}]
