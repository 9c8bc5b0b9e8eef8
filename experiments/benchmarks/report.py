"""What the benchmark has found, as tables and pictures."""

import json
import os
import pathlib
import platform
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any

import jax
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments.benchmarks.measuring import PASSES
from experiments.commands import tables

Records = Sequence[dict[str, Any]]

PACKAGES = ("jax", "jaxlib", "flax", "numpy", "tokamax", "keras", "torch")


def machine() -> dict[str, Any]:
  """Returns on what, and with which versions, the figures are made."""
  versions: dict[str, str | None] = {}
  for package in PACKAGES:
    try:
      versions[package] = metadata.version(package)
    except metadata.PackageNotFoundError:
      versions[package] = None
  return {
    "device": jax.devices()[0].device_kind,
    "processor": _processor(),
    "cores": len(os.sched_getaffinity(0)),
    "python": platform.python_version(),
    "versions": versions,
  }


def write(path: pathlib.Path, records: Records) -> None:
  """Writes the machine and all records as JSON."""
  text = json.dumps({"machine": machine(), "records": list(records)}, indent=1)
  path.write_text(text + "\n", "utf-8")


LEGEND = """\
Sizes are (batch, T = S, heads, width). A time is the median of {repeats}; "both" is forward and backward.
"ours / theirs" is our time divided by theirs, in the same run: below 1 ours is faster. Ours is `attention`,
as it is called by default; `attention dense` is with implementation="dense". Results are compared with
float64 before they are timed. Temporary memory is what the compiled programs of both passes take besides
their arguments and results, as XLA states it; resident is by how much a process of its own grew.
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
  for _, case, of_case in _by_case(records):
    times = _times(of_case)
    for peer in dict.fromkeys(peer for peer, _ in times):
      cells = [case, peer]
      for which in PASSES:
        low, high = times[peer, which]["quartiles"]
        cells.append(f"{times[peer, which]['milliseconds']:.4g} ({low:.4g} to {high:.4g})")
        cells.append("" if peer == "attention" else _ours_to_theirs(times, peer, which))
      memory = [times[peer, which]["temporary_mib"] for which in PASSES]
      cells.append("not stated" if None in memory else " / ".join(f"{size:.4g}" for size in memory))
      resident = [times[peer, which].get("resident_mib") for which in PASSES]
      cells[-1] += "" if None in resident else f" (resident {' / '.join(f'{size:.4g}' for size in resident)})"
      lines.append(cells)
    absent = "; ".join(f"{record['peer']} {record['absent']}" for record in of_case if "absent" in record)
    lines += [[case, f"absent: {absent}", "", "", "", "", ""]] if absent else []
  return "\n".join(map(tables.markdown_row, lines))


def summary(records: Records) -> str:
  """Returns a table for each set: our times of both passes, and what share of each peer's they are."""
  texts = []
  for name in dict.fromkeys(record["set"] for record in records):
    of_set = [record for record in records if record["set"] == name]
    others = [peer for peer in dict.fromkeys(peer for peer, _ in _times(of_set)) if peer != "attention"]
    lines = []
    for _, case, of_case in _by_case(of_set):
      times = _times(of_case)
      ours = [times[peer, which]["milliseconds"] for peer, which in times if peer == "attention"]
      cells = [case, " / ".join(f"{time:.3g}" if time < 1000 else f"{time:,.0f}" for time in ours)]
      for peer in others:
        ratios = [_ours_to_theirs(times, peer, which) for which in PASSES]
        cells.append(" / ".join(filter(None, ratios)) or "-")
      lines.append(cells)
    header = ["case", "ours, ms (forward / both)", *(f"ours / {peer}" for peer in others)]
    texts.append(tables.markdown(header, lines))
  return "\n\n".join(texts)


def _by_case(records: Records) -> Iterator[tuple[str | None, str, Records]]:
  """Yields each set and case with its records."""
  for name, case in dict.fromkeys((record.get("set"), record["case"]) for record in records):
    yield name, case, [record for record in records if (record.get("set"), record["case"]) == (name, case)]


def _times(records: Records) -> dict[tuple[str, str], dict[str, Any]]:
  """Returns the records of what was timed, by peer and pass."""
  return {(record["peer"], record["pass"]): record for record in records if "pass" in record}


def _ours_to_theirs(times: dict[tuple[str, str], dict[str, Any]], peer: str, which: str) -> str:
  """Returns our time divided by a peer's; nothing if one of them was not measured."""
  ours, theirs = times.get(("attention", which)), times.get((peer, which))
  return f"{ours['milliseconds'] / theirs['milliseconds']:.2f}" if ours and theirs else ""


def draw(folder: pathlib.Path, records: Records) -> list[pathlib.Path]:
  """Draws time and memory against the length, and returns where; nothing if there are no several lengths."""
  grown = [record for record in records if record.get("set") == "length" and "pass" in record]
  if len({record["length"] for record in grown}) < 2:
    return []
  paths = []
  for name, field, label in (
    ("time", "milliseconds", "milliseconds"),
    ("memory", "temporary_mib", "temporary memory, MiB"),
  ):
    figure = _figure(grown, field, label)
    path = folder / f"{name}.png"
    FigureCanvasAgg(figure).print_png(path)
    paths.append(path)
  return paths


def _figure(records: Records, field: str, label: str) -> Figure:
  """Returns a figure with a panel for each score and pass, and a line for each peer."""
  scores = list(dict.fromkeys(record["score"] for record in records))
  figure = Figure(figsize=(9.5, 3.6 * len(scores)), dpi=130, layout="constrained")
  panels = figure.subplots(len(scores), len(PASSES), sharex=True, sharey="row", squeeze=False)
  peers = list(dict.fromkeys(record["peer"] for record in records))
  lengths = sorted({record["length"] for record in records})
  for row, score in zip(panels, scores, strict=True):
    for panel, which in zip(row, PASSES, strict=True):
      for number, peer in enumerate(peers):
        points = [
          (record["length"], record[field])
          for record in records
          if (record["score"], record["pass"], record["peer"]) == (score, which, peer) and record[field]
        ]
        if points:
          thick = 2.4 if peer == "attention" else 1.2
          panel.plot(*zip(*points, strict=True), marker="o", ms=4, lw=thick, color=f"C{number}", label=peer)
      panel.set_xscale("log", base=2)
      panel.set_yscale("log")
      panel.set_xticks(lengths, [f"{length:,}" for length in lengths])
      panel.set_title(f"{score.replace('_', ' ')}, {which}", fontsize=10)
      panel.grid(alpha=0.3)
    row[0].set_ylabel(label)
    row[0].legend(fontsize=8, frameon=False)
  for panel in panels[-1]:
    panel.set_xlabel("length T = S")
  return figure


def _processor() -> str:
  """Returns the name of the processor."""
  try:
    lines = pathlib.Path("/proc/cpuinfo").read_text("utf-8").splitlines()
  except OSError:
    lines = []
  names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
  return names[0] if names else platform.processor() or platform.machine()
