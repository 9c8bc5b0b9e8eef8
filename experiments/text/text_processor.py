"""One side of a parallel text: how it is cut into tokens, and which ids they have."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Sequence

from experiments.text.ragged import RaggedTokens
from experiments.text.tokenizers import CharacterTokenizer, SubwordTokenizer, Tokenizer, WordTokenizer
from experiments.text.vocabularies import Vocabulary

_TOKENIZERS: dict[str, Tokenizer] = {"word": WordTokenizer(), "character": CharacterTokenizer()}
UNITS = (*_TOKENIZERS, "subword")

# More lines teach little about words that are frequent enough to matter, and take long.
_TRAINING_LINES = 100_000


@dataclasses.dataclass(frozen=True)
class TextProcessor:
  """A language as a model reads and writes it.

  Attributes:
    tokenizer: cuts texts into tokens, and joins them again.
    vocabulary: the id of each token.
    lowercase: whether texts are put in lower case.

  >>> options = {"lowercase": True, "min_count": 2, "vocabulary_size": 300, "subwords": "unigram"}
  >>> language = TextProcessor.learn(["The cat sees.", "A cat dreams."], unit="word", **options)
  >>> language.tokenize("The CAT dreams."), language.vocabulary.words
  (('the', 'cat', 'dreams', '￭.'), ('cat', '￭.'))
  >>> language.encode_all(["A cat."])[0].tolist()
  [3, 4, 5]
  """

  tokenizer: Tokenizer
  vocabulary: Vocabulary
  lowercase: bool

  def normalize(self, text: str) -> str:
    """Returns a text in the case of its tokens."""
    return _cased(text, self.lowercase)

  def tokenize(self, text: str) -> tuple[str, ...]:
    """Returns the tokens of a text; whether the vocabulary has them does not matter."""
    return self.tokenizer.tokenize(self.normalize(text))

  def detokenize(self, tokens: Iterable[str]) -> str:
    """Returns the plain text of tokens."""
    return self.tokenizer.detokenize(tokens)

  def encode_all(self, texts: Iterable[str]) -> RaggedTokens:
    """Returns texts as ids, START and END not added."""
    normalized = map(self.normalize, texts)
    if isinstance(self.tokenizer, SubwordTokenizer):
      return RaggedTokens.join(self.tokenizer.encode_all(normalized))
    return RaggedTokens.join(map(self.vocabulary.encode, map(self.tokenizer.tokenize, normalized)))

  def save(self, folder: pathlib.Path, side: str) -> None:
    """Writes the files that `load` reads: `vocabulary.SIDE.txt`, and `subwords.SIDE.model` for subwords.

    Args:
      folder: where to; it exists.
      side: "source" or "target".

    Raises:
      OSError: if a file cannot be written.
    """
    self.vocabulary.save(folder / f"vocabulary.{side}.txt")
    if isinstance(self.tokenizer, SubwordTokenizer):
      (folder / f"subwords.{side}.model").write_bytes(self.tokenizer.model)

  @classmethod
  def learn(
    cls,
    texts: Sequence[str],
    *,
    unit: str,
    lowercase: bool,
    min_count: int,
    vocabulary_size: int,
    subwords: str,
  ) -> TextProcessor:
    """Returns the language of training texts.

    Args:
      texts: sentences; subword: of more than 100,000, that many are taken at even distances.
      unit: what a token is: "word", "character" or "subword".
      lowercase: whether texts are put in lower case.
      min_count: word and character: how often a token must occur to be taken up, at least 1.
      vocabulary_size: subword: the number of ids, or 0. See `SubwordTokenizer.learn`.
      subwords: subword: "unigram" or "bpe".

    Raises:
      ValueError: if the texts do not allow `min_count` or `vocabulary_size`.
    """
    if unit == "subword":
      count = min(len(texts), _TRAINING_LINES)
      lines = [_cased(texts[i * len(texts) // count], lowercase) for i in range(count)]
      pieces = SubwordTokenizer.learn(lines, vocabulary_size=vocabulary_size, kind=subwords)
      return cls(pieces, Vocabulary(pieces.tokens), lowercase)
    tokenizer = _TOKENIZERS[unit]
    normalized = (_cased(text, lowercase) for text in texts)
    vocabulary = Vocabulary.build(map(tokenizer.tokenize, normalized), min_count=min_count)
    return cls(tokenizer, vocabulary, lowercase)

  @classmethod
  def load(cls, folder: pathlib.Path, side: str, *, unit: str, lowercase: bool) -> TextProcessor:
    """Returns the language that `save` wrote.

    Args:
      folder: as in `save`.
      side: as in `save`.
      unit: as in `learn`.
      lowercase: as in `learn`.

    Raises:
      OSError: if a file cannot be read.
      ValueError: if a file is damaged or belongs to another language.
    """
    words, path = folder / f"vocabulary.{side}.txt", folder / f"subwords.{side}.model"
    vocabulary = Vocabulary.load(words)
    if unit != "subword":
      return cls(_TOKENIZERS[unit], vocabulary, lowercase)
    try:
      pieces = SubwordTokenizer(path.read_bytes())
    except ValueError as error:
      raise ValueError(f"{path}: {error}") from error
    if pieces.tokens != vocabulary.words:
      raise ValueError(f"{path}: model must have the pieces of {words}, got others")
    return cls(pieces, vocabulary, lowercase)


def _cased(text: str, lowercase: bool) -> str:
  return text.lower() if lowercase else text
