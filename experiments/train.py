"""Trains a translator, evaluates it, and draws attention maps.

    python -m experiments.train --config=configs/toy_translation.py --workdir=runs/toy_translation

Run the same command again to resume an interrupted run, also with a different number of devices or processes:

    python -m experiments.train --coordinator=localhost:9876 --num_processes=2 --process_id=0
    python -m experiments.train --coordinator=localhost:9876 --num_processes=2 --process_id=1
"""

import pathlib
import re

import jax
from absl import flags

from configs import base
from experiments.cli import flags as cli
from experiments.devices.multihost import exit_with_others, is_primary, wait_for_all
from experiments.devices.sharding import set_cpu_device_count
from experiments.evaluation import reporting
from experiments.evaluation.evaluate import load_custom_metrics
from experiments.inference.translator import Translator
from experiments.runs import workdir
from experiments.training.loop import train

# JAX ends all processes if one has sent no heartbeat for this time, also if a device waits for it.
_HEARTBEAT_SECONDS = 30

cli.define_config()
_WORKDIR = cli.define_workdir("runs/toy_translation", "folder of the run")
_FSDP_SIZE = flags.DEFINE_integer(
  "fsdp_size", 1, "number of devices that parameters are sharded over; it must divide the number of devices"
)
_PROFILE = flags.DEFINE_string("profile", None, "steps to profile, FIRST:LAST, such as 20:30")
_CPU_DEVICES = flags.DEFINE_integer(
  "cpu_devices",
  None,
  "number of simulated CPU devices, for testing",
  lower_bound=1,
  upper_bound=256,
)
_COORDINATOR = flags.DEFINE_string(
  "coordinator",
  None,
  "HOST:PORT of process 0 if several processes train together, or auto on a cluster that JAX detects (Slurm, "
  "Kubernetes, Cloud TPU, Open MPI)",
)
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "number of processes", lower_bound=1)
_PROCESS_ID = flags.DEFINE_integer("process_id", None, "index of this process, from 0", lower_bound=0)


def main() -> None:
  config, folder = cli.get_config(), cli.workdir_path(_WORKDIR)
  profile = _parse_profile(_PROFILE.value)
  if profile and profile[0] > config.train.num_train_steps:
    raise cli.UsageError(
      f"--profile must start within the {config.train.num_train_steps:,} steps, got {_PROFILE.value!r}"
    )
  if _CPU_DEVICES.value:
    set_cpu_device_count(_CPU_DEVICES.value)
  _initialize_distributed()
  if _CPU_DEVICES.value and jax.default_backend() != "cpu":
    raise cli.UsageError(f"--cpu_devices needs the CPU backend, got {jax.devices()[0].device_kind}")
  with exit_with_others():
    translator = train(config, folder, fsdp_size=_FSDP_SIZE.value, profile=profile)
    if is_primary():
      with workdir.workdir_lock(folder):  # the run is not finished before its results are written
        _report(folder, translator, config.evaluation)
    wait_for_all()


def _parse_profile(text: str | None) -> tuple[int, int] | None:
  """Returns the first and last step of FIRST:LAST, or None."""
  if text is None:
    return None
  match = re.fullmatch(r"([0-9]+):([0-9]+)", text)
  first, last = (int(number) for number in match.groups()) if match else (0, 0)
  if not 1 <= first <= last:
    raise cli.UsageError(f"--profile must be FIRST:LAST with 1 <= FIRST <= LAST, got {text!r}")
  return first, last


def _initialize_distributed() -> None:
  """Initializes `jax.distributed` if there are several processes.

  Raises:
    UsageError: if the flags do not fit, or the initialization fails.
  """
  coordinator, count, index = _COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value
  if coordinator is None and count is None and index is None:
    return
  if coordinator == "auto" and count is None and index is None:
    coordinator = None  # JAX detects it
  elif coordinator in (None, "auto") or count is None or index is None:
    raise cli.UsageError(
      "--coordinator, --num_processes and --process_id must be set together, or --coordinator=auto alone, "
      f"got {coordinator!r}, {count!r}, {index!r}"
    )
  elif not coordinator.rpartition(":")[2].isdecimal():
    raise cli.UsageError(f"--coordinator must be HOST:PORT, got {coordinator!r}")
  elif index >= count:
    raise cli.UsageError(f"--process_id must be less than --num_processes={count}, got {index}")
  # The training loop handles SIGTERM. The preemption service of JAX would ignore it.
  jax.config.update("jax_enable_preemption_service", False)
  try:
    jax.distributed.initialize(coordinator, count, index, heartbeat_timeout_seconds=_HEARTBEAT_SECONDS)
  except (RuntimeError, ValueError) as error:
    raise cli.UsageError(f"--coordinator: cannot connect to {_COORDINATOR.value!r}: {error}") from error


def _report(folder: pathlib.Path, translator: Translator, config: base.Evaluation) -> None:
  """Writes and prints results, example translations and figures."""
  results = reporting.evaluate_splits(translator, config.num_eval_examples, load_custom_metrics(config))
  workdir.write_results(folder, results)  # first, because printing or drawing may fail
  print(reporting.table(results))
  reporting.show_translations(translator)
  from experiments.figures import run_figures

  for path in run_figures.draw_figures(folder, translator):
    print(f"wrote {path}")


if __name__ == "__main__":
  cli.run(main)
