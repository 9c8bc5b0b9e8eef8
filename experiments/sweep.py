r"""Trains all runs of a sweep: every combination of the choices of a config file.

    python -m experiments.sweep --config=configs/toy_translation_scores.py --workdir=runs/scores \
        --num_parallel=2

The config file has `get_config` and `get_sweep`. `get_sweep` returns values of some fields, such as
{"model.attention": ["additive", "bilinear"], "seed": [0, 1, 2]}, or groups of these by name. Each run is
trained by `experiments.train` in a separate folder below --workdir. Run the same command again to resume
interrupted runs; finished runs are skipped. At the end, mean and standard deviation over seeds are written as
text, CSV and figures.

Machines that share --workdir divide the runs among them. Other machines need --shard.
"""

import re
import sys

from absl import flags

from experiments.cli import flags as cli
from experiments.cli.flags import UsageError
from experiments.comparison import sweep
from experiments.comparison.job_runner import run_all
from experiments.runs.workdir import has_run

cli.define_config()
_WORKDIR = cli.define_workdir(None, "folder of the sweep (required)")
_NUM_PARALLEL = flags.DEFINE_integer("num_parallel", 1, "number of runs trained in parallel", lower_bound=1)
_SHARD = flags.DEFINE_string(
  "shard", "0/1", "INDEX/COUNT: train runs INDEX, INDEX + COUNT, INDEX + 2 COUNT, ..., counted from 0"
)


def main() -> None:
  folder, path = cli.workdir_path(_WORKDIR), flags.FLAGS.config
  if has_run(folder):
    raise UsageError(f"--workdir must be a folder of runs, got {folder}, which is a run itself")
  shard_index, num_shards = _parse_shard(_SHARD.value)
  choices = cli.run_function(path, "get_sweep")
  runs = sweep.make_runs(cli.get_config(), choices)
  for group_choices in sweep.by_group(choices).values():
    for name in group_choices:
      if flags.FLAGS[f"config.{name}"].present:
        raise UsageError(f"--config.{name} must not be set, because the sweep of {path} sets it")
  jobs = [sweep.make_job(run, folder) for run in runs]
  failed = run_all(jobs[shard_index::num_shards], _NUM_PARALLEL.value)
  text, report_paths = sweep.write_report(folder, runs)
  print(f"\n{text}\n")
  for report_path in report_paths:
    print(f"wrote {report_path}")
  if failed:
    print(f"failed: {', '.join(failed)}; run the same command again to retry", file=sys.stderr)
    sys.exit(1)


def _parse_shard(text: str) -> tuple[int, int]:
  """Returns the index of this machine's shard, and the number of shards."""
  match = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
  index, count = (int(number) for number in match.groups()) if match else (0, 0)
  if not index < count:
    raise UsageError(f"--shard must be INDEX/COUNT with 0 <= INDEX < COUNT, got {text!r}")
  return index, count


if __name__ == "__main__":
  cli.run(main)
