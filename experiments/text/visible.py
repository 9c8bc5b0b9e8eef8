"""Which characters of a text can be seen."""

import regex

_VISIBLE = regex.compile(r"[^\s\x1c-\x1f\p{Default_Ignorable_Code_Point}]")
_LONGEST = 60


def is_blank(text: str) -> bool:
  r"""Returns whether a text has nothing to see, but whitespace and zero-width characters.

  >>> is_blank("\u200b \u200d"), is_blank("a\u200b")
  (True, False)
  """
  return not _VISIBLE.search(text)


def escaped(text: str) -> str:
  r"""Returns a text whose invisible characters are written as escapes, cut after 60 characters.

  >>> escaped("a\u200db")
  'a\\u200db'
  """
  cut = text[:_LONGEST] + "…" * (len(text) > _LONGEST)
  return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in cut)


def shorten(text: str) -> str:
  """Returns the repr of a text, cut after 60 characters."""
  return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
