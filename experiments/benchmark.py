"""Compares this library's attention with others' in one run: time, memory, and whether it is right.

    python -m experiments.benchmark --output=runs/benchmark

It writes benchmark.json and benchmark.md, and with the set `length` two pictures, time and memory against
length. The set `gpu` is run only if named.
Others are compared if they are installed: pip install torch keras tokamax. With all of them it takes
46 minutes on 2 cores; most of it is theirs.
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
  "suites", ["dot_product", "additive", "length", "window"], f"which of {', '.join(SETS)}"
)
_PEERS = flags.DEFINE_list("baselines", [*PEERS], f"only these of {', '.join(PEERS)}")
_DTYPE = flags.DEFINE_enum("dtype", None, ["float32", "bfloat16"], "instead of that of the cases")
_REPEATS = flags.DEFINE_integer("repeats", 7, "how often each is timed", lower_bound=1)
_SHORTEN = flags.DEFINE_integer(
  "length_divisor", 1, "by what to divide all lengths, to try it out", lower_bound=1
)
_OUTPUT = flags.DEFINE_string("output", "runs/benchmark", "folder for what it writes")


def main() -> None:
  for flag, known in ((_SETS, SETS), (_PEERS, PEERS)):
    for given in flag.value:
      if given not in known:
        raise cli.UsageError(f"--{flag.name} must be of {', '.join(known)}, got {given!r}")
  folder = pathlib.Path(_OUTPUT.value)
  folder.mkdir(parents=True, exist_ok=True)
  records: list[dict[str, Any]] = []
  print(report.HEADER)
  for name in _SETS.value:
    names, cases = SETS[name]
    for case in cases:
      length = max(1, case.length // _SHORTEN.value)
      case = dataclasses.replace(case, length=length, dtype=_DTYPE.value or case.dtype)
      chosen = [peer for peer in names if peer in _PEERS.value]
      found = [{"set": name, **record} for record in measure(case, chosen, _REPEATS.value)]
      print(report.rows(found), flush=True)
      records += found
      report.write(folder / "benchmark.json", records)
  (folder / "benchmark.md").write_text(report.markdown(report.machine(), records), "utf-8")
  for path in [folder / "benchmark.json", folder / "benchmark.md", *report.draw(folder, records)]:
    print(f"wrote {path}")


if __name__ == "__main__":
  cli.run(main, uses_cache=False)
