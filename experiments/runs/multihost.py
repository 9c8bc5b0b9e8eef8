"""What several processes that train together have to agree on. One process alone agrees with itself."""

import hashlib
import json
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments.cli.errors import UserError


class ProcessError(UserError):
  """Processes that cannot train together, told in one line."""


def is_primary() -> bool:
  """Returns whether this is the process that writes and reports."""
  return jax.process_index() == 0


def print_primary(text: str) -> None:
  """Prints a line, once for all processes."""
  if is_primary():
    print(text, flush=True)


def largest(value: int) -> int:
  """Returns the largest of what the processes give; all of them must call it."""
  if jax.process_count() == 1:
    return value
  return int(np.max(multihost_utils.process_allgather(np.int32(value))))


def of_main(value: float) -> float:
  """Returns what the main process gives; all of them must call it."""
  if jax.process_count() == 1:
    return value
  return float(multihost_utils.broadcast_one_to_all(np.float32(value)))


def wait_for_all() -> None:
  """Returns once all processes have come this far."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices("wait_for_all")


def begin_together(settings: Any, error: Exception | None) -> None:
  """Returns if all processes can begin, and with the same settings; all of them must call it.

  Args:
    settings: what must be the same, as JSON can hold it.
    error: why this process cannot begin, which the caller is then to raise; None if it can.

  Raises:
    ProcessError: if this process can begin, and another cannot or has other settings.
  """
  if jax.process_count() > 1:
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode("utf-8")).digest()
    own = np.frombuffer(bytes([error is None]) + digest, np.uint8)
    gathered = multihost_utils.process_allgather(own)
    if error is None and not gathered[:, 0].all():
      raise ProcessError("another process could not begin; it says why")
    if error is None and (gathered[:, 1:] != gathered[0, 1:]).any():
      raise ProcessError(
        "all processes must have the same config, workdir, data and version, got others in some of them"
      )
