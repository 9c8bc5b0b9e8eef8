"""Benchmarks attention functions of this library and of others: time, memory and correctness.

    python -m experiments.benchmark --output=runs/benchmark

It writes benchmark.json and benchmark.md. The suite `length` adds figures of time and memory by length. The
suite `gpu` needs a GPU and runs only if it is selected. Other libraries are compared if they are installed
(pip install torch keras tokamax). With all of them, it takes 46 minutes on 2 CPU cores.
"""

import dataclasses
import pathlib
from typing import Any

from absl import flags

from experiments.benchmarks import report
from experiments.benchmarks.baselines import PEERS
from experiments.benchmarks.suites import SETS
from experiments.benchmarks.timing import measure
from experiments.cli import flags as cli

_SETS = flags.DEFINE_list(
  "suites", ["dot_product", "additive", "length", "window"], f"suites to run, from {', '.join(SETS)}"
)
_PEERS = flags.DEFINE_list("baselines", [*PEERS], f"implementations to run, from {', '.join(PEERS)}")
_DTYPE = flags.DEFINE_enum("dtype", None, ["float32", "bfloat16"], "dtype; default: that of each case")
_REPEATS = flags.DEFINE_integer("repeats", 7, "number of timed runs", lower_bound=1)
_LENGTH_DIVISOR = flags.DEFINE_integer(
  "length_divisor", 1, "divide all lengths by this number, for a quick test", lower_bound=1
)
_OUTPUT = flags.DEFINE_string("output", "runs/benchmark", "folder for the results")


def main() -> None:
  for flag, choices in ((_SETS, SETS), (_PEERS, PEERS)):
    for name in flag.value:
      if name not in choices:
        raise cli.UsageError(f"--{flag.name} must be among {', '.join(choices)}, got {name!r}")
  folder = pathlib.Path(_OUTPUT.value)
  folder.mkdir(parents=True, exist_ok=True)
  records: list[dict[str, Any]] = []
  print(report.HEADER)
  for name in _SETS.value:
    names, cases = SETS[name]
    for case in cases:
      length = max(1, case.length // _LENGTH_DIVISOR.value)
      case = dataclasses.replace(case, length=length, dtype=_DTYPE.value or case.dtype)
      selected = [peer for peer in names if peer in _PEERS.value]
      case_records = [{"set": name, **record} for record in measure(case, selected, _REPEATS.value)]
      print(report.rows(case_records), flush=True)
      records += case_records
      report.write(folder / "benchmark.json", records)
  (folder / "benchmark.md").write_text(report.markdown(report.machine(), records), "utf-8")
  for path in [folder / "benchmark.json", folder / "benchmark.md", *report.draw(folder, records)]:
    print(f"wrote {path}")


if __name__ == "__main__":
  cli.run(main, uses_cache=False)
