"""Parts of messages: counts, and text with escaped control characters."""

import regex

# Format characters, such as joiners of emoji, are kept.
_CONTROL = regex.compile(r"[\p{Cc}\p{Zl}\p{Zp}]")


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
