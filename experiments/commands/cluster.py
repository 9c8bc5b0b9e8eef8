"""How processes that train together find each other: flags, and what is told where they do not."""

import re
import socket
import sys
import time
from typing import NamedTuple

import jax
from absl import flags

from experiments.commands.flags import UsageError

# Seconds that a process waits for process 0.
_PATIENCE = 300

# The flags below belong to the script that asks for them, so that its --help tells of them.
flags.disclaim_key_flags()


class Cluster(NamedTuple):
  """Flags with which several processes find each other."""

  coordinator: flags.FlagHolder
  num_processes: flags.FlagHolder
  process_id: flags.FlagHolder


def define_cluster() -> Cluster:
  """Defines --coordinator, --num_processes and --process_id."""
  return Cluster(
    flags.DEFINE_string(
      "coordinator",
      None,
      "HOST:PORT of process 0, where several processes train together; 'auto' on a "
      "cluster that JAX knows (Slurm, Kubernetes, Cloud TPU, Open MPI), which tells the other flags too",
    ),
    flags.DEFINE_integer("num_processes", None, "how many processes train together", lower_bound=1),
    flags.DEFINE_integer("process_id", None, "which of them this one is, from 0", lower_bound=0),
  )


def join_cluster(cluster: Cluster) -> None:
  """Joins the processes that train together, if there are several.

  Raises:
    UsageError: if the flags do not go together.
  """
  coordinator, count, index = (flag.value for flag in cluster)
  if (coordinator, count, index) == (None, None, None):
    return
  if (coordinator, count, index) == ("auto", None, None):
    coordinator = None  # JAX asks the cluster
  elif None in (coordinator, count, index) or coordinator == "auto":
    raise UsageError(
      "--coordinator, --num_processes and --process_id must be given together, or --coordinator=auto alone, "
      f"got {coordinator!r}, {count!r}, {index!r}"
    )
  elif not _is_address(coordinator):
    raise UsageError(f"--coordinator must be HOST:PORT, the port from 1 to 65535, got {coordinator!r}")
  elif index >= count:
    raise UsageError(f"--process_id must be less than --num_processes={count}, got {index}")
  if coordinator is not None:
    _meet(coordinator, index)
  # SIGTERM is stopping.py's; JAX's own answer to it is to do nothing.
  jax.config.update("jax_enable_preemption_service", False)
  try:
    jax.distributed.initialize(coordinator, count, index)
  except (RuntimeError, ValueError) as error:
    raise UsageError(f"--coordinator: cannot join {coordinator or 'auto'!r}: {error}") from error


def _meet(coordinator: str, index: int) -> None:
  """Raises UsageError where JAX would end the program: a port that is taken, or nobody answers."""
  host, _, port = coordinator.rpartition(":")
  if index == 0:
    with socket.socket() as probe:
      probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
      try:
        probe.bind(("", int(port)))
      except OSError as error:
        raise UsageError(f"--coordinator: port {port} cannot be used here: {error.strerror}") from error
    return
  begin, is_told = time.monotonic(), False
  while True:
    try:
      with socket.create_connection((host.strip("[]"), int(port)), timeout=5):
        return
    except OSError as error:
      waited = time.monotonic() - begin
      if waited > _PATIENCE:
        raise UsageError(f"--coordinator: {coordinator} did not answer for {_PATIENCE} s: {error}") from error
      if waited > 5 and not is_told:
        print(f"waiting for process 0 at {coordinator}", file=sys.stderr, flush=True)
        is_told = True
      time.sleep(0.2)


def _is_address(text: str) -> bool:
  """Returns whether a text is HOST:PORT."""
  match = re.fullmatch(r".+:([0-9]{1,5})", text)
  return match is not None and 1 <= int(match.group(1)) <= 65535
