"""Runs programs, several at a time, until each has done its work."""

import pathlib
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from experiments.cli.errors import Preempted
from experiments.cli.signals import stop_requests

_PAUSE = 0.2  # seconds between polls
_BEGIN = "---- begins"  # the first line of each start in a log


class Job(NamedTuple):
  """A program.

  Attributes:
    name: for messages.
    command: the program and its arguments; started again, it resumes.
    log: file to which its output is appended.
    is_done: returns whether its work is done, by this process or another.
    is_taken: returns whether a process is working on it.
  """

  name: str
  command: Sequence[str]
  log: pathlib.Path
  is_done: Callable[[], bool]
  is_taken: Callable[[], bool]


def run_all(jobs: Sequence[Job], count: int, print_primary: Callable[[str], None] = print) -> list[str]:
  """Runs jobs, `count` at a time, until each is done or has failed; waits for those of other processes.

  Returns:
    The names of those that failed.

  Raises:
    Preempted: after Ctrl-C or SIGTERM, when the running programs have stopped.
  """
  waiting = [job for job in jobs if not job.is_done()]
  running: list[tuple[Job, subprocess.Popen]] = []
  failed = []
  if len(waiting) < len(jobs):
    print_primary(f"{len(jobs) - len(waiting)} of {len(jobs)} were done before")
  try:
    with stop_requests() as requested:
      while waiting or running:
        for job in [job for job in waiting if not job.is_taken()][: count - len(running)]:
          waiting.remove(job)
          if job.is_done():
            print_primary(f"{job.name} was done by another process")
          else:
            print_primary(f"{job.name} begins; its output: {job.log}")
            running.append((job, _start(job)))
        time.sleep(_PAUSE)
        if stop := requested():
          raise Preempted("stopped; the same command continues from there", stop)
        for job, process in [(job, process) for job, process in running if process.poll() is not None]:
          running.remove((job, process))
          if job.is_done():
            print_primary(f"{job.name} is done; {len(waiting) + len(running)} to go")
          elif job.is_taken():  # another process was faster
            waiting.append(job)
          else:
            print_primary(f"{job.name} failed with exit code {process.returncode}: {_last_line(job.log)}")
            failed.append(job.name)
  finally:
    for _, process in running:
      process.terminate()
    for _, process in running:
      process.wait()
  return failed


def _start(job: Job) -> subprocess.Popen:
  job.log.parent.mkdir(parents=True, exist_ok=True)
  with job.log.open("ab") as log:
    log.write(f"{_BEGIN}\n".encode())
    log.flush()
    return subprocess.Popen(job.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _last_line(path: pathlib.Path) -> str:
  """Returns the last line that was printed since the last start."""
  printed = path.read_text("utf-8", "replace").rpartition(f"{_BEGIN}\n")[2].split("\n")
  return next((line for line in reversed(printed) if line.strip()), "it printed nothing")
