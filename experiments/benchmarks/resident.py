"""How much memory a process takes: measured from outside of the compiler.

As a program it calculates attention and tells by how much it grew:

    python -m experiments.benchmarks.resident '{"score": "additive", "batch": 1, ...}' attention forward

It prints a number; "both" is for both passes.
"""

import json
import math
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from experiments.benchmarks import cases, peers
from experiments.benchmarks.cases import Case

_STATUS, _CLEAR = pathlib.Path("/proc/self/status"), pathlib.Path("/proc/self/clear_refs")


def resident_mib(case: Case, peer: str) -> list[float] | None:
  """Returns by how many MiB a process grows in its first forward pass, and another one in its first of both.

  None where the system does not tell; Linux does.

  Raises:
    RuntimeError: if a process fails.
  """
  if not _CLEAR.exists():
    return None
  sizes = []
  for which in ("forward", "both"):
    program = [sys.executable, "-m", __name__, json.dumps(vars(case)), peer, which]
    finished = subprocess.run(program, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
      lines = finished.stderr.splitlines() or ["nothing said"]
      raise RuntimeError(f"{which} in a process of its own, code {finished.returncode}: {lines[-1]}")
    sizes.append(float(finished.stdout))
  return sizes


def wait_until_freed() -> None:
  """Returns when this process shrinks no more, where the system tells how large it is; Linux does.

  XLA gives memory back after a call has returned: 4 GiB take a third of a second, in which whoever is called
  next takes twice as long.
  """
  if not _STATUS.exists():
    return
  before, now = math.inf, _kibibytes("VmRSS")
  while now < before:
    time.sleep(0.02)
    before, now = now, _kibibytes("VmRSS")


def _growth(call: Callable[[], Any]) -> float:
  """Returns by how much the process is larger at its largest, while it calls, than before."""
  _CLEAR.write_text("5", "utf-8")  # forget the peak so far
  before = _kibibytes("VmRSS")
  call()
  return round((_kibibytes("VmHWM") - before) / 2**10, 1)


def _kibibytes(field: str) -> int:
  lines = dict(line.split(":", 1) for line in _STATUS.read_text("utf-8").splitlines() if ":" in line)
  return int(lines[field].split()[0])


if __name__ == "__main__":
  _case = Case(**json.loads(sys.argv[1]))
  _ready = peers.prepare(sys.argv[2], _case, cases.draw(_case))
  print(_growth(getattr(_ready, sys.argv[3])))
