"""Compares the results of runs.

    python -m experiments.compare --workdir=runs/additive_0,runs/additive_1,runs/bilinear_0,runs/bilinear_1

Runs that differ only in their seeds share one line: mean and standard deviation of each metric.

With --significance, each run translates the split again. BLEU and chrF of the translations are printed with
the p-value of their difference from the first run (paired approximate randomization). To compare files of
translations, use sacrebleu:

    sacrebleu test.en --input ours.en theirs.en --metrics bleu chrf --paired-ar
"""

import sys

from absl import flags

from experiments.cli import flags as cli
from experiments.cli.flags import UsageError
from experiments.cli.messages import escape_controls
from experiments.comparison import compare

_WORKDIR = cli.define_workdir(None, "folders of finished runs, separated by commas (required)")
_SPLIT = flags.DEFINE_string(
  "split", None, 'split to compare; default: "test" if all runs have it, else "validation"'
)
_SIGNIFICANCE = flags.DEFINE_bool(
  "significance", False, "also translate the split and test the differences in BLEU and chrF"
)


def main() -> None:
  folders = cli.workdir_paths(_WORKDIR)
  if len({folder.resolve() for folder in folders}) < len(folders):
    raise UsageError(f"--workdir must name different folders, got {_WORKDIR.value!r}")
  if _SIGNIFICANCE.value and len(folders) < 2:
    raise UsageError(f"--significance needs at least two folders in --workdir, got {_WORKDIR.value!r}")
  groups = compare.group_runs(folders)
  splits_of_runs = compare.splits_of_runs(groups)
  has_test = all("test" in splits for splits in splits_of_runs)
  split = _SPLIT.value or ("test" if has_test else "validation")
  enough = all if _SIGNIFICANCE.value else any  # the tests need the split of every run
  names = dict.fromkeys(name for splits in splits_of_runs for name in splits)
  choices = [name for name in names if enough(name in splits for splits in splits_of_runs)]
  if split not in choices:
    default = "" if _SPLIT.value else " (the default)"
    raise UsageError(f"--split must be one of {', '.join(choices)}, got {split!r}{default}")
  warnings = compare.duplicate_run_warnings(folders)
  for warning in filter(None, [*warnings, compare.different_data_warning(folders, split)]):
    print(warning, file=sys.stderr)
  print(f"split: {escape_controls(split)}")
  print(compare.table(groups, split))
  if line := compare.differences(folders, groups):
    print(line)
  if _SIGNIFICANCE.value:
    systems, references = compare.translate_split(folders, split)
    if warning := compare.sample_size_warning(len(references)):
      print(warning, file=sys.stderr)
    print(f"\n{compare.significance_table(compare.significance(systems, references))}")


if __name__ == "__main__":
  cli.run(main)
