"""Warnings about training text."""

import re
from collections.abc import Sequence

import regex

from experiments.data.parallel_corpus import SentencePair

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
_NUM_SCRIPT_SAMPLES = 1_000  # texts that are checked for scripts without spaces

# Warn above these proportions. Any text has a few repeated sentences.
_MAX_DUPLICATES, _MAX_OVERLAP = 0.1, 0.05


def find_warnings(
  training: tuple[Sequence[str], Sequence[str]],
  validation: Sequence[SentencePair],
  *,
  tokenization: str = "subword",
) -> list[str]:
  """Returns warnings about duplicates, overlap of the splits, control characters and tokenization.

  Args:
    training: sources and targets of the training pairs.
    validation: validation pairs.
    tokenization: "word", "character" or "subword".

  >>> training_texts = ["a cat", "a cat", "a dog"], ["un gatto", "un gatto", "un cane"]
  >>> find_warnings(training_texts, [SentencePair("a", "un")])
  ['training pairs that repeat another: 1 of 3']
  >>> find_warnings((["a cat"], ["un\\x07 gatto"]), [SentencePair("a cat", "un\\x07 gatto")])
  ... # doctest: +NORMALIZE_WHITESPACE
  ['validation pairs that are also training pairs: 1 of 1; validation scores may be too high',
   'training pairs with control characters, such as U+0007: 1 of 1']
  """
  pair_hashes = {hash(pair) for pair in zip(*training, strict=True)}  # hashes need less memory than texts
  count = len(training[0])
  warnings = []
  num_duplicates = count - len(pair_hashes)
  if num_duplicates > _MAX_DUPLICATES * count:
    warnings.append(f"training pairs that repeat another: {num_duplicates:,} of {count:,}")
  num_overlapping = sum(hash((pair.source, pair.target)) in pair_hashes for pair in validation)
  if num_overlapping > _MAX_OVERLAP * len(validation):
    warnings.append(
      f"validation pairs that are also training pairs: {num_overlapping:,} of {len(validation):,}; "
      "validation scores may be too high"
    )
  controls = [_CONTROL.search(f"{source}{target}") for source, target in zip(*training, strict=True)]
  matches = [match for match in controls if match]
  if matches:
    example = f"such as U+{ord(matches[0].group()):04X}"
    warnings.append(f"training pairs with control characters, {example}: {len(matches):,} of {count:,}")
  for side, texts in zip(("source", "target"), training, strict=True):
    if tokenization == "word" and _has_no_spaces(texts[:_NUM_SCRIPT_SAMPLES]):
      warnings.append(
        f"the {side} text has no spaces between words; use --config.data.tokenization=subword instead of word"
      )
  return warnings


def _has_no_spaces(texts: Sequence[str]) -> bool:
  """Returns whether most letters are of scripts without spaces between words, and there are few spaces."""
  text = "".join(texts)
  letters = len(_LETTERS.findall(text))
  return 2 * len(_UNSPACED.findall(text)) > letters and 6 * text.count(" ") < letters
