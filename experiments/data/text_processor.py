"""Text processing of one language: lowercasing, tokenization and vocabulary."""

from __future__ import annotations

import dataclasses
import pathlib
from collections import Counter
from collections.abc import Iterable, Sequence

from experiments.data.ragged import RaggedTokens
from experiments.data.tokenizers import CharacterTokenizer, SubwordTokenizer, Tokenizer, WordTokenizer
from experiments.data.vocabularies import UNK_TOKEN, Vocabulary, compose

_TOKENIZERS: dict[str, Tokenizer] = {"word": WordTokenizer(), "character": CharacterTokenizer()}
TOKENIZATIONS = (*_TOKENIZERS, "subword")

# Maximum number of lines that a subword model is trained on. More lines take long and change little.
_MAX_TRAINING_LINES = 100_000


@dataclasses.dataclass(frozen=True)
class TextProcessor:
  """Converts between texts of a language and token ids.

  Attributes:
    tokenizer: converts between texts and tokens.
    vocabulary: converts between tokens and ids.
    lowercase: lowercase all texts.

  >>> options = {"lowercase": True, "min_count": 2, "vocabulary_size": 300, "subword_model": "unigram"}
  >>> language = TextProcessor.learn(["The cat sees.", "A cat dreams."], tokenization="word", **options)
  >>> language.tokenize("The CAT dreams."), language.vocabulary.words
  (('the', 'cat', 'dreams', '￭.'), ('cat', '￭.'))
  >>> language.encode_all(["A cat."])[0].tolist()
  [3, 4, 5]
  """

  tokenizer: Tokenizer
  vocabulary: Vocabulary
  lowercase: bool

  def normalize(self, text: str) -> str:
    """Returns a text, lowercased if `lowercase` is set."""
    return _normalize_case(text, self.lowercase)

  def tokenize(self, text: str) -> tuple[str, ...]:
    """Returns the tokens of a text. They need not be in the vocabulary."""
    return self.tokenizer.tokenize(self.normalize(text))

  def detokenize(self, tokens: Iterable[str]) -> str:
    """Returns the text of tokens."""
    return self.tokenizer.detokenize(tokens)

  def encode_all(self, texts: Iterable[str]) -> RaggedTokens:
    """Returns the ids of texts, without BOS_ID and EOS_ID."""
    normalized = map(self.normalize, texts)
    if isinstance(self.tokenizer, SubwordTokenizer):
      return RaggedTokens.join(self.tokenizer.encode_all(normalized))
    return RaggedTokens.join(map(self.vocabulary.encode, map(self.tokenizer.tokenize, normalized)))

  def extended(self, texts: Iterable[str], *, min_count: int) -> TextProcessor:
    """Returns a language whose vocabulary also has the words of texts that it lacks; their ids come last.

    Args:
      texts: sentences. Subwords represent all texts, so a subword language is returned unchanged.
      min_count: minimum number of occurrences of a new word.
    """
    if isinstance(self.tokenizer, SubwordTokenizer):
      return self
    counts = Counter(token for text in texts for token in map(compose, self.tokenize(text)))
    new = self.vocabulary.unknown(word for word, count in counts.items() if count >= min_count)
    words = tuple(sorted((word for word in new if word != UNK_TOKEN), key=lambda word: (-counts[word], word)))
    return dataclasses.replace(self, vocabulary=Vocabulary(self.vocabulary.words + words))

  def save(self, folder: pathlib.Path, side: str) -> None:
    """Writes `vocabulary.SIDE.txt`, and `subwords.SIDE.model` for subwords.

    Args:
      folder: an existing folder.
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
    tokenization: str,
    lowercase: bool,
    min_count: int,
    vocabulary_size: int,
    subword_model: str,
  ) -> TextProcessor:
    """Builds the vocabulary, and the subword model if there is one, from training texts.

    Args:
      texts: training sentences. A subword model is trained on at most 100,000 of them, evenly spaced.
      tokenization: "word", "character" or "subword".
      lowercase: lowercase all texts.
      min_count: minimum number of occurrences of a word or character.
      vocabulary_size: number of ids of a subword model, or 0 for the default. See `SubwordTokenizer.learn`.
      subword_model: "unigram" or "bpe".

    Raises:
      ValueError: if `min_count` or `vocabulary_size` does not fit the texts.
    """
    if tokenization == "subword":
      count = min(len(texts), _MAX_TRAINING_LINES)
      lines = [_normalize_case(texts[i * len(texts) // count], lowercase) for i in range(count)]
      subword_tokenizer = SubwordTokenizer.learn(
        lines, vocabulary_size=vocabulary_size, subword_model=subword_model
      )
      return cls(subword_tokenizer, Vocabulary(subword_tokenizer.tokens), lowercase)
    tokenizer = _TOKENIZERS[tokenization]
    normalized = (_normalize_case(text, lowercase) for text in texts)
    vocabulary = Vocabulary.build(map(tokenizer.tokenize, normalized), min_count=min_count)
    return cls(tokenizer, vocabulary, lowercase)

  @classmethod
  def load(cls, folder: pathlib.Path, side: str, *, tokenization: str, lowercase: bool) -> TextProcessor:
    """Reads the files written by `save`.

    Args:
      folder: as in `save`.
      side: as in `save`.
      tokenization: as in `learn`.
      lowercase: as in `learn`.

    Raises:
      OSError: if a file cannot be read.
      ValueError: if a file is invalid, or the files do not match.
    """
    vocabulary_path, model_path = folder / f"vocabulary.{side}.txt", folder / f"subwords.{side}.model"
    vocabulary = Vocabulary.load(vocabulary_path)
    if tokenization != "subword":
      return cls(_TOKENIZERS[tokenization], vocabulary, lowercase)
    try:
      tokenizer = SubwordTokenizer(model_path.read_bytes())
      tokens = tokenizer.tokens
    except ValueError as error:  # also of UTF-8
      raise ValueError(f"{model_path}: {error}") from error
    if tokens != vocabulary.words:
      raise ValueError(f"{model_path}: the subword model does not match {vocabulary_path}")
    return cls(tokenizer, vocabulary, lowercase)


def _normalize_case(text: str, lowercase: bool) -> str:
  return text.lower() if lowercase else text
