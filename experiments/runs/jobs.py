"""Programs that are run one after the other, or some at once, until all have done their work."""

import collections
import contextlib
import pathlib
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from experiments.commands.mistakes import Interrupted
from experiments.runs.stopping import stop_requests

_PAUSE = 0.2  # seconds between two looks at what runs


class Job(NamedTuple):
  """A program, and what says how far it is.

  Attributes:
    name: what it is called.
    command: the program and its arguments; started again, it goes on where it stopped.
    log: the file to which all that it prints is added.
    is_done: tells whether its work is done, by this process or another.
    is_taken: tells whether a process is at it.
  """

  name: str
  command: Sequence[str]
  log: pathlib.Path
  is_done: Callable[[], bool]
  is_taken: Callable[[], bool]


def run_all(jobs: Sequence[Job], count: int, say: Callable[[str], None] = print) -> list[str]:
  """Runs jobs, `count` at once, until each is done or has failed.

  One that another process is at, such as one that a killed caller has left, is waited for.

  Returns:
    The names of those that failed.

  Raises:
    Interrupted: after Ctrl-C or SIGTERM, when those that ran have stopped as well.
  """
  waiting = collections.deque(job for job in jobs if not job.is_done())
  running: dict[str, tuple[Job, subprocess.Popen, float]] = {}
  failed: list[str] = []
  if len(waiting) < len(jobs):
    say(f"{len(jobs) - len(waiting)} of {len(jobs)} were done before")
  told: set[str] = set()
  with stop_requests() as requested:
    while waiting or running:
      for _ in range(len(waiting) if len(running) < count else 0):
        job = waiting.popleft()
        if job.is_done():
          say(f"{job.name} was done by another process")
        elif job.is_taken():
          if job.name not in told:
            say(f"{job.name}: another process is at it")
          told.add(job.name)
          waiting.append(job)
        else:
          say(f"{job.name} begins; its output: {job.log}")
          running[job.name] = job, _start(job), time.monotonic()
          if len(running) == count:
            break
      time.sleep(_PAUSE)
      if stop := requested():
        _stop([process for _, process, _ in running.values()])
        raise Interrupted("stopped; the same command continues from there", 128 + stop)
      for name, (job, process, begin) in list(running.items()):
        if process.poll() is None:
          continue
        del running[name]
        seconds = time.monotonic() - begin
        if process.returncode == 0 and job.is_done():
          say(f"{name} is done, in {seconds:.0f} s; {len(waiting) + len(running)} to go")
        elif job.is_taken():  # another process was faster
          waiting.append(job)
        else:
          say(f"{name} failed with exit code {process.returncode}: {_last_line(job.log)}")
          failed.append(name)
  return failed


def _start(job: Job) -> subprocess.Popen:
  job.log.parent.mkdir(parents=True, exist_ok=True)
  with job.log.open("ab") as log:
    return subprocess.Popen(job.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _stop(processes: Sequence[subprocess.Popen]) -> None:
  """Asks processes to stop, and waits until they have."""
  for process in processes:
    with contextlib.suppress(ProcessLookupError):
      process.terminate()
  for process in processes:
    process.wait()


def _last_line(path: pathlib.Path) -> str:
  lines = path.read_text("utf-8", "replace").split("\n")
  return next((line for line in reversed(lines) if line.strip()), "it printed nothing")
