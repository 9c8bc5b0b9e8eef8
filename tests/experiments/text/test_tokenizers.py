"""Tests of experiments/text/tokenizers.py."""

import functools
import io
import re

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.text.tokenizers import KINDS, CharacterTokenizer, SubwordTokenizer
from experiments.text.vocabularies import NUM_SPECIALS, UNKNOWN_WORD, Vocabulary, compose
from experiments.text.words import escape

TRAINING = (
  "the cat sees the dog",
  "a dog saw \x00 <0x41> <s>",
  "l'albero è <unk> alto",
  "ב גם 👩\u200d🚀 \ufeff⁇ ▅",
)
# Combining accents, an emoji of three characters, right to left, spaces of all kinds, controls, and what
# sentencepiece might take for its own signs.
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
def subwords(kind):
  return SubwordTokenizer.learn(TRAINING, vocabulary_size=285, kind=kind)


def spaced(text):
  """Returns a text with single spaces."""
  return re.sub(r"\s+", " ", text).strip()


tokenizers = pytest.mark.parametrize(
  "tokenizer", [CharacterTokenizer(), *map(subwords, KINDS)], ids=["characters", *KINDS]
)
kinds = pytest.mark.parametrize("kind", KINDS)


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
    assert token == UNKNOWN_WORD or Vocabulary((token,)).words == (token,)


def test_bpe_merges_the_most_frequent_pair():
  # The 260 ids of the specials and the bytes, the characters ▁ x y a b c, and one pair.
  model = SubwordTokenizer.learn(["axy bxy", "cxy"], vocabulary_size=260 + 6 + 1, kind="bpe")
  assert model.tokens[256] == "xy"
  assert sorted(model.tokens[257:]) == ["a", "b", "c", "x", "y", "▁"]
  assert model.tokenize("cxy yx") == ("▁", "c", "xy", "▁", "y", "x")


def test_unigram_learns_the_shared_part():
  model = SubwordTokenizer.learn(["xabcdef yabcdef", "zabcdef"], vocabulary_size=260 + 10 + 1, kind="unigram")
  assert model.tokens[256] == "abcdef"
  assert sorted(model.tokens[257:]) == ["a", "b", "c", "d", "e", "f", "x", "y", "z", "▁"]
  assert model.tokenize("zabcdef fed") == ("▁", "z", "abcdef", "▁", "f", "e", "d")


@kinds
def test_sentencepiece_blocks_are_not_learnt(kind):
  model = SubwordTokenizer.learn(["ab▅ cd"], vocabulary_size=260 + 5, kind=kind)
  assert sorted(model.tokens[256:]) == ["a", "b", "c", "d", "▁"]
  assert model.detokenize(model.tokenize("ab▅ cd")) == "ab▅ cd"


@kinds
def test_unknown_characters_are_bytes(kind):
  assert subwords(kind).tokenize("日") == ("▁", "<0xE6>", "<0x97>", "<0xA5>")
  assert subwords(kind).detokenize(("▁", "<0xE6>", "<0x97>", "<0xA5>")) == "日"


@kinds
def test_line_ends_are_spaces(kind):
  # A translation is one line, whatever bytes are drawn: newline, carriage return, tab.
  tokens = ("<0x0A>", "▁", "<0x78>", "<0x0D>", "<0x0A>", "<0x78>", "<0x09>")
  assert subwords(kind).detokenize(tokens) == "x x"


@kinds
@given(st.lists(TEXTS, max_size=5))
@settings(max_examples=50)
def test_ids_are_those_of_sentencepiece(kind, texts):
  model = subwords(kind)
  vocabulary = Vocabulary(model.tokens)
  ids = list(model.encode_all(iter(texts)))
  assert ids == [vocabulary.encode(model.tokenize(text)) for text in texts]
  processor = sentencepiece.SentencePieceProcessor(model_proto=model.model)
  assert ids == [processor.encode(escape(spaced(compose(text)))) for text in texts]
  assert all(number >= NUM_SPECIALS for sentence in ids for number in sentence)


def test_chunks_do_not_change_ids(monkeypatch):
  texts = [f"the dog saw {count} cats" for count in range(10)]
  whole = list(subwords("bpe").encode_all(texts))
  monkeypatch.setattr("experiments.text.tokenizers._CHUNK", 3)
  assert list(subwords("bpe").encode_all(texts)) == whole
  assert len(whole) == 10


@kinds
def test_long_lines_are_learnt(kind):
  model = SubwordTokenizer.learn(["x", "abcd " * 1000], vocabulary_size=260 + 6 + 1, kind=kind)
  assert {"a", "b", "c", "d", "x", "▁"} < set(model.tokens)


@kinds
@pytest.mark.parametrize("size", [-1, 1, 265])
def test_too_small_vocabularies_are_refused(kind, size):
  # The specials, the bytes, and the characters ▁ a b c d x are 266.
  message = rf"^vocabulary_size must be at least 266 for this text, got {size}$"
  with pytest.raises(ValueError, match=message):
    SubwordTokenizer.learn(["ab cd", "x"], vocabulary_size=size, kind=kind)


@kinds
def test_default_size_is_the_limit(kind):
  most = len(SubwordTokenizer.learn(TRAINING, vocabulary_size=0, kind=kind).tokens) + 4
  with pytest.raises(ValueError, match=f"^vocabulary_size must be at most {most} for this text, got 8000$"):
    SubwordTokenizer.learn(TRAINING, vocabulary_size=8000, kind=kind)
  assert len(SubwordTokenizer.learn(TRAINING, vocabulary_size=most, kind=kind).tokens) == most - 4


def test_signs_are_escaped():
  assert CharacterTokenizer().tokenize("▁ ￭￬") == ("￬", "2", "▁", "￬", "1", "￬", "0")


@kinds
@pytest.mark.parametrize("texts", [[], ["", " \t"]])
def test_no_text_is_refused(kind, texts):
  with pytest.raises(ValueError, match=r"^texts must be at least one that is not blank, got none$"):
    SubwordTokenizer.learn(texts, vocabulary_size=285, kind=kind)


@pytest.mark.parametrize("size", [1, 100, 1000, -1])
def test_truncated_models_are_refused(size):
  with pytest.raises(ValueError, match=r"^model must be a sentencepiece model, got \d+ other bytes$"):
    SubwordTokenizer(subwords("bpe").model[:size])


def test_other_bytes_are_refused(capfd):
  with pytest.raises(ValueError, match=r"^model must be a sentencepiece model, got 4 other bytes$"):
    SubwordTokenizer(b"cats")
  with pytest.raises(ValueError, match=r"^model must be a sentencepiece model, got nothing$"):
    SubwordTokenizer(b"")
  assert capfd.readouterr() == ("", "")


def test_other_special_ids_are_refused():
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(["ab ab"]), model_writer=model, model_type="bpe", vocab_size=7, minloglevel=2
  )
  with pytest.raises(ValueError, match=r"special ids 0, 1, 2, 3, got \(-1, 1, 2, 0\)$"):
    SubwordTokenizer(model.getvalue())
