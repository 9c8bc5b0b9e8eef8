"""Vocabularies: tokens and their ids."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

PAD_ID = 0
BOS_ID = 1
EOS_ID = 2
UNK_ID = 3
NUM_SPECIAL_IDS = 4
UNK_TOKEN = "<unk>"


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """The words of one language. `words[i]` has the id `NUM_SPECIAL_IDS + i`.

  Words are normalized to NFC before lookup, so both encodings of an accented word have the same id. PAD_ID,
  BOS_ID, EOS_ID and UNK_ID are special ids. UNK_ID is decoded as `"<unk>"`; the other special ids have no
  text.

  Args:
    words: at least one word. Words are distinct in NFC, not empty, without whitespace, and not `"<unk>"`.

  Raises:
    ValueError: if `words` is invalid.

  >>> vocabulary = Vocabulary(("the", "cat"))
  >>> len(vocabulary), vocabulary.encode(["the", "dog"])
  (6, [4, 3])
  """

  words: tuple[str, ...]

  def __post_init__(self) -> None:
    if not self.words:
      raise ValueError("words must have at least one word, got none")
    for word in self.words:
      if word.split() != [word]:
        raise ValueError(f"words must be non-empty and without whitespace, got {word!r}")
      if word == UNK_TOKEN:
        raise ValueError(f"words must not contain {UNK_TOKEN}, which stands for unknown words")
    ((most_frequent, count),) = Counter(map(compose, self.words)).most_common(1)
    if count > 1:
      raise ValueError(f"words must be distinct, got {most_frequent!r} twice")

  def __len__(self) -> int:
    """Returns the number of ids, including the special ids."""
    return NUM_SPECIAL_IDS + len(self.words)

  @functools.cached_property
  def _ids(self) -> dict[str, int]:
    return {compose(word): NUM_SPECIAL_IDS + index for index, word in enumerate(self.words)}

  def encode(self, words: Iterable[str]) -> list[int]:
    """Returns the ids of words, with UNK_ID for unknown words. BOS_ID and EOS_ID are not added.

    Raises:
      ValueError: if `words` is a string instead of a sequence of words.

    >>> Vocabulary(("the", "cat")).encode(["cat", "the", "cat"])
    [5, 4, 5]
    """
    if isinstance(words, str):
      raise ValueError(f"words must be a sequence of words, got the string {words!r}")
    return [self._ids.get(compose(word), UNK_ID) for word in words]

  def decode(self, ids: Iterable[int]) -> tuple[str, ...]:
    """Returns the words of ids up to EOS_ID. PAD_ID and BOS_ID are skipped. UNK_ID becomes `"<unk>"`.

    Args:
      ids: integers in [0, len(self)).

    Raises:
      ValueError: if an id is out of range.

    >>> Vocabulary(("the", "cat")).decode([BOS_ID, 4, 3, EOS_ID, 5])
    ('the', '<unk>')
    """
    words = []
    for token_id in ids:
      if not 0 <= token_id < len(self):
        raise ValueError(f"ids must be in [0, {len(self)}), got {token_id}")
      if token_id == EOS_ID:
        break
      if token_id not in (PAD_ID, BOS_ID):
        words.append(UNK_TOKEN if token_id == UNK_ID else self.words[token_id - NUM_SPECIAL_IDS])
    return tuple(words)

  def unknown(self, words: Iterable[str]) -> tuple[str, ...]:
    """Returns the distinct words that are not in the vocabulary, in order of appearance.

    >>> Vocabulary(("the", "cat")).unknown(["the", "dog", "bit", "the", "dog"])
    ('dog', 'bit')
    """
    return tuple(dict.fromkeys(word for word in words if compose(word) not in self._ids))

  @classmethod
  def build(cls, sentences: Iterable[Sequence[str]], *, min_count: int = 1) -> Vocabulary:
    """Builds the vocabulary of a text. Words are in NFC, sorted by frequency, then alphabetically.

    `"<unk>"` is excluded.

    Args:
      sentences: sequences of words.
      min_count: minimum number of occurrences of a word.

    Raises:
      ValueError: if no word occurs `min_count` times.

    >>> Vocabulary.build([["b", "a"], ["c", "c"]]).words
    ('c', 'a', 'b')
    """
    counts = Counter(compose(word) for sentence in sentences for word in sentence)
    del counts[UNK_TOKEN]
    frequent = [word for word, count in counts.items() if count >= min_count]
    if not frequent:
      max_count = max(counts.values(), default=0)
      raise ValueError(
        f"min_count must be at most {max_count}, the count of the most frequent word, got {min_count}"
      )
    return cls(tuple(sorted(frequent, key=lambda word: (-counts[word], word))))

  def save(self, path: str | os.PathLike[str]) -> None:
    """Writes the words to a UTF-8 file, one per line, in the order of their ids.

    Raises:
      OSError: if the file cannot be written.
    """
    text = "".join(f"{word}\n" for word in self.words)
    pathlib.Path(path).write_bytes(text.encode("utf-8"))

  @classmethod
  def load(cls, path: str | os.PathLike[str]) -> Vocabulary:
    """Reads a vocabulary written by `save`.

    Raises:
      OSError: if the file cannot be read.
      ValueError: if it is not UTF-8, or its lines are not valid words.
    """
    try:
      text = pathlib.Path(path).read_bytes().decode("utf-8")
      return cls(tuple(text.splitlines()))
    except ValueError as error:
      raise ValueError(f"{os.fspath(path)}: invalid vocabulary file: {error}") from error


def compose(text: str) -> str:
  r"""Returns a text in Unicode normalization form C (NFC).

  >>> compose("perche\u0301")
  'perché'
  """
  return unicodedata.normalize("NFC", text)
