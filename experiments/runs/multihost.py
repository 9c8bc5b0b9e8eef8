"""Coordination of several processes. With a single process, all functions are trivial."""

import hashlib
import json
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments.cli.errors import UserError


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
  return float(multihost_utils.broadcast_one_to_all(np.float32(value)))


def wait_for_all() -> None:
  """Waits until all processes have called it."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices("wait_for_all")


def begin_together(settings: Any, error: Exception | None) -> None:
  """Checks that all processes can start, with the same settings. All processes must call it.

  Args:
    settings: settings that must be equal, JSON.
    error: error that prevents this process from starting, or None. The caller raises it afterwards.

  Raises:
    ProcessError: if this process can start, but another one cannot or has different settings.
  """
  if jax.process_count() > 1:
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode("utf-8")).digest()
    message = np.frombuffer(bytes([error is None]) + digest, np.uint8)
    messages = multihost_utils.process_allgather(message)
    if error is None and not messages[:, 0].all():
      raise ProcessError("another process failed to start; see its error")
    if error is None and (messages[:, 1:] != messages[0, 1:]).any():
      raise ProcessError(
        "all processes must have the same config, workdir, data and version, got different ones"
      )
