"""Jobs in parallel, with short programs."""

import os
import signal
import sys
import threading
import time

import pytest

from experiments.cli.errors import Preempted
from experiments.comparison.job_runner import Job, run_all


@pytest.fixture
def make_job(tmp_path):
  """Returns a function that creates a job from a program. It is done when the program has written a file."""

  def job(name, program="open({done!r}, 'w')", is_taken=lambda: False):
    done = tmp_path / f"{name}.done"
    code = f"import sys, time, os; {program.format(done=str(done))}"
    log = tmp_path / "logs" / f"{name}.txt"
    return Job(name, [sys.executable, "-c", code], log, is_done=done.exists, is_taken=is_taken)

  return job


def test_finished_jobs_are_not_run(make_job, tmp_path):
  (tmp_path / "b.done").write_text("before")
  messages = []
  assert run_all([make_job(name) for name in "abc"], 2, messages.append) == []
  assert all((tmp_path / f"{name}.done").exists() for name in "abc")
  assert (tmp_path / "b.done").read_text() == "before" and not (tmp_path / "logs" / "b.txt").exists()
  assert messages[0] == "1 of 3 are already done"
  assert sum("started" in line for line in messages) == 2


@pytest.mark.parametrize(("num_parallel", "seconds"), [(1, 0.3), (3, 20)])
def test_parallel_jobs_are_limited(make_job, tmp_path, num_parallel, seconds):
  # Each job writes how many are running. Three wait until all have seen each other.
  program = (
    "count = lambda end: sum(name.endswith(end) for name in os.listdir(os.path.dirname({done!r})))\n"
    "here = {done!r} + '.running'; open(here, 'w')\n"
    f"end, most = time.time() + {seconds}, 0\n"
    "while time.time() < end and most < 3: time.sleep(0.01); most = max(most, count('.running'))\n"
    "open({done!r} + '.saw', 'w')\n"
    "while most == 3 and count('.saw') < 3: time.sleep(0.01)\n"
    "os.remove(here); open({done!r}, 'w').write(str(most))"
  )
  assert run_all([make_job(name, program) for name in "abc"], num_parallel, lambda _: None) == []
  assert [(tmp_path / f"{name}.done").read_text() for name in "abc"] == [str(num_parallel)] * 3


def test_failures_do_not_stop_others(make_job, tmp_path):
  messages = []
  failing = make_job("a", "print('error: no such thing'); sys.exit(2)")
  idle = make_job("b", "pass")  # it exits with code 0, but is not done
  assert run_all([failing, idle, make_job("c")], 1, messages.append) == ["a", "b"]
  assert "a failed with exit code 2: error: no such thing" in messages
  assert "b failed with exit code 0: no output" in messages
  assert "c is done; 0 left" in messages
  # Output of earlier starts is not shown.
  assert run_all([make_job("a", "os.kill(os.getpid(), 9)")], 1, messages.append) == ["a"]
  assert messages[-1] == "a failed with exit code -9: no output"
  assert "no such thing" in (tmp_path / "logs" / "a.txt").read_text()


def test_jobs_of_other_processes_are_awaited(make_job, tmp_path):
  taken = make_job("a", "raise SystemExit(2)", is_taken=lambda: not (tmp_path / "a.done").exists())
  messages = []
  threading.Timer(0.7, lambda: (tmp_path / "a.done").write_text("by another")).start()
  assert run_all([taken, make_job("b")], 1, messages.append) == []
  assert (tmp_path / "a.done").read_text() == "by another"
  assert "a was done by another process" in messages


def test_jobs_that_others_took_wait(make_job, tmp_path):
  # Another process takes the job after it has started here, and does it.
  is_taken = iter([False, True, True, False]).__next__
  job = make_job("a", "sys.exit(2)", is_taken)
  is_done = iter([False, False, False, True]).__next__
  messages = []
  assert run_all([job._replace(is_done=is_done)], 1, messages.append) == []
  assert messages[-1] == "a was done by another process"


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

  threading.Thread(target=stop, daemon=True).start()
  with pytest.raises(Preempted) as caught:
    run_all([make_job(name, patient) for name in "abc"], 2, lambda _: None)
  assert caught.value.code == 143
  assert sorted(path.name for path in tmp_path.glob("*.asked")) == ["a.done.asked", "b.done.asked"]
  assert not (tmp_path / "c.done.begun").exists()


def test_errors_stop_all_jobs(make_job, tmp_path):
  def fail():
    if (tmp_path / "a.done.begun").exists():
      raise OSError("no space left")
    return False

  job = make_job("a", "open({done!r} + '.begun', 'w'); time.sleep(60); open({done!r}, 'w')")
  start = time.monotonic()
  with pytest.raises(OSError, match="no space left"):
    run_all([job, make_job("b")._replace(is_done=fail)], 2, lambda line: time.sleep(1.0))
  assert time.monotonic() - start < 30 and not (tmp_path / "a.done").exists()
