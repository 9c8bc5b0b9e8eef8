"""Heatmaps of attention weights."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.colors import FuncNorm, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.transforms import BboxTransformTo, ScaledTranslation, blended_transform_factory

from experiments.figures import labels
from experiments.figures.figures import EDGE, INK, LETTER_INCHES, RULE, new_figure

_CELL_INCHES = 0.34
_MARK = "#e8590c"
_SHADES = LinearSegmentedColormap.from_list(
  "attention", ("#ffffff", "#c6dbef", "#6baed6", "#2171b5", "#08306b")
)
_SIGNED_SHADES = LinearSegmentedColormap.from_list(
  "signed attention", ("#7a0177", "#c51b8a", "#fa9fb5", "#ffffff", "#6baed6", "#2171b5", "#08306b")
)
_TOLERANCE = 1e-5  # rounding error of a weight


def attention_map(
  weights: np.ndarray,
  source_words: Sequence[str],
  target_words: Sequence[str],
  *,
  alignment: Collection[tuple[int, int]] | None = None,
  title: str | None = None,
) -> Figure:
  """Returns a heatmap of attention weights, with source words at the top and target words on the left.

  All maps have the same color scale, from white at 0 to dark blue at 1. Colors follow the square root of the
  weight, because most weights are small. If weights are outside [0, 1], the scale ends at the largest
  absolute weight, the title has their range, and negative weights have another color.

  Args:
    weights: [T S].
    source_words: S words.
    target_words: T words.
    alignment: true links (target position, source position), which are outlined.
    title: title of the figure.

  Returns:
    The figure. Its size depends on the number and length of the words.

  Raises:
    ValueError: if shapes do not match, a weight is not finite, or a link is outside the map.

  >>> figure = attention_map(np.eye(2), ["the", "cat"], ["il", "gatto"], alignment={(0, 0)})
  >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
  ['il', 'gatto']
  """
  figure = _maps(np.asarray(weights)[None, None], source_words, target_words, title)
  for link in sorted(alignment or ()):
    _mark_cell(figure.axes[0], link, [len(target_words), len(source_words)])
  return figure


def head_maps(
  weights: np.ndarray,
  source_words: Sequence[str],
  row_words: Sequence[str],
  *,
  title: str | None = None,
  row_label: str = "target",
) -> Figure:
  """Returns a grid of heatmaps, one row per layer and one column per head, with a common color scale.

  Layers and heads are numbered from 1.

  Args:
    weights: [L N T S].
    source_words: S words.
    row_words: T words; for an encoder, the source words.
    title: title of the figure.
    row_label: label of the rows; for an encoder, "source".

  >>> len(head_maps(np.full((2, 3, 1, 2), 0.5), ["the", "cat"], ["gatto"]).axes)
  6
  """
  figure = _maps(weights, source_words, row_words, title, row_label)
  num_layers, num_heads = weights.shape[:2]
  for axes, (layer, head) in zip(figure.axes, np.ndindex(num_layers, num_heads), strict=False):
    name = f"head {head + 1}" if num_layers == 1 else f"layer {layer + 1}, head {head + 1}"
    axes.set_title(name, fontsize=10, color=INK)
  return figure


def color_scale(weights: np.ndarray) -> dict[str, Any]:
  """Returns the color map and its normalization, options of `imshow`, as in `attention_map`.

  Args:
    weights: any shape. If some are negative, the scale is symmetric.
  """
  largest = float(np.abs(weights).max())
  is_signed = bool(weights.min() < -_TOLERANCE)
  if not is_signed and largest <= 1 + _TOLERANCE:
    largest = 1.0
  norm = FuncNorm((_signed_sqrt, _signed_square), vmin=-largest if is_signed else 0.0, vmax=largest)
  return {"cmap": _SIGNED_SHADES if is_signed else _SHADES, "norm": norm}


def _maps(
  weights: np.ndarray,
  source_words: Sequence[str],
  target_words: Sequence[str],
  title: str | None,
  row_label: str = "target",
) -> Figure:
  """Returns a grid of heatmaps of weights [L N T S], with labels and a color bar."""
  weights = np.asarray(weights, dtype=np.float64)
  num_layers, num_heads, *shape = weights.shape
  T, S = len(target_words), len(source_words)
  if shape != [T, S] or 0 in shape:
    raise ValueError(
      f"weights must have shape [T S] with T={T} target_words and S={S} source_words, "
      f"at least one of each, got {tuple(shape)}"
    )
  if not np.isfinite(weights).all():
    raise ValueError(f"weights must be finite, got {weights.min()} to {weights.max()}")
  title = _add_range(title, weights)
  sources, targets = (tuple(map(labels.shorten, words)) for words in (source_words, target_words))
  width = max(_CELL_INCHES * S + labels.inches(targets) + 1.2, 2.4) * num_heads
  height = max(_CELL_INCHES * T + labels.inches(sources) + 0.8, 2.0) * num_layers
  if title is not None:
    width = max(width, LETTER_INCHES * len(title) + 0.4)
  figure = new_figure(width, height + 0.3)
  grid = figure.subplots(num_layers, num_heads, squeeze=False)
  scale = color_scale(weights)
  for index, axes in np.ndenumerate(grid):
    image = axes.imshow(weights[index], **scale, aspect="equal")
    _label_cells(axes, sources, targets)
    axes.set_xlabel("source", color=INK)
    axes.set_ylabel(row_label, color=INK)
  _add_color_bar(grid[0, -1], image)
  if title is not None:
    figure.suptitle(title, fontsize=11, color=INK, parse_math=False)
  return figure


def _add_range(title: str | None, weights: np.ndarray) -> str | None:
  """Adds the range of the weights to a title if they are outside [0, 1]."""
  lowest, highest = float(weights.min()), float(weights.max())
  if lowest >= -_TOLERANCE and highest <= 1 + _TOLERANCE:
    return title
  text = f"weights from {lowest:.3g} to {highest:.3g}, not in [0, 1]"
  return text if title is None else f"{title}: {text}"


def _signed_sqrt(weights: np.ndarray) -> np.ndarray:
  return np.sign(weights) * np.sqrt(np.abs(weights))


def _signed_square(roots: np.ndarray) -> np.ndarray:
  return roots * np.abs(roots)


def _label_cells(axes: Axes, source_words: Sequence[str], target_words: Sequence[str]) -> None:
  """Adds the words as tick labels, and lines between the cells."""
  # matplotlib would parse a word like "$5$" as a formula.
  style: dict[str, Any] = {"parse_math": False, "family": labels.families([*source_words, *target_words])}
  axes.set_xticks(range(len(source_words)), source_words, rotation=90, **style)
  axes.set_yticks(range(len(target_words)), target_words, **style)
  axes.tick_params(labelsize=10, labelcolor=INK, length=0, labeltop=True, labelbottom=False)
  axes.xaxis.set_label_position("top")
  axes.set_xticks(np.arange(len(source_words) + 1) - 0.5, minor=True)
  axes.set_yticks(np.arange(len(target_words) + 1) - 0.5, minor=True)
  axes.tick_params(which="minor", length=0)
  axes.grid(which="minor", color=RULE, linewidth=0.6)
  axes.spines[:].set_visible(False)


def _mark_cell(axes: Axes, link: tuple[int, int], shape: list[int]) -> None:
  """Outlines the cell of a true link."""
  target, source = link
  if not (0 <= target < shape[0] and 0 <= source < shape[1]):
    raise ValueError(f"alignment must link positions within [T S] = {shape}, got {link}")
  square = Rectangle((source - 0.4, target - 0.4), 0.8, 0.8, fill=False, edgecolor=_MARK, linewidth=1.6)
  square.set_joinstyle("miter")
  # A white edge makes the outline visible on dark cells.
  square.set_path_effects([patheffects.withStroke(linewidth=3.2, foreground="white")])
  axes.add_patch(square)


def _add_color_bar(axes: Axes, image: AxesImage) -> None:
  """Adds a color bar on the right, at most ten cells long."""
  num_rows, _ = image.get_size()
  length = min(1.0, 10 / num_rows)
  # The horizontal position is in inches, because the layout engine would shrink the map otherwise.
  right = axes.figure.dpi_scale_trans + ScaledTranslation(1, 0, BboxTransformTo(axes.bbox))
  bar_axes = axes.inset_axes(
    (0.5 * _CELL_INCHES, 1 - length, 0.4 * _CELL_INCHES, length),
    transform=blended_transform_factory(right, axes.transAxes),
  )
  lowest, highest = image.get_clim()
  ticks = [lowest, highest] if num_rows < 3 else [lowest, (lowest + highest) / 2, highest]
  bar = axes.figure.colorbar(image, cax=bar_axes, ticks=ticks, format="%.2g")
  bar.set_label("weight", color=INK)
  bar.outline.set(edgecolor=EDGE, linewidth=0.6)
  bar.ax.tick_params(length=0, labelsize=9, labelcolor=INK)
