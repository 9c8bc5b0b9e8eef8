"""Reversible word tokenization for any language.

Words are defined by Unicode Standard Annex 29 (UAX 29), with its tailoring for French and Italian: a word
ends after an apostrophe before a vowel, as in `l'|albero`. A joiner marks where a token had no space before
or after it, as in OpenNMT's tokenizer (Klein et al. 2017, arXiv:1701.02810). Joiners are attached to
punctuation rather than to words, so that each word has one form.
"""

from __future__ import annotations

import functools
import itertools
import sys
import unicodedata
from collections.abc import Iterable

import regex

from experiments.data.vocabularies import UNK_TOKEN

JOINER = "￭"
SPACE = "▁"  # represents whitespace in character and subword tokens
_ESCAPE = "￬"
_ESCAPED = {_ESCAPE: f"{_ESCAPE}0", JOINER: f"{_ESCAPE}1", SPACE: f"{_ESCAPE}2"}
_ESCAPES = str.maketrans(_ESCAPED)
_SPELLINGS = {value: key for key, value in _ESCAPED.items()}

# Latin vowels with and without accents.
_VOWELS = "œæŒÆ" + "".join(
  char for char in map(chr, range(0x2200)) if unicodedata.normalize("NFD", char)[0] in "aeiouyAEIOUY"
)

# Character classes, each as the inside of [] in a regular expression.
CLASSES = {
  "letter": r"\p{WB=ALetter}\p{WB=Hebrew_Letter}",
  "hebrew": r"\p{WB=Hebrew_Letter}",
  "number": r"\p{WB=Numeric}",
  "katakana": r"\p{WB=Katakana}",
  "connector": r"\p{WB=ExtendNumLet}",
  "extend": r"\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}",
  "within_letters": r"\p{WB=MidLetter}\p{WB=MidNumLet}\p{WB=Single_Quote}",
  "within_numbers": r"\p{WB=MidNum}\p{WB=MidNumLet}\p{WB=Single_Quote}",
  "flag": r"\p{WB=Regional_Indicator}",
  "pictograph": r"\p{Extended_Pictographic}",
  "vowel": _VOWELS,
}


# The regular expression of a token, by the rules of UAX 29. Group 1 is a word. Names of CLASSES are in
# braces, and "$" stands for {extend}*, which is WB4.
_LETTER = (
  "[{letter}]$(?:(?!['\u2019][{vowel}])[{within_letters}]$(?=[{letter}])"  # WB5 to WB7, WB9
  '|(?<=[{hebrew}]$)"$(?=[{hebrew}]))?'  # WB7b and WB7c
)
_NUMBER = "[{number}]$(?:[{within_numbers}]$(?=[{number}]))?"  # WB8, WB10 to WB12
_RUN = f"(?:(?:{_LETTER}|{_NUMBER})+|(?:[{{katakana}}]$)+)"  # WB13
_CONNECTORS = "(?:[{connector}]$)+"  # WB13a and WB13b
_END = "(?:(?<=[{letter}]$)['\u2019](?=[{vowel}])|(?<=[{hebrew}]$)'$)?"  # the elision; WB7a
_SOME = "(?=[{letter}{number}{katakana}{connector}])"
_WORD = f"{_SOME}(?:{_CONNECTORS})?(?:{_RUN}{_CONNECTORS})*{_RUN}?{_END}"
_OTHER = "[{flag}]$[{flag}]$|.$"  # WB15 and WB16; WB999
_JOINED = f"(?:(?<=\u200d)(?=[{{pictograph}}])(?:{_WORD}|{_OTHER}))*"  # WB3c
PATTERN = f"(?:({UNK_TOKEN}|{_WORD})|{_OTHER}){_JOINED}".replace("$", "[{extend}]*")
_TOKEN = regex.compile(regex.sub(r"\{(\w+)\}", lambda name: CLASSES[name[1]], PATTERN))


def tokenize(text: str) -> tuple[str, ...]:
  """Splits a text into words and punctuation marks.

  `detokenize` inverts it exactly, except for runs of whitespace. `"<unk>"` is one token, the unknown word.
  Tokens are not empty and contain no whitespace.

  References:
    Unicode Standard Annex 29, Unicode Text Segmentation, 4.1.

  >>> tokenize("L'albero costa $5 (3.5%).")
  ("L'￭", 'albero', 'costa', '$￭', '5', '(￭', '3.5', '￭%', '￭)', '￭.')
  """
  return tuple(itertools.chain.from_iterable(map(_tokens, text.split())))


def detokenize(tokens: Iterable[str]) -> str:
  """Returns the text of tokens.

  >>> detokenize(["L'￭", "albero", "(￭", "alto", "￭)", "￭."])
  "L'albero (alto)."
  """
  return unescape(regex.sub(f" ?{JOINER} ?", "", " ".join(tokens)))


def strip_joiners(token: str) -> str:
  """Returns a token without joiners and escapes.

  >>> strip_joiners("￭.")
  '.'
  """
  return unescape(token.replace(JOINER, ""))


def escape(text: str) -> str:
  """Returns a text with JOINER and SPACE escaped."""
  return text.translate(_ESCAPES)


def unescape(text: str) -> str:
  """Inverts `escape`."""
  return regex.sub(f"{_ESCAPE}[012]", lambda match: _SPELLINGS[match[0]], text)


@functools.cache
def class_ranges() -> dict[str, str]:
  """Returns CLASSES as ranges of code points, for regular expressions in JavaScript."""
  all_characters = "".join(map(chr, range(sys.maxunicode + 1)))
  spans = {
    name: [match.span() for match in regex.finditer(f"[{inside}]+", all_characters)]
    for name, inside in CLASSES.items()
  }
  return {
    name: "".join(rf"\u{{{first:x}}}-\u{{{end - 1:x}}}" for first, end in class_spans)
    for name, class_spans in spans.items()
  }


@functools.lru_cache(maxsize=2**16)
def _tokens(chunk: str) -> list[str]:
  """Returns the tokens of a text without whitespace."""
  matches = [(match[0], match[1] is not None) for match in _TOKEN.finditer(chunk)]
  next_is_word = [*(is_word for _, is_word in matches[1:]), False]
  return [
    f"{JOINER if i and not is_word else ''}{escape(token)}{JOINER if word_follows else ''}"
    for i, ((token, is_word), word_follows) in enumerate(zip(matches, next_is_word, strict=True))
  ]
