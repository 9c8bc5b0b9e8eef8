"""Compares this library's attention functions with other libraries: time, memory and correctness.

    python -m experiments.benchmark --output=runs/benchmark

Writes benchmark.json and benchmark.md, and with the suite `length` figures of time, memory and the share of
the machine's speed against length. Other libraries are included if they are installed: pip install torch
keras tokamax. With all of them it takes about an hour on 2 cores. Four suites only run if they are named:
`gpu`, which requires a GPU; `compile`, which measures the time to trace and compile, and writes compile.json
and compile.md; `mechanisms`, which measures the library without each mechanism of docs/design.md on a
CPU, writes mechanisms.json, and fails if one gains too little; and `memory`, which compares the calculated
memory of a training step with that of the compiled program on a CPU, up to a million positions and 64
simulated devices, and writes memory.json and memory.md.

To judge a change, measure it together with the previous version:

    git worktree add ../before HEAD~1
    python -m experiments.benchmark --suites=dot_product --baselines=attention --compare=../before
"""

import dataclasses
import json
import pathlib
import sys
from typing import Any

import jax
from absl import flags

from experiments.benchmarks import compilation, mechanisms, memory, report
from experiments.benchmarks.baselines import BASELINES, COMPARED, Unavailable, add_version
from experiments.benchmarks.cases import TOLERANCES
from experiments.benchmarks.suites import SUITES
from experiments.benchmarks.timing import measure, peak_flops
from experiments.cli import flags as cli
from experiments.cli.io import flag_path, output_folder

_OTHER_SUITES = {"compile": compilation.run, "mechanisms": mechanisms.run, "memory": memory.run}

_SUITES = flags.DEFINE_list(
  "suites",
  ["dot_product", "additive", "length", "window"],
  f"suites to run: {', '.join((*SUITES, *_OTHER_SUITES))}",
)
_BASELINES = flags.DEFINE_list("baselines", [*BASELINES], f"baselines to run: {', '.join(BASELINES)}")
_DTYPE = flags.DEFINE_enum("dtype", None, [*TOLERANCES], "replaces the dtype of the cases")
_REPEATS = flags.DEFINE_integer("repeats", 7, "number of measurements of each case", lower_bound=1)
_LENGTH_DIVISOR = flags.DEFINE_integer(
  "length_divisor", 1, "divides all lengths, for a quick trial", lower_bound=1
)
_OUTPUT = flags.DEFINE_string("output", "runs/benchmark", "output directory")
_COMPARE = flags.DEFINE_string(
  "compare",
  None,
  "benchmark.json of an earlier run, or the folder of another version of this library, which is then "
  "measured in the same run",
)


def main() -> None:
  for flag, choices in ((_SUITES, [*SUITES, *_OTHER_SUITES]), (_BASELINES, [*BASELINES])):
    if not flag.value:
      raise cli.UsageError(f"--{flag.name} must name at least one of {', '.join(choices)}, got none")
    for name in flag.value:
      if name not in choices:
        raise cli.UsageError(f"--{flag.name} must be among {', '.join(choices)}, got {name!r}")
  for suite in _SUITES.value:
    if suite in SUITES and not set(SUITES[suite][0]) & set(_BASELINES.value):
      raise cli.UsageError(
        f"--baselines must name at least one of {', '.join(SUITES[suite][0])} for --suites={suite}, "
        f"got {','.join(_BASELINES.value)}"
      )
  if "gpu" in _SUITES.value and jax.default_backend() != "gpu":
    raise cli.UsageError(f"--suites=gpu requires a GPU, got {jax.default_backend()}")
  earlier = _earlier_records()
  folder = output_folder(_OUTPUT)
  folder.mkdir(parents=True, exist_ok=True)
  if suites := [suite for suite in _SUITES.value if suite in SUITES]:
    _measure(folder, suites, earlier)
  for suite, run in _OTHER_SUITES.items():
    if suite in _SUITES.value:
      run(folder, _REPEATS.value)


def _measure(folder: pathlib.Path, suites: list[str], earlier: dict[str, list[dict[str, Any]]]) -> None:
  """Measures suites of attention functions, prints a table, and writes records, table and figures."""
  records: list[dict[str, Any]] = []
  print(report.HEADER)
  for suite in suites:
    names, cases = SUITES[suite]
    for case in cases:
      length = max(1, case.length // _LENGTH_DIVISOR.value)
      case = dataclasses.replace(case, length=length, dtype=_DTYPE.value or case.dtype)
      baselines = [name for name in names if name in _BASELINES.value]
      baselines += [COMPARED] if COMPARED in BASELINES and COMPARED not in baselines else []
      measured = measure(case, baselines, _REPEATS.value, peak_flops(case.dtype)) + earlier.get(case.name, [])
      case_records = [{**record, "suite": suite} for record in measured]
      print(report.rows(case_records), flush=True)
      records += case_records
      report.write(folder / "benchmark.json", records)
  if earlier and not any(record["baseline"] == COMPARED for record in records):
    print(
      f"warning: no case of --compare={_COMPARE.value} was measured: {', '.join(earlier)}", file=sys.stderr
    )
  (folder / "benchmark.md").write_text(report.markdown(report.machine(), records), "utf-8")
  for path in [folder / "benchmark.json", folder / "benchmark.md", *report.draw(folder, records)]:
    print(f"wrote {path}")


def _earlier_records() -> dict[str, list[dict[str, Any]]]:
  """Returns the records of --compare by case. A folder is added to the baselines instead."""
  if _COMPARE.value is None:
    return {}
  path = flag_path(_COMPARE)
  if not path.exists():
    raise cli.UsageError(f"--compare must be an existing file or folder, got {path}")
  try:
    if path.is_dir():
      add_version(path)
      return {}
    records = json.loads(path.read_text("utf-8"))["records"]
    earlier: dict[str, list[dict[str, Any]]] = {}
    for record in records:
      if record["baseline"] == "attention" and "pass" in record:
        earlier.setdefault(record["case"], []).append({"peak_share": None, **record, "baseline": COMPARED})
    return earlier
  except Unavailable as error:
    raise cli.UsageError(f"--compare={path} {error}") from error
  except (ValueError, KeyError, TypeError) as error:
    raise cli.UsageError(
      f"--compare must be a file with the content of benchmark.json, or a folder, got {path}"
    ) from error


if __name__ == "__main__":
  cli.run(main, uses_cache=False)
