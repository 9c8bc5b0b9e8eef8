"""Coordination of several processes. With a single process, all functions are trivial."""

import atexit
import contextlib
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments.cli.errors import Preempted, UserError


class ProcessError(UserError):
  """Processes that cannot train together."""


def is_primary() -> bool:
  """Returns whether this is process 0, which writes files and prints."""
  return jax.process_index() == 0


def print_primary(text: str) -> None:
  """Prints a line in process 0 only."""
  if is_primary():
    print(text, flush=True)


def max_over_processes(value: int) -> int:
  """Returns the maximum of a value over all processes. All processes must call it."""
  if jax.process_count() == 1:
    return value
  return int(np.max(multihost_utils.process_allgather(np.int32(value))))


def broadcast_primary(value: float) -> float:
  """Returns the value of process 0. All processes must call it."""
  if jax.process_count() == 1:
    return value
  digits = np.frombuffer(np.float64(value).tobytes(), np.uint8)  # JAX would round it to float32
  return float(np.frombuffer(np.asarray(multihost_utils.broadcast_one_to_all(digits)).tobytes())[0])


def wait_for_all() -> None:
  """Waits until all processes have called it."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices("wait_for_all")


@contextlib.contextmanager
def exit_with_others() -> Iterator[None]:
  """Ends this process if another one has failed or was killed, and the others if this one fails.

  The exit function of JAX would wait for the others. If process 0 is killed, JAX may abort the others from a
  thread of its own, with a text of several lines and without a Python exception.
  """
  try:
    yield
  except Preempted:  # in all processes
    raise
  except Exception as error:
    if jax.process_count() > 1:
      if reason := _lost_connection(error):
        line = f"error: another process has ended; run the same commands again to resume ({reason:.200})"
        print(line, file=sys.stderr, flush=True)
        os._exit(2)  # at once, since JAX aborts when process 0 has ended
      atexit.register(_exit, 2 if isinstance(error, (UserError, OSError, MemoryError)) else 1)
    raise


def _lost_connection(error: BaseException | None) -> str:
  """Returns the text of the error of JAX by which a lost connection caused an error, or ""."""
  while error is not None and not isinstance(error, jax.errors.JaxRuntimeError):
    error = error.__cause__ or error.__context__
  text = " ".join(str(error or "").split())
  return text if re.search("(?i)connect|gloo|peer|socket|heartbeat|unavailable|deadline", text) else ""


def _exit(code: int) -> None:
  """Ends the process without the exit function of JAX."""
  if is_primary():
    time.sleep(1)  # others that have failed too need process 0 until they have ended
  os._exit(code)


@contextlib.contextmanager
def together() -> Iterator[list[Any]]:
  """Checks that no process fails in the block, which must not communicate, and that settings are equal.

  All processes must use it. It yields a list, to which the block appends its settings, JSON.

  Raises:
    ProcessError: if this process did not fail, but another one did or has different settings.
  """
  settings: list[Any] = []
  try:
    yield settings
  except Exception:
    _exchange(b"")
    raise
  digests = _exchange(hashlib.sha256(json.dumps(settings, sort_keys=True).encode("utf-8")).digest())
  if not all(any(digest) for digest in digests):
    raise ProcessError("another process failed to start; see its error")
  if (digests != digests[0]).any():
    raise ProcessError(
      "all processes must have the same config, workdir, data and version, got different ones"
    )


def _exchange(digest: bytes) -> np.ndarray:
  """Returns the digests of all processes, uint8 [processes 32], with zeros for an empty one."""
  padded = np.frombuffer(digest.ljust(32, b"\0"), np.uint8)
  if jax.process_count() == 1:
    return padded[None]
  return np.asarray(multihost_utils.process_allgather(padded))
