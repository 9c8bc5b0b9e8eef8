"""Figures of metrics, and PNG files."""

import pytest

from experiments.figures import figures


def lines_of(axes):
  return {line.get_label(): line.get_xydata().tolist() for line in axes.lines}


def test_dot_plots_show_runs_and_means():
  metrics = {"bleu": {"a": [40.0, 43.0], "b": [30.0]}, "loss": {"b": [0.5]}}
  figure = figures.dot_plot(metrics, title=r"$\no$")
  left, right = figure.axes
  assert (left.get_title(), right.get_title(), figure.get_suptitle()) == ("bleu", "loss", r"$\no$")
  lines = [line.get_xydata().tolist() for line in left.lines]
  assert lines[0] == [[40.0, 0.0], [43.0, 0.0]] and [x for x, _ in lines[1]] == [41.5, 41.5]
  assert lines[2] == [[30.0, 1.0]]
  assert [line.get_xydata().tolist() for line in right.lines][1] == [[0.5, 1.0]]
  bottom, top = left.get_ylim()
  assert top < 0 < 1 < bottom  # the first group is on top


def test_curves_go_through_means():
  lines = {"a": {64: [40.0, 42.0], 16: [30.0], 32: []}, "b": {32: []}}
  axes = figures.curves(dict.fromkeys("cde", lines), x="width", doubles=True, columns=2).axes
  assert [panel.get_title() for panel in axes] == [*"cde"]
  first, second = (container.lines[0] for container in axes[0].containers)
  assert first.get_xydata().tolist() == [[16, 30.0], [64, 41.0]]
  assert len(second.get_xydata()) == 0
  bars = axes[0].containers[0].lines[2][0].get_segments()
  assert [bar[:, 1].tolist() for bar in bars] == [[30.0, 30.0], [41.0 - 2**0.5, 41.0 + 2**0.5]]
  assert [label.get_text() for label in axes[0].get_xticklabels()] == ["16", "32", "64"]


def test_training_curves_have_three_panels(tmp_path):
  records = [
    {"step": 10, "train/loss": 3.0, "train/tokens_per_second": 1e4},
    {"step": 20, "train/loss": float("nan"), "validation/alignment_error_rate": 0.5},
    {"step": 20, "validation/loss": 2.5, "validation/exact_match": 0.25, "validation/bleu": 50.0},
  ]
  figure = figures.training_curves(records)
  loss, scores, errors = figure.axes
  assert loss.get_title() == "loss (lower is better)"
  assert lines_of(loss)["train/loss"][0] == [10, 3.0] and lines_of(loss)["validation/loss"] == [[20, 2.5]]
  assert scores.get_title() == "scores (higher is better)"
  assert lines_of(scores) == {"validation/exact_match": [[20, 0.25]], "validation/bleu / 100": [[20, 0.5]]}
  assert scores.get_ylim()[0] <= 0.0 and scores.get_ylim()[1] >= 1.0
  assert errors.get_title() == "errors (lower is better)"
  assert lines_of(errors) == {"validation/alignment_error_rate": [[20, 0.5]]}
  figures.save(figure, tmp_path / "curves.png")


INVALID = [
  ([], r"^records must have at least one loss or score, got \[\]$"),
  ([{"step": 1, "a": 2.0}], r"^records must have at least one loss or score, got \['step', 'a'\]$"),
  ([{"train/loss": 1.0}], r"^every record must have a step, got one with \['train/loss'\]$"),
]


@pytest.mark.parametrize(("records", "message"), INVALID)
def test_empty_curves_are_errors(records, message):
  with pytest.raises(ValueError, match=message):
    figures.training_curves(records)


@pytest.fixture
def figure():
  return figures.training_curves([{"step": 1, "train/loss": 2.0}])


def test_figures_are_written_and_replaced(figure, tmp_path, capsys):
  path = tmp_path / "deep" / "deeper" / "map.png"
  assert figures.try_to_save(lambda: figure, path)
  path.write_bytes(b"old")
  figures.save(figure, path)
  assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") and [*path.parent.iterdir()] == [path]
  assert capsys.readouterr() == ("", "")


def test_failed_figures_print_one_line(figure, tmp_path, capsys):
  path = tmp_path / "figures" / "map.png"

  def fail():
    raise RuntimeError("no glyphs\n" + "at all " * 1000)

  assert not figures.try_to_save(fail, path) and not path.parent.exists()
  output, errors = capsys.readouterr()
  warning = f"warning: could not draw {path}: RuntimeError: no glyphs at all"
  assert output == "" and errors.startswith(warning)
  assert errors.count("\n") == 1 and len(errors) < len(str(path)) + 300


def test_unwritable_files_are_errors(figure, tmp_path):
  (tmp_path / "file").touch()
  with pytest.raises(OSError):
    figures.try_to_save(lambda: figure, tmp_path / "file" / "map.png")
  for save in (figures.save, lambda figure, path: figures.try_to_save(lambda: figure, path)):
    with pytest.raises(ValueError, match=r"^path must end in \.png, got .*map\.pdf$"):
      save(figure, tmp_path / "new" / "map.pdf")
  assert not (tmp_path / "new").exists()
