"""Labels of figures: maximum length, and fonts for all scripts."""

import contextlib
import functools
import os
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import regex
from fontTools import unicodedata as scripts
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font

MAX_LENGTH = 32  # characters; matplotlib needs gigabytes for a label of 100,000

_INVISIBLE = {"Cc", "Cf", "Zs", "Zl", "Zp"}  # Unicode categories
_DEFAULT_FONT = "DejaVu Sans"  # part of matplotlib
_FALLBACK_FONT = "Last Resort"  # part of matplotlib; it draws boxes for all characters


def shorten(word: str, max_length: int = MAX_LENGTH) -> str:
  """Truncates a word to `max_length` characters with an ellipsis. Combining characters are not separated.

  >>> shorten("Straßenbahnhaltestelle"), shorten("Donaudampfschifffahrt", 6)
  ('Straßenbahnhaltestelle', 'Donau…')
  """
  if len(word) <= max_length:
    return word
  ends = [match.end() for match in regex.finditer(r"\X", word[:max_length]) if match.end() < max_length]
  return word[: ends[-1] if ends else max_length - 1] + "…"


def inches(words: Iterable[str], size: float = 10) -> float:
  """Returns the width of the longest word in inches, at a font size in points.

  >>> 0.3 < inches(["gatto"]) < 0.5, inches(["gatto", "il"]) == inches(["gatto"])
  (True, True)
  """
  figure, family = Figure(), families(words := {*words})
  texts = [figure.text(0, 0, word, family=family, size=size, parse_math=False) for word in words]
  with ignore_missing_glyphs():
    return max((float(text.get_window_extent().width) / figure.dpi for text in texts), default=0.0)


@contextlib.contextmanager
def ignore_missing_glyphs() -> Iterator[None]:
  """Suppresses matplotlib's warnings about missing glyphs. `missing_glyph_warning` replaces them."""
  with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Glyph .* missing from font")
    yield


def families(words: Iterable[str]) -> list[str]:
  """Returns the names of installed fonts that cover the characters of words as far as possible.

  The default font of matplotlib is first. Sans-serif fonts are preferred.
  """
  names, missing = [_DEFAULT_FONT], _missing_characters(words)
  while missing:
    best = max(_fonts(), key=lambda font: len(font.characters & missing), default=None)
    if best is None or not best.characters & missing:
      break
    names.append(best.name)
    missing -= best.characters
  return names


def missing_glyph_warning(words: Iterable[str]) -> str:
  """Returns a warning about characters that no installed font has, or an empty string."""
  missing = _missing_characters(words)
  for font in _fonts() if missing else ():
    missing -= font.characters
  if not missing:
    return ""
  names = ", ".join(sorted({_script(character) for character in missing}))
  return (
    f"no installed font has some characters of the figures ({names}), which are drawn as boxes; install a "
    "font (Debian: apt install fonts-noto fonts-symbola) or use experiments.explore"
  )


class _Font(NamedTuple):
  name: str
  characters: frozenset[str]


def _missing_characters(words: Iterable[str]) -> frozenset[str]:
  """Returns the visible characters that the default font does not have."""
  missing = frozenset().union(*words) - _font_characters(font_manager.findfont(_DEFAULT_FONT))
  return frozenset(char for char in missing if unicodedata.category(char) not in _INVISIBLE)


def _script(character: str) -> str:
  """Returns the name of the script of a character, or "symbols" if it has none."""
  name = scripts.script_name(scripts.script(character), default="Unknown")
  return "symbols" if name in ("Common", "Inherited", "Unknown") else name.replace("_", " ")


@functools.cache
def _fonts() -> list[_Font]:
  """Returns the installed fonts of regular style and weight, sans-serif fonts first."""
  manager = font_manager.fontManager
  known = {entry.fname for entry in manager.ttflist}
  for path in font_manager.findSystemFonts():
    if path not in known:  # installed after matplotlib built its font cache
      with contextlib.suppress(Exception):  # for example a bitmap font
        manager.addfont(path)
  entries = {
    entry.name: entry
    for entry in reversed(manager.ttflist)
    if entry.style == "normal"
    and entry.weight in (400, "normal")
    and not entry.name.startswith(_FALLBACK_FONT)
  }
  ordered = sorted(entries.values(), key=_sort_key)
  # The cache of matplotlib may have files that were deleted.
  return [
    _Font(entry.name, _font_characters(entry.fname)) for entry in ordered if os.path.exists(entry.fname)
  ]


def _sort_key(entry: font_manager.FontEntry) -> tuple[bool, bool, int, str]:
  """Sorts sans-serif fonts first, and fonts of one file by their index."""
  return "Sans" not in entry.name, "Mono" in entry.name, getattr(entry, "index", 0), entry.name


@functools.cache
def _font_characters(path: str) -> frozenset[str]:
  return frozenset(map(chr, FT2Font(path).get_charmap()))
