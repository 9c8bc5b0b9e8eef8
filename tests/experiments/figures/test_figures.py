"""Tests of experiments/figures/figures.py and attention_maps.py."""

import itertools
import pathlib
import struct
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from experiments.figures import figures
from experiments.figures.attention_maps import attention_map, head_maps

T, S = 3, 5
# The last word is invalid as a formula of matplotlib.
SOURCE = ["the", "red", "cat", "perché", r"$\no$"]
TARGET = ["il", r"$\no$", "</s>"]
MARKED = {(0, 4), (2, 1)}


def _weights(rows=T, columns=S):
  weights = np.random.default_rng(0).random((rows, columns))
  return weights / weights.sum(axis=1, keepdims=True)


def _drawn(figure):
  """Draws a figure and returns it."""
  FigureCanvasAgg(figure).draw()
  return figure


def _boxes(labels):
  return [label.get_window_extent() for label in labels]


def _size(path):
  """Returns the width and height of a PNG in pixels, from its header."""
  return struct.unpack(">II", path.read_bytes()[16:24])


def _cell_colors(figure, target, source):
  """Returns the colors inside one cell, [pixels, 3]."""
  pixels = np.asarray(_drawn(figure).canvas.buffer_rgba())[..., :3].astype(int)
  corners = [(source - 0.5, target + 0.5), (source + 0.5, target - 0.5)]
  (left, bottom), (right, top) = figure.axes[0].transData.transform(corners).round().astype(int)
  height = pixels.shape[0]
  return pixels[height - top + 1 : height - bottom - 1, left + 1 : right - 1].reshape(-1, 3)


def _color(figure, target, source):
  return np.median(_cell_colors(figure, target, source), axis=0)


def _scale(figure):
  """Returns the range of the color scale, and its tick labels."""
  axes = figure.axes[0]
  texts = [label.get_text().replace("\u2212", "-") for label in axes.child_axes[0].get_yticklabels()]
  return axes.images[0].get_clim(), texts


def test_words_label_the_axes():
  axes = _drawn(attention_map(_weights(), SOURCE, TARGET)).axes[0]
  assert [label.get_text() for label in axes.get_xticklabels()] == SOURCE
  assert [label.get_text() for label in axes.get_yticklabels()] == TARGET
  boxes = _boxes(axes.get_yticklabels())
  assert boxes[0].y0 > boxes[1].y1 > boxes[1].y0 > boxes[2].y1
  assert all(box.y0 > axes.get_window_extent().y1 for box in _boxes(axes.get_xticklabels()))


def test_maps_have_axis_titles():
  axes = attention_map(_weights(), SOURCE, TARGET).axes[0]
  assert (axes.get_xlabel(), axes.get_ylabel()) == ("source", "target")
  assert axes.child_axes[0].get_ylabel() == "weight"
  encoder = head_maps(_weights(S, S)[None, None], SOURCE, SOURCE, row_label="source").axes[0]
  assert (encoder.get_xlabel(), encoder.get_ylabel()) == ("source", "source")


def test_words_do_not_overlap():
  words = ["Straßenbahnhaltestelle"] * 30
  axes = _drawn(attention_map(_weights(30, 30), words, words)).axes[0]
  across, down = _boxes(axes.get_xticklabels()), _boxes(axes.get_yticklabels())
  assert all(left.x1 < right.x0 for left, right in itertools.pairwise(across))
  assert all(upper.y0 > lower.y1 for upper, lower in itertools.pairwise(down))


def test_weights_map_to_a_color_scale():
  weights = np.zeros((T, S))
  weights[0, 3], weights[1, 2] = 1.0, 0.05
  figure = attention_map(weights, SOURCE, TARGET)
  assert _scale(figure) == ((0.0, 1.0), ["0", "0.5", "1"])
  assert (_color(figure, 0, 3) < [30, 70, 120]).all()
  assert 150 < _color(figure, 1, 2)[0] < 250
  small = attention_map(np.minimum(weights, 0.1), SOURCE, TARGET)
  assert (_color(small, 1, 2) == _color(figure, 1, 2)).all()
  assert (_color(figure, 2, 3) == 255).all() and (_color(figure, 0, 1) == 255).all()
  assert (_color(attention_map(0 * weights, SOURCE, TARGET), 0, 1) == 255).all()


def test_negative_weights_have_another_color():
  weights = np.zeros((T, S))
  weights[0, 3], weights[1, 2] = 1.5, -3.0
  figure = attention_map(weights, SOURCE, TARGET, title="mine")
  assert _scale(figure) == ((-3.0, 3.0), ["-3", "0", "3"])
  above, below, none = (_color(figure, *cell) for cell in ((0, 3), (1, 2), (2, 2)))
  assert above[2] > above[0] + 50 and below[0] > below[1] + 50 and (none >= 252).all()
  assert figure.get_suptitle() == "mine: weights from -3 to 1.5, not in [0, 1]"
  heads = head_maps(np.stack([[np.abs(weights), weights]]), SOURCE, TARGET)
  assert [axes.images[0].get_clim() for axes in heads.axes if axes.images] == [(-3.0, 3.0)] * 2
  assert heads.get_suptitle() == "weights from -3 to 3, not in [0, 1]"


def test_large_weights_scale_from_zero():
  figure = attention_map(np.full((T, S), 2.5), SOURCE, TARGET)
  assert _scale(figure)[0] == (0.0, 2.5)
  assert figure.get_suptitle() == "weights from 2.5 to 2.5, not in [0, 1]"
  assert attention_map(np.full((T, S), 1 + 1e-6), SOURCE, TARGET).get_suptitle() == ""


def test_very_long_words_are_shortened(tmp_path):
  word = "a" * 100_000
  made = [
    attention_map(_weights(1, 2), ["the", word], [word], title="mine"),
    head_maps(_weights(1, 2)[None, None], ["the", word], [word]),
    figures.dot_plot({"bleu": {word: [1.0], "b": [2.0]}}),
  ]
  for i, figure in enumerate(made):
    figures.save(figure, tmp_path / f"{i}.png")
    assert max(_size(tmp_path / f"{i}.png")) < 2000


def test_heads_share_one_scale():
  weights = np.random.default_rng(0).uniform(0, 0.5, (2, 3, T, S))
  maps = [axes for axes in head_maps(weights, SOURCE, TARGET, title="heads").axes if axes.images]
  assert [axes.get_title() for axes in maps[:6]] == [
    f"layer {layer}, head {head}" for layer in (1, 2) for head in (1, 2, 3)
  ]
  for axes, expected in zip(maps, weights.reshape(6, T, S), strict=False):
    np.testing.assert_array_equal(axes.images[0].get_array(), expected)
    assert axes.images[0].get_clim() == (0.0, 1.0)


@pytest.mark.parametrize("weight", [0.0, 1.0])
@pytest.mark.parametrize("alignment", [None, MARKED])
def test_true_links_are_marked(weight, alignment):
  figure = attention_map(np.full((T, S), weight), SOURCE, TARGET, alignment=alignment)
  for cell in ((0, 4), (2, 1), (1, 4), (1, 2), (0, 1)):
    colors = _cell_colors(figure, *cell)
    is_orange = (colors[:, 0] > 200) & (colors[:, 2] < 90)
    assert is_orange.mean() > 0.05 if cell in (alignment or ()) else not is_orange.any()


def test_titles_are_plain_text():
  figure = _drawn(attention_map(_weights(), SOURCE, TARGET, title=r"from $\no$"))
  assert figure.get_suptitle() == r"from $\no$"


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 30), (30, 1), (17, 2), (29, 31)])
def test_maps_grow_with_their_words(tmp_path, rows, columns):
  figure = attention_map(_weights(rows, columns), ["parola"] * columns, ["word"] * rows)
  figures.save(figure, tmp_path / "map.png")
  width, height = _size(tmp_path / "map.png")
  assert width >= 40 * columns and height >= 40 * rows
  assert (figure.get_size_inches() >= (0.3 * columns, 0.3 * rows)).all()


@pytest.mark.parametrize(
  ("weights", "message"),
  [
    (np.zeros((S, T)), r"T=3 target_words and S=5 source_words, .* got \(5, 3\)$"),
    (np.zeros(S), r"T=3 target_words and S=5 source_words, .* got \(5,\)$"),
    (np.full((T, S), np.inf), r"^weights must be finite, got inf to inf$"),
    (np.full((T, S), np.nan), r"^weights must be finite, got nan to nan$"),
  ],
)
def test_invalid_weights_are_errors(weights, message):
  with pytest.raises(ValueError, match=message):
    attention_map(weights, SOURCE, TARGET)


def test_empty_maps_are_errors():
  with pytest.raises(ValueError, match=r"at least one of each, got \(0, 5\)$"):
    attention_map(np.zeros((0, S)), SOURCE, [])


@pytest.mark.parametrize("link", [(T, 0), (0, S), (-1, 0)])
def test_links_outside_the_map_are_errors(link):
  with pytest.raises(ValueError) as caught:
    attention_map(_weights(), SOURCE, TARGET, alignment={link})
  assert str(caught.value) == f"alignment must link positions within [T S] = [3, 5], got {link}"


def test_dot_plots_show_runs_and_mean():
  figure = figures.dot_plot({"bleu": {"a": [40.0, 43.0], "b": [30.0]}, "loss": {"b": [0.5]}}, title="test")
  left, right = figure.axes
  assert [axes.get_title() for axes in (left, right)] == ["bleu", "loss"]
  lines = [line.get_xydata().tolist() for line in left.lines]
  assert lines[0] == [[40.0, 0.0], [43.0, 0.0]]
  assert [x for x, _ in lines[1]] == [41.5, 41.5]
  assert lines[2] == [[30.0, 1.0]]
  assert [line.get_xydata().tolist() for line in right.lines][1] == [[0.5, 1.0]]
  top, bottom = left.transData.transform([(0, 0), (0, 1)])[:, 1]
  assert top > bottom  # the first group is on top


def test_curves_go_through_means():
  lines = {"a": {64: [40.0, 42.0], 16: [30.0], 32: []}, "b": {32: []}}
  figure = figures.curves({"bleu": lines}, x="width", doubles=True)
  first, second = (container.lines[0] for container in figure.axes[0].containers)
  assert first.get_xydata().tolist() == [[16, 30.0], [64, 41.0]]
  assert len(second.get_xydata()) == 0
  bars = figure.axes[0].containers[0].lines[2][0].get_segments()
  assert [bar[:, 1].tolist() for bar in bars] == [[30.0, 30.0], [41.0 - 2**0.5, 41.0 + 2**0.5]]
  axes = figures.curves(dict.fromkeys("abcd", lines), x="width", columns=2).axes
  assert axes[0].get_position().y0 == axes[1].get_position().y0 > axes[2].get_position().y1


def test_errors_are_apart_from_scores():
  records = [{"step": 20, "validation/exact_match": 0.25, "validation/alignment_error_rate": 0.5}]
  lines = {axes.get_title(): axes.lines for axes in figures.training_curves(records).axes}
  assert {title: [line.get_label() for line in drawn] for title, drawn in lines.items()} == {
    "scores (higher is better)": ["validation/exact_match"],
    "errors (lower is better)": ["validation/alignment_error_rate"],
  }


def test_losses_are_left_of_scores(tmp_path):
  records = [
    {"step": 10, "train/loss": 3.0, "train/tokens_per_second": 1e4},
    {"step": 20, "train/loss": 2.0},
    {"step": 20, "validation/loss": 2.5, "validation/exact_match": 0.25, "validation/bleu": 50.0},
  ]
  left, right = figures.training_curves(records).axes
  assert {line.get_label(): line.get_xydata().tolist() for line in left.lines} == {
    "train/loss": [[10, 3.0], [20, 2.0]],
    "validation/loss": [[20, 2.5]],
  }
  assert {line.get_label(): line.get_xydata().tolist() for line in right.lines} == {
    "validation/exact_match": [[20, 0.25]],
    "validation/bleu / 100": [[20, 0.5]],
  }
  assert left.get_position().x1 < right.get_position().x0
  bottom, top = right.get_ylim()
  assert bottom <= 0.0 and top >= 1.0
  alone = figures.training_curves([{"step": 1, "train/loss": float("nan")}])
  assert [axes.get_title() for axes in alone.axes] == ["loss (lower is better)"]
  figures.save(alone, tmp_path / "curves.png")


@pytest.mark.parametrize(
  ("records", "message"),
  [
    ([], r"^records must have at least one loss or score, got \[\]$"),
    ([{"step": 1, "a": 2.0}], r"^records must have at least one loss or score, got \['step', 'a'\]$"),
    ([{"train/loss": 1.0}], r"^every record must have a step, got one with \['train/loss'\]$"),
  ],
)
def test_empty_curves_are_errors(records, message):
  with pytest.raises(ValueError, match=message):
    figures.training_curves(records)


@pytest.mark.exhaustive
def test_pyplot_is_not_imported():
  program = "import sys, experiments.figures.figures; print('matplotlib.pyplot' in sys.modules)"
  root = pathlib.Path(__file__).parents[3]
  output = subprocess.check_output([sys.executable, "-c", program], cwd=root, text=True)
  assert output == "False\n"
