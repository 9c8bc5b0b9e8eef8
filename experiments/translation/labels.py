"""Words as labels of a figure: cut short, and written in installed fonts that have their letters."""

import contextlib
import functools
import os
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fontTools import unicodedata as scripts
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font

LONGEST = 32  # characters of a label; of a word of 100,000 letters matplotlib needs gigabytes

_JOINER = "\u200d"
_WITHOUT_INK = {"Cc", "Cf", "Zs", "Zl", "Zp"}  # categories of Unicode
_SYMBOLS = "symbols"
_CJK = {"Bopomofo", "Han", "Hangul", "Hiragana", "Katakana"}
_USUAL_FONT = "DejaVu Sans"  # it comes with matplotlib
_BOX_FONT = "Last Resort"  # so does this one, which has a box for every letter


def shortened(word: str, most: int = LONGEST) -> str:
  """Returns a word of at most `most` characters: a longer one ends in an ellipsis, not amid a character.

  >>> shortened("Straßenbahnhaltestelle"), shortened("Donaudampfschifffahrt", 6)
  ('Straßenbahnhaltestelle', 'Donau…')
  """
  if len(word) <= most:
    return word
  end = most - 1
  while end and (unicodedata.category(word[end]) in ("Mn", "Mc", "Me", "Cf") or word[end - 1] == _JOINER):
    end -= 1
  return word[: end or most - 1] + "…"  # of a letter with more marks than that, some


def inches(words: Iterable[str], size: float = 10) -> float:
  """Returns how long the longest of some words is, in letters of a size in points; 0 without words.

  >>> 0.3 < inches(["gatto"]) < 0.5, inches(["gatto", "il"]) == inches(["gatto"])
  (True, True)
  """
  figure, family = Figure(), families(words := {*words})
  FigureCanvasAgg(figure)
  texts = [figure.text(0, 0, word, family=family, size=size, parse_math=False) for word in words]
  with glyphs_may_be_missing():
    return max((float(text.get_window_extent().width) / figure.dpi for text in texts), default=0.0)


@contextlib.contextmanager
def glyphs_may_be_missing() -> Iterator[None]:
  """Drops matplotlib's warnings, one for each letter that no font has: `missing_note` returns one for all."""
  with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Glyph .* missing from font")
    yield


def families(words: Iterable[str]) -> list[str]:
  """Returns the names of installed fonts that together have the letters of words, as far as any font has.

  The first is the one that comes with matplotlib. Of fonts with as many of a script's letters, a sans-serif.
  """
  found = [_usual_font()]
  for letters in _missing(words).values():
    while left := letters - frozenset().union(*(font.letters for font in found)):
      added = [len(font.letters & left) for font in _fonts()]
      if not any(added):
        break
      found.append(_fonts()[added.index(max(added))])
  return [font.name for font in found]


def missing_note(words: Iterable[str]) -> str:
  """Returns a line about letters that no installed font has, and what to do; nothing if there are none."""
  missing = _missing(words)
  known = frozenset().union(*(font.letters for font in _fonts())) if missing else frozenset()
  names = {script for script, letters in missing.items() if letters - known}
  if not names:
    return ""
  packages = {
    "fonts-noto-core": names - _CJK - {_SYMBOLS},
    "fonts-noto-cjk": names & _CJK,
    "fonts-symbola": names & {_SYMBOLS},
  }
  needed = " ".join(package for package, has in packages.items() if has)
  return (
    f"no installed font has some letters of the figures ({', '.join(sorted(names))}), which are boxes there: "
    f"install one (Debian: apt install {needed}), or use experiments.explore, whose page shows every script"
  )


class _Font(NamedTuple):
  name: str
  letters: frozenset[str]


def _missing(words: Iterable[str]) -> dict[str, frozenset[str]]:
  """Returns the letters that the usual font lacks, by the names of their scripts, symbols last."""
  found: dict[str, set[str]] = {}
  for letter in sorted(set().union(*words) - _usual_font().letters):
    if unicodedata.category(letter) not in _WITHOUT_INK:
      found.setdefault(_script(letter), set()).add(letter)
  in_order = sorted(found, key=lambda script: (script == _SYMBOLS, script))
  return {script: frozenset(found[script]) for script in in_order}


def _script(letter: str) -> str:
  """Returns the name of a letter's script; "symbols" for what no script or every script has."""
  name = scripts.script_name(scripts.script(letter), default="Unknown")
  return _SYMBOLS if name in ("Common", "Inherited", "Unknown") else name.replace("_", " ")


@functools.cache
def _usual_font() -> _Font:
  return _Font(_USUAL_FONT, _letters(font_manager.findfont(_USUAL_FONT)))


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
