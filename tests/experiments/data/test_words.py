"""Reversible tokenization into words."""

import itertools
import pathlib
import unicodedata

import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st

from experiments.data import words
from experiments.data.vocabularies import Vocabulary
from experiments.data.words import detokenize, strip_joiners, tokenize

LINES = pathlib.Path(__file__).with_name("sentences.txt").read_text("utf-8").splitlines()
SENTENCES = [line.split("\t", 1)[1] for line in LINES]  # of many languages
ALL_CHARACTERS = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
# Characters of each class, and of no class.
CHARACTERS = [
  *(regex.findall(f"[{inside}]", ALL_CHARACTERS) for inside in words.CLASSES.values()),
  ["'", "\u2019", '"', ":", ".", ",", "_", "-", "<", ">"],
  ["一", "あ", "ก", "\u1100", "한"],
  [" ", "\t", "\x1c", "\u3000"],
  ["￭", "￬", "▁", "0", "1"],
  ["<unk>"],
  ["\u200b", "\u2060", "\x00"],
]
MIXED = st.lists(st.sampled_from(CHARACTERS).flatmap(st.sampled_from), max_size=9).map("".join)
TEXTS = MIXED | st.text(st.characters(codec="utf-8"))


EXAMPLES = [
  ("The red cat, sees it.", "The red cat ￭, sees it ￭."),
  ("dell'acqua c\u2019è un'oca d'y", "dell'￭ acqua c\u2019￭ è un'￭ oca d'￭ y"),
  ("don't l' albero boys' l'hotel", "don't l ￭' albero boys ￭' l'hotel"),
  ("'yes' (no) T-shirt", "'￭ yes ￭' (￭ no ￭) T ￭-￭ shirt"),
  ("3.5 1,000 10:30 7.", "3.5 1,000 10 ￭:￭ 30 7 ￭."),
  ("$5 C++ #1 a_b", "$￭ 5 C ￭+ ￭+ #￭ 1 a_b"),
  ("हिन्दी है।", "हिन्दी है ￭।"),
  ("क\u200dष", "क\u200dष"),
  ("在中 文。", "在 ￭中 文 ￭。"),
  ("コーヒーを飲む", "コーヒー ￭を ￭飲 ￭む"),
  ("👩\u200d🚀👍🏽 🇮🇹🇩🇪", "👩\u200d🚀 ￭👍🏽 🇮🇹 ￭🇩🇪"),
  ("צה\"ל ג' ג'a", "צה\"ל ג' ג'￭ a"),
  ("a <unk>, x<unk>y", "a <unk> ￭, x￭ <unk>￭ y"),
  ("￭ ￬ ▁", "￬1 ￬0 ￬2"),
  ("\u2028perche\u0301\xa0no ", "perche\u0301 no"),
]


@pytest.mark.parametrize(("text", "tokens"), EXAMPLES)
def test_tokens_match_examples(text, tokens):
  assert tokenize(text) == tuple(tokens.split(" "))


def test_many_languages_round_trip():
  assert tokenize("") == ()
  for text in SENTENCES:
    assert detokenize(tokenize(text)) == " ".join(text.split())


@given(TEXTS)
@settings(max_examples=300)
@example("￬\u0338 ￭\u0301")
def test_only_whitespace_is_lost(text):
  tokens = tokenize(text)
  assert detokenize(tokens) == " ".join(text.split())
  assert all(token.split() == [token] for token in tokens)
  assert "".join("".join(map(strip_joiners, tokens)).split()) == "".join(text.split())


@given(MIXED)
@settings(max_examples=200)
def test_boundaries_match_regex(text):
  for chunk in text.split():
    if "<unk>" in chunk or regex.search(f"['\u2019](?=[{words.CLASSES['vowel']}])", chunk):
      continue
    cuts = sorted({0, len(chunk), *(match.start() for match in regex.finditer(r"(?w)\b", chunk))})
    pieces = [chunk[first:end] for first, end in itertools.pairwise(cuts)]
    assert [*map(strip_joiners, tokenize(chunk))] == pieces


@given(TEXTS)
@settings(max_examples=200)
def test_equivalent_encodings_have_equal_ids(text):
  vocabulary = Vocabulary.build([[*tokenize(text), "x"]])
  for form in ("NFC", "NFD"):
    assert vocabulary.encode(tokenize(unicodedata.normalize(form, text))) == vocabulary.encode(tokenize(text))


def test_case_does_not_change_boundaries():
  for text in [*SENTENCES, *(f"b{char}'{char}c" for char in ALL_CHARACTERS if char.lower() != char)]:
    assert len(tokenize(text.lower())) == len(tokenize(text)), text


def test_long_words_are_fast():
  # A slow regular expression would take hours.
  for text in ("a" * 30_000, "a'" * 10_000, "a_" * 10_000, "é\u0301" * 10_000, "." * 10_000):
    assert detokenize(tokenize(text)) == text
