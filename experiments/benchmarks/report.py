"""What the benchmark has found, as tables and pictures."""

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
from experiments.cli import tables
from experiments.translation import figures, png

Records = Sequence[dict[str, Any]]

PACKAGES = ("jax", "jaxlib", "flax", "numpy", "tokamax", "keras", "torch")


def machine() -> dict[str, Any]:
  """Returns on what, and with which versions, the figures are made."""
  installed = {each.name: each.version for each in metadata.distributions()}
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
"ours / theirs" is our time divided by theirs, in the same run: below 1 ours is faster. Ours is `attention`,
as it is called by default; `attention dense` is with implementation="dense". Results are compared with
float64 before they are timed. Temporary memory is what the compiled programs of both passes take besides
their arguments and results, as XLA states it.
"""

_COLUMNS = (
  "case",
  "by",
  *("forward, ms (quartiles)", "ours / theirs", "both, ms (quartiles)", "ours / theirs"),
)
HEADER = tables.markdown((*_COLUMNS, "temporary MiB"), [])


def markdown(machine: dict[str, Any], records: Records) -> str:
  """Returns all of it as Markdown: on what, a table of ratios for each set, and one of all times."""
  versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
  device = "" if machine["device"] == "cpu" else f"{machine['device']}, "
  where = f"{device}{machine['processor']}, {machine['cores']} cores; Python {machine['python']}, {versions}."
  repeats = max((record["repeats"] for record in records if "repeats" in record), default=0)
  return f"{LEGEND.format(repeats=repeats)}\n{where}\n\n{summary(records)}\n\n{HEADER}\n{rows(records)}\n"


def rows(records: Records) -> str:
  """Returns the rows of a table: times with quartiles, and what share of them ours are, as Markdown."""
  lines = []
  for (_, case), of_case in _grouped(records, "set", "case").items():
    times = _times(of_case)
    for peer, passes in times.items():
      cells = [case, peer]
      for which, record in passes.items():
        low, high = record["quartiles"]
        cells.append(f"{record['milliseconds']:.4g} ({low:.4g} to {high:.4g})")
        cells.append("" if peer == "attention" else _ours_to_theirs(times, peer, which))
      memory = [record["temporary_mib"] for record in passes.values()]
      cells.append("not stated" if None in memory else " / ".join(f"{size:.4g}" for size in memory))
      lines.append(cells)
    absent = "; ".join(f"{record['peer']} {record['absent']}" for record in of_case if "absent" in record)
    lines += [[case, f"absent: {absent}", "", "", "", "", ""]] if absent else []
  return "\n".join(map(tables.markdown_row, lines))


def summary(records: Records) -> str:
  """Returns a table for each set: our times of both passes, and what share of each peer's they are."""
  texts = []
  for of_set in _grouped(records, "set").values():
    others = [peer for peer in _times(of_set) if peer != "attention"]
    lines = []
    for (case,), of_case in _grouped(of_set, "case").items():
      times = _times(of_case)
      ours = [record["milliseconds"] for record in times.get("attention", {}).values()]
      cells = [case, " / ".join(f"{time:.3g}" if time < 1000 else f"{time:,.0f}" for time in ours)]
      for peer in others:
        ratios = [_ours_to_theirs(times, peer, which) for which in PASSES]
        cells.append(" / ".join(filter(None, ratios)) or "-")
      lines.append(cells)
    header = ["case", "ours, ms (forward / both)", *(f"ours / {peer}" for peer in others)]
    texts.append(tables.markdown(header, lines))
  return "\n\n".join(texts)


def _grouped(records: Records, *fields: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
  """Returns the records by their values of some fields."""
  groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
  for record in records:
    groups.setdefault(tuple(record[field] for field in fields), []).append(record)
  return groups


def _times(records: Records) -> dict[str, dict[str, dict[str, Any]]]:
  """Returns peer -> pass -> record, of what was timed."""
  timed = [record for record in records if "pass" in record]
  return {
    peer: {record["pass"]: record for record in of_peer}
    for (peer,), of_peer in _grouped(timed, "peer").items()
  }


def _ours_to_theirs(times: dict[str, dict[str, dict[str, Any]]], peer: str, which: str) -> str:
  """Returns our time divided by a peer's; nothing if one of them was not measured."""
  if not {"attention", peer} <= times.keys():
    return ""
  return f"{times['attention'][which]['milliseconds'] / times[peer][which]['milliseconds']:.2f}"


def draw(folder: pathlib.Path, records: Records) -> list[pathlib.Path]:
  """Draws time and memory against the length, and returns where; nothing if there are no several lengths."""
  grown = [record for record in records if record["set"] == "length" and "pass" in record]
  if len({record["length"] for record in grown}) < 2:
    return []
  paths = [folder / "time.png", folder / "memory.png"]
  png.save(_figure(grown, "milliseconds", "milliseconds"), paths[0])
  png.save(_figure(grown, "temporary_mib", "temporary memory, MiB"), paths[1])
  return paths


def _figure(records: Records, field: str, label: str) -> Figure:
  """Returns a figure with a panel for each score and pass, and a line for each peer."""
  panels: dict[str, dict[str, dict[float, list[float]]]] = {}
  for (score, which), of_panel in _grouped(records, "score", "pass").items():
    panels[f"{score.replace('_', ' ')}, {which}"] = {
      peer: {record["length"]: [record[field]] for record in of_peer if record[field]}
      for (peer,), of_peer in _grouped(of_panel, "peer").items()
    }
  figure = figures.curves(panels, x="length T = S", doubles=True, columns=len(PASSES))
  for axes in figure.axes[:: len(PASSES)]:
    axes.set_yscale("log")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel(label)
  return figure
