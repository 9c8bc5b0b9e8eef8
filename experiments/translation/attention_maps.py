"""Heat-maps of attention, drawn without a display."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.transforms import BboxTransformTo, ScaledTranslation, blended_transform_factory

from experiments.translation import labels
from experiments.translation.figures import EDGE, INK, LETTER_INCHES, RULE, new_figure

# Tokens a side of a map that a person can still read; one of 400 takes minutes and gigabytes.
LONGEST = 60

_CELL_INCHES = 0.34
_MARK = "#e8590c"
_SHADES = LinearSegmentedColormap.from_list(
  "attention", ("#ffffff", "#c6dbef", "#6baed6", "#2171b5", "#08306b")
)
_SIGNED_SHADES = LinearSegmentedColormap.from_list(
  "signed attention", ("#7a0177", "#c51b8a", "#fa9fb5", "#ffffff", "#6baed6", "#2171b5", "#08306b")
)
_ROUNDING = 1e-5  # by which a weight of 0 or 1 may be off


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
  figure = new_figure(*_map_size(sources, targets, title))
  axes = figure.add_subplot()
  image = axes.imshow(weights, **_scale(weights), aspect="equal")
  _label_words(axes, sources, targets)
  _rule_cells(axes, weights.shape)
  for link in sorted(alignment or ()):
    _mark_cell(axes, link, weights.shape)
  _add_colour_bar(figure, axes, image)
  if title is not None:
    figure.suptitle(title, fontsize=11, color=INK, parse_math=False)
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
  figure = new_figure(width * num_heads, height * num_layers + 0.3)
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
      axes.set_xlabel(name, fontsize=9, color=INK)
  _add_colour_bar(figure, grid[0, -1], image)
  if title is not None:
    figure.suptitle(title, fontsize=11, color=INK, parse_math=False)
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
  return max(width, 2.4, LETTER_INCHES * len(title) + 0.4), max(height + 0.3, 2.3)


def _label_words(axes: Axes, source_words: Sequence[str], target_words: Sequence[str]) -> None:
  """Writes the words along the top and the left."""
  # Without parse_math=False a word like "$5$" would be read as a formula.
  style: dict[str, Any] = {"parse_math": False, "family": labels.families([*source_words, *target_words])}
  axes.set_xticks(range(len(source_words)), source_words, rotation=90, **style)
  axes.set_yticks(range(len(target_words)), target_words, **style)
  axes.tick_params(labelsize=10, labelcolor=INK, length=0, labeltop=True, labelbottom=False)


def _rule_cells(axes: Axes, shape: tuple[int, ...]) -> None:
  """Draws thin lines between the cells."""
  axes.set_xticks(np.arange(shape[1] + 1) - 0.5, minor=True)
  axes.set_yticks(np.arange(shape[0] + 1) - 0.5, minor=True)
  axes.grid(which="minor", color=RULE, linewidth=0.6)
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
  bar.outline.set(edgecolor=EDGE, linewidth=0.6)
  bar.ax.tick_params(length=0, labelsize=9, labelcolor=INK)
