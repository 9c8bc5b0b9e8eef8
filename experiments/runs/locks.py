"""One training process at a time in a workdir."""

import contextlib
import pathlib
from collections.abc import Iterator

import filelock

from experiments.runs.workdir import WorkdirError


@contextlib.contextmanager
def workdir_lock(folder: pathlib.Path) -> Iterator[None]:
  """Locks a folder until the block, or this process, ends.

  Of several processes that train together, only one takes the lock.

  Args:
    folder: the workdir; it is created.

  Raises:
    WorkdirError: if another process has locked it.
  """
  folder.mkdir(parents=True, exist_ok=True)
  try:
    with filelock.FileLock(folder / ".lock", timeout=0.1):  # `is_locked` takes the lock for a moment
      yield
  except filelock.Timeout as error:
    raise WorkdirError(f"{folder}: another process trains here") from error


def is_locked(folder: pathlib.Path) -> bool:
  """Returns whether a process trains in a folder."""
  if not (folder / ".lock").exists():
    return False
  try:
    with filelock.FileLock(folder / ".lock", blocking=False):
      return False
  except filelock.Timeout:
    return True
