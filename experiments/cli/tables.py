"""Tables as plain text and as Markdown."""

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.cli.messages import escape_controls


def columns(rows: Sequence[Sequence[str]]) -> str:
  """Returns rows as aligned columns, the first column to the left and the others to the right.

  Control characters are escaped.

  >>> print(columns([["system", "bleu"], ["a", "7.0"]]))
  system  bleu
  a        7.0
  """
  rows = [[escape_controls(cell) for cell in row] for row in rows]
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = []
  for first, *others in rows:
    aligned = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
    lines.append("  ".join([first.ljust(widths[0]), *aligned]))
  return "\n".join(lines)


def markdown(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
  """Returns a Markdown table.

  >>> print(markdown(["width", "bleu"], [[8, "40.0"]]))
  | width | bleu |
  | --- | --- |
  | 8 | 40.0 |
  """
  return "\n".join(map(markdown_row, [header, ["---"] * len(header), *rows]))


def markdown_row(cells: Iterable[Any]) -> str:
  return f"| {' | '.join(map(str, cells))} |"
