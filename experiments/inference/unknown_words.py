"""Replacement of unknown words in translations by the source words that they attend to."""

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.cli.errors import DataError
from experiments.cli.io import read_lines
from experiments.data.text_processor import TextProcessor
from experiments.data.vocabularies import UNK_TOKEN, compose
from experiments.data.words import strip_joiners


def read_dictionary(path: pathlib.Path, source: TextProcessor) -> dict[str, str]:
  """Returns the translations of words, from a file with one source TAB target per line.

  Raises:
    DataError: if a line is invalid.
  """
  dictionary: dict[str, str] = {}
  for number, line in enumerate(read_lines(path), start=1):
    word, *translations = line.split("\t")
    if len(translations) != 1 or not word.strip() or not translations[0].strip():
      raise DataError(f"{path}:{number}: expected source TAB target, got {line!r:.60}")
    dictionary.setdefault(_key(source.normalize(word.strip())), translations[0].strip())
  return dictionary


def replace_unknown(
  tokens: Sequence[str],
  weights: np.ndarray,
  source: Sequence[str],
  dictionary: Mapping[str, str],
  target_language: TextProcessor,
) -> tuple[str, ...]:
  """Returns the tokens of a translation without unknown words.

  Each is replaced by the source word with the largest weight, or its translation in the dictionary.

  Args:
    tokens: tokens of the translation.
    weights: attention weights [T S], with EOS as the last column.
    source: at least one source token.
    dictionary: translations of source words.
    target_language: tokenizes the translations of the dictionary.

  References:
    Luong et al. 2015, arXiv:1410.8206, section 3; by attention: Jean et al. 2015, arXiv:1412.2007, section 3.
  """
  replaced: list[str] = []
  for t, token in enumerate(tokens):
    if token != UNK_TOKEN:
      replaced.append(token)
      continue
    word = source[int(np.argmax(weights[t, : len(source)]))]
    translation = dictionary.get(_key(word))
    replaced += [word] if translation is None else target_language.tokenize(translation)
  return tuple(replaced)


def _key(word: str) -> str:
  return compose(strip_joiners(word))
