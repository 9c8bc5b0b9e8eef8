"""Figures as PNG files."""

import io
import os
import pathlib
import sys
from collections.abc import Callable

from matplotlib.figure import Figure

from experiments.cli.io import write_bytes
from experiments.figures import labels

_DOTS_PER_INCH = 150
_MAX_REASON_LENGTH = 200  # characters


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
  """Writes a figure as a PNG file, atomically.

  Args:
    figure: figure to write.
    path: file that ends in `.png`. Missing folders are created.

  Raises:
    ValueError: if `path` does not end in `.png`.
    OSError: if the file cannot be written.
  """
  _write(pathlib.Path(path), _png(figure))


def try_to_save(make: Callable[[], Figure], path: str | os.PathLike[str]) -> bool:
  """Writes a figure like `save`. Prints a warning and returns False if it cannot be drawn.

  A failed figure does not stop a run. A file that cannot be written is still an error.
  """
  try:
    content = _png(make())
  except Exception as error:  # matplotlib may raise anything
    reason = labels.shorten(" ".join(f"{type(error).__name__}: {error}".split()), _MAX_REASON_LENGTH)
    print(f"warning: could not draw {path}: {reason}", file=sys.stderr)
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
