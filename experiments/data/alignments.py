"""Word alignments: Pharaoh format, and attention weights between words from those between tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from experiments.cli.messages import counted, shorten
from experiments.data.text_processor import TextProcessor
from experiments.data.tokenizers import WordTokenizer
from experiments.data.words import SPACE, strip_joiners, tokenize

Alignment = frozenset[tuple[int, int]]

# What alignment positions count. "auto": words; a file that may count whitespace tokens is an error.
ALIGNMENT_TOKENS = ("auto", "words", "whitespace")

_LINK = re.compile(r"([0-9]{1,9})([-p])([0-9]{1,9})")
_HINT = (
  "; set --alignment_tokens=whitespace, or --config.data.alignment_tokens in training, if the text was "
  "tokenized before alignment"
)


def parse_alignment(text: str) -> Alignment:
  """Parses Pharaoh format (source-target) into links (target position, source position).

  >>> parse_alignment("0-1")
  frozenset({(1, 0)})
  """
  sure, possible = parse_gold(text)
  if possible:
    raise ValueError(f"expected sure links only, '0-0 1-2' (source-target), got {shorten(text)}")
  return sure


def parse_gold(text: str) -> tuple[Alignment, Alignment]:
  """Parses sure links, as `parse_alignment` does, and possible links, which are written as `sourceptarget`.

  Returns:
    The sure links, and the possible links that are not sure.

  >>> parse_gold("0-1 2p2")
  (frozenset({(1, 0)}), frozenset({(2, 2)}))
  """
  links = [_LINK.fullmatch(link) for link in text.split()]
  if None in links:
    raise ValueError(f"expected an alignment like '0-0 1-2' (source-target), got {shorten(text)}")
  sure, possible = (
    frozenset((int(link[3]), int(link[1])) for link in links if link and link[2] == kind) for kind in "-p"
  )
  return sure, possible - sure


def format_alignment(alignment: Alignment, possible: Alignment = frozenset()) -> str:
  """Returns an alignment in Pharaoh format, sorted; possible links as in `parse_gold`."""
  links = [(s, t, "-") for t, s in alignment] + [(s, t, "p") for t, s in possible]
  return " ".join(f"{source}{kind}{target}" for source, target, kind in sorted(links))


def check_alignment(alignment: Alignment, source: str, target: str, tokens: str = "words") -> None:
  """Raises ValueError if a link is out of range.

  Args:
    alignment: links (target position, source position).
    source: plain text.
    target: plain text.
    tokens: what positions count, one of ALIGNMENT_TOKENS.
  """
  is_whitespace = tokens == "whitespace"
  unit = "whitespace token" if is_whitespace else "word"
  num_sources, num_targets = (
    len(text.split() if is_whitespace else tokenize(text)) for text in (source, target)
  )
  for t, s in sorted(alignment):
    if not (0 <= t < num_targets and 0 <= s < num_sources):
      raise ValueError(
        f"alignment must link {counted(num_sources, f'source {unit}')} and "
        f"{counted(num_targets, f'target {unit}')}, counted from 0, got {s}-{t}"
        f"{'' if is_whitespace else _HINT}"
      )


def from_whitespace(alignment: Alignment, source: str, target: str) -> Alignment:
  """Converts links between whitespace tokens to links between words.

  A link between tokens becomes links between all words of the two tokens. Punctuation is linked only if a
  token has nothing else.

  >>> sorted(from_whitespace(frozenset({(0, 1)}), "the tree.", "l'albero."))
  [(0, 1), (1, 1)]
  """
  targets, sources = _word_positions(target), _word_positions(source)
  return frozenset(
    (t, s)
    for target_token, source_token in alignment
    for t in targets[target_token]
    for s in sources[source_token]
  )


def _word_positions(text: str) -> list[list[int]]:
  """Returns the positions of the words of each whitespace token."""
  positions, first = [], 0
  for chunk in text.split():
    tokens = tokenize(chunk)
    words = [first + i for i, token in enumerate(tokens) if any(map(str.isalnum, strip_joiners(token)))]
    positions.append(words or [*range(first, first + len(tokens))])
    first += len(tokens)
  return positions


def word_indices(language: TextProcessor, text: str) -> list[int]:
  """Returns the index of the word of each token of a text. Words are separated by spaces.

  >>> from experiments.data.vocabularies import Vocabulary
  >>> word_indices(TextProcessor(WordTokenizer(), Vocabulary(("a",)), True), "The cat, asleep.")
  [0, 1, 1, 2, 2]
  """
  if isinstance(language.tokenizer, WordTokenizer):
    return [i for i, word in enumerate(text.split()) for _ in language.tokenize(word)]
  index, indices = 0, []
  for i, token in enumerate(language.tokenize(text)):
    index += token.startswith(SPACE) and i > 0
    indices.append(index)
  return indices


def word_weights(weights: np.ndarray, targets: Sequence[int], sources: Sequence[int]) -> np.ndarray:
  """Returns the weights between words: the sum over tokens of a source word, the mean over those of a target.

  Args:
    weights: between tokens, [T S], with EOS as the last row and column.
    targets: index of the word of each target token, from `word_indices`.
    sources: index of the word of each source token.

  References:
    Clark et al. 2019, arXiv:1906.04341, section 4.1.
  """
  weights = weights @ _indicators(sources)
  rows = _indicators(targets)
  return (rows / rows.sum(axis=0)).T @ weights


def _indicators(indices: Sequence[int]) -> np.ndarray:
  """Returns which token, and the end, belongs to which word, and the end: 0 or 1, [tokens + 1, words + 1]."""
  count = max(indices, default=-1) + 1
  return np.eye(count + 1)[[*indices, count]]
