"""Sentence pairs in tab-separated files."""

from __future__ import annotations

import gzip
import os
import pathlib
import zlib
from collections.abc import Iterable
from typing import NamedTuple

from experiments.cli.errors import DataError
from experiments.cli.io import read_bytes
from experiments.cli.messages import counted, is_blank, shorten
from experiments.data.alignments import (
  Alignment,
  check_alignment,
  format_alignment,
  from_whitespace,
  parse_gold,
)


class SentencePair(NamedTuple):
  """A sentence and its translation.

  Attributes:
    source: plain text.
    target: plain text.
    alignment: links (target position, source position) between the words of `words.tokenize`, counted from 0.
      None if unknown.
    possible: links that are possible, but not sure.
  """

  source: str
  target: str
  alignment: Alignment | None = None
  possible: Alignment = frozenset()


def read_pairs(path: str | os.PathLike[str], *, alignment_tokens: str | None = "auto") -> list[SentencePair]:
  """Reads the sentence pairs of a file.

  Each line is `source TAB target`, or `source TAB target TAB alignment` with the alignment in Pharaoh format:
  `source-target` positions from 0, separated by spaces (`0-0 1-2`). Gold alignments may also have
  links that are possible, but not sure, with a "p" instead of the hyphen (`1p2`). The encoding is UTF-8. A
  byte-order mark, CRLF line ends and a missing last line end are accepted. Sentences are not stripped.

  Args:
    path: file to read, decompressed if its name ends in `.gz`.
    alignment_tokens: what alignment positions count. "words" counts the words of `words.tokenize`, including
      punctuation. "whitespace" counts tokens separated by spaces; links are converted to words by
      `alignments.from_whitespace`. "auto" counts words, and raises an error if all positions are also valid
      for whitespace tokens but would mean different links. "unconverted" counts tokens separated by spaces,
      and keeps their links. None ignores alignments.

  Raises:
    DataError: if the file cannot be read or is empty, or a line is invalid. The message has the file name and
      the line number.
  """
  path = pathlib.Path(path)
  content = _read_bytes(path).removeprefix(b"\xef\xbb\xbf")
  if not content:
    raise DataError(f"{path}: file is empty; expected one sentence pair per line")
  lines = content.removesuffix(b"\n").split(b"\n")  # str.splitlines would also split at other characters
  pairs = [_parse_line(path, number, line, alignment_tokens) for number, line in enumerate(lines, start=1)]
  if alignment_tokens == "auto" and _may_count_whitespace(pairs):
    raise DataError(
      f"{path}: alignments may count whitespace tokens instead of words; set --alignment_tokens to "
      "whitespace or words, or --config.data.alignment_tokens in training"
    )
  return pairs


def write_pairs(path: str | os.PathLike[str], pairs: Iterable[SentencePair]) -> None:
  """Writes pairs to a file that `read_pairs` can read.

  Args:
    path: file to write, compressed if its name ends in `.gz`.
    pairs: at least one pair.

  Raises:
    ValueError: if there is no pair, or a pair is invalid (see `format_pair`).
    OSError: if the file cannot be written.
  """
  content = "".join(f"{format_pair(pair)}\n" for pair in pairs).encode("utf-8")
  if not content:
    raise ValueError("pairs must not be empty")
  path = pathlib.Path(path)
  # The time is omitted so that the same pairs give the same bytes.
  path.write_bytes(gzip.compress(content, mtime=0) if _is_gzip(path) else content)


def format_pair(pair: SentencePair) -> str:
  r"""Returns a pair as one line in the format of `read_pairs`, without the line end.

  Raises:
    ValueError: if a sentence is blank, contains a tab or line end, or begins with a byte-order mark, or if
      the alignment is out of range.

  >>> format_pair(SentencePair("she sees", "vede", frozenset({(0, 0), (0, 1)})))
  'she sees\tvede\t0-0 1-0'
  """
  _check_pair(pair)
  if pair.alignment is None:
    return f"{pair.source}\t{pair.target}"
  return f"{pair.source}\t{pair.target}\t{format_alignment(pair.alignment, pair.possible)}"


def _may_count_whitespace(pairs: Iterable[SentencePair]) -> bool:
  """Returns whether all alignments are valid for whitespace tokens but mean different links there."""
  are_different = False
  for source, target, sure, possible in pairs:
    alignment = (sure or frozenset()) | possible
    if not alignment:
      continue
    if any(t >= len(target.split()) or s >= len(source.split()) for t, s in alignment):
      return False
    are_different = are_different or from_whitespace(alignment, source, target) != alignment
  return are_different


def _is_gzip(path: pathlib.Path) -> bool:
  return path.suffix.lower() == ".gz"


def _read_bytes(path: pathlib.Path) -> bytes:
  """Returns the content of a file, decompressed if its name ends in .gz."""
  content = read_bytes(path)
  if not _is_gzip(path):
    return content
  try:
    return gzip.decompress(content)
  except EOFError as error:
    raise DataError(f"{path}: gzip file is truncated") from error
  except (OSError, zlib.error) as error:
    raise DataError(f"{path}: invalid gzip file: {error}") from error


def _parse_line(path: pathlib.Path, number: int, line: bytes, alignment_tokens: str | None) -> SentencePair:
  """Returns the pair of a line. Errors have the file name and line number."""
  try:
    return _parse_pair(line.removesuffix(b"\r").decode("utf-8"), alignment_tokens)
  except UnicodeDecodeError as error:
    byte = f"byte 0x{error.object[error.start]:02x} at column {error.start + 1}"
    raise DataError(f"{path}:{number}: expected UTF-8, got {byte}: {error.reason}") from error
  except ValueError as error:
    raise DataError(f"{path}:{number}: {error}") from error


def _parse_pair(line: str, alignment_tokens: str | None) -> SentencePair:
  """Returns the pair of a line, with its alignment between words."""
  fields = line.split("\t")
  if len(fields) not in (2, 3):
    columns = counted(len(fields), "column")
    raise ValueError(f"expected source TAB target, optionally TAB alignment, got {columns}")
  source, target, *rest = fields
  if not rest or not alignment_tokens:
    pair = SentencePair(source, target)
    _check_pair(pair)
    return pair
  pair = SentencePair(source, target, *parse_gold(rest[0]))
  _check_pair(pair, "whitespace" if alignment_tokens == "unconverted" else alignment_tokens)
  if alignment_tokens != "whitespace":
    return pair
  sure = from_whitespace(pair.alignment or frozenset(), source, target)
  return SentencePair(source, target, sure, from_whitespace(pair.possible, source, target) - sure)


def _check_pair(pair: SentencePair, alignment_tokens: str = "words") -> None:
  """Raises ValueError if a pair cannot be written as a line."""
  for side, text in (("source", pair.source), ("target", pair.target)):
    if is_blank(text):
      raise ValueError(f"{side} must not be blank, got {shorten(text)}")
    if "\t" in text or "\n" in text or "\r" in text:
      raise ValueError(f"{side} must not contain tabs or line ends, got {shorten(text)}")
    if text.startswith("\ufeff"):
      raise ValueError(f"{side} must not begin with a byte-order mark, got {shorten(text)}")
  if links := (pair.alignment or frozenset()) | pair.possible:
    check_alignment(links, pair.source, pair.target, alignment_tokens)
