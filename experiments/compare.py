"""Compares runs.

    python -m experiments.compare --workdirs=runs/additive_0,runs/additive_1,runs/bilinear_0,runs/bilinear_1

Runs that differ in their seed only are one line: mean and standard deviation of each metric. With
--significance each run translates the split again. BLEU and chrF of its translations are printed with a
p-value: the probability of a difference at least as large from the first run by chance (paired approximate
randomization). To compare files of translations, use sacrebleu:

    sacrebleu test.en --input ours.en theirs.en --metrics bleu chrf --paired-ar
"""

import pathlib
import sys

from absl import flags

from experiments.cli import flags as commands
from experiments.cli.flags import UsageError
from experiments.translation import compare

_WORKDIRS = flags.DEFINE_list("workdirs", None, "folders of finished runs")
_SPLIT = flags.DEFINE_string(
  "split",
  None,
  "of which the metrics are compared; if not given, test where all runs have it, else validation",
)
_SIGNIFICANCE = flags.DEFINE_bool("significance", False, "whether translations are compared, too")
flags.declare_key_flag("trust_workdir")


def main() -> None:
  folders = [pathlib.Path(name) for name in _WORKDIRS.value or []]
  given = ",".join(_WORKDIRS.value or [])
  if not folders:
    raise UsageError("--workdirs must name folders of runs, got none")
  if len({folder.resolve() for folder in folders}) < len(folders):
    raise UsageError(f"--workdirs must be different ones, got {given!r}")
  if _SIGNIFICANCE.value and len(folders) < 2:
    raise UsageError(f"--significance is of two --workdirs or more, got {given!r}")
  found = compare.groups(folders)
  splits = compare.splits(found)
  split = _SPLIT.value or ("test" if all("test" in own for own in splits) else "validation")
  having = all if _SIGNIFICANCE.value else any
  names = dict.fromkeys(name for own in splits for name in own)
  known = [name for name in names if having(name in own for own in splits)]
  if split not in known:
    raise UsageError(f"--split must be one of {', '.join(known)}, got {split!r}")
  for line in compare.repeated(folders):
    print(line, file=sys.stderr)
  print(compare.table(found, split))
  if _SIGNIFICANCE.value:
    systems, references = compare.translations(folders, split)
    if line := compare.too_few(len(references)):
      print(line, file=sys.stderr)
    print(f"\n{compare.significance_table(compare.significance(systems, references))}")


if __name__ == "__main__":
  commands.run(main)
