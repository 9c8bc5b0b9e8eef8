"""Texts for people: counts, tables, and text with escaped, invisible or too many characters."""

from collections.abc import Iterable, Sequence
from typing import Any

import regex

# Format characters, such as joiners of emoji, are kept.
_CONTROL = regex.compile(r"[\p{Cc}\p{Zl}\p{Zp}]")
_VISIBLE = regex.compile(r"[^\s\x1c-\x1f\p{Default_Ignorable_Code_Point}]")
_MAX_LENGTH = 60


def counted(count: int, noun: str) -> str:
  """Returns a count and a noun, which gets an "s" unless the count is 1.

  >>> counted(1, "pair"), counted(1200, "pair")
  ('1 pair', '1,200 pairs')
  """
  return f"{count:,} {noun}{'' if count == 1 else 's'}"


def escape_controls(text: str) -> str:
  r"""Returns a text with control characters and line separators escaped.

  >>> escape_controls("a\tb\x1b[2J")
  'a\\tb\\x1b[2J'
  """
  return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def is_blank(text: str) -> bool:
  r"""Returns whether a text has only whitespace and invisible characters.

  >>> is_blank("\u200b \u200d"), is_blank("a\u200b")
  (True, False)
  """
  return not _VISIBLE.search(text)


def escape_invisible(text: str) -> str:
  r"""Returns a text with invisible characters escaped, truncated to 60 characters.

  >>> escape_invisible("a\u200db")
  'a\\u200db'
  """
  truncated = text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}…"
  return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in truncated)


def shorten(text: str) -> str:
  """Returns the repr of a text, truncated to 60 characters."""
  return repr(text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}…")


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
