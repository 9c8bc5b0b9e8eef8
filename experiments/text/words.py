"""Words of a text in any language, cut and joined without loss.

Words are those of Unicode Standard Annex 29 (UAX 29), with the break that it describes for French and
Italian: after an apostrophe before a vowel, `l'|albero`. A token that was written without a space before or
after it has a joiner there, as in OpenNMT's tokenizer (Klein et al. 2017, arXiv:1701.02810). Joiners stand on
punctuation rather than on words, so that a word has one form.
"""

from __future__ import annotations

import functools
import itertools
import sys
import unicodedata
from collections.abc import Iterable

import regex

from experiments.text.vocabularies import UNKNOWN_WORD

JOINER = "￭"
SPACE = "▁"  # of characters and subwords
_ESCAPE = "￬"
_ESCAPED = {_ESCAPE: f"{_ESCAPE}0", JOINER: f"{_ESCAPE}1", SPACE: f"{_ESCAPE}2"}
_ESCAPES = str.maketrans(_ESCAPED)
_SPELLINGS = {value: key for key, value in _ESCAPED.items()}

# The first letters of Latin script that have one of these as their base; further ones are not in use.
_VOWELS = "œæŒÆ" + "".join(
  char for char in map(chr, range(0x2200)) if unicodedata.normalize("NFD", char)[0] in "aeiouyAEIOUY"
)

# Sets of characters, each as the inside of a regular expression's [].
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


# The regular expression of a token, whose group 1 is a word, by the rules of UAX 29. Names of CLASSES are in
# braces, and "$" stands for an {extend}*, which is WB4.
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
PATTERN = f"(?:({UNKNOWN_WORD}|{_WORD})|{_OTHER}){_JOINED}".replace("$", "[{extend}]*")
_TOKEN = regex.compile(regex.sub(r"\{(\w+)\}", lambda name: CLASSES[name[1]], PATTERN))


def tokenize(text: str) -> tuple[str, ...]:
  """Returns the words and punctuation marks of a text, without whitespace.

  `detokenize` gives back the text, code point by code point, but for runs of whitespace. `"<unk>"` is one
  token, the unknown word. No token is empty or holds whitespace.

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


def plain(token: str) -> str:
  """Returns a token as people read it, without joiners.

  >>> plain("￭.")
  '.'
  """
  return unescape(token.replace(JOINER, ""))


def escape(text: str) -> str:
  """Returns a text in which no JOINER and no SPACE stands for itself."""
  return text.translate(_ESCAPES)


def unescape(text: str) -> str:
  """Returns the text that was escaped."""
  return regex.sub(f"{_ESCAPE}[012]", lambda found: _SPELLINGS[found[0]], text)


@functools.cache
def ranges() -> dict[str, str]:
  """Returns CLASSES as the ranges of code points that they have, for regular expressions of JavaScript."""
  every = "".join(map(chr, range(sys.maxunicode + 1)))
  spans = {
    name: [found.span() for found in regex.finditer(f"[{inside}]+", every)]
    for name, inside in CLASSES.items()
  }
  return {
    name: "".join(rf"\u{{{first:x}}}-\u{{{end - 1:x}}}" for first, end in found)
    for name, found in spans.items()
  }


@functools.lru_cache(maxsize=2**16)
def _tokens(chunk: str) -> list[str]:
  """Returns the tokens of a text without whitespace."""
  found = [(match[0], match[1] is not None) for match in _TOKEN.finditer(chunk)]
  after = [*(is_word for _, is_word in found[1:]), False]
  return [
    f"{JOINER if i and not is_word else ''}{escape(token)}{JOINER if word_follows else ''}"
    for i, ((token, is_word), word_follows) in enumerate(zip(found, after, strict=True))
  ]
