"""Heatmaps of attention weights."""

import re

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from experiments.figures import figures
from experiments.figures.attention_maps import attention_map, head_maps

T, S = 3, 5
# The last word is invalid as a formula of matplotlib.
SOURCE = ["the", "red", "cat", "perché", r"$\no$"]
TARGET = ["il", r"$\no$", "</s>"]
WEIGHTS = np.random.default_rng(0).dirichlet(np.ones(S), size=T)


def scale(figure):
  """Returns the range of the color scale, and its tick labels."""
  axes = figure.axes[0]
  texts = [label.get_text().replace("\u2212", "-") for label in axes.child_axes[0].get_yticklabels()]
  return axes.images[0].get_clim(), texts


def test_maps_have_words_and_titles(tmp_path):
  figure = attention_map(WEIGHTS, SOURCE, TARGET, title=r"from $\no$")
  figures.save(figure, tmp_path / "map.png")
  (axes,) = figure.axes
  np.testing.assert_array_equal(axes.images[0].get_array(), WEIGHTS)
  assert [label.get_text() for label in axes.get_xticklabels()] == SOURCE
  assert [label.get_text() for label in axes.get_yticklabels()] == TARGET
  assert (axes.get_xlabel(), axes.get_ylabel()) == ("source", "target")
  assert axes.child_axes[0].get_ylabel() == "weight" and figure.get_suptitle() == r"from $\no$"
  bottom, top = axes.get_ylim()
  assert top < bottom  # the first target word is on top


SCALES = [
  (0, 0.1, (0, 1), ["0", "0.5", "1"], ""),
  (0, 1 + 1e-6, (0, 1), ["0", "0.5", "1"], ""),
  (0, 2.5, (0, 2.5), ["0", "1.2", "2.5"], "weights from 0 to 2.5, not in [0, 1]"),
  (-3, 1.5, (-3, 3), ["-3", "0", "3"], "weights from -3 to 1.5, not in [0, 1]"),
]


@pytest.mark.parametrize(("low", "high", "limits", "ticks", "title"), SCALES)
def test_scales_include_all_weights(low, high, limits, ticks, title):
  weights = np.zeros((T, S))
  weights[0, 3], weights[1, 2] = low, high
  figure = attention_map(weights, SOURCE, TARGET)
  assert scale(figure) == (limits, ticks) and figure.get_suptitle() == title
  # Zero is white, larger weights are darker.
  colors = figure.axes[0].images[0]
  zero, small, large = (colors.to_rgba(np.array(weight))[:3] for weight in (0, 0.05, limits[1]))
  np.testing.assert_allclose(zero, 1, atol=0.02)
  assert np.sum(zero) > np.sum(small) > np.sum(large)
  if low < 0:  # negative weights are red, positive ones blue
    red, _, blue, _ = colors.to_rgba(np.array(low))
    assert red > blue and large[2] > large[0]


def test_heads_share_one_scale():
  weights = np.random.default_rng(0).uniform(0, 0.5, (2, 3, S, S))
  weights[1, 2, 0, 0] = 4
  figure = head_maps(weights, SOURCE, SOURCE, title="heads", row_label="source")
  maps = [axes for axes in figure.axes if axes.images]
  names = [f"layer {layer}, head {head}" for layer in (1, 2) for head in (1, 2, 3)]
  assert [axes.get_title() for axes in maps[:6]] == names
  for axes, expected in zip(maps, weights.reshape(6, S, S), strict=False):
    np.testing.assert_array_equal(axes.images[0].get_array(), expected)
    assert axes.images[0].get_clim() == (0.0, 4.0)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("source", "source")
  one_layer = head_maps(weights[:1], SOURCE, SOURCE).axes
  assert [axes.get_title() for axes in one_layer[:3]] == ["head 1", "head 2", "head 3"]


def test_true_links_are_outlined():
  figure = attention_map(WEIGHTS, SOURCE, TARGET, alignment={(0, 4), (2, 1)})
  outlines = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
  centers = [
    (patch.get_y() + patch.get_height() / 2, patch.get_x() + patch.get_width() / 2) for patch in outlines
  ]
  np.testing.assert_allclose(centers, [(0, 4), (2, 1)], atol=1e-9)
  assert not attention_map(WEIGHTS, SOURCE, TARGET).axes[0].patches


def test_figures_have_limited_sizes():
  word = "a" * 100_000
  assert (attention_map(np.ones((20, 30)), [word] * 30, ["a"] * 20).get_size_inches() > (9, 6)).all()
  for figure in (
    attention_map([[0.5, 0.5]], ["the", word], [word]),
    figures.dot_plot({"bleu": {word: [1.0], "b": [2.0]}}),
  ):
    assert max(figure.get_size_inches()) < 15


INVALID = [
  (np.zeros((S, T)), r"T=3 target_words and S=5 source_words, .* got \(5, 3\)$"),
  (np.zeros(S), r"T=3 target_words and S=5 source_words, .* got \(5,\)$"),
  (np.full((T, S), np.inf), r"^weights must be finite, got inf to inf$"),
  (np.full((T, S), np.nan), r"^weights must be finite, got nan to nan$"),
]


@pytest.mark.parametrize(("weights", "message"), INVALID)
def test_invalid_weights_are_errors(weights, message):
  with pytest.raises(ValueError, match=message):
    attention_map(weights, SOURCE, TARGET)


def test_empty_maps_are_errors():
  with pytest.raises(ValueError, match=r"at least one of each, got \(0, 5\)$"):
    attention_map(np.zeros((0, S)), SOURCE, [])


@pytest.mark.parametrize("link", [(T, 0), (0, S), (-1, 0)])
def test_links_outside_the_map_are_errors(link):
  message = re.escape(f"alignment must link positions within [T S] = [3, 5], got {link}")
  with pytest.raises(ValueError, match=f"^{message}$"):
    attention_map(WEIGHTS, SOURCE, TARGET, alignment={link})
