"""Standard streams of a script, whatever they lead to."""

import io
import os
import re
import sys
import unicodedata
from typing import Any, TextIO

# Letters without a shape; all else that is hidden has category Cc, Cf, Zl or Zp.
_INVISIBLE_LETTERS = "\u115f\u1160\u3164\uffa0"
_VISIBLE = re.compile(
  r"[\n\t]"
  r"|\A\r"  # tqdm begins each of its bars so
  r"|(?<=\S)[\u200c\u200d](?=\S)"  # joiners inside words and emoji
  r"|[\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd]"  # Arabic signs that have a shape
)


def escape(text: str) -> str:
  r"""Returns a text with escapes for control, invisible and bidirectional formatting characters.

  Newlines and tabs stay, as do joiners inside a word.

  >>> print(escape("a\x1b]0;title\x07b\u202ec"))
  a\x1b]0;title\x07b\u202ec
  """
  if text.isascii() and text.isprintable():
    return text
  kept = {match.start() for match in _VISIBLE.finditer(text)}
  return "".join(
    char.encode("unicode_escape").decode("ascii") if _is_hidden(char) and i not in kept else char
    for i, char in enumerate(text)
  )


def _is_hidden(char: str) -> bool:
  return unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") or char in _INVISIBLE_LETTERS


class _Escaping(io.TextIOWrapper):
  """A stream that writes what `escape` returns."""

  def write(self, text: str) -> int:
    super().write(escape(text))
    return len(text)


def open_streams() -> None:
  """Makes the output UTF-8, as all files are; a standard stream that is closed (`2>&-`) leads nowhere.

  Standard error, and standard output at a terminal, are escaped: data and names of files cannot send commands
  to a terminal. Standard output that is a file or a pipe is written as it is.
  """
  for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
    if getattr(sys, name) is None:
      setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (as long as the process)
  for stream in (sys.stdout, sys.stderr):
    if isinstance(stream, io.TextIOWrapper):
      stream.reconfigure(encoding="utf-8", errors="backslashreplace")
  sys.stderr = _escaping(sys.stderr)
  if sys.stdout.isatty():
    sys.stdout = _escaping(sys.stdout)


def _escaping(stream: Any) -> TextIO:
  stream.flush()
  # Detached: a stream that nothing refers to closes its buffer.
  return _Escaping(stream.detach(), encoding="utf-8", errors="backslashreplace", line_buffering=True)


class _Outliving(io.FileIO):
  """A stream whose reader may go; what is written after that is lost."""

  def write(self, data) -> int:
    try:
      return super().write(data)
    except BrokenPipeError:
      return len(data)


def outliving(stream: TextIO) -> TextIO:
  """Returns a stream like this one whose reader may go."""
  raw = _Outliving(stream.fileno(), "w", closefd=False)
  kind = _Escaping if isinstance(stream, _Escaping) else io.TextIOWrapper
  return kind(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True)
