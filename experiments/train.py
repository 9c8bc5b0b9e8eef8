"""Trains a translator, scores it, and draws what it attends to.

    python -m experiments.train --config=configs/toy_translation.py --workdir=runs/toy_translation

The same command again goes on where the run stopped. It may have more devices or processes then:

    python -m experiments.train --coordinator=localhost:9876 --num_processes=2 --process_id=0
    python -m experiments.train --coordinator=localhost:9876 --num_processes=2 --process_id=1
"""

import pathlib
import re

import jax
from absl import flags

from configs import base
from experiments.commands import flags as commands
from experiments.commands.cluster import define_cluster, join_cluster
from experiments.runs.devices import divide_cpu
from experiments.runs.locks import workdir_lock
from experiments.runs.processes import is_main, wait_for_all
from experiments.translation import report
from experiments.translation.evaluate import own_metrics
from experiments.translation.train import train
from experiments.translation.translator import Translator

commands.define_config()
_WORKDIR = commands.define_workdir("runs/toy_translation")
_PARAMETER_SHARDS = flags.DEFINE_integer(
  "parameter_shards", 1, "into how many parts parameters are cut, a divisor of the number of devices"
)
_PROFILE = flags.DEFINE_string("profile", None, "steps of which a profile is recorded, such as 20:30")
_CPU_DEVICES = flags.DEFINE_integer(
  "cpu_devices",
  None,
  "number of devices that one CPU simulates, for testing",
  lower_bound=1,
  upper_bound=256,
)
_CLUSTER = define_cluster()


def main() -> None:
  config, folder = commands.get_config(), commands.workdir_path(_WORKDIR)
  profile = _step_range(_PROFILE.value)
  if profile and profile[0] > config.train.steps:
    raise commands.UsageError(
      f"--profile must begin at one of the {config.train.steps:,} steps, got {_PROFILE.value!r}"
    )
  if _CPU_DEVICES.value:
    divide_cpu(_CPU_DEVICES.value)
  join_cluster(_CLUSTER)
  if _CPU_DEVICES.value and jax.default_backend() != "cpu":
    raise commands.UsageError(f"--cpu_devices is for a CPU, got {jax.devices()[0].device_kind}")
  translator = train(config, folder, parameter_shards=_PARAMETER_SHARDS.value, profile=profile)
  if is_main():
    with workdir_lock(folder):  # until it has its results, the run has not ended
      _report(folder, translator, config.evaluation)
  wait_for_all()


def _step_range(text: str | None) -> tuple[int, int] | None:
  """Returns the first and the last step of FIRST:LAST, or None."""
  if text is None:
    return None
  match = re.fullmatch(r"([0-9]+):([0-9]+)", text)
  first, last = (int(number) for number in match.groups()) if match else (0, 0)
  if not 1 <= first <= last:
    raise commands.UsageError(f"--profile must be steps FIRST:LAST, counted from 1, got {text!r}")
  return first, last


def _report(folder: pathlib.Path, translator: Translator, config: base.Evaluation) -> None:
  """Scores the translator, and shows what it can do."""
  results = report.evaluate_splits(translator, config.sentences, own_metrics(config))
  report.write_results(folder, results)  # first: what is shown of them may fail
  print(report.table(results))
  report.show_translations(translator)
  for path in report.draw_figures(folder, translator):
    print(f"wrote {path}")


if __name__ == "__main__":
  commands.run(main)
