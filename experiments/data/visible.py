"""Blank texts, invisible characters, and shortened texts for messages."""

import regex

_VISIBLE = regex.compile(r"[^\s\x1c-\x1f\p{Default_Ignorable_Code_Point}]")
_MAX_LENGTH = 60


def is_blank(text: str) -> bool:
  r"""Returns whether a text has only whitespace and invisible characters.

  >>> is_blank("\u200b \u200d"), is_blank("a\u200b")
  (True, False)
  """
  return not _VISIBLE.search(text)


def escape_invisible(text: str) -> str:
  r"""Returns a text with invisible characters escaped, truncated to 60 characters.

  >>> escape_invisible("a\u200db")
  'a\\u200db'
  """
  truncated = text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}…"
  return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in truncated)


def shorten(text: str) -> str:
  """Returns the repr of a text, truncated to 60 characters."""
  return repr(text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}…")
