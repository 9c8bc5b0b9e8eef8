"""Attention weights between words that are separated by spaces, from those between tokens."""

from collections.abc import Sequence

import numpy as np

from experiments.data.text_processor import TextProcessor
from experiments.data.tokenizers import WordTokenizer
from experiments.data.words import SPACE


def word_indices(language: TextProcessor, text: str) -> list[int]:
  """Returns the index of the word of each token of a text. Words are separated by spaces.

  >>> from experiments.data.vocabularies import Vocabulary
  >>> word_indices(TextProcessor(WordTokenizer(), Vocabulary(("a",)), True), "The cat, asleep.")
  [0, 1, 1, 2, 2]
  """
  if isinstance(language.tokenizer, WordTokenizer):
    return [i for i, word in enumerate(text.split()) for _ in language.tokenize(word)]
  index, indices = 0, []
  for i, token in enumerate(language.tokenize(text)):
    index += token.startswith(SPACE) and i > 0
    indices.append(index)
  return indices


def word_weights(weights: np.ndarray, targets: Sequence[int], sources: Sequence[int]) -> np.ndarray:
  """Returns the weights between words: the sum over tokens of a source word, the mean over those of a target.

  Args:
    weights: between tokens, [T S], with EOS as the last row and column.
    targets: index of the word of each target token, from `word_indices`.
    sources: index of the word of each source token.

  References:
    Clark et al. 2019, arXiv:1906.04341, section 4.1.
  """
  weights = weights @ _indicators(sources)
  rows = _indicators(targets)
  return (rows / rows.sum(axis=0)).T @ weights


def _indicators(indices: Sequence[int]) -> np.ndarray:
  """Returns which token, and the end, belongs to which word, and the end: 0 or 1, [tokens + 1, words + 1]."""
  count = max(indices, default=-1) + 1
  return np.eye(count + 1)[[*indices, count]]
