"""One trainer at a time in a workdir."""

import contextlib
import fcntl
import os
import pathlib
import time
from collections.abc import Iterator

from experiments.runs.workdir import WorkdirError

# How often, and after how many seconds, a lock is tried: who asks whether there is one has it for a moment.
_LOOKS, _PAUSE = 5, 0.02


@contextlib.contextmanager
def workdir_lock(folder: pathlib.Path) -> Iterator[None]:
  """Keeps other trainers out of a folder until the block ends or this process does, however it does.

  Of several processes that train together, only one is to take it.

  Args:
    folder: the workdir; it is made.

  Raises:
    WorkdirError: if another process holds it.
  """
  folder.mkdir(parents=True, exist_ok=True)
  file = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
  try:
    try:
      _take(file)
    except BlockingIOError as error:
      holder = os.pread(file, 20, 0).decode("ascii", "replace").strip()
      raise WorkdirError(f"{folder}: another process trains here (pid {holder or 'unknown'})") from error
    os.ftruncate(file, 0)
    os.pwrite(file, f"{os.getpid()}\n".encode("ascii"), 0)
    yield  # the file stays: one that was removed could be locked twice, by its old and its new name
  finally:
    os.close(file)


def _take(file: int) -> None:
  """Locks a file, or raises BlockingIOError if somebody else has it, and not only for a look at it."""
  for _ in range(_LOOKS):
    with contextlib.suppress(BlockingIOError):
      return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    time.sleep(_PAUSE)
  fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(folder: pathlib.Path) -> bool:
  """Returns whether a process, this one or another, trains in a folder."""
  try:
    file = os.open(folder / ".lock", os.O_RDWR)
  except FileNotFoundError:
    return False
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return True
  finally:
    os.close(file)
  return False
