"""Tests of experiments/translation/png.py."""

import pytest

from experiments.translation import figures, png


def _figure():
  return figures.training_curves([{"step": 1, "train/loss": 2.0}])


def test_a_figure_that_fails_is_one_line(tmp_path, capsys):
  path = tmp_path / "figures" / "map.png"

  def fail():
    raise RuntimeError("no glyphs\n" + "at all " * 1000)

  assert not png.try_to_save(fail, path)
  assert not path.parent.exists()
  output, errors = capsys.readouterr()
  assert output == "" and errors.startswith(
    f"warning: {path} could not be drawn: RuntimeError: no glyphs at all"
  )
  assert errors.count("\n") == 1 and len(errors) < len(str(path)) + 300


def test_a_figure_that_fails_when_it_is_rendered_is_one_line(tmp_path, capsys, monkeypatch):
  figure = _figure()
  monkeypatch.setattr(figure, "savefig", lambda *_, **__: 1 / 0)
  assert not png.try_to_save(lambda: figure, tmp_path / "map.png")
  assert capsys.readouterr().err.endswith("could not be drawn: ZeroDivisionError: division by zero\n")


def test_a_figure_is_written(tmp_path, capsys):
  assert png.try_to_save(_figure, tmp_path / "deep" / "map.png")
  assert (tmp_path / "deep" / "map.png").read_bytes().startswith(b"\x89PNG")
  assert capsys.readouterr() == ("", "")


def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
  (tmp_path / "file").touch()
  with pytest.raises(OSError):
    png.try_to_save(_figure, tmp_path / "file" / "map.png")
