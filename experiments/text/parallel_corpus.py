"""Sentence pairs in tab-separated files."""

from __future__ import annotations

import gzip
import os
import pathlib
import zlib
from collections.abc import Iterable
from typing import NamedTuple

from experiments.cli.errors import DataError
from experiments.text.alignments import (
  Alignment,
  check_alignment,
  format_alignment,
  from_whitespace,
  parse_alignment,
)
from experiments.text.visible import is_blank, shorten


class SentencePair(NamedTuple):
  """A sentence, its translation, and which word translates which, as far as known.

  Attributes:
    source: plain text.
    target: plain text.
    alignment: pairs (target position, source position), counted from 0 in the words that `words.tokenize`
      gives; None where it is not known.
  """

  source: str
  target: str
  alignment: Alignment | None = None


def read_pairs(path: str | os.PathLike[str], *, alignment_tokens: str | None = "auto") -> list[SentencePair]:
  """Returns the sentence pairs of a file, in order.

  Each line is `source TAB target`, or `source TAB target TAB alignment` with the alignment in
  Pharaoh form: `source-target` positions from 0, joined by single spaces (`0-0 1-2`). The text is
  UTF-8; a byte-order mark at the start, CRLF line ends and a last line without an end are accepted.
  Nothing is stripped from the sentences.

  Args:
    path: the file; it is read through gzip if its name ends in `.gz`.
    alignment_tokens: what alignments count: "words" (of `words.tokenize`: punctuation marks count), or
      "whitespace" (tokens with spaces between), which are mapped to words by
      `alignments.from_whitespace`. "auto": words; a file that may count whitespace tokens is an error, one
      whose positions are all those of whitespace tokens, which would give other links. None: alignments
      are passed over.

  Raises:
    DataError: if the file cannot be read or has no line, or at the first line that is not of this
      form. The message is one line, and names the file and, where there is one, the line.
  """
  path = pathlib.Path(path)
  content = _read_bytes(path).removeprefix(b"\xef\xbb\xbf")
  if not content:
    raise DataError(f"{path}: expected one sentence pair a line, got an empty file")
  # Not splitlines, which also breaks lines at other characters than the newline.
  lines = content.removesuffix(b"\n").split(b"\n")
  pairs = [_located_pair(path, number, line, alignment_tokens) for number, line in enumerate(lines, start=1)]
  if alignment_tokens == "auto" and _may_count_whitespace(pairs):
    raise DataError(
      f"{path}: alignments may count whitespace tokens instead of words; set alignment_tokens to whitespace, "
      "or to words (a flag; in training config.data.alignment_tokens)"
    )
  return pairs


def write_pairs(path: str | os.PathLike[str], pairs: Iterable[SentencePair]) -> None:
  """Writes the file from which `read_pairs` reads the same pairs.

  Args:
    path: the file; it is written through gzip if its name ends in `.gz`.
    pairs: at least one.

  Raises:
    ValueError: if there is no pair, or for what `format_pair` refuses.
    OSError: if the file cannot be written.
  """
  content = "".join(f"{format_pair(pair)}\n" for pair in pairs).encode("utf-8")
  if not content:
    raise ValueError("pairs must be at least one, got none")
  path = pathlib.Path(path)
  # Without the time of writing, the same pairs give the same bytes.
  path.write_bytes(gzip.compress(content, mtime=0) if _is_gzip(path) else content)


def format_pair(pair: SentencePair) -> str:
  r"""Returns a pair as one line of the file that `read_pairs` describes, without its end.

  Raises:
    ValueError: if a sentence is blank, holds a tab or a line end, or begins with a byte-order mark;
      or if the alignment names a word that is not there.

  >>> format_pair(SentencePair("she sees", "vede", frozenset({(0, 0), (0, 1)})))
  'she sees\tvede\t0-0 1-0'
  """
  _check_pair(pair)
  if pair.alignment is None:
    return f"{pair.source}\t{pair.target}"
  return f"{pair.source}\t{pair.target}\t{format_alignment(pair.alignment)}"


def _may_count_whitespace(pairs: Iterable[SentencePair]) -> bool:
  """Returns whether all alignments fit whitespace tokens, and would mean something else there."""
  are_different = False
  for source, target, alignment in pairs:
    if not alignment:
      continue
    if any(t >= len(target.split()) or s >= len(source.split()) for t, s in alignment):
      return False
    are_different = are_different or from_whitespace(alignment, source, target) != alignment
  return are_different


def _is_gzip(path: pathlib.Path) -> bool:
  return path.suffix.lower() == ".gz"


def _read_bytes(path: pathlib.Path) -> bytes:
  """Returns a file's content, decompressed if its name says so."""
  try:
    content = path.read_bytes()
  except IsADirectoryError as error:
    raise DataError(f"{path}: expected a file, got a directory") from error
  except OSError as error:
    raise DataError(f"{path}: expected a readable file, got: {error.strerror}") from error
  if not _is_gzip(path):
    return content
  try:
    return gzip.decompress(content)
  except EOFError as error:
    raise DataError(f"{path}: expected a whole gzip file, got one that is cut off") from error
  except (OSError, zlib.error) as error:
    raise DataError(f"{path}: expected a gzip file, as the name says, got: {error}") from error


def _located_pair(path: pathlib.Path, number: int, line: bytes, alignment_tokens: str | None) -> SentencePair:
  """Returns the pair of a line; an error names the file and the line."""
  try:
    return _parse_pair(line.removesuffix(b"\r").decode("utf-8"), alignment_tokens)
  except UnicodeDecodeError as error:
    byte = f"byte 0x{error.object[error.start]:02x} at column {error.start + 1}"
    raise DataError(f"{path}:{number}: expected UTF-8, got {byte}: {error.reason}") from error
  except ValueError as error:
    raise DataError(f"{path}:{number}: {error}") from error


def _parse_pair(line: str, alignment_tokens: str | None) -> SentencePair:
  """Returns the pair of a line, its alignment between words."""
  fields = line.split("\t")
  if len(fields) not in (2, 3):
    raise ValueError(
      f"expected source TAB target, or source TAB target TAB alignment, got {len(fields) - 1} tabs"
    )
  source, target, *rest = fields
  alignment = parse_alignment(rest[0]) if rest and alignment_tokens else None
  _check_pair(SentencePair(source, target, alignment), alignment_tokens or "words")
  if alignment and alignment_tokens == "whitespace":
    alignment = from_whitespace(alignment, source, target)
  return SentencePair(source, target, alignment)


def _check_pair(pair: SentencePair, alignment_tokens: str = "words") -> None:
  """Raises ValueError for what a line cannot hold."""
  for side, text in (("source", pair.source), ("target", pair.target)):
    if is_blank(text):
      raise ValueError(f"expected a {side} sentence, got {shorten(text)}")
    if "\t" in text or "\n" in text or "\r" in text:
      raise ValueError(f"expected a {side} without tabs and line ends, got {shorten(text)}")
    if text.startswith("\ufeff"):
      raise ValueError(f"expected a byte-order mark only at the start of a file, got {shorten(text)}")
  if pair.alignment:
    check_alignment(pair.alignment, pair.source, pair.target, alignment_tokens)
