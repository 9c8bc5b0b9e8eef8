"""Tests of experiments/data/words.py, and of the page's tokenizer in JavaScript."""

import itertools
import pathlib
import unicodedata

import pytest
import regex
from helpers import browser
from hypothesis import example, given, settings
from hypothesis import strategies as st

from experiments.data import words
from experiments.data.scan import scan_grammar
from experiments.data.tokenizers import CharacterTokenizer
from experiments.data.toy import grammar, sentence_sampler
from experiments.data.toy.toy_translation import ItalianWords
from experiments.data.vocabularies import Vocabulary
from experiments.data.words import detokenize, strip_joiners, tokenize

LINES = pathlib.Path(__file__).with_name("sentences.txt").read_text("utf-8").splitlines()
SENTENCES = [line.split("\t", 1)[1] for line in LINES]
ALL_CHARACTERS = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
# Characters of each class, and of no class.
CHARACTERS = [regex.findall(f"[{inside}]", ALL_CHARACTERS) for inside in words.CLASSES.values()]
CHARACTERS += [["'", "\u2019", '"', ":", ".", ",", "_", "-", "<", ">"], ["一", "あ", "ก", "\u1100", "한"]]
CHARACTERS += [
  [" ", "\t", "\x1c", "\u3000"],
  ["￭", "￬", "▁", "0", "1"],
  ["<unk>"],
  ["\u200b", "\u2060", "\x00"],
]
MIXED = st.lists(st.sampled_from(CHARACTERS).flatmap(st.sampled_from), max_size=9).map("".join)
TEXTS = MIXED | st.text(st.characters(codec="utf-8"))


def spaced(text):
  return " ".join(text.split())


@pytest.mark.parametrize(
  ("text", "tokens"),
  [
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
    ("", ""),
  ],
)
def test_tokens_match_examples(text, tokens):
  assert tokenize(text) == tuple(tokens.split(" ") if tokens else ())


@pytest.mark.parametrize("text", SENTENCES)
def test_many_languages_round_trip(text):
  assert detokenize(tokenize(text)) == spaced(text)


@given(TEXTS)
@settings(max_examples=500)
@example("￬\u0338 ￭\u0301")
def test_only_whitespace_is_lost(text):
  tokens = tokenize(text)
  assert detokenize(tokens) == spaced(text)
  assert all(token.split() == [token] for token in tokens)
  assert spaced("".join(map(strip_joiners, tokens))) == "".join(text.split())


@given(MIXED)
@settings(max_examples=500)
def test_boundaries_match_regex(text):
  for chunk in text.split():
    if "<unk>" in chunk or regex.search(f"['\u2019](?=[{words.CLASSES['vowel']}])", chunk):
      continue
    cuts = sorted({0, len(chunk), *(match.start() for match in regex.finditer(r"(?w)\b", chunk))})
    pieces = [chunk[first:end] for first, end in itertools.pairwise(cuts)]
    assert [*map(strip_joiners, tokenize(chunk))] == pieces


@given(TEXTS)
@settings(max_examples=300)
def test_equivalent_encodings_have_equal_ids(text):
  vocabulary = Vocabulary.build([[*tokenize(text), "x"]])
  for form in ("NFC", "NFD"):
    assert vocabulary.encode(tokenize(unicodedata.normalize(form, text))) == vocabulary.encode(tokenize(text))


def test_case_does_not_change_boundaries():
  for text in [*SENTENCES, *(f"b{char}'{char}c" for char in ALL_CHARACTERS if char.lower() != char)]:
    assert len(tokenize(text.lower())) == len(tokenize(text)), text


def test_task_languages_round_trip():
  for split in ("train", "test", "length"):
    for pair in (sentence_sampler.pair(seed=0, split=split, index=i) for i in range(300)):
      assert tokenize(grammar.join(pair.source)) == tuple(pair.source)
      assert ItalianWords().tokenize(grammar.join(pair.target)) == tuple(pair.target)
      assert len(tokenize(grammar.join(pair.target))) == len(pair.target)
  for command in list(scan_grammar.commands())[::97]:
    assert tokenize(" ".join(command.words)) == tuple(command.words)
    assert tokenize(" ".join(command.actions)) == tuple(command.actions)


def test_long_words_are_fast():
  for text in ("a" * 30_000, "a'" * 10_000, "a_" * 10_000, "é\u0301" * 10_000, "." * 10_000):
    assert detokenize(tokenize(text)) == text


WORDS = """
const { tokenize, detokenize } = explorer;
return given.texts.map((text) => {
  const tokens = tokenize(given.language, text);
  return [tokens, detokenize(given.language, tokens)];
});
"""
LANGUAGE = {"unit": "word", "joins": "text", "lowercase": False, "words": [], "pattern": words.PATTERN}


def in_page(texts, **changed):
  return browser.in_node(
    WORDS, {"language": {**LANGUAGE, "classes": words.class_ranges(), **changed}, "texts": texts}
  )


@browser.needs_node
def test_page_classifies_all_characters():
  program = """
const isCharacter = (code) => code < 0xd800 || code >= 0xe000;
const character = (_, code) => (isCharacter(code) ? String.fromCodePoint(code) : " ");
const every = Array.from({ length: 0x110000 }, character).join("");
return Object.values(given).map((inside) =>
  [...every.matchAll(new RegExp(`[${inside}]+`, "gu"))].map(([run]) => [run.codePointAt(0), [...run].length]),
);
"""
  all_characters = f"{ALL_CHARACTERS[:0xD800]}{' ' * 0x800}{ALL_CHARACTERS[0xD800:]}"
  expected = [
    [[match.start(), len(match[0])] for match in regex.finditer(f"[{inside}]+", all_characters)]
    for inside in words.CLASSES.values()
  ]
  assert browser.in_node(program, words.class_ranges()) == expected


@browser.needs_node
@pytest.mark.exhaustive
def test_page_tokenizes_all_characters_equally():
  texts = [*SENTENCES, *(f"{char} a{char}b 1{char}1'{char}\u05d0" for char in ALL_CHARACTERS[::997])]
  for text, result in zip(texts, in_page(texts), strict=True):
    tokens = tokenize(text)
    assert result == [[*tokens], detokenize(tokens)], ascii(text)


@browser.needs_node
@given(st.lists(TEXTS, min_size=100, max_size=300))
@settings(max_examples=10)
def test_page_tokenizes_text_equally(texts):
  for text, result in zip(texts, in_page(texts), strict=True):
    assert result == [[*tokenize(text)], spaced(text)], ascii(text)
  characters = {"unit": "character", "joins": "characters"}
  for text, result in zip(texts, in_page(texts, **characters), strict=True):
    assert result == [[*CharacterTokenizer().tokenize(text)], spaced(text)], ascii(text)


@browser.needs_node
def test_page_lowercases_text_equally():
  for text, result in zip(SENTENCES, in_page(SENTENCES, lowercase=True), strict=True):
    assert result[0] == [*tokenize(text.lower())]
