"""Words as labels of a figure: cut short, and written in installed fonts that have their letters."""

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

MAX_LENGTH = 32  # characters of a label; of a word of 100,000 letters matplotlib needs gigabytes

_WITHOUT_INK = {"Cc", "Cf", "Zs", "Zl", "Zp"}  # categories of Unicode
_USUAL_FONT = "DejaVu Sans"  # it comes with matplotlib
_BOX_FONT = "Last Resort"  # so does this one, which has a box for every letter


def shorten(word: str, most: int = MAX_LENGTH) -> str:
  """Returns a word of at most `most` characters: a longer one ends in an ellipsis, not amid a character.

  >>> shorten("Straßenbahnhaltestelle"), shorten("Donaudampfschifffahrt", 6)
  ('Straßenbahnhaltestelle', 'Donau…')
  """
  if len(word) <= most:
    return word
  ends = [found.end() for found in regex.finditer(r"\X", word[:most]) if found.end() < most]
  return word[: ends[-1] if ends else most - 1] + "…"  # of a letter with more marks than that, some


def inches(words: Iterable[str], size: float = 10) -> float:
  """Returns how long the longest of some words is, in letters of a size in points; 0 without words.

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
  """Returns the names of installed fonts that together have the letters of words, as far as any font has.

  The first is the one that comes with matplotlib. Of fonts with as many of the letters, a sans-serif.
  """
  found, left = [_USUAL_FONT], _missing(words)
  while left:
    best = max(_fonts(), key=lambda font: len(font.letters & left), default=None)
    if best is None or not best.letters & left:
      break
    found.append(best.name)
    left -= best.letters
  return found


def missing_glyph_warning(words: Iterable[str]) -> str:
  """Returns a line about letters that no installed font has, and what to do; nothing if there are none."""
  left = _missing(words)
  for font in _fonts() if left else ():
    left -= font.letters
  if not left:
    return ""
  names = ", ".join(sorted({_script(letter) for letter in left}))
  return (
    f"no installed font has some letters of the figures ({names}), which are boxes there: install one "
    "(Debian: apt install fonts-noto fonts-symbola), or use experiments.explore, whose page shows every "
    "script"
  )


class _Font(NamedTuple):
  name: str
  letters: frozenset[str]


def _missing(words: Iterable[str]) -> frozenset[str]:
  """Returns the letters that the usual font lacks."""
  letters = frozenset().union(*words) - _letters(font_manager.findfont(_USUAL_FONT))
  return frozenset(letter for letter in letters if unicodedata.category(letter) not in _WITHOUT_INK)


def _script(letter: str) -> str:
  """Returns the name of a letter's script; "symbols" for what no script or every script has."""
  name = scripts.script_name(scripts.script(letter), default="Unknown")
  return "symbols" if name in ("Common", "Inherited", "Unknown") else name.replace("_", " ")


@functools.cache
def _fonts() -> list[_Font]:
  """Returns the fonts that are installed, of those of usual style and weight; sans-serifs first."""
  manager = font_manager.fontManager
  known = {entry.fname for entry in manager.ttflist}
  for path in font_manager.findSystemFonts():
    if path not in known:  # installed since matplotlib last looked
      with contextlib.suppress(Exception):  # such as a font of pictures
        manager.addfont(path)
  entries = {
    entry.name: entry
    for entry in reversed(manager.ttflist)
    if entry.style == "normal" and entry.weight in (400, "normal") and not entry.name.startswith(_BOX_FONT)
  }
  found = sorted(entries.values(), key=_preference)
  # matplotlib's list may name files that are gone.
  return [_Font(entry.name, _letters(entry.fname)) for entry in found if os.path.exists(entry.fname)]


def _preference(entry: font_manager.FontEntry) -> tuple[bool, bool, int, str]:
  """Sorts a sans-serif first, and of the fonts in one file the first."""
  return "Sans" not in entry.name, "Mono" in entry.name, getattr(entry, "index", 0), entry.name


@functools.cache
def _letters(path: str) -> frozenset[str]:
  return frozenset(map(chr, FT2Font(path).get_charmap()))
