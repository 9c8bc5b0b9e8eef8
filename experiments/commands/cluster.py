"""How processes that train together find each other."""

import jax
from absl import flags

from experiments.commands.flags import UsageError

# The flags below belong to the script that asks for them, so that its --help lists them.
flags.disclaim_key_flags()


def define_cluster() -> list[flags.FlagHolder]:
  """Defines --coordinator, --num_processes and --process_id."""
  return [
    flags.DEFINE_string(
      "coordinator",
      None,
      "HOST:PORT of process 0, where several processes train together; 'auto' on a "
      "cluster that JAX knows (Slurm, Kubernetes, Cloud TPU, Open MPI), which tells the other flags too",
    ),
    flags.DEFINE_integer("num_processes", None, "how many processes train together", lower_bound=1),
    flags.DEFINE_integer("process_id", None, "which of them this one is, from 0", lower_bound=0),
  ]


def join_cluster(cluster: list[flags.FlagHolder]) -> None:
  """Joins the processes that train together, if there are several; see `jax.distributed.initialize`.

  Raises:
    UsageError: if the flags do not go together, or JAX cannot join.
  """
  coordinator, count, index = (flag.value for flag in cluster)
  if coordinator is None and count is None and index is None:
    return
  is_auto = coordinator == "auto" and count is None and index is None
  if not is_auto and (coordinator in (None, "auto") or count is None or index is None):
    raise UsageError(
      "--coordinator, --num_processes and --process_id must be given together, or --coordinator=auto alone, "
      f"got {coordinator!r}, {count!r}, {index!r}"
    )
  if not is_auto and not coordinator.rpartition(":")[2].isdecimal():
    raise UsageError(f"--coordinator must be HOST:PORT, got {coordinator!r}")
  if not is_auto and index >= count:
    raise UsageError(f"--process_id must be less than --num_processes={count}, got {index}")
  # SIGTERM is stopping.py's; JAX's own answer to it is to do nothing.
  jax.config.update("jax_enable_preemption_service", False)
  try:
    jax.distributed.initialize(None if is_auto else coordinator, count, index)
  except (RuntimeError, ValueError) as error:
    raise UsageError(f"--coordinator: cannot join {coordinator!r}: {error}") from error
