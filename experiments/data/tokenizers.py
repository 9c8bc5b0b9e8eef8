"""Tokenizers for words, characters and subwords.

`detokenize` inverts `tokenize`, except that runs of whitespace become one space and surrounding whitespace is
removed. Subwords also normalize to NFC. Tokens are not empty and contain no whitespace, so each token is
`"<unk>"` or a possible word of a `Vocabulary`. Characters and subwords represent whitespace as "▁", as
sentencepiece does, and escape "▁" in the text.
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

from experiments.data import words
from experiments.data.vocabularies import BOS_ID, EOS_ID, NUM_SPECIAL_IDS, PAD_ID, UNK_ID, UNK_TOKEN, compose
from experiments.data.words import SPACE, escape, unescape

SUBWORD_MODELS = ("unigram", "bpe")

# Rarer characters are encoded as bytes, so that characters of other scripts do not fill the vocabulary.
_CHARACTER_COVERAGE = 0.9999
_MAX_LINE_BYTES = 2**20  # sentencepiece skips longer lines
_NUM_THREADS = 2

_NUM_BYTES = 256
_MAX_DEFAULT_SIZE = 8_000
_CHARACTERS_PER_PIECE = 500
_CHUNK_SIZE = 10_000  # texts per call of sentencepiece

_CHARACTER = re.compile(f"{UNK_TOKEN}|.", re.DOTALL)


class Tokenizer(Protocol):
  """Converts between texts and tokens."""

  def tokenize(self, text: str) -> tuple[str, ...]:
    """Returns the tokens of a text."""
    ...

  def detokenize(self, tokens: Iterable[str]) -> str:
    """Returns the text of tokens."""
    ...


@dataclasses.dataclass(frozen=True)
class WordTokenizer:
  """Splits a text into words and punctuation marks. See `words.tokenize`."""

  def tokenize(self, text: str) -> tuple[str, ...]:
    return words.tokenize(text)

  def detokenize(self, tokens: Iterable[str]) -> str:
    return words.detokenize(tokens)


@dataclasses.dataclass(frozen=True)
class CharacterTokenizer:
  """Splits a text into characters (code points). A run of whitespace is one token, and so is `"<unk>"`.

  >>> CharacterTokenizer().tokenize("è  lì")
  ('è', '▁', 'l', 'ì')
  """

  def tokenize(self, text: str) -> tuple[str, ...]:
    return tuple(_CHARACTER.findall(escape(_normalize_whitespace(text)).replace(" ", SPACE)))

  def detokenize(self, tokens: Iterable[str]) -> str:
    """Returns the text, with normalized whitespace."""
    return unescape(_normalize_whitespace("".join(tokens).replace(SPACE, " ")))


@dataclasses.dataclass(frozen=True)
class SubwordTokenizer:
  """Splits a text into subwords with sentencepiece. A subword at the start of a word begins with "▁".

  A character that is in no subword is encoded as UTF-8 bytes, such as `"<0xC3>", "<0xA8>"` for "è". A
  `Vocabulary` of `tokens` has the same ids as the model.

  Args:
    model: a serialized sentencepiece model, as trained by `learn`.

  Raises:
    ValueError: if `model` is invalid, or its special ids differ from those of `Vocabulary`.

  References:
    Kudo and Richardson 2018, arXiv:1808.06226. Unigram: Kudo 2018, arXiv:1804.10959. BPE: Sennrich et al.
    2016, arXiv:1508.07909.
  """

  model: bytes = dataclasses.field(repr=False)

  def __post_init__(self) -> None:
    processor = self._processor
    special_ids = (processor.pad_id(), processor.bos_id(), processor.eos_id(), processor.unk_id())
    if special_ids != (PAD_ID, BOS_ID, EOS_ID, UNK_ID):
      raise ValueError(f"model must have the special ids (0, 1, 2, 3), got {special_ids}")

  @functools.cached_property
  def _processor(self) -> sentencepiece.SentencePieceProcessor:
    # sentencepiece accepts an empty model, and only logs the error.
    if not self.model:
      raise ValueError("model must be a sentencepiece model, got no bytes")
    try:
      return sentencepiece.SentencePieceProcessor(model_proto=self.model)
    except RuntimeError as error:
      raise ValueError(f"model must be a sentencepiece model, got {len(self.model)} invalid bytes") from error

  @functools.cached_property
  def tokens(self) -> tuple[str, ...]:
    """All tokens in the order of their ids, which start at `NUM_SPECIAL_IDS`."""
    return tuple(self._processor.id_to_piece(list(range(NUM_SPECIAL_IDS, len(self._processor)))))

  def tokenize(self, text: str) -> tuple[str, ...]:
    return tuple(self._processor.encode(_prepare(text), out_type=str))

  def encode_all(self, texts: Iterable[str]) -> Iterator[list[int]]:
    """Yields the token ids of each text. This is much faster than `tokenize`."""
    prepared = map(_prepare, texts)
    while chunk := list(itertools.islice(prepared, _CHUNK_SIZE)):
      yield from self._processor.encode(chunk, num_threads=_NUM_THREADS)

  def detokenize(self, tokens: Iterable[str]) -> str:
    """Returns the text, with normalized whitespace."""
    return unescape(
      _normalize_whitespace(self._processor.decode(list(tokens)))
    )  # byte tokens may encode a line end

  @classmethod
  def learn(cls, texts: Sequence[str], *, vocabulary_size: int, subword_model: str) -> SubwordTokenizer:
    """Trains a subword model. Training is deterministic.

    Args:
      texts: sentences.
      vocabulary_size: number of ids, including the special ids and 256 bytes. 0 selects one piece for each
        500 characters of the texts, as far as the texts allow, and at most 8,000 ids. With more pieces, short
        texts such as dates become single pieces, which a model memorizes.
      subword_model: "unigram" or "bpe".

    Raises:
      ValueError: if `vocabulary_size` does not fit the texts, or all texts are blank.
    """
    # sentencepiece reserves this character, and skips lines that contain it.
    lines = [_prepare(text.replace("▅", " ")) for text in texts]
    if not any(lines):
      raise ValueError("texts must have at least one that is not blank, got none")
    try:
      return cls(_train_model(lines, vocabulary_size or _default_size(lines), subword_model))
    except RuntimeError as error:
      maximum = re.search(r"a value <= (\d+)", str(error))
      minimum = re.search(r"required_chars\. -?\d+ vs (\d+)", str(error))
      bound = maximum or minimum
      if bound and not vocabulary_size:
        return cls.learn(texts, vocabulary_size=int(bound[1]), subword_model=subword_model)
      if bound:
        allowed = f"at most {bound[1]}" if maximum else f"at least {bound[1]}"
        raise ValueError(f"vocabulary_size must be {allowed} for this text, got {vocabulary_size}") from error
      raise ValueError(f"vocabulary_size={vocabulary_size} does not fit this text: {error}") from error


def _default_size(lines: Iterable[str]) -> int:
  """Returns the number of ids for a text of this size."""
  num_pieces = sum(map(len, lines)) // _CHARACTERS_PER_PIECE
  return min(NUM_SPECIAL_IDS + _NUM_BYTES + num_pieces, _MAX_DEFAULT_SIZE)


def _normalize_whitespace(text: str) -> str:
  """Returns a text with runs of whitespace replaced by one space, and stripped."""
  return " ".join(text.split())


def _prepare(text: str) -> str:
  """Returns the normalized and escaped text that is passed to sentencepiece."""
  return escape(_normalize_whitespace(compose(text)))


def _train_model(lines: Iterable[str], vocabulary_size: int, subword_model: str) -> bytes:
  """Trains a sentencepiece model with the special ids of `Vocabulary`."""
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(lines),
    model_writer=model,
    model_type=subword_model,
    vocab_size=max(
      NUM_SPECIAL_IDS, vocabulary_size
    ),  # the error for a smaller size does not have the minimum
    pad_id=PAD_ID,
    bos_id=BOS_ID,
    eos_id=EOS_ID,
    unk_id=UNK_ID,
    unk_surface=UNK_TOKEN,
    byte_fallback=True,
    character_coverage=_CHARACTER_COVERAGE,
    normalization_rule_name="identity",
    max_sentence_length=_MAX_LINE_BYTES,
    num_threads=_NUM_THREADS,
    minloglevel=2,
  )
  return model.getvalue()
