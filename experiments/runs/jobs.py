"""Programs that are run one after the other, or some at once, until all have done their work."""

import collections
import contextlib
import pathlib
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from experiments.commands.mistakes import Interrupted
from experiments.commands.stopping import stop_requests

_PAUSE = 0.2  # seconds between two looks at what runs
_BEGIN = "---- begins"  # the first line of each start in a log


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
  queue = _Queue(jobs, count, say)
  try:
    with stop_requests() as requested:
      while queue.waiting or queue.running:
        queue.begin()
        time.sleep(_PAUSE)
        if stop := requested():
          raise Interrupted("stopped; the same command continues from there", 128 + stop)
        queue.end()
  finally:  # whatever has ended this: nothing runs on by itself
    queue.terminate()
    for _, process, _ in queue.running.values():
      process.wait()
  return queue.failed


class _Queue:
  """Which jobs wait, which run, and which have failed."""

  def __init__(self, jobs: Sequence[Job], count: int, say: Callable[[str], None]):
    self.waiting = collections.deque(job for job in jobs if not job.is_done())
    self.running: dict[str, tuple[Job, subprocess.Popen, float]] = {}
    self.failed: list[str] = []
    self._count, self._say = count, say
    self._taken: set[str] = set()  # of which it has been said
    if len(self.waiting) < len(jobs):
      say(f"{len(jobs) - len(self.waiting)} of {len(jobs)} were done before")

  def begin(self) -> None:
    """Starts as many jobs as may run."""
    for _ in range(len(self.waiting)):
      if len(self.running) == self._count:
        return
      job = self.waiting.popleft()
      if job.is_done():
        self._say(f"{job.name} was done by another process")
      elif job.is_taken():
        self.waiting.append(job)
        if job.name not in self._taken:
          self._taken.add(job.name)
          self._say(f"{job.name}: another process is at it")
      else:
        self._say(f"{job.name} begins; its output: {job.log}")
        self.running[job.name] = job, _start(job), time.monotonic()

  def terminate(self) -> None:
    """Asks all that run to stop."""
    for _, process, _ in self.running.values():
      with contextlib.suppress(ProcessLookupError):
        process.terminate()

  def end(self) -> None:
    """Looks which jobs have ended, and how."""
    for name, (job, process, begin) in list(self.running.items()):
      if process.poll() is None:
        continue
      del self.running[name]
      if process.returncode == 0 and job.is_done():
        left = len(self.waiting) + len(self.running)
        self._say(f"{name} is done, in {time.monotonic() - begin:.0f} s; {left} to go")
      elif job.is_done() or job.is_taken():  # another process was faster
        self.waiting.append(job)
      else:
        self._say(f"{name} {_how_it_ended(process.returncode)}: {_last_line(job.log)}")
        self.failed.append(name)


def _start(job: Job) -> subprocess.Popen:
  job.log.parent.mkdir(parents=True, exist_ok=True)
  with job.log.open("ab") as log:
    log.write(f"{_BEGIN}\n".encode())
    log.flush()
    return subprocess.Popen(job.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _how_it_ended(code: int) -> str:
  """Returns what the exit code of a process says."""
  return f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"


def _last_line(path: pathlib.Path) -> str:
  """Returns the last line that was printed since the last start."""
  printed = path.read_text("utf-8", "replace").rpartition(f"{_BEGIN}\n")[2].split("\n")
  return next((line for line in reversed(printed) if line.strip()), "it printed nothing")
