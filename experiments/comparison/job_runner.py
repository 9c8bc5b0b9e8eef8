"""Runs programs in parallel."""

import pathlib
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from experiments.cli.errors import Preempted
from experiments.cli.signals import stop_requests

_POLL_SECONDS = 0.2
_START_LINE = "---- start"  # first line of each start in a log file


class Job(NamedTuple):
  """A program to run.

  Attributes:
    name: name for messages.
    command: program and arguments. If it is started again, it resumes.
    log: file that its output is appended to.
    is_done: returns whether the job is done, by this process or another.
    is_taken: returns whether a process is running the job.
  """

  name: str
  command: Sequence[str]
  log: pathlib.Path
  is_done: Callable[[], bool]
  is_taken: Callable[[], bool]


def run_all(jobs: Sequence[Job], num_parallel: int, print_fn: Callable[[str], None] = print) -> list[str]:
  """Runs all jobs until they are done or have failed. Jobs that other processes run are waited for.

  Args:
    jobs: jobs to run.
    num_parallel: maximum number of jobs running in parallel.
    print_fn: called with progress messages.

  Returns:
    The names of failed jobs.

  Raises:
    Preempted: after Ctrl-C or SIGTERM, once the running programs have stopped.
  """
  waiting = [job for job in jobs if not job.is_done()]
  running: list[tuple[Job, subprocess.Popen]] = []
  failed = []
  if len(waiting) < len(jobs):
    print_fn(f"{len(jobs) - len(waiting)} of {len(jobs)} are already done")
  try:
    with stop_requests() as requested:
      while waiting or running:
        for job in [job for job in waiting if not job.is_taken()][: num_parallel - len(running)]:
          waiting.remove(job)
          if job.is_done():
            print_fn(f"{job.name} was done by another process")
          else:
            print_fn(f"{job.name} started; output: {job.log}")
            running.append((job, _start(job)))
        time.sleep(_POLL_SECONDS)
        if stop := requested():
          raise Preempted("stopped; run the same command again to resume", stop)
        for job, process in [(job, process) for job, process in running if process.poll() is not None]:
          running.remove((job, process))
          if job.is_done():
            print_fn(f"{job.name} is done; {len(waiting) + len(running)} left")
          elif job.is_taken():  # another process was faster
            waiting.append(job)
          else:
            print_fn(f"{job.name} failed with exit code {process.returncode}: {_last_line(job.log)}")
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
    log.write(f"{_START_LINE}\n".encode())
    log.flush()
    return subprocess.Popen(job.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _last_line(path: pathlib.Path) -> str:
  """Returns the last line that a job printed since its last start."""
  output = path.read_text("utf-8", "replace").rpartition(f"{_START_LINE}\n")[2].split("\n")
  return next((line for line in reversed(output) if line.strip()), "no output")
