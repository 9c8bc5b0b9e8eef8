"""Unknown words in translations."""

import numpy as np
import pytest

from experiments.cli.errors import DataError
from experiments.data.text_processor import TextProcessor
from experiments.data.tokenizers import WordTokenizer
from experiments.data.vocabularies import Vocabulary
from experiments.inference.unknown_words import read_dictionary, replace_unknown

LANGUAGE = TextProcessor(WordTokenizer(), Vocabulary(("the", "old", "house", "￭.")), lowercase=True)


def test_unknown_words_are_replaced_by_hand():
  weights = np.array([[0.1, 0.2, 0.1, 0.6], [0.6, 0.3, 0.05, 0.05], [0.1, 0.3, 0.5, 0.1]])
  tokens, source = ("<unk>", "house", "<unk>"), ("Haus", "alt", "￭.")
  # The largest weight of the first token is at the end of the sentence, which is not a word.
  assert replace_unknown(tokens, weights, source, {}, LANGUAGE) == ("alt", "house", "￭.")
  dictionary = {"alt": "very old.", ".": "!"}
  assert replace_unknown(tokens, weights, source, dictionary, LANGUAGE) == ("very", "old", "￭.", "house", "!")


def test_dictionaries_are_read(tmp_path):
  path = tmp_path / "dictionary.tsv"
  path.write_text("Katze\tcat\nkatze\tkitten\nzwei Wörter\ttwo words\n", "utf-8")
  assert read_dictionary(path, LANGUAGE) == {"katze": "cat", "zwei wörter": "two words"}
  for line in ("cat", "a\tb\tc", "\tb", "a\t "):
    path.write_text(f"x\ty\n{line}\n", "utf-8")
    with pytest.raises(DataError, match=r"dictionary\.tsv:2: expected source TAB target"):
      read_dictionary(path, LANGUAGE)
