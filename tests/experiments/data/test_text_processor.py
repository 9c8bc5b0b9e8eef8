"""Tests of experiments/data/text_processor.py."""

import functools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.data import text_processor
from experiments.data.text_processor import TOKENIZATIONS, TextProcessor
from experiments.data.tokenizers import SUBWORD_MODELS, SubwordTokenizer
from experiments.data.vocabularies import UNK_ID, compose

TRAINING = ("The cat sees the dog.", "A dog saw the cat!", "L'albero è alto.", "Perche\u0301 no?")
ODD = (
  "e\u0301",
  "\u0301",
  "👩\u200d🚀",
  "שלום",
  "▁",
  "\xa0",
  "\t",
  "\u2028",
  "\x00",
  "\x1c",
  "\ufeff",
  "<unk>",
)
ODD += ("J\u030c", "\u0130", "Σ", "The cat ", "the dog ", "</s>", "l'", "\ud7ff", "\uffff")
TEXTS = st.lists(st.sampled_from(ODD) | st.text(st.characters(codec="utf-8"), max_size=5), max_size=7).map(
  "".join
)
OPTIONS = {"lowercase": True, "min_count": 1, "vocabulary_size": 285, "subword_model": "bpe"}

tokenizations = pytest.mark.parametrize("tokenization", TOKENIZATIONS)


@functools.cache
def learn(tokenization, texts=TRAINING, **changed):
  return TextProcessor.learn(texts, tokenization=tokenization, **{**OPTIONS, **changed})


@tokenizations
@given(st.lists(TEXTS, max_size=5))
@settings(max_examples=50)
def test_ids_match_tokens(tokenization, texts):
  language = learn(tokenization)
  sentences = language.encode_all(iter(texts))
  expected = [language.vocabulary.encode(language.tokenize(text)) for text in texts]
  assert [sentence.tolist() for sentence in sentences] == expected


@pytest.mark.parametrize("subword_model", SUBWORD_MODELS)
@given(TEXTS)
@settings(max_examples=50)
def test_subwords_round_trip_any_text(subword_model, text):
  language = learn("subword", subword_model=subword_model, vocabulary_size=283)
  ids = language.encode_all([text])[0]
  assert UNK_ID not in ids
  tokens = language.vocabulary.decode(ids)
  assert tokens == language.tokenize(text)
  assert language.detokenize(tokens) == compose(re.sub(r"\s+", " ", text.lower()).strip())


@pytest.mark.parametrize("tokenization", ["word", "subword"])
def test_accents_are_normalized(tokenization):
  composed = ("the cat sees the dog.", "a dog saw the cat!", "l'albero è alto.", "perché no?")
  assert learn(tokenization, composed, lowercase=False).vocabulary == learn(tokenization).vocabulary
  both = learn(tokenization).encode_all(["perche\u0301 no", "perché no"])
  assert both[0].tolist() == both[1].tolist()


@tokenizations
def test_lowercase_is_optional(tokenization):
  lower, both = learn(tokenization), learn(tokenization, lowercase=False)
  assert lower.normalize("PERCHE\u0301") == "perche\u0301"
  assert both.normalize("PERCHE\u0301") == "PERCHE\u0301"
  assert lower.detokenize(lower.tokenize("The Cat")) == "the cat"
  assert both.detokenize(both.tokenize("The Cat")) == "The Cat"
  assert not any("T" in word for word in lower.vocabulary.words if word[0] != "<")
  assert any("T" in word for word in both.vocabulary.words if word[0] != "<")


@pytest.mark.parametrize("subword_model", SUBWORD_MODELS)
def test_subwords_have_the_given_size(subword_model):
  language = learn("subword", vocabulary_size=283, subword_model=subword_model)
  assert len(language.vocabulary) == 283
  lines = [language.normalize(text) for text in TRAINING]
  assert language.tokenizer == SubwordTokenizer.learn(lines, vocabulary_size=283, subword_model=subword_model)


def test_training_lines_are_evenly_spaced(monkeypatch):
  monkeypatch.setattr(text_processor, "_MAX_TRAINING_LINES", 2)
  texts = ("aab aab", "x", "y", "acd acd", "z", "z", "z")
  language = learn("subword", texts, vocabulary_size=260 + 5 + 1)
  assert language == learn("subword", (texts[0], texts[3]), vocabulary_size=260 + 5 + 1)


@tokenizations
def test_files_round_trip(tokenization, tmp_path):
  learn(tokenization).save(tmp_path, "source")
  learn(tokenization, TRAINING[:3], vocabulary_size=280).save(tmp_path, "target")
  loaded = TextProcessor.load(tmp_path, "source", tokenization=tokenization, lowercase=True)
  assert loaded == learn(tokenization)
  assert loaded.encode_all(TRAINING).ids.tolist() == learn(tokenization).encode_all(TRAINING).ids.tolist()
  other = TextProcessor.load(tmp_path, "target", tokenization=tokenization, lowercase=False)
  assert other.vocabulary == learn(tokenization, TRAINING[:3], vocabulary_size=280).vocabulary
  assert not other.lowercase


def test_languages_are_saved_as_files(tmp_path):
  learn("word").save(tmp_path, "source")
  assert [path.name for path in tmp_path.iterdir()] == ["vocabulary.source.txt"]
  learn("subword").save(tmp_path, "target")
  names = ["subwords.target.model", "vocabulary.source.txt", "vocabulary.target.txt"]
  assert sorted(path.name for path in tmp_path.iterdir()) == names
  words = (tmp_path / "vocabulary.target.txt").read_text("utf-8").split("\n")
  assert (words[0], words[255], len(words)) == ("<0x00>", "<0xFF>", 285 - 4 + 1)


def test_invalid_models_are_errors(tmp_path):
  learn("subword").save(tmp_path, "source")
  path = tmp_path / "subwords.source.model"
  path.write_bytes(path.read_bytes()[:-7])
  with pytest.raises(ValueError) as caught:
    TextProcessor.load(tmp_path, "source", tokenization="subword", lowercase=True)
  assert re.fullmatch(
    rf"{re.escape(str(path))}: model must be a sentencepiece model, got \d+ invalid bytes", str(caught.value)
  )


def test_models_must_match_their_vocabulary(tmp_path):
  learn("subword").save(tmp_path, "source")
  vocabulary = tmp_path / "vocabulary.source.txt"
  learn("subword", vocabulary_size=284).vocabulary.save(vocabulary)
  with pytest.raises(ValueError) as caught:
    TextProcessor.load(tmp_path, "source", tokenization="subword", lowercase=True)
  model = tmp_path / "subwords.source.model"
  assert str(caught.value) == f"{model}: the subword model does not match {vocabulary}"


@pytest.mark.parametrize(
  ("tokenization", "changed", "message"),
  [
    ("word", {"min_count": 9}, r"min_count must be at most 3, the count of the most frequent word, got 9"),
    (
      "subword",
      {"vocabulary_size": 9000},
      r"vocabulary_size must be at most \d+ for this text, got 9000",
    ),
    ("subword", {"vocabulary_size": 260}, r"vocabulary_size must be at least \d+ for this text, got 260"),
    ("subword", {"texts": ()}, r"texts must have at least one that is not blank, got none"),
  ],
)
def test_invalid_options_are_errors(tokenization, changed, message):
  with pytest.raises(ValueError, match=message) as caught:
    learn(tokenization, **changed)
  assert "\n" not in str(caught.value)
