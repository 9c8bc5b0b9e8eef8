"""Figures of metrics: training curves, dot plots and line plots; and figures as PNG files."""

from __future__ import annotations

import io
import itertools
import math
import os
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.cli.io import write_bytes
from experiments.figures import labels

# Metrics that are drawn as scores, of which more is better, and the divisors that scale them to [0, 1].
SCORES = {"exact_match": 1.0, "token_accuracy": 1.0, "bleu": 100.0, "chrf": 100.0, "attention_mass": 1.0}
ERRORS = ("alignment_error_rate",)

LETTER_INCHES = 0.085
INK = "#333333"
RULE = "#e3e6e8"
EDGE = "#c4c9cd"
_LINES = ("#1f5fa8", "#e8590c", "#2b8a3e", "#862e9c", "#b8860b", "#0c8599", "#5c636a")
_MAX_COLUMNS = 4  # panels per row, so that figures fit on a page
_MAX_GROUP_LABEL = 80  # characters
_MAX_REASON_LENGTH = 200  # characters
_DOTS_PER_INCH = 150


def training_curves(records: Sequence[Mapping[str, float]]) -> Figure:
  """Returns the curves of a training run, in panels of losses, scores and errors from left to right.

  Metrics are drawn by the last part of their names: those that begin with `loss` as losses, those in `SCORES`
  as scores, divided by their divisors, and those in `ERRORS` as errors. Other metrics are not drawn.

  Args:
    records: dicts with a `step` and any metrics, such as `train/loss` or `validation/exact_match`.

  Raises:
    ValueError: if a record has no `step`, or no record has a loss or score.

  >>> records = [{"step": 1, "train/loss": 2.5}, {"step": 2, "validation/exact_match": 0.5}]
  >>> [axes.get_title() for axes in training_curves(records).axes]
  ['loss (lower is better)', 'scores (higher is better)']
  """
  for record in records:
    if "step" not in record:
      raise ValueError(f"every record must have a step, got one with {sorted(record)}")
  kinds = {name: name.rsplit("/", 1)[-1] for record in records for name in record}
  panels = {
    "loss (lower is better)": {name: 1.0 for name, kind in kinds.items() if kind.startswith("loss")},
    "scores (higher is better)": {name: SCORES[kind] for name, kind in kinds.items() if kind in SCORES},
    "errors (lower is better)": {name: 1.0 for name, kind in kinds.items() if kind in ERRORS},
  }
  panels = {title: divisors for title, divisors in panels.items() if divisors}
  if not panels:
    raise ValueError(f"records must have at least one loss or score, got {[*kinds]}")
  figure = new_figure(5.2 * len(panels), 3.8)
  all_axes = figure.subplots(1, len(panels), sharex=True, squeeze=False)[0]
  for axes, (title, divisors) in zip(all_axes, panels.items(), strict=True):
    for color, (name, divisor) in zip(itertools.cycle(_LINES), divisors.items(), strict=False):
      points = [(record["step"], record[name] / divisor) for record in records if name in record]
      label = name if divisor == 1.0 else f"{name} / {divisor:g}"
      marker = "o" if len(points) <= 30 else ""
      axes.plot(*zip(*points, strict=True), label=label, color=color, marker=marker, markersize=3)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if not title.startswith("loss"):
      axes.set_ylim(-0.02, 1.02)
    _style_axes(axes, title, "step")
    axes.legend(frameon=False, fontsize=9, labelcolor=INK)
  return figure


def dot_plot(metrics: Mapping[str, Mapping[str, Sequence[float]]], *, title: str | None = None) -> Figure:
  """Returns a dot plot with one panel per metric: a dot for each run, and a line at the mean of each group.

  Args:
    metrics: metric -> group -> values of its runs.
    title: title of the figure.

  >>> figure = dot_plot({"bleu": {"additive": [40.0, 41.5], "bilinear": [39.0]}})
  >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
  ['additive', 'bilinear']
  """
  groups = list(dict.fromkeys(group for values_by_group in metrics.values() for group in values_by_group))
  names = [labels.shorten(group, _MAX_GROUP_LABEL) for group in groups]
  columns = max(1, min(len(metrics), _MAX_COLUMNS))
  rows = max(1, -(-len(metrics) // columns))
  figure = new_figure(labels.inches(names, 9) + 2.4 * columns, (0.4 * len(groups) + 1.0) * rows)
  panels = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
  for axes in panels[len(metrics) :]:
    axes.set_visible(False)
  for axes, (metric, values_by_group) in zip(panels, metrics.items(), strict=False):
    for row, group in enumerate(groups):
      values, color = values_by_group.get(group, ()), _LINES[row % len(_LINES)]
      axes.plot(values, [row] * len(values), "o", color=color, markersize=5, alpha=0.6, markeredgewidth=0)
      if values:
        axes.plot([float(np.mean(values))] * 2, [row - 0.3, row + 0.3], color=color, linewidth=2)
    axes.set_title(metric, fontsize=10, color=INK)
    axes.set_yticks(range(len(groups)), names, parse_math=False, family=labels.families(names))
    if groups:
      axes.set_ylim(len(groups) - 0.5, -0.5)  # first group at the top
    axes.margins(x=0.1)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.tick_params(color=EDGE, labelsize=9, labelcolor=INK)
    axes.grid(color=RULE, linewidth=0.6, axis="x")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(EDGE)
  if title is not None:
    figure.suptitle(title, fontsize=11, color=INK, parse_math=False)
  return figure


def curves(
  panels: Mapping[str, Mapping[str, Mapping[float, Sequence[float]]]],
  *,
  x: str,
  doubles: bool = False,
  columns: int | None = None,
) -> Figure:
  """Returns line plots of the means of runs, with error bars of one standard deviation.

  Args:
    panels: title -> line -> x -> values of the runs, which may be empty.
    x: label of the x axis.
    doubles: use a logarithmic x axis of base 2.
    columns: number of panels per row, which share their y axis. Default: one row, with separate y axes.

  >>> figure = curves({"bleu": {"additive": {64: [40.0, 41.5], 128: [42.0]}}}, x="width", doubles=True)
  >>> [axes.get_title() for axes in figure.axes]
  ['bleu']
  """
  names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
  legend = LETTER_INCHES * max(map(len, names), default=0) + 0.6
  share_y = columns is not None
  columns = columns or len(panels)
  rows = math.ceil(len(panels) / columns)
  figure = new_figure(4.4 * columns + legend, 3.6 * rows)
  grid = figure.subplots(rows, columns, squeeze=False, sharey="row" if share_y else False)
  for axes in grid.flat[len(panels) :]:
    axes.remove()
  for axes, (title, lines) in zip(grid.flat, panels.items(), strict=False):
    x_values = sorted({x_value for points in lines.values() for x_value in points})
    if doubles:
      axes.set_xscale("log", base=2)
      axes.set_xticks(x_values, [f"{x_value:g}" for x_value in x_values])
      axes.minorticks_off()
    for name, points in lines.items():
      measured = {x_value: values for x_value, values in sorted(points.items()) if values}
      means = [float(np.mean(values)) for values in measured.values()]
      deviations = [float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 for values in measured.values()]
      index = names.index(name)
      axes.errorbar(
        [*measured],
        means,
        deviations,
        label=name,
        color=_LINES[index % len(_LINES)],
        linestyle=("-", "--")[index // len(_LINES) % 2],
        marker="o",
        markersize=4,
        capsize=2,
        elinewidth=0.8,
      )
    _style_axes(axes, title, x)
  for axes in (*grid[:-1, -1], grid.flat[len(panels) - 1]):  # the last panel of each row
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="center left", bbox_to_anchor=(1, 0.5))
  return figure


def new_figure(width: float, height: float) -> Figure:
  """Returns a figure, sizes in inches, that needs no display."""
  return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def _style_axes(axes: Axes, title: str, x: str) -> None:
  """Adds the title and axis label, and replaces the frame by thin grid lines."""
  axes.set_title(title, fontsize=11, color=INK)
  axes.set_xlabel(x, color=INK)
  axes.tick_params(color=EDGE, labelsize=9, labelcolor=INK)
  axes.grid(color=RULE, linewidth=0.6)
  axes.spines[["top", "right"]].set_visible(False)
  axes.spines[["left", "bottom"]].set_color(EDGE)


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
  """Writes a figure as a PNG file, atomically.

  Args:
    figure: figure to write.
    path: file that ends in `.png`. Missing folders are created.

  Raises:
    ValueError: if `path` does not end in `.png`.
    OSError: if the file cannot be written.
  """
  _write(pathlib.Path(path), _png(figure))


def try_to_save(make: Callable[[], Figure], path: str | os.PathLike[str]) -> bool:
  """Writes a figure like `save`. Prints a warning and returns False if it cannot be drawn.

  A failed figure does not stop a run. A file that cannot be written is still an error.
  """
  try:
    content = _png(make())
  except Exception as error:  # matplotlib may raise anything
    reason = labels.shorten(" ".join(f"{type(error).__name__}: {error}".split()), _MAX_REASON_LENGTH)
    print(f"warning: could not draw {path}: {reason}", file=sys.stderr)
    return False
  _write(pathlib.Path(path), content)
  return True


def _png(figure: Figure) -> bytes:
  file = io.BytesIO()
  with labels.ignore_missing_glyphs():
    figure.savefig(file, format="png", dpi=_DOTS_PER_INCH, bbox_inches="tight")
  return file.getvalue()


def _write(path: pathlib.Path, content: bytes) -> None:
  if path.suffix.lower() != ".png":
    raise ValueError(f"path must end in .png, got {path}")
  path.parent.mkdir(parents=True, exist_ok=True)
  write_bytes(path, content)
