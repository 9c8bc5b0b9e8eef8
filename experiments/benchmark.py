"""Compares this library's attention functions with other libraries: time, memory and correctness.

    python -m experiments.benchmark --output=runs/benchmark

Writes benchmark.json and benchmark.md, and with the suite `length` two figures, time and memory against
length. The suite `gpu` requires a GPU and only runs if it is named. Other libraries are included if they are
installed: pip install torch keras tokamax. With all of them it takes 46 minutes on 2 cores.
"""

import dataclasses
import pathlib
from typing import Any

from absl import flags

from experiments.benchmarks import report
from experiments.benchmarks.baselines import BASELINES
from experiments.benchmarks.suites import SUITES
from experiments.benchmarks.timing import measure
from experiments.cli import flags as cli

_SUITES = flags.DEFINE_list(
  "suites", ["dot_product", "additive", "length", "window"], f"suites to run: {', '.join(SUITES)}"
)
_BASELINES = flags.DEFINE_list("baselines", [*BASELINES], f"baselines to run: {', '.join(BASELINES)}")
_DTYPE = flags.DEFINE_enum("dtype", None, ["float32", "bfloat16"], "replaces the dtype of the cases")
_REPEATS = flags.DEFINE_integer("repeats", 7, "number of measurements of each case", lower_bound=1)
_LENGTH_DIVISOR = flags.DEFINE_integer(
  "length_divisor", 1, "divides all lengths, for a quick trial", lower_bound=1
)
_OUTPUT = flags.DEFINE_string("output", "runs/benchmark", "output directory")


def main() -> None:
  for flag, choices in ((_SUITES, SUITES), (_BASELINES, BASELINES)):
    for name in flag.value:
      if name not in choices:
        raise cli.UsageError(f"--{flag.name} must be among {', '.join(choices)}, got {name!r}")
  folder = pathlib.Path(_OUTPUT.value)
  folder.mkdir(parents=True, exist_ok=True)
  records: list[dict[str, Any]] = []
  print(report.HEADER)
  for suite in _SUITES.value:
    names, cases = SUITES[suite]
    for case in cases:
      length = max(1, case.length // _LENGTH_DIVISOR.value)
      case = dataclasses.replace(case, length=length, dtype=_DTYPE.value or case.dtype)
      baselines = [name for name in names if name in _BASELINES.value]
      case_records = [{"suite": suite, **record} for record in measure(case, baselines, _REPEATS.value)]
      print(report.rows(case_records), flush=True)
      records += case_records
      report.write(folder / "benchmark.json", records)
  (folder / "benchmark.md").write_text(report.markdown(report.machine(), records), "utf-8")
  for path in [folder / "benchmark.json", folder / "benchmark.md", *report.draw(folder, records)]:
    print(f"wrote {path}")


if __name__ == "__main__":
  cli.run(main, uses_cache=False)
