"""Compares this library's attention with others' in one run: time, memory, and whether it is right.

    python -m experiments.benchmark --output=runs/benchmark

It writes benchmark.json and benchmark.md, and with the set `length` two pictures, time and memory against
length. The set `memory` runs processes of their own, the set `gpu` is for one; neither is run unless named.
Others are compared if they are installed: pip install torch keras tokamax. With all of them it takes
46 minutes on 2 cores; most of it is theirs.
"""

import dataclasses
import pathlib
from collections.abc import Collection, Sequence
from typing import Any

from absl import flags

from experiments.benchmarks import report
from experiments.benchmarks.measuring import measure
from experiments.benchmarks.peers import PEERS
from experiments.benchmarks.sets import SETS
from experiments.commands import flags as commands

_SETS = flags.DEFINE_list(
  "sets", ["dot_product", "additive", "length", "window"], f"which of {', '.join(SETS)}"
)
_PEERS = flags.DEFINE_list("peers", None, f"only these of {', '.join(PEERS)}")
_DTYPE = flags.DEFINE_enum("dtype", None, ["float32", "bfloat16"], "instead of that of the cases")
_REPEATS = flags.DEFINE_integer("repeats", 7, "how often each is timed", lower_bound=1)
_SHORTEN = flags.DEFINE_integer("shorten", 1, "by what to divide all lengths, to try it out", lower_bound=1)
_OUTPUT = flags.DEFINE_string("output", "runs/benchmark", "folder for what it writes")


def main() -> None:
  _check("sets", _SETS.value, SETS)
  _check("peers", _PEERS.value or [], PEERS)
  folder = pathlib.Path(_OUTPUT.value)
  folder.mkdir(parents=True, exist_ok=True)
  records: list[dict[str, Any]] = []
  print(report.HEADER)
  for name in _SETS.value:
    names, cases = SETS[name]
    chosen = tuple(peer for peer in names if _PEERS.value is None or peer in _PEERS.value)
    for case in cases:
      length = max(1, case.length // _SHORTEN.value)
      case = dataclasses.replace(case, length=length, dtype=_DTYPE.value or case.dtype)
      records_of_case = measure(case, chosen, _REPEATS.value, resident=name == "memory")
      found = [{"set": name, **record} for record in records_of_case]
      print(report.rows(found), flush=True)
      records += found
      report.write(folder / "benchmark.json", records)
  (folder / "benchmark.md").write_text(report.markdown(report.machine(), records), "utf-8")
  for path in [folder / "benchmark.json", folder / "benchmark.md", *report.draw(folder, records)]:
    print(f"wrote {path}")


def _check(flag: str, given: Sequence[str], known: Collection[str]) -> None:
  """Raises UsageError unless all that is given is known."""
  for one in given:
    if one not in known:
      raise commands.UsageError(f"--{flag} must be of {', '.join(known)}, got {one!r}")


if __name__ == "__main__":
  commands.run(main, uses_cache=False)
