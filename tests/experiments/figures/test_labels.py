"""Tests of experiments/figures/labels.py."""

import pytest
from matplotlib import font_manager

from experiments.figures import attention_maps, figures, labels

FACE = "\U0001f469\u200d\U0001f680"  # one character of three code points
MATH = "\U0001d49c"  # in a font of matplotlib that is not the default font


@pytest.mark.parametrize(
  ("word", "max_length", "expected"),
  [
    ("gatto", 5, "gatto"),
    ("gatti", 4, "gat…"),
    ("cafe\u0301s", 5, "caf…"),  # not "cafe"
    ("ab" + FACE, 4, "ab…"),
    (FACE + "bcd", 5, FACE + "b…"),
    ("कि" * 3, 4, "कि…"),
    ("e" + "\u0301" * 9, 4, "e\u0301\u0301…"),
  ],
)
def test_words_are_cut_between_graphemes(word, max_length, expected):
  assert labels.shorten(word, max_length) == expected


@pytest.fixture
def installed(monkeypatch):
  """Returns a function that sets the installed fonts, except the default font."""

  def set_fonts(**fonts):
    font_list = [labels._Font(name, frozenset(letters)) for name, letters in fonts.items()]
    monkeypatch.setattr(labels, "_fonts", lambda: font_list)

  return set_fonts


def test_fonts_cover_all_characters(installed):
  installed(Few="नम", Hindi="नमस्ते", Chinese="中文。", All="नमस्")
  assert labels.families(["cat", "perché"]) == ["DejaVu Sans"]
  assert labels.families(["नमस्ते"]) == ["DejaVu Sans", "Hindi"]
  assert labels.families(["中文。", "नमस्ते"]) == ["DejaVu Sans", "Hindi", "Chinese"]
  assert labels.missing_glyph_warning(["中文", "नमस्ते", "cat"]) == ""


def test_missing_scripts_are_listed(installed, tmp_path):
  installed(Hindi="नमस्ते")
  assert labels.missing_glyph_warning(["नमस्ते", "中文", "ไทย", "の"]) == (
    "no installed font has some characters of the figures (Han, Hiragana, Thai), which are drawn as boxes; "
    "install a font (Debian: apt install fonts-noto fonts-symbola) or use experiments.explore"
  )
  assert "(symbols)" in labels.missing_glyph_warning(["\U0001f642"])
  assert labels.missing_glyph_warning(["a\u200d\ufeff\x07 b"]) == ""  # invisible characters
  assert labels.missing_glyph_warning([]) == ""
  # matplotlib draws them without a warning.
  figures.save(attention_maps.attention_map([[1.0]], ["中文"], ["ไทย"]), tmp_path / "map.png")


def test_labels_are_in_installed_fonts():
  (font,) = labels.families([MATH])[1:]
  assert ord(MATH) in font_manager.get_font(font_manager.findfont(font)).get_charmap()
  figure = attention_maps.attention_map([[1.0]], [MATH], ["cat"])
  (label,) = figure.axes[0].get_xticklabels()
  assert label.get_family() == ["DejaVu Sans", font]
  assert not [font.name for font in labels._fonts() if font.name.startswith("Last Resort")]
