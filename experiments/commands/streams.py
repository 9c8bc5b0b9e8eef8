"""Standard streams of a script, whatever they lead to."""

import io
import os
import sys
from typing import TextIO


def open_streams() -> None:
  """Makes the output UTF-8, as all files are; a standard stream that is closed (`2>&-`) leads nowhere."""
  for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
    if getattr(sys, name) is None:
      setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (as long as the process)
  for stream in (sys.stdout, sys.stderr):
    if isinstance(stream, io.TextIOWrapper):
      stream.reconfigure(encoding="utf-8", errors="backslashreplace")


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
  return io.TextIOWrapper(
    io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
  )
