"""Parts of messages: counts, and text with escaped, invisible or too many characters."""

import regex

# Format characters, such as joiners of emoji, are kept.
_CONTROL = regex.compile(r"[\p{Cc}\p{Zl}\p{Zp}]")
_VISIBLE = regex.compile(r"[^\s\x1c-\x1f\p{Default_Ignorable_Code_Point}]")
_MAX_LENGTH = 60


def counted(count: int, noun: str) -> str:
  """Returns a count and a noun, which gets an "s" unless the count is 1.

  >>> counted(1, "pair"), counted(1200, "pair")
  ('1 pair', '1,200 pairs')
  """
  return f"{count:,} {noun}{'' if count == 1 else 's'}"


def escape_controls(text: str) -> str:
  r"""Returns a text with control characters and line separators escaped.

  >>> escape_controls("a\tb\x1b[2J")
  'a\\tb\\x1b[2J'
  """
  return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


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
