"""How long calls take, all peers in turn, and how much memory."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import cases, peers
from experiments.benchmarks.cases import Case, Inputs
from experiments.benchmarks.peers import Absent, Prepared
from experiments.benchmarks.resident import resident_mib, wait_until_freed

PASSES = ("forward", "forward + backward")
# The side of the large matrix product that tells what the machine can do.
SIDE = 4096
# A call that is shorter is repeated, so that the clock has something to measure.
SHORTEST_SECONDS = 0.02
# Before a call that is shorter there is one that is not timed: who was before it in turn has left the cache,
# and some leave threads that wait for more.
LONG_SECONDS = 0.2


def measure(case: Case, names: tuple[str, ...], repeats: int, resident: bool = False) -> list[dict[str, Any]]:
  """Returns a record for each peer and pass, and one for each peer that is absent or wrong.

  All are compiled and checked first, then called in turn.

  Args:
    case: what to measure.
    names: of the peers.
    repeats: how often each is timed.
    resident: whether to run each in a process of its own too, to see how large that becomes.
  """
  inputs = cases.draw(case)
  ready: dict[str, Prepared] = {}
  grown: dict[str, list[float] | None] = {}
  records: list[dict[str, Any]] = []
  absent = []
  for name in names:
    try:
      ready[name] = _checked(peers.prepare(name, case, inputs), case, inputs)
      grown[name] = resident_mib(case, name) if resident else None
    except Absent as reason:
      absent.append({**_what(case, name), "absent": str(reason)})
    except Exception as error:  # another's program may be wrong or fail as it likes; ours must not
      ready.pop(name, None)
      if name.startswith("attention"):
        raise
      lines = str(error).splitlines() or [""]
      what = "wrong:" if isinstance(error, Wrong) else f"fails: {type(error).__name__}"
      absent.append({**_what(case, name), "absent": f"{what} {lines[0][:80]}"})
  product = _matrix_product(case.dtype)
  for number, which in enumerate(PASSES):
    calls = {name: peer.both if number else peer.forward for name, peer in ready.items()}
    seconds = _in_turn({**calls, "": product}, repeats)
    fastest_product = 2 * SIDE**3 / np.median(seconds.pop("")) / 1e9
    for name, times in seconds.items():
      low, median, high = np.percentile(times, (25, 50, 75))
      rate = case.operations(derivatives=bool(number)) / median / 1e9
      peer, resident_sizes = ready[name], grown[name]
      records.append(
        {
          **_what(case, name),
          "pass": which,
          "milliseconds": round(1e3 * median, 3),
          "quartiles": [round(1e3 * low, 3), round(1e3 * high, 3)],
          "repeats": repeats,
          "gflops": round(rate, 1),
          "matrix_product_gflops": round(fastest_product, 1),
          "share_of_matrix_product": round(rate / fastest_product, 3),
          "compile_seconds": None if peer.compile_seconds is None else round(peer.compile_seconds[number], 2),
          "temporary_mib": None
          if peer.temporary_bytes is None
          else round(peer.temporary_bytes[number] / 2**20, 3),
          "resident_mib": None if resident_sizes is None else resident_sizes[number],
        }
      )
  return records + absent


def _what(case: Case, peer: str) -> dict[str, Any]:
  """Returns what a record is about."""
  return {"case": case.name, **dataclasses.asdict(case), "peer": peer}


class Wrong(Exception):
  """What is wrong with a peer's results."""


def _checked(peer: Prepared, case: Case, inputs: Inputs) -> Prepared:
  """Returns the peer, or raises Wrong if its results are."""
  if case.dtype != "float32":
    inputs = jax.tree.map(lambda array: np.asarray(jnp.asarray(array, case.dtype), np.float32), inputs)
  wrong = cases.check(case, inputs, peer.to_numpy(peer.forward()), [*map(peer.to_numpy, peer.both()[1][:3])])
  if wrong:
    raise Wrong(wrong)
  return peer


def _in_turn(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
  """Returns how many seconds each call took, time after time."""
  once = {}
  for name, call in calls.items():
    call()
    start = time.perf_counter()
    call()
    once[name] = time.perf_counter() - start
  counts = {name: max(1, round(SHORTEST_SECONDS / duration)) for name, duration in once.items()}
  seconds: dict[str, list[float]] = {name: [] for name in calls}
  rng = np.random.default_rng(0)
  for _ in range(repeats):
    for name in rng.permutation(list(calls)):  # so that nobody always comes after the same other
      call = calls[name]
      wait_until_freed()
      if once[name] < LONG_SECONDS:
        call()
      start = time.perf_counter()
      for _ in range(counts[name]):
        call()
      seconds[name].append((time.perf_counter() - start) / counts[name])
  return seconds


def _matrix_product(dtype: str) -> Callable[[], Any]:
  matrix = jnp.asarray(np.random.default_rng(0).standard_normal((SIDE, SIDE), dtype=np.float32), dtype)
  precision = "highest" if dtype == "float32" else None  # as for those who are compared
  product = jax.jit(lambda matrix: jnp.matmul(matrix, matrix, precision=precision))
  return lambda: jax.block_until_ready(product(matrix))
