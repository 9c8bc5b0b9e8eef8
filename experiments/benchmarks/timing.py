"""How long calls take, all peers in turn, and how much memory."""

import dataclasses
import math
import pathlib
import time
import timeit
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import baselines, cases
from experiments.benchmarks.baselines import Prepared, Unavailable
from experiments.benchmarks.cases import Case, Inputs

PASSES = ("forward", "forward + backward")
# A call that is shorter is repeated, so that the clock has something to measure.
SHORTEST_SECONDS = 0.02
# Before a call that is shorter there is one that is not timed: who was before it in turn has left the cache,
# and some leave threads that wait for more.
LONG_SECONDS = 0.2

_STATUS = pathlib.Path("/proc/self/status")


class IncorrectResult(Exception):
  """Raised if the results of a peer are wrong."""


def measure(case: Case, names: Sequence[str], repeats: int) -> list[dict[str, Any]]:
  """Returns a record for each peer and pass, and one for each peer that is absent or wrong.

  All are compiled and checked first, then called in turn.

  Args:
    case: what to measure.
    names: of the peers.
    repeats: how often each is timed.
  """
  about = {"case": case.name, **dataclasses.asdict(case)}
  inputs = cases.draw(case)
  ready: dict[str, Prepared] = {}
  absent = []
  for name in names:
    try:
      ready[name] = _checked(baselines.prepare(name, case, inputs), case, inputs)
    except Unavailable as reason:
      absent.append({**about, "peer": name, "absent": str(reason)})
    except Exception as error:  # another's program may be wrong or fail as it likes; ours must not
      if name.startswith("attention"):
        raise
      lines = str(error).splitlines() or [""]
      what = "wrong:" if isinstance(error, IncorrectResult) else f"fails: {type(error).__name__}"
      absent.append({**about, "peer": name, "absent": f"{what} {lines[0][:80]}"})
  records = []
  for number, which in enumerate(PASSES):
    calls = {name: peer.both if number else peer.forward for name, peer in ready.items()}
    for name, seconds in _in_turn(calls, repeats).items():
      low, median, high = (round(1e3 * float(time), 3) for time in np.percentile(seconds, (25, 50, 75)))
      records.append(
        {
          **about,
          "peer": name,
          "pass": which,
          "milliseconds": median,
          "quartiles": [low, high],
          "repeats": repeats,
          "compile_seconds": ready[name].compile_seconds[number],
          "temporary_mib": ready[name].temporary_mib[number],
        }
      )
  return records + absent


def _checked(peer: Prepared, case: Case, inputs: Inputs) -> Prepared:
  """Returns the peer, or raises Wrong if its results are."""
  inputs = cases.of_checked(inputs)
  if case.dtype != "float32":
    inputs = jax.tree.map(lambda array: np.asarray(jnp.asarray(array, case.dtype), np.float32), inputs)
  _, gradients = peer.both(inputs.of_context)
  if wrong := cases.check(case, inputs, peer.to_numpy(peer.forward()), [*map(peer.to_numpy, gradients)]):
    raise IncorrectResult(wrong)
  return peer


def _in_turn(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
  """Returns how many seconds each call took, time after time."""
  once = {}
  for name, call in calls.items():
    call()
    once[name] = timeit.timeit(call, number=1)
  counts = {name: max(1, round(SHORTEST_SECONDS / duration)) for name, duration in once.items()}
  seconds: dict[str, list[float]] = {name: [] for name in calls}
  rng = np.random.default_rng(0)
  for _ in range(repeats):
    for name in rng.permutation(list(calls)):  # so that nobody always comes after the same other
      _wait_until_freed()
      if once[name] < LONG_SECONDS:
        calls[name]()
      seconds[name].append(timeit.timeit(calls[name], number=counts[name]) / counts[name])
  return seconds


def _wait_until_freed() -> None:
  """Waits until this process has returned its memory to the system, on Linux.

  XLA frees memory after a call has returned. 4 GiB take a third of a second, during which the next call is
  twice as slow.
  """
  before, now = math.inf, _resident_kibibytes()
  while now < before:
    time.sleep(0.02)
    before, now = now, _resident_kibibytes()


def _resident_kibibytes() -> float:
  if not _STATUS.exists():
    return math.inf
  lines = _STATUS.read_text("utf-8").splitlines()
  return next(float(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
