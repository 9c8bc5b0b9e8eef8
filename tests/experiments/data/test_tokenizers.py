"""Tests of experiments/data/tokenizers.py."""

import functools
import io
import re

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.data.tokenizers import SUBWORD_MODELS, CharacterTokenizer, SubwordTokenizer
from experiments.data.vocabularies import NUM_SPECIAL_IDS, UNK_TOKEN, Vocabulary, compose
from experiments.data.words import escape

TRAINING = (
  "the cat sees the dog",
  "a dog saw \x00 <0x41> <s>",
  "l'albero è <unk> alto",
  "ב גם 👩\u200d🚀 \ufeff⁇ ▅",
)
# Combining accents, an emoji of three characters, right-to-left text, whitespace, control characters, and
# special symbols of sentencepiece.
ODD = (
  "e\u0301",
  "\u0301",
  "👩\u200d🚀",
  "שלום",
  "\u200f",
  "▁",
  "▁▁a",
  "\xa0",
  "\u2003",
  "\t",
  "\r\n",
  "\x85",
  "\u2028",
)
ODD += (
  "\x00",
  "\x1c",
  "\x7f",
  "\ufeff",
  "\uffff",
  "\ufffd",
  "<unk>",
  "<s>",
  "<pad>",
  "<0x41>",
  "⁇",
  "▅",
  "the cat",
)
TEXTS = st.lists(st.sampled_from(ODD) | st.text(st.characters(codec="utf-8"), max_size=7), max_size=7).map(
  "".join
)


@functools.cache
def subwords(subword_model):
  return SubwordTokenizer.learn(TRAINING, vocabulary_size=285, subword_model=subword_model)


def spaced(text):
  """Returns a text with normalized whitespace."""
  return re.sub(r"\s+", " ", text).strip()


tokenizers = pytest.mark.parametrize(
  "tokenizer", [CharacterTokenizer(), *map(subwords, SUBWORD_MODELS)], ids=["characters", *SUBWORD_MODELS]
)
subword_models = pytest.mark.parametrize("subword_model", SUBWORD_MODELS)


@tokenizers
@given(TEXTS)
@settings(max_examples=100)
def test_only_whitespace_is_lost(tokenizer, text):
  expected = compose(text) if isinstance(tokenizer, SubwordTokenizer) else text
  assert tokenizer.detokenize(tokenizer.tokenize(text)) == spaced(expected)


@tokenizers
@given(TEXTS)
@settings(max_examples=100)
def test_tokens_are_words_of_vocabularies(tokenizer, text):
  for token in tokenizer.tokenize(text):
    assert token == UNK_TOKEN or Vocabulary((token,)).words == (token,)


def test_bpe_merges_the_most_frequent_pair():
  # 260 ids of special tokens and bytes, the characters ▁ x y a b c, and one merged pair.
  model = SubwordTokenizer.learn(["axy bxy", "cxy"], vocabulary_size=260 + 6 + 1, subword_model="bpe")
  assert model.tokens[256] == "xy"
  assert sorted(model.tokens[257:]) == ["a", "b", "c", "x", "y", "▁"]
  assert model.tokenize("cxy yx") == ("▁", "c", "xy", "▁", "y", "x")


def test_unigram_learns_the_common_part():
  model = SubwordTokenizer.learn(
    ["xabcdef yabcdef", "zabcdef"], vocabulary_size=260 + 10 + 1, subword_model="unigram"
  )
  assert model.tokens[256] == "abcdef"
  assert sorted(model.tokens[257:]) == ["a", "b", "c", "d", "e", "f", "x", "y", "z", "▁"]
  assert model.tokenize("zabcdef fed") == ("▁", "z", "abcdef", "▁", "f", "e", "d")


@subword_models
def test_reserved_characters_are_not_learned(subword_model):
  model = SubwordTokenizer.learn(["ab▅ cd"], vocabulary_size=260 + 5, subword_model=subword_model)
  assert sorted(model.tokens[256:]) == ["a", "b", "c", "d", "▁"]
  assert model.detokenize(model.tokenize("ab▅ cd")) == "ab▅ cd"


@subword_models
def test_unknown_characters_are_bytes(subword_model):
  assert subwords(subword_model).tokenize("日") == ("▁", "<0xE6>", "<0x97>", "<0xA5>")
  assert subwords(subword_model).detokenize(("▁", "<0xE6>", "<0x97>", "<0xA5>")) == "日"


@subword_models
def test_line_ends_are_spaces(subword_model):
  # A translation is one line, even if byte tokens of newline, carriage return and tab are sampled.
  tokens = ("<0x0A>", "▁", "<0x78>", "<0x0D>", "<0x0A>", "<0x78>", "<0x09>")
  assert subwords(subword_model).detokenize(tokens) == "x x"


@subword_models
@given(st.lists(TEXTS, max_size=5))
@settings(max_examples=50)
def test_ids_match_sentencepiece(subword_model, texts):
  model = subwords(subword_model)
  vocabulary = Vocabulary(model.tokens)
  ids = list(model.encode_all(iter(texts)))
  assert ids == [vocabulary.encode(model.tokenize(text)) for text in texts]
  processor = sentencepiece.SentencePieceProcessor(model_proto=model.model)
  assert ids == [processor.encode(escape(spaced(compose(text)))) for text in texts]
  assert all(token_id >= NUM_SPECIAL_IDS for sentence in ids for token_id in sentence)


def test_chunks_do_not_change_ids(monkeypatch):
  texts = [f"the dog saw {count} cats" for count in range(10)]
  expected = list(subwords("bpe").encode_all(texts))
  monkeypatch.setattr("experiments.data.tokenizers._CHUNK_SIZE", 3)
  assert list(subwords("bpe").encode_all(texts)) == expected
  assert len(expected) == 10


@subword_models
def test_long_lines_are_not_skipped(subword_model):
  model = SubwordTokenizer.learn(
    ["x", "abcd " * 1000], vocabulary_size=260 + 6 + 1, subword_model=subword_model
  )
  assert {"a", "b", "c", "d", "x", "▁"} < set(model.tokens)


@subword_models
@pytest.mark.parametrize("size", [-1, 1, 265])
def test_small_vocabularies_are_errors(subword_model, size):
  # Special tokens, bytes, and the characters ▁ a b c d x are 266.
  message = rf"^vocabulary_size must be at least 266 for this text, got {size}$"
  with pytest.raises(ValueError, match=message):
    SubwordTokenizer.learn(["ab cd", "x"], vocabulary_size=size, subword_model=subword_model)


@subword_models
def test_default_size_follows_the_text(subword_model):
  def size(texts):
    return len(SubwordTokenizer.learn(texts, vocabulary_size=0, subword_model=subword_model).tokens) + 4

  numbers = [f"{number:03}" for number in range(1000)]
  assert size(numbers) == 260 + 11 < size(numbers * 10) == 260 + 60  # the characters are ▁ and ten digits
  assert size(numbers) == size(numbers[:100])


@subword_models
def test_large_vocabularies_are_errors(subword_model):
  with pytest.raises(
    ValueError, match=r"^vocabulary_size must be at most (\d+) for this text, got 8000$"
  ) as caught:
    SubwordTokenizer.learn(TRAINING, vocabulary_size=8000, subword_model=subword_model)
  maximum = int(str(caught.value).split()[5])
  tokens = SubwordTokenizer.learn(TRAINING, vocabulary_size=maximum, subword_model=subword_model).tokens
  assert len(tokens) == maximum - 4


def test_joiners_are_escaped():
  assert CharacterTokenizer().tokenize("▁ ￭￬") == ("￬", "2", "▁", "￬", "1", "￬", "0")


@subword_models
@pytest.mark.parametrize("texts", [[], ["", " \t"]])
def test_blank_texts_are_errors(subword_model, texts):
  with pytest.raises(ValueError, match=r"^texts must have at least one that is not blank, got none$"):
    SubwordTokenizer.learn(texts, vocabulary_size=285, subword_model=subword_model)


@pytest.mark.parametrize("size", [1, 100, 1000, -1])
def test_truncated_models_are_errors(size):
  with pytest.raises(ValueError, match=r"^model must be a sentencepiece model, got \d+ invalid bytes$"):
    SubwordTokenizer(subwords("bpe").model[:size])


def test_invalid_models_are_errors(capfd):
  with pytest.raises(ValueError, match=r"^model must be a sentencepiece model, got 4 invalid bytes$"):
    SubwordTokenizer(b"cats")
  with pytest.raises(ValueError, match=r"^model must be a sentencepiece model, got no bytes$"):
    SubwordTokenizer(b"")
  assert capfd.readouterr() == ("", "")


def test_different_special_ids_are_errors():
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(["ab ab"]), model_writer=model, model_type="bpe", vocab_size=7, minloglevel=2
  )
  with pytest.raises(ValueError, match=r"special ids \(0, 1, 2, 3\), got \(-1, 1, 2, 0\)$"):
    SubwordTokenizer(model.getvalue())
