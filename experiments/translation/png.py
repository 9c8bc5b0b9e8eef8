"""Figures as PNG files."""

import io
import os
import pathlib
import sys
from collections.abc import Callable

from matplotlib.figure import Figure

from experiments.cli.io import write_bytes
from experiments.translation import labels

_DOTS_PER_INCH = 150
_LONGEST_REASON = 200  # characters


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
  """Writes a figure as PNG, so that a file of this name is never half written.

  Args:
    figure: what to write.
    path: ends in `.png`; folders that are missing are made.

  Raises:
    ValueError: if `path` does not end in `.png`.
    OSError: if the file cannot be written.
  """
  _write(pathlib.Path(path), _png(figure))


def try_to_save(make: Callable[[], Figure], path: str | os.PathLike[str]) -> bool:
  """Writes a figure like `save`, or prints one line why it cannot be drawn; returns whether it is written.

  So a figure that fails ends no run whose results are there. A file that cannot be written is an error.
  """
  try:
    content = _png(make())
  except Exception as error:  # whatever matplotlib may raise
    reason = labels.shorten(" ".join(f"{type(error).__name__}: {error}".split()), _LONGEST_REASON)
    print(f"warning: {path} could not be drawn: {reason}", file=sys.stderr)
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
