"""Tests of experiments/comparison/job_runner.py, with short programs."""

import os
import signal
import sys
import threading
import time

import pytest

from experiments.cli.errors import Preempted
from experiments.comparison.job_runner import Job, run_all
from experiments.runs.workdir import is_locked, workdir_lock


@pytest.fixture
def make_job(tmp_path):
  """Returns a function that creates a job from a program. It is done when the program has written a file."""

  def job(name, program="open({done!r}, 'w')", is_taken=lambda: False):
    done = tmp_path / f"{name}.done"
    code = f"import sys, time; {program.format(done=str(done))}"
    log = tmp_path / "logs" / f"{name}.txt"
    return Job(name, [sys.executable, "-c", code], log, is_done=done.exists, is_taken=is_taken)

  return job


def test_finished_jobs_are_not_run(make_job, tmp_path):
  (tmp_path / "b.done").write_text("before")
  messages = []
  assert run_all([make_job(name) for name in "abc"], 2, messages.append) == []
  assert all((tmp_path / f"{name}.done").exists() for name in "abc")
  assert (tmp_path / "b.done").read_text() == "before"
  assert messages[0] == "1 of 3 are already done"
  assert sum("started" in line for line in messages) == 2
  assert not (tmp_path / "logs" / "b.txt").exists()


def test_jobs_run_in_parallel(make_job, tmp_path):
  # Each job waits until all three have started.
  wait = (
    "open({done!r} + '.begun', 'w'); import glob, os; folder = os.path.dirname({done!r})\n"
    "end = time.time() + 20\n"
    "while len(glob.glob(folder + '/*.begun')) < 3 and time.time() < end: time.sleep(0.01)\n"
    "if time.time() < end: open({done!r}, 'w')"
  )
  assert run_all([make_job(name, wait) for name in "abc"], 3, lambda _: None) == []


def test_failures_do_not_stop_others(make_job, tmp_path):
  messages = []
  failing = make_job("a", "print('error: no such thing'); sys.exit(2)")
  idle = make_job("b", "pass")  # it exits with code 0, but is not done
  assert run_all([failing, idle, make_job("c")], 1, messages.append) == ["a", "b"]
  assert "a failed with exit code 2: error: no such thing" in messages
  assert "b failed with exit code 0: no output" in messages
  # Output of earlier starts is not shown.
  assert run_all([make_job("a", "import os; os.kill(os.getpid(), 9)")], 1, messages.append) == ["a"]
  assert messages[-1] == "a failed with exit code -9: no output"
  assert (tmp_path / "c.done").exists()


def test_jobs_of_other_processes_are_awaited(make_job, tmp_path):
  taken = make_job("a", "raise SystemExit(2)", is_taken=lambda: not (tmp_path / "a.done").exists())
  messages = []
  threading.Timer(1.0, lambda: (tmp_path / "a.done").write_text("by another")).start()
  assert run_all([taken, make_job("b")], 1, messages.append) == []
  assert (tmp_path / "a.done").read_text() == "by another"
  assert "a was done by another process" in messages


def test_signals_stop_all_jobs(make_job, tmp_path):
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
    run_all([make_job(name, patient) for name in "abc"], 2, lambda _: None)
  assert caught.value.code == 143
  assert sorted(path.name for path in tmp_path.glob("*.asked")) == ["a.done.asked", "b.done.asked"]
  assert not (tmp_path / "c.done.begun").exists()


def test_errors_stop_all_jobs(make_job, tmp_path):
  job = make_job("a", "open({done!r} + '.begun', 'w'); time.sleep(60); open({done!r}, 'w')")

  def fail():
    if (tmp_path / "a.done.begun").exists():
      raise OSError("no space left")
    return False

  waiting = make_job("b")._replace(is_done=fail)
  start = time.monotonic()
  with pytest.raises(OSError, match="no space left"):
    run_all([job, waiting], 2, lambda line: time.sleep(1.0))
  assert time.monotonic() - start < 30
  assert not (tmp_path / "a.done").exists()


def test_locks_are_visible(tmp_path):
  assert not is_locked(tmp_path / "none")
  with workdir_lock(tmp_path):
    assert is_locked(tmp_path)
  assert not is_locked(tmp_path)


def test_one_job_at_a_time(make_job, tmp_path):
  exclusive = (
    "import os; lock = os.path.dirname({done!r}) + '/running'\n"
    "assert not os.path.exists(lock); open(lock, 'w'); time.sleep(0.3); os.remove(lock)\n"
    "open({done!r}, 'w')"
  )
  assert run_all([make_job(name, exclusive) for name in "ab"], 1, lambda _: None) == []
