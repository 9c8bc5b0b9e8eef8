"""The folder of a run: metrics, locks, complete files."""

import fcntl
import json
import os
import pathlib
import re
import resource
import signal
import threading

import pytest

from experiments.runs import workdir
from experiments.runs.workdir import WorkdirError, workdir_lock


def test_failed_writes_keep_old_files(tmp_path, monkeypatch):
  path = tmp_path / "results.json"
  workdir.write_results(tmp_path, {"test": {"bleu": 1.0}})

  def fail_half_way(self, content):
    with self.open("wb") as file:
      file.write(content[: len(content) // 2])
    raise OSError(28, "No space left on device")

  def fail(*_):
    raise OSError(5, "Input/output error")

  for place, name, failure in ((pathlib.Path, "write_bytes", fail_half_way), (os, "replace", fail)):
    with monkeypatch.context() as patch, pytest.raises(OSError, match=re.escape(str(path))):
      patch.setattr(place, name, failure)
      workdir.write_results(tmp_path, {"test": {"bleu": 2.0}})
    assert workdir.read_results(tmp_path) == {"test": {"bleu": 1.0}}
    assert list(tmp_path.iterdir()) == [path]


def test_metrics_are_json_lines(tmp_path):
  records = [{"step": 5, "train/loss": 2.5, "train/error": 1.0}, {"step": 5, "validation/bleu": 50.0}]
  with workdir.MetricsWriter(tmp_path, 0) as metrics:
    metrics.write(5, {"train/loss": 2.5, "train/error": 1.0}, {"train/tokens_per_second": 731.0})
    assert workdir.read_metrics(tmp_path) == records[:1]  # they are flushed
    metrics.write(5, {"validation/bleu": 50.0})
  lines = (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()
  assert [json.loads(line) for line in lines] == workdir.read_metrics(tmp_path) == records
  (events,) = (tmp_path / "tensorboard").glob("events.out.tfevents.*")
  # Speeds are only here.
  assert all(name in events.read_bytes() for name in (b"train/loss", b"train/tokens_per_second"))


def test_resuming_drops_later_records(tmp_path):
  with workdir.MetricsWriter(tmp_path, 0) as metrics:
    for step in (5, 10, 15):
      metrics.write(step, {"train/loss": 20.0 - step})
  with workdir.MetricsWriter(tmp_path, 10) as metrics:
    metrics.write(15, {"train/loss": 0.5})
  records = workdir.read_metrics(tmp_path)
  assert [(record["step"], record["train/loss"]) for record in records] == [(5, 15.0), (10, 10.0), (15, 0.5)]


def test_incomplete_last_lines_are_removed(tmp_path):
  assert workdir.read_metrics(tmp_path) == []
  (tmp_path / "metrics.jsonl").write_text('{"step": 5, "train/loss": 2.5}\n{"step": 10, "tr', "utf-8")
  assert workdir.read_metrics(tmp_path) == [{"step": 5, "train/loss": 2.5}]
  with workdir.MetricsWriter(tmp_path, 10) as metrics:
    metrics.write(10, {"train/loss": 2.0})
  assert [record["step"] for record in workdir.read_metrics(tmp_path)] == [5, 10]


INVALID = [
  ("\0\0\0", "metrics.jsonl:2: invalid JSON"),
  ('{"step": 7, "train/loss": "2.5"}', "metrics.jsonl:2: expected an object of numbers .*'2.5'"),
  ('{"loss": 0.5}', "metrics.jsonl:2: expected an object of numbers with 'step', got"),
  ('{"step": "7"}', "metrics.jsonl:2: expected an object of numbers with 'step', got"),
]


@pytest.mark.parametrize(("line", "message"), INVALID)
def test_invalid_metrics_are_errors(tmp_path, line, message):
  (tmp_path / "metrics.jsonl").write_text(f'{{"step": 5}}\n{line}\n{{"step": 10}}\n', "utf-8")
  with pytest.raises(WorkdirError, match=f"{message}.*$"):  # one line
    workdir.read_metrics(tmp_path)


def test_full_disks_are_one_line(tmp_path):
  before, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
  with workdir.MetricsWriter(tmp_path, 0) as metrics:
    try:
      resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
      with pytest.raises(WorkdirError, match=re.escape(f"cannot write to {tmp_path}: File too large")):
        metrics.write(5, {"train/loss": 2.5})
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, limits)
      signal.signal(signal.SIGXFSZ, before)


RUNS = [
  ((), ""),
  (("checkpoints/0",), "run.json is missing but checkpoints/ exists"),
  (("metrics.jsonl",), "run.json is missing but metrics.jsonl exists"),
  (("run.json", "checkpoints/0"), ""),  # a warm start that was killed immediately
  (("run.json", "checkpoints/0", "results.json"), "checkpoints/ is missing but results.json exists"),
  (("run.json", "checkpoints/30"), "metrics.jsonl is missing but checkpoints/ exists"),
  (("run.json", "checkpoints/30", "metrics.jsonl", "results.json"), ""),
]


@pytest.mark.parametrize(("names", "message"), RUNS)
def test_incomplete_runs_are_errors(tmp_path, names, message):
  for name in names:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
  if not message:
    workdir.check_complete(tmp_path)
    return
  with pytest.raises(WorkdirError, match=f"^{re.escape(str(tmp_path))}: {message}; pass another --workdir$"):
    workdir.check_complete(tmp_path)


def test_locks_exclude_other_processes(tmp_path):
  folder = tmp_path / "runs" / "first"
  assert not workdir.is_locked(folder)
  with pytest.raises(KeyError), workdir_lock(folder):
    assert workdir.is_locked(folder)
    raise KeyError
  assert not workdir.is_locked(folder)
  descriptor = os.open(folder / ".lock", os.O_RDWR)
  fcntl.flock(descriptor, fcntl.LOCK_EX)  # as another process does
  assert workdir.is_locked(folder)
  with pytest.raises(WorkdirError, match=re.escape(f"{folder}: another process is training this run")):
    workdir_lock(folder).__enter__()
  # A short lock, such as that of is_locked, is awaited.
  threading.Timer(0.03, lambda: os.close(descriptor)).start()
  with workdir_lock(folder):
    pass
