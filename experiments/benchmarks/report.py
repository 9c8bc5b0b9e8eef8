"""Reports of benchmarks, as tables and figures."""

import json
import os
import pathlib
import platform
import re
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import jax
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from experiments.benchmarks.timing import PASSES
from experiments.cli import messages
from experiments.figures import figures

Records = Sequence[dict[str, Any]]

PACKAGES = ("jax", "jaxlib", "flax", "numpy", "tokamax", "keras", "torch")


def machine() -> dict[str, Any]:
  """Returns the device and the versions of a benchmark."""
  installed = {package.name: package.version for package in metadata.distributions()}
  return {
    "device": jax.devices()[0].device_kind,
    "processor": _processor(),
    "cores": len(os.sched_getaffinity(0)),
    "python": platform.python_version(),
    "versions": {package: installed.get(package) for package in PACKAGES},
  }


def _processor() -> str:
  try:
    names = re.findall(
      r"^model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE
    )
  except OSError:
    names = []
  return names[0] if names else platform.processor() or platform.machine()


def write(path: pathlib.Path, records: Records) -> None:
  """Writes the machine and all records as JSON."""
  text = json.dumps({"machine": machine(), "records": list(records)}, indent=1)
  path.write_text(text + "\n", "utf-8")


LEGEND = """\
Sizes are (batch, T = S, heads, width). A time is the median of {repeats}; "both" is forward and backward.
"speedup" is the time of a baseline divided by that of `attention` in the same run: above 1, `attention` is
faster. `attention` uses the default implementation; `attention dense` uses implementation="dense". Results
are compared with float64 before they are timed. The share of peak is the rate of the matrix products of
unmasked pairs, relative to that of a product of two matrices [2048 2048]. Temporary memory of both passes is
reported by XLA, without arguments and results.
"""

_COLUMNS = (
  "case",
  "function",
  *("forward, ms (quartiles)", "speedup", "both, ms (quartiles)", "speedup"),
)
HEADER = messages.markdown((*_COLUMNS, "temporary MiB"), [])


def markdown(machine: dict[str, Any], records: Records) -> str:
  """Returns the whole report as Markdown: the machine, a table of speedups per suite, and all times."""
  versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
  device = "" if machine["device"] == "cpu" else f"{machine['device']}, "
  where = f"{device}{machine['processor']}, {machine['cores']} cores; Python {machine['python']}, {versions}."
  repeats = max((record["repeats"] for record in records if "repeats" in record), default=0)
  return f"{LEGEND.format(repeats=repeats)}\n{where}\n\n{summary(records)}\n\n{HEADER}\n{rows(records)}\n"


def rows(records: Records) -> str:
  """Returns the rows of a Markdown table with times, quartiles, speedups and memory."""
  lines = []
  for (_, case), case_records in _grouped(records, "suite", "case").items():
    times = _times(case_records)
    for baseline, passes in times.items():
      cells = [case, baseline]
      for which, record in passes.items():
        low, high = record["quartiles"]
        cells.append(f"{record['milliseconds']:.4g} ({low:.4g} to {high:.4g})")
        cells.append("" if baseline == "attention" else _speedup(times, baseline, which))
      memory = [record["temporary_mib"] for record in passes.values()]
      cells.append("not reported" if None in memory else " / ".join(f"{size:.4g}" for size in memory))
      lines.append(cells)
    unavailable = "; ".join(
      f"{record['baseline']} {record['unavailable']}" for record in case_records if "unavailable" in record
    )
    lines += [[case, f"not measured: {unavailable}", "", "", "", "", ""]] if unavailable else []
  return "\n".join(map(messages.markdown_row, lines))


def summary(records: Records) -> str:
  """Returns a table per suite: our times of both passes, and the speedup over each baseline."""
  texts = []
  for suite_records in _grouped(records, "suite").values():
    baselines = [baseline for baseline in _times(suite_records) if baseline != "attention"]
    lines = []
    for (case,), case_records in _grouped(suite_records, "case").items():
      times = _times(case_records)
      ours = [record["milliseconds"] for record in times.get("attention", {}).values()]
      cells = [case, " / ".join(f"{time:.3g}" if time < 1000 else f"{time:,.0f}" for time in ours)]
      shares = [record["peak_share"] for record in times.get("attention", {}).values()]
      cells.append("-" if None in shares else " / ".join(f"{share:.0%}" for share in shares))
      for baseline in baselines:
        speedups = [_speedup(times, baseline, which) for which in PASSES]
        cells.append(" / ".join(filter(None, speedups)) or "-")
      lines.append(cells)
    ours = ["attention, ms (forward / both)", "share of peak"]
    header = ["case", *ours, *(f"vs. {baseline}" for baseline in baselines)]
    texts.append(messages.markdown(header, lines))
  return "\n\n".join(texts)


def _grouped(records: Records, *fields: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
  """Groups records by the values of some fields."""
  groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
  for record in records:
    groups.setdefault(tuple(record[field] for field in fields), []).append(record)
  return groups


def _times(records: Records) -> dict[str, dict[str, dict[str, Any]]]:
  """Returns a mapping from baseline to pass to record."""
  timed = [record for record in records if "pass" in record]
  return {
    baseline: {record["pass"]: record for record in baseline_records}
    for (baseline,), baseline_records in _grouped(timed, "baseline").items()
  }


def _speedup(times: dict[str, dict[str, dict[str, Any]]], baseline: str, which: str) -> str:
  """Returns the time of a baseline divided by ours, such as "3.1×"; empty if one was not measured."""
  if not {"attention", baseline} <= times.keys():
    return ""
  speedup = times[baseline][which]["milliseconds"] / times["attention"][which]["milliseconds"]
  return f"{speedup:.1f}×" if speedup < 10 else f"{speedup:.0f}×"


def draw(folder: pathlib.Path, records: Records) -> list[pathlib.Path]:
  """Draws figures against length if several lengths were measured; returns the paths."""
  timed = [record for record in records if record["suite"] == "length" and "pass" in record]
  if len({record["length"] for record in timed}) < 2:
    return []
  paths = [folder / "time.png", folder / "memory.png", folder / "peak_share.png"]
  products = [record for record in timed if record["peak_share"] is not None]
  figures.save(_figure(timed, "milliseconds", "milliseconds"), paths[0])
  figures.save(_figure(timed, "temporary_mib", "temporary memory, MiB"), paths[1])
  figures.save(_figure(products, "peak_share", "share of the speed of a large product", log=False), paths[2])
  return paths


def _figure(records: Records, field: str, label: str, *, log: bool = True) -> Figure:
  """Returns a figure with a panel per score and pass, and a line per baseline."""
  panels: dict[str, dict[str, dict[float, list[float]]]] = {}
  for (score, which), panel_records in _grouped(records, "score", "pass").items():
    panels[f"{score.replace('_', ' ')}, {which}"] = {
      baseline: {record["length"]: [record[field]] for record in baseline_records if record[field]}
      for (baseline,), baseline_records in _grouped(panel_records, "baseline").items()
      if any(record[field] for record in baseline_records)
    }
  figure = figures.curves(panels, x="length T = S", doubles=True, columns=len(PASSES))
  for axes in figure.axes[:: len(PASSES)]:
    if log:
      axes.set_yscale("log")
      axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel(label)
  return figure
