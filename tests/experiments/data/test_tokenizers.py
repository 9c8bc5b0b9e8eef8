"""Tokenizers for characters and subwords. test_words.py tests that for words."""

import functools
import io
import re

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.data.tokenizers import CharacterTokenizer, SubwordTokenizer
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
# fmt: off
ODD = [
  "e\u0301", "\u0301", "👩\u200d🚀", "שלום", "\u200f", "▁", "▁▁a", "\xa0", "\u2003", "\t", "\r\n", "\x85",
  "\u2028", "\x00", "\x1c", "\x7f", "\ufeff", "\uffff", "\ufffd", "<unk>", "<s>", "<pad>", "<0x41>", "⁇", "▅",
  "the cat",
]
# fmt: on
TEXTS = st.lists(st.sampled_from(ODD) | st.text(st.characters(codec="utf-8"), max_size=7), max_size=7).map(
  "".join
)
subword_models = pytest.mark.parametrize("subword_model", ["unigram", "bpe"])


@functools.cache
def subwords(subword_model):
  return SubwordTokenizer.learn(TRAINING, vocabulary_size=285, subword_model=subword_model)


def normalized(text):
  """Returns a text with normalized whitespace."""
  return re.sub(r"\s+", " ", text).strip()


@given(TEXTS)
@settings(max_examples=100)
def test_characters_round_trip(text):
  tokens = CharacterTokenizer().tokenize(text)
  assert CharacterTokenizer().detokenize(tokens) == normalized(text)
  for token in set(tokens) - {UNK_TOKEN}:
    assert Vocabulary((token,)).words == (token,)


def test_reserved_characters_are_escaped():
  assert CharacterTokenizer().tokenize("▁ ￭￬") == ("￬", "2", "▁", "￬", "1", "￬", "0")
  assert CharacterTokenizer().tokenize("a  <unk>") == ("a", "▁", "<unk>")


@subword_models
@given(st.lists(TEXTS, max_size=5))
@settings(max_examples=50)
def test_subwords_round_trip(subword_model, texts):
  model = subwords(subword_model)
  tokens = [model.tokenize(text) for text in texts]
  assert [model.detokenize(row) for row in tokens] == [normalized(compose(text)) for text in texts]
  vocabulary, ids = Vocabulary(model.tokens), list(model.encode_all(iter(texts)))
  assert ids == [vocabulary.encode(row) for row in tokens]
  processor = sentencepiece.SentencePieceProcessor(model_proto=model.model)
  assert ids == [processor.encode(escape(normalized(compose(text)))) for text in texts]
  assert all(token_id >= NUM_SPECIAL_IDS for row in ids for token_id in row)


def test_bpe_merges_the_most_frequent_pair():
  # 260 ids of special tokens and bytes, the characters ▁ x y a b c, and one merged pair.
  model = SubwordTokenizer.learn(["axy bxy", "cxy"], vocabulary_size=260 + 6 + 1, subword_model="bpe")
  assert model.tokens[256] == "xy"
  assert sorted(model.tokens[257:]) == ["a", "b", "c", "x", "y", "▁"]
  assert model.tokenize("cxy yx") == ("▁", "c", "xy", "▁", "y", "x")


@subword_models
def test_reserved_characters_are_not_learned(subword_model):
  # Long lines are not skipped.
  texts = ["ab▅ x", "cd " * 2000]
  model = SubwordTokenizer.learn(texts, vocabulary_size=260 + 6, subword_model=subword_model)
  assert sorted(model.tokens[256:]) == ["a", "b", "c", "d", "x", "▁"]
  assert model.detokenize(model.tokenize("ab▅ cd")) == "ab▅ cd"


@subword_models
def test_unknown_characters_are_bytes(subword_model):
  model = subwords(subword_model)
  assert model.tokenize("日") == ("▁", "<0xE6>", "<0x97>", "<0xA5>")
  assert model.detokenize(("▁", "<0xE6>", "<0x97>", "<0xA5>")) == "日"
  # A translation is one line, even if byte tokens of newline, carriage return and tab are sampled.
  assert model.detokenize(("<0x0A>", "▁", "<0x78>", "<0x0D>", "<0x0A>", "<0x78>", "<0x09>")) == "x x"


def test_many_texts_keep_their_order():
  texts = [f"{i} cats" for i in range(10_003)]  # more than a call of sentencepiece takes
  ids = list(subwords("bpe").encode_all(texts))
  assert len(ids) == 10_003
  assert ids[9_998:] == list(subwords("bpe").encode_all(texts[9_998:]))


@subword_models
def test_sizes_must_fit_the_text(subword_model):
  # Special tokens, bytes, and the characters ▁ a b c d x are 266.
  learn = functools.partial(SubwordTokenizer.learn, ["ab cd", "x"], subword_model=subword_model)
  for size in (-1, 265):
    with pytest.raises(ValueError, match=f"^vocabulary_size must be at least 266 for this text, got {size}$"):
      learn(vocabulary_size=size)
  with pytest.raises(
    ValueError, match=r"^vocabulary_size must be at most (\d+) for this text, got 8000$"
  ) as caught:
    learn(vocabulary_size=8000)
  maximum = int(str(caught.value).split()[5])
  assert len(learn(vocabulary_size=maximum).tokens) == maximum - 4


@subword_models
def test_default_size_follows_the_text(subword_model):
  def size(texts):
    return len(SubwordTokenizer.learn(texts, vocabulary_size=0, subword_model=subword_model).tokens) + 4

  numbers = [f"{number:03}" for number in range(1000)]
  # The characters are ▁ and ten digits; there is one piece for each 500 characters.
  assert size(numbers[:100]) == size(numbers) == 260 + 11
  assert size(numbers * 10) == 260 + 60


@pytest.mark.parametrize("texts", [[], ["", " \t"]])
def test_blank_texts_are_errors(texts):
  with pytest.raises(ValueError, match=r"^texts must have at least one that is not blank, got none$"):
    SubwordTokenizer.learn(texts, vocabulary_size=285, subword_model="bpe")


def model_of_other_ids():
  model = io.BytesIO()
  options = {"model_type": "bpe", "vocab_size": 7, "minloglevel": 2}
  sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(["ab ab"]), model_writer=model, **options)
  return model.getvalue()


INVALID = [
  (lambda: subwords("bpe").model[:1], r"^model must be a sentencepiece model, got 1 invalid bytes$"),
  (lambda: subwords("bpe").model[:-1], r"^model must be a sentencepiece model, got \d+ invalid bytes$"),
  (lambda: b"cats", r"^model must be a sentencepiece model, got 4 invalid bytes$"),
  (lambda: b"", r"^model must be a sentencepiece model, got no bytes$"),
  (model_of_other_ids, r"special ids \(0, 1, 2, 3\), got \(-1, 1, 2, 0\)$"),
]


@pytest.mark.parametrize(("make", "message"), INVALID)
def test_invalid_models_are_errors(capfd, make, message):
  model = make()
  capfd.readouterr()
  with pytest.raises(ValueError, match=message):
    SubwordTokenizer(model)
  assert capfd.readouterr() == ("", "")
