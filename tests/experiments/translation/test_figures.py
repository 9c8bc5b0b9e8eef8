"""Tests of experiments/translation/figures.py."""

import errno
import itertools
import pathlib
import struct
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from experiments.translation import attention_maps, figures, png

T, S = 3, 5
# The last word is an error to a reader of formulas.
SOURCE = ["the", "red", "cat", "perché", r"$\no$"]
TARGET = ["il", r"$\no$", "</s>"]


def _weights(rows=T, columns=S):
  weights = np.random.default_rng(0).random((rows, columns))
  return weights / weights.sum(axis=1, keepdims=True)


def _labels(labels):
  return [label.get_text() for label in labels]


def _size(path):
  """Returns the width and height of a PNG in pixels, from its header."""
  content = path.read_bytes()
  assert content[:8] == b"\x89PNG\r\n\x1a\n"
  return struct.unpack(">II", content[16:24])


def _pixels(figure):
  """Returns the colours that were drawn, [height, width, 3] in 0..255."""
  figure.canvas.draw()
  return np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(int)


def _cell_colours(figure, target, source):
  """Returns the colours inside one cell, [pixels, 3]."""
  pixels = _pixels(figure)
  corners = [(source - 0.5, target + 0.5), (source + 0.5, target - 0.5)]
  (left, bottom), (right, top) = figure.axes[0].transData.transform(corners).round().astype(int)
  height = pixels.shape[0]
  return pixels[height - top + 1 : height - bottom - 1, left + 1 : right - 1].reshape(-1, 3)


def _orange(colours):
  return (colours[:, 0] > 200) & (colours[:, 2] < 90)


def test_source_words_stand_across_the_top_and_target_words_downwards():
  figure = attention_maps.attention_map(_weights(), SOURCE, TARGET)
  axes = figure.axes[0]
  figure.canvas.draw()
  assert _labels(axes.get_xticklabels()) == SOURCE
  assert _labels(axes.get_yticklabels()) == TARGET
  boxes = [label.get_window_extent() for label in axes.get_yticklabels()]
  assert boxes[0].y0 > boxes[1].y1 > boxes[1].y0 > boxes[2].y1
  top = axes.get_window_extent().y1
  assert all(label.get_window_extent().y0 > top for label in axes.get_xticklabels())


def test_words_do_not_overlap_in_a_large_map():
  words = ["Straßenbahnhaltestelle"] * 30
  figure = attention_maps.attention_map(_weights(30, 30), words, words)
  figure.canvas.draw()
  across = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
  down = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
  assert all(left.x1 < right.x0 for left, right in itertools.pairwise(across))
  assert all(upper.y0 > lower.y1 for upper, lower in itertools.pairwise(down))


def test_weights_are_drawn_from_white_to_dark_in_their_cell():
  weights = np.zeros((T, S))
  weights[0, 3] = 1.0
  figure = attention_maps.attention_map(weights, SOURCE, TARGET)
  assert (np.median(_cell_colours(figure, 0, 3), axis=0) < [30, 70, 120]).all()
  assert (np.median(_cell_colours(figure, 2, 3), axis=0) == 255).all()
  assert (np.median(_cell_colours(figure, 0, 1), axis=0) == 255).all()


def test_the_scale_is_from_zero_to_the_largest_weight_and_told():
  weights = np.full((T, S), 0.05)
  weights[1, 2] = 0.2
  figure = attention_maps.attention_map(weights, SOURCE, TARGET)
  assert figure.axes[0].images[0].get_clim() == (0.0, 0.2)
  assert (np.median(_cell_colours(figure, 1, 2), axis=0) < [30, 70, 120]).all()
  bar = figure.axes[0].child_axes[0]
  assert [label.get_text() for label in bar.get_yticklabels()] == ["0", "0.1", "0.2"]


def test_weights_that_are_all_zero_are_white():
  figure = attention_maps.attention_map(np.zeros((T, S)), SOURCE, TARGET)
  assert (np.median(_cell_colours(figure, 0, 1), axis=0) == 255).all()


def test_weights_below_zero_have_another_colour_and_the_title_has_their_range():
  weights = np.zeros((T, S))
  weights[0, 3], weights[1, 2] = 1.5, -3.0
  figure = attention_maps.attention_map(weights, SOURCE, TARGET, title="mine")
  assert figure.axes[0].images[0].get_clim() == (-3.0, 3.0)
  above, below, none = (np.median(_cell_colours(figure, *cell), axis=0) for cell in ((0, 3), (1, 2), (2, 2)))
  assert above[2] > above[0] + 50 and below[0] > below[1] + 50 and (none >= 252).all()
  bar = figure.axes[0].child_axes[0]
  assert [label.get_text().replace("\u2212", "-") for label in bar.get_yticklabels()] == ["-3", "0", "3"]
  assert figure.get_suptitle() == "mine: weights from -3 to 1.5, not in [0, 1]"
  heads = attention_maps.head_maps(np.stack([[np.abs(weights), weights]]), SOURCE, TARGET)
  assert [axes.images[0].get_clim() for axes in heads.axes if axes.images] == [(-3.0, 3.0)] * 2
  assert heads.get_suptitle() == "weights from -3 to 3, not in [0, 1]"


def test_weights_above_one_keep_the_scale_from_zero():
  figure = attention_maps.attention_map(np.full((T, S), 2.5), SOURCE, TARGET)
  assert figure.axes[0].images[0].get_clim() == (0.0, 2.5)
  assert figure.get_suptitle() == "weights from 2.5 to 2.5, not in [0, 1]"
  rounded = attention_maps.attention_map(np.full((T, S), 1 + 1e-6), SOURCE, TARGET)
  assert rounded.get_suptitle() == ""


def test_very_long_words_are_cut_short_everywhere(tmp_path):
  word = "a" * 100_000
  made = [
    attention_maps.attention_map(_weights(1, 2), ["the", word], [word], title="mine"),
    attention_maps.head_maps(_weights(1, 2)[None, None], ["the", word], [word]),
    figures.spread({"bleu": {word: [1.0], "b": [2.0]}}),
  ]
  for i, figure in enumerate(made):
    png.save(figure, tmp_path / f"{i}.png")
    assert max(_size(tmp_path / f"{i}.png")) < 2000


def test_heads_are_maps_of_one_scale_a_row_for_each_layer():
  weights = np.random.default_rng(0).uniform(0, 0.5, (2, 3, T, S))
  figure = attention_maps.head_maps(weights, SOURCE, TARGET, title="heads")
  maps = [axes for axes in figure.axes if axes.images]
  assert [axes.get_xlabel() for axes in maps[:6]] == [
    f"layer {layer}, head {head}" for layer in range(2) for head in range(3)
  ]
  for axes, expected in zip(maps, weights.reshape(6, T, S), strict=False):
    np.testing.assert_array_equal(axes.images[0].get_array(), expected)
    assert axes.images[0].get_clim() == (0.0, weights.max())


def test_a_dot_for_each_run_and_a_line_at_their_mean():
  figure = figures.spread({"bleu": {"a": [40.0, 43.0], "b": [30.0]}, "loss": {"b": [0.5]}}, title="test")
  left, right = figure.axes
  assert [axes.get_title() for axes in (left, right)] == ["bleu", "loss"]
  lines = [line.get_xydata().tolist() for line in left.lines]
  assert lines[0] == [[40.0, 0.0], [43.0, 0.0]]
  assert [x for x, _ in lines[1]] == [41.5, 41.5]
  assert lines[2] == [[30.0, 1.0]]
  assert [line.get_xydata().tolist() for line in right.lines][1] == [[0.5, 1.0]]
  top, bottom = left.transData.transform([(0, 0), (0, 1)])[:, 1]
  assert top > bottom  # the first group is the upper one


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_true_links_are_marked_on_light_and_dark_cells(weight):
  weights = np.full((T, S), weight)
  figure = attention_maps.attention_map(weights, SOURCE, TARGET, alignment={(0, 4), (2, 1)})
  for target, source in [(0, 4), (2, 1)]:
    assert _orange(_cell_colours(figure, target, source)).mean() > 0.05
  for target, source in [(1, 4), (1, 2), (0, 1)]:
    assert not _orange(_cell_colours(figure, target, source)).any()


def test_without_alignment_nothing_is_marked():
  for alignment in (None, ()):
    figure = attention_maps.attention_map(_weights(), SOURCE, TARGET, alignment=alignment)
    assert not [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]


def test_the_title_is_written_as_given():
  figure = attention_maps.attention_map(_weights(), SOURCE, TARGET, title=r"from $\no$")
  assert figure.get_suptitle() == r"from $\no$"
  figure.canvas.draw()


def test_the_map_grows_with_the_number_of_words():
  small = attention_maps.attention_map(_weights(2, 2), ["a"] * 2, ["a"] * 2).get_size_inches()
  large = attention_maps.attention_map(_weights(29, 31), ["a"] * 31, ["a"] * 29).get_size_inches()
  assert (large >= small + 27 * 0.3).all()


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 30), (30, 1), (17, 2)])
def test_extreme_shapes_are_drawn(tmp_path, rows, columns):
  figure = attention_maps.attention_map(_weights(rows, columns), ["parola"] * columns, ["word"] * rows)
  png.save(figure, tmp_path / "map.png")
  width, height = _size(tmp_path / "map.png")
  assert width >= 40 * columns
  assert height >= 40 * rows


@pytest.mark.parametrize(
  ("weights", "message"),
  [
    (np.zeros((S, T)), r"T=3 target_words and S=5 source_words, .* got shape \(5, 3\)$"),
    (np.zeros(S), r"T=3 target_words and S=5 source_words, .* got shape \(5,\)$"),
    (np.full((T, S), np.inf), r"^weights must be finite, got inf to inf$"),
    (np.full((T, S), np.nan), r"^weights must be finite, got nan to nan$"),
  ],
)
def test_wrong_weights_are_errors(weights, message):
  with pytest.raises(ValueError, match=message):
    attention_maps.attention_map(weights, SOURCE, TARGET)


def test_no_words_are_an_error():
  with pytest.raises(ValueError, match=r"at least one of each, got shape \(0, 5\)$"):
    attention_maps.attention_map(np.zeros((0, S)), SOURCE, [])


@pytest.mark.parametrize("link", [(T, 0), (0, S), (-1, 0)])
def test_a_link_outside_the_map_is_an_error(link):
  with pytest.raises(ValueError) as caught:
    attention_maps.attention_map(_weights(), SOURCE, TARGET, alignment={link})
  assert str(caught.value) == f"alignment must link positions inside [T S] = [3, 5], got {link}"


def test_save_makes_the_folder_and_leaves_only_the_picture(tmp_path):
  path = tmp_path / "figures" / "deep" / "map.png"
  png.save(attention_maps.attention_map(_weights(), SOURCE, TARGET), path)
  assert _size(path) > (100, 100)
  assert list(path.parent.iterdir()) == [path]


def test_save_replaces_an_older_picture(tmp_path):
  path = tmp_path / "map.png"
  path.write_bytes(b"old")
  png.save(attention_maps.attention_map(_weights(), SOURCE, TARGET), path)
  assert _size(path) > (100, 100)


def test_a_failed_save_keeps_the_older_picture_and_leaves_nothing_else(tmp_path, monkeypatch):
  path = tmp_path / "map.png"
  path.write_bytes(b"old")
  figure = attention_maps.attention_map(_weights(), SOURCE, TARGET)

  def fail(file, content):
    with open(file, "wb") as half:
      half.write(content[:100])
    raise OSError(errno.ENOSPC, "disk full")

  monkeypatch.setattr(pathlib.Path, "write_bytes", fail)
  with pytest.raises(OSError, match=f"disk full: '{path}'"):
    png.save(figure, path)
  assert path.read_bytes() == b"old"
  assert list(tmp_path.iterdir()) == [path]


def test_a_name_that_is_not_png_is_an_error(tmp_path):
  figure = attention_maps.attention_map(_weights(), SOURCE, TARGET)
  with pytest.raises(ValueError, match=r"^path must end in \.png, got .*map\.pdf$"):
    png.save(figure, tmp_path / "new" / "map.pdf")
  assert not (tmp_path / "new").exists()


def test_curves_go_through_the_means_of_the_places_that_have_runs():
  lines = {"a": {64: [40.0, 42.0], 16: [30.0], 32: []}, "b": {32: []}}
  figure = figures.curves({"bleu": lines}, x="width", doubles=True)
  first, second = (container.lines[0] for container in figure.axes[0].containers)
  assert first.get_xydata().tolist() == [[16, 30.0], [64, 41.0]]
  assert len(second.get_xydata()) == 0
  bars = figure.axes[0].containers[0].lines[2][0].get_segments()
  assert [bar[:, 1].tolist() for bar in bars] == [[30.0, 30.0], [41.0 - 2**0.5, 41.0 + 2**0.5]]


def test_losses_are_drawn_on_the_left_and_scores_on_the_right():
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


def test_without_scores_there_is_one_panel(tmp_path):
  figure = figures.training_curves([{"step": 1, "train/loss": float("nan")}])
  assert [axes.get_title() for axes in figure.axes] == ["loss"]
  png.save(figure, tmp_path / "curves.png")


@pytest.mark.parametrize(
  ("records", "message"),
  [
    ([], r"^records must have a loss or a score, got \[\]$"),
    ([{"step": 1, "a": 2.0}], r"^records must have a loss or a score, got \['step', 'a'\]$"),
    ([{"train/loss": 1.0}], r"^records must each have a step, got one with \['train/loss'\]$"),
  ],
)
def test_records_without_curves_are_errors(records, message):
  with pytest.raises(ValueError, match=message):
    figures.training_curves(records)


@pytest.mark.exhaustive
def test_the_global_state_of_pyplot_is_not_even_imported():
  program = "import sys, experiments.translation.figures; print('matplotlib.pyplot' in sys.modules)"
  root = pathlib.Path(__file__).parents[3]
  output = subprocess.check_output([sys.executable, "-c", program], cwd=root, text=True)
  assert output == "False\n"
