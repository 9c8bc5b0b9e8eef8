"""Which word translates which, in Pharaoh form."""

from __future__ import annotations

import re

from experiments.text.visible import shorten
from experiments.text.words import plain, tokenize

Alignment = frozenset[tuple[int, int]]

# What the positions of a file count. "auto": words, unless they may well count whitespace tokens.
ALIGNMENT_TOKENS = ("auto", "words", "whitespace")

_LINK = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_HINT = "; text that was tokenized before it was aligned is read with alignment_tokens=whitespace"


def parse_alignment(text: str) -> Alignment:
  """Returns (target, source) pairs from Pharaoh form.

  >>> parse_alignment("0-1")
  frozenset({(1, 0)})
  """
  links = [_LINK.fullmatch(link) for link in text.split(" ")] if text else []
  if None in links:
    raise ValueError(f"expected an alignment like '0-0 1-2' (source-target), got {shorten(text)}")
  return frozenset((int(link[2]), int(link[1])) for link in links if link)


def format_alignment(alignment: Alignment) -> str:
  """Returns the Pharaoh form, in order."""
  return " ".join(f"{source}-{target}" for source, target in sorted((s, t) for t, s in alignment))


def check_alignment(alignment: Alignment, source: str, target: str, tokens: str = "words") -> None:
  """Raises ValueError for a link to a token that is not there.

  Args:
    alignment: positions in the tokens of two texts.
    source: plain text.
    target: plain text.
    tokens: one of ALIGNMENT_TOKENS.
  """
  is_spaced = tokens == "whitespace"
  num_sources, num_targets = (len(text.split() if is_spaced else tokenize(text)) for text in (source, target))
  for t, s in sorted(alignment):
    if not (0 <= t < num_targets and 0 <= s < num_sources):
      raise ValueError(
        f"expected an alignment of {num_sources} source and {num_targets} target "
        f"{'whitespace tokens' if is_spaced else 'words'}, counted from 0, got {s}-{t}"
        f"{'' if is_spaced else _HINT}"
      )


def from_whitespace(alignment: Alignment, source: str, target: str) -> Alignment:
  """Returns the links between words for links between whitespace tokens.

  Each links all words of the two tokens; punctuation only where a token has nothing else.

  >>> sorted(from_whitespace(frozenset({(0, 1)}), "the tree.", "l'albero."))
  [(0, 1), (1, 1)]
  """
  targets, sources = _word_positions(target), _word_positions(source)
  return frozenset((t, s) for chunk, other in alignment for t in targets[chunk] for s in sources[other])


def _word_positions(text: str) -> list[list[int]]:
  """Returns, for each whitespace token, the positions of its words."""
  found, first = [], 0
  for chunk in text.split():
    tokens = tokenize(chunk)
    words = [first + i for i, token in enumerate(tokens) if any(map(str.isalnum, plain(token)))]
    found.append(words or [*range(first, first + len(tokens))])
    first += len(tokens)
  return found
