"""What a person should know of their text before a model learns from it."""

import re
from collections.abc import Sequence

import regex

from experiments.text.parallel_corpus import SentencePair

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffd]")

_LETTERS = regex.compile(r"\p{L}")
_UNSPACED = regex.compile(
  "["
  + "".join(
    rf"\p{{Script={name}}}"
    for name in ["Han", "Hiragana", "Katakana", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan"]
  )
  + "]"
)
_SAMPLE = 1_000  # texts that are looked at for their script

# Shares above which it is worth a word; some sentences come twice in any text.
_REPEATED, _SEEN = 0.1, 0.05


def find_warnings(
  training: tuple[Sequence[str], Sequence[str]], validation: Sequence[SentencePair], *, unit: str = "subword"
) -> list[str]:
  """Returns a line for each thing that may not be meant.

  Args:
    training: sources and targets, as many.
    validation: pairs.
    unit: what text is cut into.

  >>> training_texts = ["a cat", "a cat", "a dog"], ["un gatto", "un gatto", "un cane"]
  >>> find_warnings(training_texts, [SentencePair("a", "un")])
  ['1 of 3 training pairs repeat another']
  >>> find_warnings((["a cat"], ["un\\x07 gatto"]), [SentencePair("a cat", "un\\x07 gatto")])
  ... # doctest: +NORMALIZE_WHITESPACE
  ['1 of 1 validation pairs are training pairs, so their scores say little of other text',
   '1 of 1 training pairs have control characters, such as U+0007']
  """
  pairs = {hash(pair) for pair in zip(*training, strict=True)}  # hashes: they take less memory
  count = len(training[0])
  found = []
  repeated = count - len(pairs)
  if repeated > _REPEATED * count:
    found.append(f"{repeated:,} of {count:,} training pairs repeat another")
  seen = sum(hash((pair.source, pair.target)) in pairs for pair in validation)
  if seen > _SEEN * len(validation):
    of = f"{seen:,} of {len(validation):,} validation pairs"
    found.append(f"{of} are training pairs, so their scores say little of other text")
  controls = [_CONTROL.search(f"{source}{target}") for source, target in zip(*training, strict=True)]
  matches = [match for match in controls if match]
  if matches:
    such = f"such as U+{ord(matches[0].group()):04X}"
    found.append(f"{len(matches):,} of {count:,} training pairs have control characters, {such}")
  for side, texts in zip(("source", "target"), training, strict=True):
    if unit == "word" and _has_no_spaces(texts[:_SAMPLE]):
      found.append(
        f"the {side} has no spaces between words: subwords fit better, config.data.tokenization=subword"
      )
  return found


def _has_no_spaces(texts: Sequence[str]) -> bool:
  """Returns whether most letters are of scripts without spaces between words, and spaces are few."""
  text = "".join(texts)
  letters = len(_LETTERS.findall(text))
  return 2 * len(_UNSPACED.findall(text)) > letters and 6 * text.count(" ") < letters
