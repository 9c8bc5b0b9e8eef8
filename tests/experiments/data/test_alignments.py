"""Gold alignments with possible links, and weights between words from those between tokens."""

import numpy as np
import pytest

from experiments.data.alignments import (
  format_alignment,
  parse_alignment,
  parse_gold,
  word_indices,
  word_weights,
)
from experiments.data.text_processor import TextProcessor

TEXTS = ["The  cat, asleep.", "l'albero più alto", "▁odd 你好吗 words", "a"]


@pytest.mark.parametrize("tokenization", ["word", "character", "subword"])
def test_each_word_has_its_tokens(tokenization):
  options = {"lowercase": True, "min_count": 1, "vocabulary_size": 0, "subword_model": "unigram"}
  language = TextProcessor.learn(TEXTS * 3, tokenization=tokenization, **options)
  for text in TEXTS:
    indices, tokens = word_indices(language, text), language.tokenize(text)
    assert indices == sorted(indices)
    words = text.lower().split()
    assert set(indices) == set(range(len(words)))
    for i, word in enumerate(words):
      own = [token for index, token in zip(indices, tokens, strict=True) if index == i]
      assert language.detokenize(own).replace(" ", "") == word


def test_word_weights_by_hand():
  weights = np.array([[0.1, 0.2, 0.4, 0.3], [0.5, 0.1, 0.2, 0.2], [0.0, 0.0, 0.3, 0.7]])
  # The first two targets are one word, as are the last two sources.
  actual = word_weights(weights, [0, 0], [0, 1, 1])
  np.testing.assert_allclose(actual, [[0.3, 0.45, 0.25], [0.0, 0.3, 0.7]])
  random = np.random.default_rng(0).dirichlet(np.ones(6), size=4)
  np.testing.assert_allclose(word_weights(random, [0, 1, 2], [0, 1, 2, 3, 4]), random)


def test_possible_links_have_a_p():
  assert parse_gold("0-0 1p2 2p2 2-2") == ({(0, 0), (2, 2)}, {(2, 1)})
  assert format_alignment({(0, 0), (2, 2)}, {(2, 1)}) == "0-0 1p2 2-2"
  with pytest.raises(ValueError, match="expected sure links only"):
    parse_alignment("0-0 1p2")
