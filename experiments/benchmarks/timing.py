"""Times and memory of baselines, measured in turn."""

import ctypes
import dataclasses
import functools
import math
import pathlib
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import baselines, cases
from experiments.benchmarks.baselines import Prepared, Unavailable
from experiments.benchmarks.cases import Case, Inputs

PASSES = ("forward", "forward + backward")
# Shorter calls are repeated until they take this long.
SHORTEST_SECONDS = 0.02
# Calls that are shorter than this are preceded by one that is not timed, since the previous baseline has
# replaced the contents of the cache and may have left busy threads.
LONG_SECONDS = 1.0

_PEAK_SIZE = 2048
_STATUS = pathlib.Path("/proc/self/status")
_CLEAR_REFS = pathlib.Path("/proc/self/clear_refs")


class IncorrectResult(Exception):
  """Raised if the results of a baseline are wrong."""


@functools.cache
def peak_flops(dtype: str, repeats: int = 9) -> float:
  """Returns the rate of a product of two matrices [2048 2048], in floating-point operations per second."""
  matrix = jnp.ones((_PEAK_SIZE, _PEAK_SIZE), dtype)
  with jax.default_matmul_precision("highest" if dtype == "float32" else None):
    product = jax.jit(jnp.matmul).lower(matrix, matrix).compile()
  jax.block_until_ready(product(matrix, matrix))
  seconds = [
    timeit.timeit(lambda: jax.block_until_ready(product(matrix, matrix)), number=1) for _ in range(repeats)
  ]
  return 2 * _PEAK_SIZE**3 / float(np.median(seconds))


def measure(case: Case, names: Sequence[str], repeats: int, peak: float) -> list[dict[str, Any]]:
  """Returns a record for each baseline and pass, and one for each baseline that is unavailable or wrong.

  All baselines are compiled and checked first, then called in turn.

  Args:
    case: what to measure.
    names: names of the baselines.
    repeats: number of measurements of each.
    peak: from `peak_flops`.
  """
  about = {"case": case.name, **dataclasses.asdict(case)}
  inputs = cases.draw(case)
  ready: dict[str, Prepared] = {}
  unavailable = []
  for name in names:
    try:
      ready[name] = _checked(baselines.prepare(name, case, inputs), case, inputs)
    except Unavailable as reason:
      unavailable.append({**about, "baseline": name, "unavailable": str(reason)})
    except Exception as error:  # other libraries may fail; ours must not
      if name.startswith("attention"):
        raise
      lines = str(error).splitlines() or [""]
      what = "wrong:" if isinstance(error, IncorrectResult) else f"fails: {type(error).__name__}"
      unavailable.append({**about, "baseline": name, "unavailable": f"{what} {lines[0][:80]}"})
  records = []
  for number, which in enumerate(PASSES):
    calls = {name: baseline.both if number else baseline.forward for name, baseline in ready.items()}
    for name, seconds in in_turn(calls, repeats).items():
      low, median, high = (round(1e3 * float(time), 3) for time in np.percentile(seconds, (25, 50, 75)))
      flops = case.flops(both=bool(number))
      records.append(
        {
          **about,
          "baseline": name,
          "pass": which,
          "milliseconds": median,
          "quartiles": [low, high],
          "repeats": repeats,
          "compile_seconds": ready[name].compile_seconds[number],
          "temporary_mib": ready[name].temporary_mib[number],
          "peak_share": None if flops is None else round(flops / float(np.median(seconds)) / peak, 3),
        }
      )
  return records + unavailable


def _checked(baseline: Prepared, case: Case, inputs: Inputs) -> Prepared:
  """Returns the baseline, or raises IncorrectResult."""
  inputs = cases.restrict_to_checked(inputs)
  if case.dtype != "float32":
    inputs = jax.tree.map(lambda array: np.asarray(jnp.asarray(array, case.dtype), np.float32), inputs)
  _, gradients = baseline.both(inputs.d_context)
  if wrong := cases.check(
    case, inputs, baseline.to_numpy(baseline.forward()), [*map(baseline.to_numpy, gradients)]
  ):
    raise IncorrectResult(wrong)
  return baseline


def in_turn(calls: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
  """Returns the seconds of each call, measured in random order."""
  once = {}
  for name, call in calls.items():
    call()
    once[name] = timeit.timeit(call, number=1)
  counts = {name: max(1, round(SHORTEST_SECONDS / duration)) for name, duration in once.items()}
  seconds: dict[str, list[float]] = {name: [] for name in calls}
  rng = np.random.default_rng(0)
  for _ in range(repeats):
    for name in rng.permutation(list(calls)):  # so that no call always follows the same other call
      _wait_until_freed()
      if once[name] < LONG_SECONDS:
        calls[name]()
      seconds[name].append(timeit.timeit(calls[name], number=counts[name]) / counts[name])
  return seconds


def _wait_until_freed() -> None:
  """Waits until this process has returned its memory to the system, on Linux.

  XLA frees memory after a call has returned. For 4 GiB this takes a third of a second, during which the next
  call is twice as slow.
  """
  before, now = math.inf, _resident_kibibytes()
  while now < before:
    time.sleep(0.02)
    before, now = now, _resident_kibibytes()


def peak_growth_mib(call: Callable[[], Any]) -> float | None:
  """Returns by how much the memory of this process grows during a call at most, on Linux, otherwise None."""
  try:
    ctypes.CDLL(None).malloc_trim(0)  # returns free memory to the system
    _CLEAR_REFS.write_text("5", "utf-8")  # resets VmHWM, the peak; see proc(5)
  except (AttributeError, OSError):
    return None
  before = _resident_kibibytes()
  call()
  return (_resident_kibibytes("VmHWM") - before) / 2**10


def _resident_kibibytes(field: str = "VmRSS") -> float:
  if not _STATUS.exists():
    return math.inf
  lines = _STATUS.read_text("utf-8").splitlines()
  return next(float(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
