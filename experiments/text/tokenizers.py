"""How a text is cut into tokens: words, characters, or pieces of words.

`detokenize` gives back the text that `tokenize` cut, with one space for each run of whitespace and none
around it; subwords also compose accents (Unicode NFC). No token is empty or holds whitespace, so every token
can be a word of a `Vocabulary`, or is `"<unk>"`. Characters and subwords write whitespace as "▁", as
sentencepiece does, and escape a "▁" of the text.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import sentencepiece

from experiments.text import words
from experiments.text.vocabularies import END, NUM_SPECIALS, PAD, START, UNKNOWN, UNKNOWN_WORD, compose
from experiments.text.words import SPACE, escape, unescape

KINDS = ("unigram", "bpe")

# Rarer characters are written as their bytes, so that those of other scripts do not fill the vocabulary.
_CHARACTER_COVERAGE = 0.9999
_LONGEST_LINE = 2**20  # bytes; sentencepiece leaves out longer ones
_THREADS = 2

DEFAULT_SIZE = 8_000
_CHUNK = 10_000  # texts that sentencepiece gets at once

_CHARACTER = re.compile(f"{UNKNOWN_WORD}|.", re.DOTALL)


class Tokenizer(Protocol):
  """What a language needs to know about its tokens."""

  def tokenize(self, text: str) -> tuple[str, ...]:
    """Returns the tokens of a text."""
    ...

  def detokenize(self, tokens: Iterable[str]) -> str:
    """Returns the text of tokens."""
    ...


@dataclasses.dataclass(frozen=True)
class WordTokenizer:
  """Words and punctuation marks. See `words.tokenize`."""

  def tokenize(self, text: str) -> tuple[str, ...]:
    return words.tokenize(text)

  def detokenize(self, tokens: Iterable[str]) -> str:
    return words.detokenize(tokens)


@dataclasses.dataclass(frozen=True)
class CharacterTokenizer:
  """Characters (code points), a run of whitespace for one; `"<unk>"` is one token.

  >>> CharacterTokenizer().tokenize("è  lì")
  ('è', '▁', 'l', 'ì')
  """

  def tokenize(self, text: str) -> tuple[str, ...]:
    return tuple(_CHARACTER.findall(escape(_spaced(text)).replace(" ", SPACE)))

  def detokenize(self, tokens: Iterable[str]) -> str:
    """Returns the text, with one space for each run of whitespace and none around it."""
    return unescape(_spaced("".join(tokens).replace(SPACE, " ")))


@dataclasses.dataclass(frozen=True)
class SubwordTokenizer:
  """Pieces of words, found in a text by sentencepiece. A piece that begins a word begins with "▁".

  A character that no piece holds is written as its bytes in UTF-8: `"<0xC3>", "<0xA8>"` for "è". So all
  text can be written, and `tokens` are the words of a `Vocabulary` that gives them the ids of the model.

  Source: Kudo and Richardson 2018, arXiv:1808.06226; unigram: Kudo 2018, arXiv:1804.10959; byte-pair
  encoding (bpe): Sennrich et al. 2016, arXiv:1508.07909.

  Args:
    model: a sentencepiece model, such as `learn` makes.

  Raises:
    ValueError: if it is none, or one with other special symbols than a `Vocabulary` has.
  """

  model: bytes = dataclasses.field(repr=False)

  def __post_init__(self) -> None:
    processor = self._processor
    specials = (processor.pad_id(), processor.bos_id(), processor.eos_id(), processor.unk_id())
    if specials != (PAD, START, END, UNKNOWN):
      raise ValueError(f"model must have the special ids 0, 1, 2, 3, got {specials}")

  @functools.cached_property
  def _processor(self) -> sentencepiece.SentencePieceProcessor:
    # It takes nothing for a model, and only logs that it is none.
    if not self.model:
      raise ValueError("model must be a sentencepiece model, got nothing")
    try:
      return sentencepiece.SentencePieceProcessor(model_proto=self.model)
    except RuntimeError as error:
      raise ValueError(f"model must be a sentencepiece model, got {len(self.model)} other bytes") from error

  @functools.cached_property
  def tokens(self) -> tuple[str, ...]:
    """All tokens, in the order of their ids, from `NUM_SPECIALS` on."""
    return tuple(self._processor.id_to_piece(list(range(NUM_SPECIALS, len(self._processor)))))

  def tokenize(self, text: str) -> tuple[str, ...]:
    return tuple(self._processor.encode(_prepared(text), out_type=str))

  def encode_all(self, texts: Iterable[str]) -> Iterator[list[int]]:
    """Yields the ids of the tokens of each text, which are much faster to have than the tokens."""
    prepared = map(_prepared, texts)
    while chunk := list(itertools.islice(prepared, _CHUNK)):
      yield from self._processor.encode(chunk, num_threads=_THREADS)

  def detokenize(self, tokens: Iterable[str]) -> str:
    """Returns the text, with one space for each run of whitespace and none around it."""
    return unescape(_spaced(self._processor.decode(list(tokens))))  # a line end can be among the bytes

  @classmethod
  def learn(cls, texts: Sequence[str], *, vocabulary_size: int, kind: str) -> SubwordTokenizer:
    """Returns the pieces of a text; the same text gives the same model, byte by byte.

    Args:
      texts: sentences.
      vocabulary_size: the number of ids, the special ones and the 256 bytes among them; 0 for DEFAULT_SIZE
        or, if that is less, the most that the text allows.
      kind: "unigram" (the pieces that make the text most probable) or "bpe" (frequent pairs are merged).

    Raises:
      ValueError: if `vocabulary_size` is more or less than the text allows, or if there is no text.
    """
    # sentencepiece uses this block for itself, and leaves out lines that hold it.
    lines = [_prepared(text.replace("▅", " ")) for text in texts]
    if not any(lines):
      raise ValueError("texts must be at least one that is not blank, got none")
    try:
      return cls(_trained_model(lines, vocabulary_size or DEFAULT_SIZE, kind))
    except RuntimeError as error:
      most = re.search(r"a value <= (\d+)", str(error))
      least = re.search(r"required_chars\. -?\d+ vs (\d+)", str(error))
      if most and not vocabulary_size:
        return cls.learn(texts, vocabulary_size=int(most[1]), kind=kind)
      allowed = f"at most {most[1]}" if most else f"at least {least[1]}" if least else f"another ({error})"
      raise ValueError(f"vocabulary_size must be {allowed} for this text, got {vocabulary_size}") from error


def _spaced(text: str) -> str:
  """Returns a text with one space for each run of whitespace and none around it."""
  return " ".join(text.split())


def _prepared(text: str) -> str:
  """Returns a text as sentencepiece gets it."""
  return escape(_spaced(compose(text)))


def _trained_model(lines: Iterable[str], vocabulary_size: int, kind: str) -> bytes:
  """Returns a sentencepiece model whose special ids are those of a `Vocabulary`."""
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(lines),
    model_writer=model,
    model_type=kind,
    vocab_size=max(NUM_SPECIALS, vocabulary_size),  # of less it does not say what it allows
    pad_id=PAD,
    bos_id=START,
    eos_id=END,
    unk_id=UNKNOWN,
    unk_surface=UNKNOWN_WORD,
    byte_fallback=True,
    character_coverage=_CHARACTER_COVERAGE,
    normalization_rule_name="identity",
    max_sentence_length=_LONGEST_LINE,
    num_threads=_THREADS,
    minloglevel=2,
  )
  return model.getvalue()
