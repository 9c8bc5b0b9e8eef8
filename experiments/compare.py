"""Compares runs, or files of translations.

    python -m experiments.compare --workdirs=runs/additive_0,runs/additive_1,runs/bilinear_0,runs/bilinear_1
    python -m experiments.compare --files=ours.en,theirs.en --reference=test.en

Runs of one config but for the seed are one line: mean and standard deviation of each metric. Files are told
with BLEU and chrF, and with the probability that chance alone makes one as different from the first (paired
approximate randomization by sacrebleu). With --significance the runs are, too: each translates the split once
more.
"""

import pathlib
import sys

from absl import flags

from experiments.commands import flags as commands
from experiments.commands.files import read_lines
from experiments.commands.flags import UsageError
from experiments.translation import compare

_WORKDIRS = flags.DEFINE_list("workdirs", None, "folders of finished runs")
_SPLIT = flags.DEFINE_string(
  "split",
  None,
  "of which the metrics are compared; if not given, test where all runs have it, else validation",
)
_SIGNIFICANCE = flags.DEFINE_bool(
  "significance", False, "whether translations of --workdirs are compared, too"
)
flags.declare_key_flag("trust_workdir")
_FILES = flags.DEFINE_list("files", None, "translations of the same source, one a line")
_REFERENCE = flags.DEFINE_string("reference", None, "the true translations")


def main() -> None:
  folders, files = _WORKDIRS.value or [], _FILES.value or []
  if bool(folders) == bool(files):
    raise UsageError(f"either --workdirs or --files must be given, got {'both' if files else 'none'}")
  for flag, paths in (("--workdirs", folders), ("--files", files)):
    if len({pathlib.Path(path).resolve() for path in paths}) < len(paths):
      raise UsageError(f"{flag} must be different ones, got {','.join(paths)!r}")
  if _SIGNIFICANCE.value and len(folders) < 2:
    raise UsageError(f"--significance is of two --workdirs or more, got {','.join(folders)!r}")
  if folders:
    _compare_runs([pathlib.Path(folder) for folder in folders])
  else:
    _compare_files(files)


def _compare_runs(folders: list[pathlib.Path]) -> None:
  found = compare.groups(folders)
  runs = [results for group in found for results in group.results]
  split = _SPLIT.value or ("test" if all("test" in results for results in runs) else "validation")
  having = all if _SIGNIFICANCE.value else any
  names = dict.fromkeys(name for results in runs for name in results)
  known = [name for name in names if having(name in results for results in runs)]
  if split not in known:
    raise UsageError(f"--split must be one of {', '.join(known)}, got {split!r}")
  for line in compare.repeated(folders):
    print(line, file=sys.stderr)
  print(compare.table(found, split))
  if _SIGNIFICANCE.value:
    systems, references = compare.translations(folders, split)
    _note_few(references)
    print(f"\n{compare.significance_table(compare.significance(systems, references))}")


def _compare_files(files: list[str]) -> None:
  if not _REFERENCE.value:
    raise UsageError("--files are compared with a --reference, got none")
  systems = {name: read_lines(pathlib.Path(name)) for name in files}
  references = read_lines(pathlib.Path(_REFERENCE.value))
  for name, lines in systems.items():
    if len(lines) != len(references) or not lines:
      count = f"{len(references):,}"
      raise UsageError(f"{name} must have as many lines as --reference, {count}, got {len(lines):,}")
  if not _is_lower(references) and all(map(_is_lower, systems.values())):
    note = "the translations are in lower case, and --reference is not: its words with a capital fit none"
    print(note, file=sys.stderr)
  _note_few(references)
  print(compare.significance_table(compare.significance(systems, references)))


def _note_few(references: list[str]) -> None:
  if line := compare.too_few(len(references)):
    print(line, file=sys.stderr)


def _is_lower(lines: list[str]) -> bool:
  return all(line == line.lower() for line in lines)


if __name__ == "__main__":
  commands.run(main)
