"""Labels of figures: their length and fonts."""

import pytest
from matplotlib import font_manager

from experiments.figures import attention_maps, figures, labels

FACE = "\U0001f469\u200d\U0001f680"  # one character of three code points
MATH = "\U0001d49c"  # in a font of matplotlib that is not the default font
# Private use characters are in no font.
MISSING = "\U0010fffd"


SHORTENED = [
  ("gatto", 5, "gatto"),
  ("gatti", 4, "gat…"),
  ("cafe\u0301s", 5, "caf…"),  # not "cafe"
  ("ab" + FACE, 4, "ab…"),
  (FACE + "bcd", 5, FACE + "b…"),
  ("कि" * 3, 4, "कि…"),
  ("e" + "\u0301" * 9, 4, "e\u0301\u0301…"),
]


@pytest.mark.parametrize(("word", "max_length", "expected"), SHORTENED)
def test_words_are_cut_between_graphemes(word, max_length, expected):
  assert labels.shorten(word, max_length) == expected


def test_fonts_cover_all_characters():
  assert labels.families(["cat", "perché", "a\u200d\ufeff\x07"]) == ["DejaVu Sans"]
  (font,) = labels.families([MATH, "cat"])[1:]
  assert ord(MATH) in font_manager.get_font(font_manager.findfont(font)).get_charmap()
  figure = attention_maps.attention_map([[1.0]], [MATH], ["cat"])
  (label,) = figure.axes[0].get_xticklabels()
  assert label.get_family() == ["DejaVu Sans", font]


def test_missing_glyphs_give_one_warning(tmp_path):
  assert labels.missing_glyph_warning([]) == labels.missing_glyph_warning(["cat", MATH]) == ""
  assert labels.missing_glyph_warning(["a\u200d\ufeff\x07 b"]) == ""  # invisible characters
  assert labels.missing_glyph_warning(["cat", MISSING]) == (
    "no installed font has some characters of the figures (symbols), which are drawn as boxes; "
    "install a font (Debian: apt install fonts-noto fonts-symbola) or use experiments.explore"
  )
  assert labels.families([MISSING]) == ["DejaVu Sans"]
  # matplotlib draws them without a warning.
  figures.save(attention_maps.attention_map([[1.0]], [MISSING], ["cat"]), tmp_path / "map.png")
