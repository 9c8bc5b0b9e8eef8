"""Tests of experiments/figures/figures.py: PNG files."""

import errno
import pathlib

import pytest

from experiments.figures import figures


@pytest.fixture
def figure():
  return figures.training_curves([{"step": 1, "train/loss": 2.0}])


def test_figures_are_written_and_replaced(figure, tmp_path, capsys):
  path = tmp_path / "deep" / "deeper" / "map.png"
  assert figures.try_to_save(lambda: figure, path)
  assert path.read_bytes().startswith(b"\x89PNG")
  path.write_bytes(b"old")
  figures.save(figure, path)
  assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
  assert list(path.parent.iterdir()) == [path]
  assert capsys.readouterr() == ("", "")


def test_failed_writes_keep_old_files(figure, tmp_path, monkeypatch):
  path = tmp_path / "map.png"
  path.write_bytes(b"old")

  def fail(file, content):
    with open(file, "wb") as partial:
      partial.write(content[:100])
    raise OSError(errno.ENOSPC, "disk full")

  monkeypatch.setattr(pathlib.Path, "write_bytes", fail)
  with pytest.raises(OSError, match=f"disk full: '{path}'"):
    figures.save(figure, path)
  assert path.read_bytes() == b"old"
  assert list(tmp_path.iterdir()) == [path]


def test_other_suffixes_are_errors(figure, tmp_path):
  for save in (figures.save, lambda figure, path: figures.try_to_save(lambda: figure, path)):
    with pytest.raises(ValueError, match=r"^path must end in \.png, got .*map\.pdf$"):
      save(figure, tmp_path / "new" / "map.pdf")
  assert not (tmp_path / "new").exists()


def test_failed_figures_print_one_line(figure, tmp_path, capsys, monkeypatch):
  path = tmp_path / "figures" / "map.png"

  def fail():
    raise RuntimeError("no glyphs\n" + "at all " * 1000)

  assert not figures.try_to_save(fail, path)
  assert not path.parent.exists()
  output, errors = capsys.readouterr()
  warning = f"warning: could not draw {path}: RuntimeError: no glyphs at all"
  assert output == "" and errors.startswith(warning)
  assert errors.count("\n") == 1 and len(errors) < len(str(path)) + 300
  monkeypatch.setattr(figure, "savefig", lambda *_, **__: 1 / 0)
  assert not figures.try_to_save(lambda: figure, path)
  assert capsys.readouterr().err.endswith(": ZeroDivisionError: division by zero\n")


def test_unwritable_files_are_errors(figure, tmp_path):
  (tmp_path / "file").touch()
  with pytest.raises(OSError):
    figures.try_to_save(lambda: figure, tmp_path / "file" / "map.png")
