"""Pictures of attention and of training, drawn without a display."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import BboxTransformTo, ScaledTranslation, blended_transform_factory

from experiments.translation import labels

# Metrics drawn as scores, and what each is divided by to lie between 0 and 1.
SCORES = {
  "exact_match": 1.0,
  "token_accuracy": 1.0,
  "bleu": 100.0,
  "chrf": 100.0,
  "alignment_error_rate": 1.0,
  "attention_mass": 1.0,
}

# Tokens a side of a map that a person can still read; one of 400 takes minutes and gigabytes.
LONGEST = 60

_CELL_INCHES = 0.34
_LETTER_INCHES = 0.085
_INK = "#333333"
_RULE = "#e3e6e8"
_EDGE = "#c4c9cd"
_MARK = "#e8590c"
_SHADES = LinearSegmentedColormap.from_list(
  "attention", ("#ffffff", "#c6dbef", "#6baed6", "#2171b5", "#08306b")
)
_SIGNED_SHADES = LinearSegmentedColormap.from_list(
  "signed attention", ("#7a0177", "#c51b8a", "#fa9fb5", "#ffffff", "#6baed6", "#2171b5", "#08306b")
)
_ROUNDING = 1e-5  # by which a weight of 0 or 1 may be off
_LINES = ("#1f5fa8", "#e8590c", "#2b8a3e", "#862e9c", "#b8860b", "#0c8599", "#5c636a")
_LONGEST_GROUP = 80  # characters


def attention_map(
  weights: np.ndarray,
  source_words: Sequence[str],
  target_words: Sequence[str],
  *,
  alignment: Collection[tuple[int, int]] | None = None,
  title: str | None = None,
) -> Figure:
  """Returns a heat-map of attention: source words across the top, target words downwards.

  Weights below 0, or above 1, are drawn too: the scale then has another colour below 0, and the title says
  from where to where they are.

  Args:
    weights: [T S]; 0 is white, the largest is the darkest, of the values beside the map.
    source_words: S of them.
    target_words: T of them.
    alignment: true links (target position, source position), marked by an outlined square.
    title: one line above the map.

  Returns:
    The figure; it grows with the number and the length of the words.

  Raises:
    ValueError: if the sizes do not fit, a weight is not finite, or a link is outside the map.

  >>> figure = attention_map(np.eye(2), ["the", "cat"], ["il", "gatto"], alignment={(0, 0)})
  >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
  ['il', 'gatto']
  """
  weights = _checked_weights(weights, source_words, target_words)
  sources, targets = (tuple(map(labels.shortened, words)) for words in (source_words, target_words))
  title = _with_range(title, weights)
  figure = _new_figure(*_map_size(sources, targets, title))
  axes = figure.add_subplot()
  image = axes.imshow(weights, **_scale(weights), aspect="equal")
  _label_words(axes, sources, targets)
  _rule_cells(axes, weights.shape)
  for link in sorted(alignment or ()):
    _mark_cell(axes, link, weights.shape)
  _add_colour_bar(figure, axes, image)
  if title is not None:
    figure.suptitle(title, fontsize=11, color=_INK, parse_math=False)
  return figure


def head_maps(
  weights: np.ndarray, source_words: Sequence[str], target_words: Sequence[str], *, title: str | None = None
) -> Figure:
  """Returns a heat-map for each layer and head, all on one scale: a row of them for each layer.

  Args:
    weights: [L N T S].
    source_words: S of them.
    target_words: T of them.
    title: one line above.

  >>> len(head_maps(np.full((2, 3, 1, 2), 0.5), ["the", "cat"], ["gatto"]).axes)
  6
  """
  num_layers, num_heads = weights.shape[:2]
  sources, targets = (tuple(map(labels.shortened, words)) for words in (source_words, target_words))
  title = _with_range(title, weights)
  width, height = _map_size(sources, targets, None)
  figure = _new_figure(width * num_heads, height * num_layers + 0.3)
  grid = figure.subplots(num_layers, num_heads, squeeze=False)
  scale = _scale(weights)
  for layer in range(num_layers):
    for head in range(num_heads):
      axes = grid[layer, head]
      checked = _checked_weights(weights[layer, head], source_words, target_words)
      image = axes.imshow(checked, **scale, aspect="equal")
      _label_words(axes, sources, targets)
      _rule_cells(axes, checked.shape)
      name = f"head {head}" if num_layers == 1 else f"layer {layer}, head {head}"
      axes.set_xlabel(name, fontsize=9, color=_INK)
  _add_colour_bar(figure, grid[0, -1], image)
  if title is not None:
    figure.suptitle(title, fontsize=11, color=_INK, parse_math=False)
  return figure


def training_curves(records: Sequence[Mapping[str, float]]) -> Figure:
  """Returns the curves of a training run: losses on the left, scores on the right.

  A metric's kind is the last part of its name: one that begins with `loss` is a loss, one in
  `SCORES` is a score. Other metrics are not drawn. BLEU and chrF are divided by 100.

  Args:
    records: each with a `step` and any of the metrics, such as `train/loss` or
      `validation/exact_match`.

  Raises:
    ValueError: if a record has no `step`, or no record has a loss or score.

  >>> records = [{"step": 1, "train/loss": 2.5}, {"step": 2, "validation/exact_match": 0.5}]
  >>> [axes.get_title() for axes in training_curves(records).axes]
  ['loss', 'scores']
  """
  for record in records:
    if "step" not in record:
      raise ValueError(f"records must each have a step, got one with {sorted(record)}")
  names = list(dict.fromkeys(name for record in records for name in record))
  panels = {
    "loss": {name: 1.0 for name in names if _kind(name).startswith("loss")},
    "scores": {name: SCORES[_kind(name)] for name in names if _kind(name) in SCORES},
  }
  drawn = {title: scales for title, scales in panels.items() if scales}
  if not drawn:
    raise ValueError(f"records must have a loss or a score, got {names}")
  figure = _new_figure(5.2 * len(drawn), 3.8)
  panels_axes = figure.subplots(1, len(drawn), sharex=True, squeeze=False)[0]
  for axes, (title, scales) in zip(panels_axes, drawn.items(), strict=True):
    _draw_panel(axes, title, records, scales)
  return figure


def spread(metrics: Mapping[str, Mapping[str, Sequence[float]]], *, title: str | None = None) -> Figure:
  """Returns the values of some metrics for groups of runs: a dot for each run, a line at their mean.

  Args:
    metrics: metric -> group -> the value of each run.
    title: one line above.

  >>> figure = spread({"bleu": {"additive": [40.0, 41.5], "bilinear": [39.0]}})
  >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
  ['additive', 'bilinear']
  """
  groups = list(dict.fromkeys(group for of_groups in metrics.values() for group in of_groups))
  names = [labels.shortened(group, _LONGEST_GROUP) for group in groups]
  figure = _new_figure(labels.inches(names, 9) + 2.4 * len(metrics), 0.4 * len(groups) + 1.0)
  panels = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
  for axes, (metric, of_groups) in zip(panels, metrics.items(), strict=True):
    for row, group in enumerate(groups):
      there, colour = of_groups.get(group, ()), _LINES[row % len(_LINES)]
      axes.plot(there, [row] * len(there), "o", color=colour, markersize=5, alpha=0.6, markeredgewidth=0)
      if there:
        axes.plot([float(np.mean(there))] * 2, [row - 0.3, row + 0.3], color=colour, linewidth=2)
    axes.set_title(metric, fontsize=10, color=_INK)
    axes.set_yticks(range(len(groups)), names, parse_math=False, family=labels.families(names))
    if groups:
      axes.set_ylim(len(groups) - 0.5, -0.5)  # the first group at the top
    axes.margins(x=0.1)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.tick_params(color=_EDGE, labelsize=9, labelcolor=_INK)
    axes.grid(color=_RULE, linewidth=0.6, axis="x")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_EDGE)
  if title is not None:
    figure.suptitle(title, fontsize=11, color=_INK, parse_math=False)
  return figure


def curves(
  panels: Mapping[str, Mapping[str, Mapping[float, Sequence[float]]]], *, x: str, doubles: bool = False
) -> Figure:
  """Returns lines through the means of runs, with a bar of one standard deviation to both sides.

  Args:
    panels: title -> line -> place on the horizontal axis -> the value of each run, if there is one.
    x: what the horizontal axis shows.
    doubles: whether each step to the right doubles the number, and not adds to it.

  >>> figure = curves({"bleu": {"additive": {64: [40.0, 41.5], 128: [42.0]}}}, x="width", doubles=True)
  >>> [axes.get_title() for axes in figure.axes]
  ['bleu']
  """
  names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
  legend = _LETTER_INCHES * max(map(len, names), default=0) + 0.6
  figure = _new_figure(4.4 * len(panels) + legend, 3.6)
  all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
  for axes, (title, lines) in zip(all_axes, panels.items(), strict=True):
    places = sorted({place for points in lines.values() for place in points})
    if doubles:
      axes.set_xscale("log", base=2)
      axes.set_xticks(places, [f"{place:g}" for place in places])
      axes.minorticks_off()
    for name, points in lines.items():
      found = {place: values for place, values in sorted(points.items()) if values}
      means = [float(np.mean(values)) for values in found.values()]
      spreads = [float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 for values in found.values()]
      index = names.index(name)
      axes.errorbar(
        [*found],
        means,
        spreads,
        label=name,
        color=_LINES[index % len(_LINES)],
        linestyle=("-", "--")[index // len(_LINES) % 2],
        marker="o",
        markersize=4,
        capsize=2,
        elinewidth=0.8,
      )
    axes.set_title(title, fontsize=11, color=_INK)
    axes.set_xlabel(x, color=_INK)
    _tidy(axes)
  all_axes[-1].legend(frameon=False, fontsize=9, labelcolor=_INK, loc="center left", bbox_to_anchor=(1, 0.5))
  return figure


def _new_figure(width: float, height: float) -> Figure:
  """Returns a figure of so many inches that no window system knows of."""
  figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
  FigureCanvasAgg(figure)
  return figure


def _checked_weights(
  weights: np.ndarray, source_words: Sequence[str], target_words: Sequence[str]
) -> np.ndarray:
  """Returns the weights in float64, or raises ValueError."""
  weights = np.asarray(weights, dtype=np.float64)
  expected = (len(target_words), len(source_words))
  if weights.shape != expected or 0 in expected:
    raise ValueError(
      f"weights must be [T S] for T={expected[0]} target_words and S={expected[1]} source_words, "
      f"at least one of each, got shape {weights.shape}"
    )
  if not np.isfinite(weights).all():
    raise ValueError(f"weights must be finite, got {weights.min()} to {weights.max()}")
  return weights


def _with_range(title: str | None, weights: np.ndarray) -> str | None:
  """Returns a title that also tells the range of weights which are not shares."""
  lowest, highest = float(weights.min()), float(weights.max())
  if lowest >= -_ROUNDING and highest <= 1 + _ROUNDING:
    return title
  told = f"weights from {lowest:.3g} to {highest:.3g}, not in [0, 1]"
  return told if title is None else f"{title}: {told}"


def _scale(weights: np.ndarray) -> dict[str, Any]:
  """Returns the colours of weights and what the first and the last stand for.

  From 0 to the largest, for weights that are spread over many tokens are nearly white on a scale to 1. With
  weights below 0, it is as long on both sides of 0.
  """
  largest = max(float(np.abs(weights).max()), 1e-6)
  if weights.min() < -_ROUNDING:
    return {"cmap": _SIGNED_SHADES, "vmin": -largest, "vmax": largest}
  return {"cmap": _SHADES, "vmin": 0.0, "vmax": largest}


def _map_size(
  source_words: Sequence[str], target_words: Sequence[str], title: str | None
) -> tuple[float, float]:
  """Returns the width and height in inches that a map needs."""
  longest_source, longest_target = labels.inches(source_words), labels.inches(target_words)
  width = _CELL_INCHES * len(source_words) + longest_target + 1.2
  height = _CELL_INCHES * len(target_words) + longest_source + 0.4
  if title is None:
    return max(width, 2.4), max(height, 2.0)
  return max(width, 2.4, _LETTER_INCHES * len(title) + 0.4), max(height + 0.3, 2.3)


def _label_words(axes: Axes, source_words: Sequence[str], target_words: Sequence[str]) -> None:
  """Writes the words along the top and the left."""
  # Without parse_math=False a word like "$5$" would be read as a formula.
  style: dict[str, Any] = {"parse_math": False, "family": labels.families([*source_words, *target_words])}
  axes.set_xticks(range(len(source_words)), source_words, rotation=90, **style)
  axes.set_yticks(range(len(target_words)), target_words, **style)
  axes.tick_params(labelsize=10, labelcolor=_INK, length=0, labeltop=True, labelbottom=False)


def _rule_cells(axes: Axes, shape: tuple[int, ...]) -> None:
  """Draws thin lines between the cells."""
  axes.set_xticks(np.arange(shape[1] + 1) - 0.5, minor=True)
  axes.set_yticks(np.arange(shape[0] + 1) - 0.5, minor=True)
  axes.grid(which="minor", color=_RULE, linewidth=0.6)
  axes.tick_params(which="minor", length=0)
  axes.spines[:].set_visible(False)


def _mark_cell(axes: Axes, link: tuple[int, int], shape: tuple[int, ...]) -> None:
  """Draws a square inside the cell of a true link."""
  target, source = link
  if not (0 <= target < shape[0] and 0 <= source < shape[1]):
    raise ValueError(f"alignment must link positions inside [T S] = {list(shape)}, got {link}")
  square = Rectangle((source - 0.4, target - 0.4), 0.8, 0.8, fill=False, edgecolor=_MARK)
  square.set(linewidth=1.6, joinstyle="miter")
  # A white edge keeps the mark apart from dark cells.
  square.set_path_effects([patheffects.withStroke(linewidth=3.2, foreground="white")])
  axes.add_patch(square)


def _add_colour_bar(figure: Figure, axes: Axes, image: AxesImage) -> None:
  """Draws the scale of the weights on the right, from the top, at most ten cells long."""
  num_rows, _ = image.get_size()
  length = min(1.0, 10 / num_rows)
  # Across in inches: the layout would take a share of the map's width for more room than there is.
  right = figure.dpi_scale_trans + ScaledTranslation(1, 0, BboxTransformTo(axes.bbox))
  across = 0.5 * _CELL_INCHES, 0.4 * _CELL_INCHES
  place = axes.inset_axes(
    (across[0], 1 - length, across[1], length),
    transform=blended_transform_factory(right, axes.transAxes),
  )
  ticks = np.linspace(*image.get_clim(), 2 if num_rows < 3 else 3)
  bar = figure.colorbar(image, cax=place, ticks=ticks, format="%.2g")
  bar.outline.set(edgecolor=_EDGE, linewidth=0.6)
  bar.ax.tick_params(length=0, labelsize=9, labelcolor=_INK)


def _kind(name: str) -> str:
  """Returns the last part of a metric's name."""
  return name.rsplit("/", 1)[-1]


def _draw_panel(
  axes: Axes, title: str, records: Sequence[Mapping[str, float]], scales: Mapping[str, float]
) -> None:
  """Draws one line for each metric in `scales`, divided by its scale."""
  for index, (name, scale) in enumerate(scales.items()):
    points = [(record["step"], record[name] / scale) for record in records if name in record]
    steps, values = zip(*points, strict=True)
    label = name if scale == 1.0 else f"{name} / {scale:g}"
    marker = "o" if len(points) <= 30 else ""
    axes.plot(steps, values, label=label, color=_LINES[index % len(_LINES)], marker=marker, markersize=3)
  axes.set_title(title, fontsize=11, color=_INK)
  axes.set_xlabel("step", color=_INK)
  axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
  if title == "scores":
    axes.set_ylim(-0.02, 1.02)
  _tidy(axes)
  axes.legend(frameon=False, fontsize=9, labelcolor=_INK)


def _tidy(axes: Axes) -> None:
  """Draws the frame of lines over an axis: thin rules, no box."""
  axes.tick_params(color=_EDGE, labelsize=9, labelcolor=_INK)
  axes.grid(color=_RULE, linewidth=0.6)
  axes.spines[["top", "right"]].set_visible(False)
  axes.spines[["left", "bottom"]].set_color(_EDGE)
