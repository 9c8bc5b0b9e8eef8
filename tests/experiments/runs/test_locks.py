"""Tests of experiments/runs/locks.py."""

import fcntl
import multiprocessing
import os
import threading

import pytest

from experiments.runs.locks import workdir_lock
from experiments.runs.workdir import WorkdirError

_SERVER = multiprocessing.get_context("forkserver")


def _hold(folder, connection):
  with workdir_lock(folder):
    connection.send("locked")
    connection.recv()  # never comes


def test_a_folder_is_locked_until_its_holder_is_killed(tmp_path):
  folder = tmp_path / "runs" / "first"
  ours, theirs = _SERVER.Pipe()
  process = _SERVER.Process(target=_hold, args=(folder, theirs))
  process.start()
  try:
    assert ours.poll(60)
    ours.recv()
    with (
      pytest.raises(WorkdirError, match=rf"^{folder}: another process trains here$"),
      workdir_lock(folder),
    ):
      pass
  finally:
    process.kill()
    process.join()
  with workdir_lock(folder):
    pass


def test_a_folder_is_free_after_the_block_even_if_it_fails(tmp_path):
  with pytest.raises(KeyError), workdir_lock(tmp_path):
    raise KeyError
  with workdir_lock(tmp_path):
    pass


def test_the_same_process_cannot_lock_a_folder_twice(tmp_path):
  with workdir_lock(tmp_path):
    with pytest.raises(WorkdirError, match="another process trains here"), workdir_lock(tmp_path):
      pass
    with pytest.raises(WorkdirError), workdir_lock(tmp_path):  # the failure has freed nothing
      pass


def test_who_asks_whether_a_folder_is_locked_keeps_nobody_out(tmp_path):
  with workdir_lock(tmp_path):
    pass
  asking = os.open(tmp_path / ".lock", os.O_RDWR)
  fcntl.flock(asking, fcntl.LOCK_EX)
  threading.Timer(0.03, lambda: os.close(asking)).start()
  with workdir_lock(tmp_path):
    pass


def test_two_folders_are_two_locks(tmp_path):
  with workdir_lock(tmp_path / "first"), workdir_lock(tmp_path / "second"):
    pass
