r"""Trains many runs: every combination of the choices of a config file.

    python -m experiments.sweep --config=configs/toy_translation_scores.py --workdir=runs/scores \
        --num_parallel=2

Beside `get_config` the file has a function `get_sweep`, which returns values of some fields, such as
{"model.attention": ["additive", "bilinear"], "seed": [0, 1, 2]}, or groups of such by name. Each run has a
folder in that of the sweep and is one of `experiments.train`: it goes on where it stopped, and the same
command leaves those that are done as they are. At the end there is a table, mean and deviation over the
seeds, as text, CSV and figures.

Several machines that share the folder share the runs; --shard=0/4 is for machines that do not.
"""

import re
import sys

from absl import flags

from experiments.cli import flags as commands
from experiments.cli.flags import UsageError
from experiments.runs.job_runner import run_all
from experiments.runs.workdir import has_run
from experiments.translation import sweep
from experiments.translation.run_config import describe_changes

commands.define_config()
_WORKDIR = commands.define_workdir(None)
_JOBS = flags.DEFINE_integer("num_parallel", 1, "how many runs are trained at once", lower_bound=1)
_SHARD = flags.DEFINE_string(
  "shard", "0/1", "INDEX/COUNT: trains every COUNTth run from the INDEXth on, from 0"
)


def main() -> None:
  folder, path = commands.workdir_path(_WORKDIR), flags.FLAGS.config
  index, count = _shard(_SHARD.value)
  choices = commands.run_function(path, "get_sweep")
  runs = sweep.make_runs(commands.get_config(), choices)
  for own in sweep.by_group(choices).values():
    for name in own:
      if flags.FLAGS[f"config.{name}"].present:
        raise UsageError(f"--config.{name} is one of the choices of {path}")
  for run in runs:
    if has_run(folder / run.name) and (changed := describe_changes(folder / run.name, run.config)):
      raise UsageError(f"{changed}; the sweep of a changed file needs another --workdir")
  jobs = [sweep.make_job(run, folder) for run in runs]
  failed = run_all(jobs[index::count], _JOBS.value)
  text, paths = sweep.write_report(folder, runs)
  print(f"\n{text}\n")
  for written in paths:
    print(f"wrote {written}")
  if failed:
    print(f"failed: {', '.join(failed)}; the same command tries them again", file=sys.stderr)
    sys.exit(1)


def _shard(text: str) -> tuple[int, int]:
  """Returns which runs this machine makes."""
  match = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
  index, count = (int(number) for number in match.groups()) if match else (0, 0)
  if not index < count:
    raise UsageError(f"--shard must be INDEX/COUNT, INDEX from 0 to COUNT - 1, got {text!r}")
  return index, count


if __name__ == "__main__":
  commands.run(main)
