"""Sentence pairs in tab-separated files, and words in plain text."""

from __future__ import annotations

import gzip
import os
import pathlib
import re
import unicodedata
import zlib
from collections.abc import Iterable
from typing import NamedTuple

from experiments.commands.mistakes import DataError

Alignment = frozenset[tuple[int, int]]

# A word is a run of letters, digits and combining accents. It goes on over a hyphen between two
# letters and a point, comma or colon between two digits, and it keeps the apostrophe that joins it
# to the next word. All other characters but whitespace are words of one character.
_LETTER = r"[\w\u0300-\u036f]"
_WORD = rf"{_LETTER}+(?:(?:-|(?<=\d)[.,:](?=\d)){_LETTER}+)*(?:['\u2019](?={_LETTER}))?"
_TOKEN = re.compile(rf"{_WORD}|[^\w\s\u0300-\u036f]")
_LINK = re.compile(r"([0-9]+)-([0-9]+)")
_APOSTROPHES = ("'", "\u2019")
_NO_SPACE_BEFORE = frozenset(".,;:!?)]}%…»”'\u2019")
_NO_SPACE_AFTER = frozenset('([{«“„\u2018¿¡"')
# Quotation marks that are closed by one that can also open: English "" and German „“.
_CLOSED_BY = {'"': '"', "„": "“"}


class SentencePair(NamedTuple):
  """A sentence, its translation, and which word translates which, as far as known.

  Attributes:
    source: plain text.
    target: plain text.
    alignment: pairs (target position, source position), counted from 0 in the words that `tokenize`
      gives; None where it is not known.
  """

  source: str
  target: str
  alignment: Alignment | None = None


def read_pairs(path: str | os.PathLike[str]) -> list[SentencePair]:
  """Returns the sentence pairs of a file, in order.

  Each line is `source TAB target`, or `source TAB target TAB alignment` with the alignment in
  Pharaoh form: `source-target` positions from 0, joined by single spaces (`0-0 1-2`); they count
  the words that `tokenize` gives. The text is UTF-8; a byte-order mark at the start, CRLF line ends
  and a last line without an end are accepted. Nothing is stripped from the sentences.

  Args:
    path: the file; it is read through gzip if its name ends in `.gz`.

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
  return [_located_pair(path, number, line) for number, line in enumerate(lines, start=1)]


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
  links = sorted((source, target) for target, source in pair.alignment)
  pharaoh = " ".join(f"{source}-{target}" for source, target in links)
  return f"{pair.source}\t{pair.target}\t{pharaoh}"


def normalize(text: str, *, lowercase: bool) -> str:
  r"""Returns a text with composed accents (Unicode NFC), in lower case if asked.

  >>> normalize("Perche\u0301", lowercase=True)
  'perché'
  """
  # Composed last: some letters with an accent, such as j with a caron, exist in lower case only.
  return unicodedata.normalize("NFC", text.lower() if lowercase else text)


def tokenize(text: str, *, lowercase: bool = True) -> tuple[str, ...]:
  """Returns the words and punctuation marks of a text in a language that puts spaces between words.

  A word is a run of letters and digits, with the hyphens inside it; so is a number, with the
  points, commas and colons inside it. An apostrophe between two letters stays with the word before
  it, as in Italian and French. Every other character but whitespace stands alone. Accents are
  composed (Unicode NFC), so that both ways to write one give the same word.

  Args:
    text: plain text.
    lowercase: whether words are put in lower case; their number does not depend on it.

  >>> tokenize("L'albero non c'è: 3.5 T-shirts!")
  ("l'", 'albero', 'non', "c'", 'è', ':', '3.5', 't-shirts', '!')
  """
  return tuple(_TOKEN.findall(normalize(text, lowercase=lowercase)))


def detokenize(words: Iterable[str]) -> str:
  """Returns plain text with the usual spaces around punctuation marks.

  No space goes before a closing mark or a lone apostrophe, after an opening mark, or after a word
  that ends in an apostrophe; straight double quotes open and close in turn. `tokenize` gives back
  the same words if it was `tokenize` that cut them.

  >>> detokenize(["l'", "albero", "(", "alto", ")", ",", "non", "c'", "è", "."])
  "l'albero (alto), non c'è."
  """
  pieces: list[str] = []
  joined, awaited = True, None
  for word in words:
    closes = word in _NO_SPACE_BEFORE or word == awaited
    pieces.append(word if joined or closes else f" {word}")
    awaited = None if word == awaited else _CLOSED_BY.get(word, awaited)
    elided = len(word) > 1 and word.endswith(_APOSTROPHES)
    joined = elided or (word in _NO_SPACE_AFTER and not closes)
  return "".join(pieces)


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


def _located_pair(path: pathlib.Path, number: int, line: bytes) -> SentencePair:
  """Returns the pair of a line; an error names the file and the line."""
  try:
    return _parse_pair(line.removesuffix(b"\r").decode("utf-8"))
  except UnicodeDecodeError as error:
    byte = f"byte 0x{error.object[error.start]:02x} at column {error.start + 1}"
    raise DataError(f"{path}:{number}: expected UTF-8, got {byte}: {error.reason}") from error
  except ValueError as error:
    raise DataError(f"{path}:{number}: {error}") from error


def _parse_pair(line: str) -> SentencePair:
  """Returns the pair that `format_pair` formatted."""
  fields = line.split("\t")
  if len(fields) not in (2, 3):
    raise ValueError(
      f"expected source TAB target, or source TAB target TAB alignment, got {len(fields) - 1} tabs"
    )
  alignment = _parse_alignment(fields[2]) if len(fields) == 3 else None
  pair = SentencePair(fields[0], fields[1], alignment)
  _check_pair(pair)
  return pair


def _parse_alignment(text: str) -> Alignment:
  """Returns (target, source) pairs from Pharaoh form."""
  links = [_LINK.fullmatch(link) for link in text.split(" ")] if text else []
  if None in links:
    raise ValueError(f"expected an alignment like '0-0 1-2' (source-target), got {text!r}")
  return frozenset((int(link[2]), int(link[1])) for link in links if link)


def _check_pair(pair: SentencePair) -> None:
  """Raises ValueError for what a line cannot hold."""
  for side, text in (("source", pair.source), ("target", pair.target)):
    if not text.strip():
      raise ValueError(f"expected a {side} sentence, got {text!r}")
    if "\t" in text or "\n" in text or "\r" in text:
      raise ValueError(f"expected a {side} without tabs and line ends, got {text!r}")
    if text.startswith("\ufeff"):
      raise ValueError(f"expected a byte-order mark only at the start of a file, got {text!r}")
  if pair.alignment is not None:
    _check_alignment(pair.alignment, len(tokenize(pair.target)), len(tokenize(pair.source)))


def _check_alignment(alignment: Alignment, num_targets: int, num_sources: int) -> None:
  """Raises ValueError for a link to a word that is not there."""
  for target, source in sorted(alignment):
    if not (0 <= target < num_targets and 0 <= source < num_sources):
      raise ValueError(
        f"expected an alignment of {num_sources} source and {num_targets} target words, "
        f"counted from 0, got {source}-{target}"
      )
