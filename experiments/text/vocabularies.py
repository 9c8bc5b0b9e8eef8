"""Which words a model knows, and the number of each."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

PAD = 0
START = 1
END = 2
UNKNOWN = 3
NUM_SPECIALS = 4
UNKNOWN_WORD = "<unk>"


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """The words of one language; `words[i]` has the id `NUM_SPECIALS + i`.

  Words are looked up in Unicode's composed form (NFC), so both spellings of an accented word have one id.
  The ids PAD, START, END and UNKNOWN stand for no word. UNKNOWN is written `"<unk>"`, in a text too; the
  others have no spelling.

  Args:
    words: at least one, distinct in their composed form; each of one or more characters, without whitespace,
      and not `"<unk>"`.

  Raises:
    ValueError: if `words` breaks these rules.

  >>> vocabulary = Vocabulary(("the", "cat"))
  >>> len(vocabulary), vocabulary.encode(["the", "dog"])
  (6, [4, 3])
  """

  words: tuple[str, ...]

  def __post_init__(self) -> None:
    if not self.words:
      raise ValueError("words must be at least one word, got none")
    for word in self.words:
      if word.split() != [word]:
        raise ValueError(f"words must be non-empty and without whitespace, got {word!r}")
      if word == UNKNOWN_WORD:
        raise ValueError(f"words must not be {UNKNOWN_WORD}, which is written for unknown words")
    ((most_frequent, count),) = Counter(map(compose, self.words)).most_common(1)
    if count > 1:
      raise ValueError(f"words must be distinct, got {most_frequent!r} twice")

  def __len__(self) -> int:
    """Returns the number of ids, those of PAD, START, END and UNKNOWN included."""
    return NUM_SPECIALS + len(self.words)

  @functools.cached_property
  def _ids(self) -> dict[str, int]:
    return {compose(word): NUM_SPECIALS + index for index, word in enumerate(self.words)}

  def encode(self, words: Iterable[str]) -> list[int]:
    """Returns the ids of words, UNKNOWN for those not known; START and END are not added.

    Raises:
      ValueError: if `words` is one string, whose letters would be taken for words.

    >>> Vocabulary(("the", "cat")).encode(["cat", "the", "cat"])
    [5, 4, 5]
    """
    if isinstance(words, str):
      raise ValueError(f"words must be a sequence of words, got the string {words!r}")
    return [self._ids.get(compose(word), UNKNOWN) for word in words]

  def decode(self, ids: Iterable[int]) -> tuple[str, ...]:
    """Returns the words of ids up to END; PAD and START are skipped, UNKNOWN reads `"<unk>"`.

    Args:
      ids: integers in [0, len(self)), a list or an array of rank 1.

    Raises:
      ValueError: if an id is out of range.

    >>> Vocabulary(("the", "cat")).decode([START, 4, 3, END, 5])
    ('the', '<unk>')
    """
    words = []
    for number in ids:
      if not 0 <= number < len(self):
        raise ValueError(f"ids must be in [0, {len(self)}), got {number}")
      if number == END:
        break
      if number not in (PAD, START):
        words.append(UNKNOWN_WORD if number == UNKNOWN else self.words[number - NUM_SPECIALS])
    return tuple(words)

  def unknown(self, words: Iterable[str]) -> tuple[str, ...]:
    """Returns those words that are not in the vocabulary, in order, each once.

    >>> Vocabulary(("the", "cat")).unknown(["the", "dog", "bit", "the", "dog"])
    ('dog', 'bit')
    """
    return tuple(dict.fromkeys(word for word in words if compose(word) not in self._ids))

  @classmethod
  def build(cls, sentences: Iterable[Sequence[str]], *, min_count: int = 1) -> Vocabulary:
    """Returns the composed words of a text, the frequent ones first, equally frequent ones by alphabet.

    `"<unk>"` is left out.

    Args:
      sentences: sequences of words.
      min_count: how often a word must occur to be taken up, at least 1.

    Raises:
      ValueError: if no word occurs so often.

    >>> Vocabulary.build([["b", "a"], ["c", "c"]]).words
    ('c', 'a', 'b')
    """
    counts = Counter(compose(word) for sentence in sentences for word in sentence)
    del counts[UNKNOWN_WORD]
    frequent = [word for word, count in counts.items() if count >= min_count]
    if not frequent:
      most = max(counts.values(), default=0)
      raise ValueError(
        f"min_count must leave at least one word, got min_count={min_count} "
        f"where the most frequent word occurs {most} times"
      )
    return cls(tuple(sorted(frequent, key=lambda word: (-counts[word], word))))

  def save(self, path: str | os.PathLike[str]) -> None:
    """Writes the words in the order of their ids, one a line, in UTF-8.

    Raises:
      OSError: if the file cannot be written.
    """
    text = "".join(f"{word}\n" for word in self.words)
    pathlib.Path(path).write_bytes(text.encode("utf-8"))

  @classmethod
  def load(cls, path: str | os.PathLike[str]) -> Vocabulary:
    """Returns the vocabulary that `save` wrote.

    Raises:
      OSError: if the file cannot be read.
      ValueError: if it is not UTF-8, or its lines are not words as `Vocabulary` asks.
    """
    try:
      text = pathlib.Path(path).read_bytes().decode("utf-8")
      return cls(tuple(text.splitlines()))
    except ValueError as error:
      raise ValueError(f"{os.fspath(path)}: not a vocabulary, one word a line: {error}") from error


def compose(text: str) -> str:
  r"""Returns a text with composed accents (Unicode NFC).

  >>> compose("perche\u0301")
  'perché'
  """
  return unicodedata.normalize("NFC", text)
