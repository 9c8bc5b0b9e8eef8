"""Tests of experiments/runs/job_runner.py, with programs of one line."""

import os
import signal
import sys
import threading
import time

import pytest

from experiments.cli.errors import Preempted
from experiments.runs.job_runner import Job, run_all
from experiments.runs.workdir import is_locked, workdir_lock


@pytest.fixture
def make(tmp_path):
  """Gives a function that makes a job, done once its file is there, from what its program does."""

  def job(name, program="open({done!r}, 'w')", is_taken=lambda: False):
    done = tmp_path / f"{name}.done"
    code = f"import sys, time; {program.format(done=str(done))}"
    log = tmp_path / "logs" / f"{name}.txt"
    return Job(name, [sys.executable, "-c", code], log, is_done=done.exists, is_taken=is_taken)

  return job


def test_finished_jobs_are_not_run(make, tmp_path):
  (tmp_path / "b.done").write_text("before")
  said = []
  assert run_all([make(name) for name in "abc"], 2, said.append) == []
  assert all((tmp_path / f"{name}.done").exists() for name in "abc")
  assert (tmp_path / "b.done").read_text() == "before"
  assert said[0] == "1 of 3 were done before"
  assert sum("begins" in line for line in said) == 2
  assert not (tmp_path / "logs" / "b.txt").exists()


def test_jobs_run_in_parallel(make, tmp_path):
  # Each waits until all three have begun.
  wait = (
    "open({done!r} + '.begun', 'w'); import glob, os; folder = os.path.dirname({done!r})\n"
    "end = time.time() + 20\n"
    "while len(glob.glob(folder + '/*.begun')) < 3 and time.time() < end: time.sleep(0.01)\n"
    "if time.time() < end: open({done!r}, 'w')"
  )
  assert run_all([make(name, wait) for name in "abc"], 3, lambda _: None) == []


def test_failures_stop_no_other_job(make, tmp_path):
  said = []
  failing = make("a", "print('error: no such thing'); sys.exit(2)")
  idle = make("b", "pass")  # it ends well, and has not done its work
  assert run_all([failing, idle, make("c")], 1, said.append) == ["a", "b"]
  assert "a failed with exit code 2: error: no such thing" in said
  assert "b failed with exit code 0: it printed nothing" in said
  # What an earlier start has printed says nothing of this one.
  assert run_all([make("a", "import os; os.kill(os.getpid(), 9)")], 1, said.append) == ["a"]
  assert said[-1] == "a failed with exit code -9: it printed nothing"
  assert (tmp_path / "c.done").exists()


def test_jobs_of_others_are_awaited(make, tmp_path):
  taken = make("a", "raise SystemExit(2)", is_taken=lambda: not (tmp_path / "a.done").exists())
  said = []
  threading.Timer(1.0, lambda: (tmp_path / "a.done").write_text("by another")).start()
  assert run_all([taken, make("b")], 1, said.append) == []
  assert (tmp_path / "a.done").read_text() == "by another"
  assert "a was done by another process" in said


def test_signals_stop_all_jobs(make, tmp_path):
  patient = (
    "import signal\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(open({done!r} + '.asked', 'w') and 143))\n"
    "open({done!r} + '.begun', 'w'); time.sleep(30)"
  )

  def stop():
    while len(list(tmp_path.glob("*.begun"))) < 2:
      time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)

  threading.Thread(target=stop).start()
  with pytest.raises(Preempted) as caught:
    run_all([make(name, patient) for name in "abc"], 2, lambda _: None)
  assert caught.value.code == 143
  assert sorted(path.name for path in tmp_path.glob("*.asked")) == ["a.done.asked", "b.done.asked"]
  assert not (tmp_path / "c.done.begun").exists()


def test_errors_stop_all_jobs(make, tmp_path):
  job = make("a", "open({done!r} + '.begun', 'w'); time.sleep(60); open({done!r}, 'w')")

  def fail():
    if (tmp_path / "a.done.begun").exists():
      raise OSError("no space left")
    return False

  waiting = make("b")._replace(is_done=fail)
  begin = time.monotonic()
  with pytest.raises(OSError, match="no space left"):
    run_all([job, waiting], 2, lambda line: time.sleep(1.0))
  assert time.monotonic() - begin < 30
  assert not (tmp_path / "a.done").exists()


def test_locks_can_be_seen(tmp_path):
  assert not is_locked(tmp_path / "none")
  with workdir_lock(tmp_path):
    assert is_locked(tmp_path)
  assert not is_locked(tmp_path)


def test_one_job_at_a_time(make, tmp_path):
  alone = (
    "import os; other = os.path.dirname({done!r}) + '/running'\n"
    "assert not os.path.exists(other); open(other, 'w'); time.sleep(0.3); os.remove(other)\n"
    "open({done!r}, 'w')"
  )
  assert run_all([make(name, alone) for name in "ab"], 1, lambda _: None) == []
