"""The page's tokenizer in JavaScript, which uses the pattern and the classes of words.py."""

import pathlib
import random

import pytest
import regex
from helpers import browser

from experiments.data import words
from experiments.data.tokenizers import CharacterTokenizer

pytestmark = [pytest.mark.slow, browser.needs_node]

LINES = pathlib.Path(__file__).with_name("sentences.txt").read_text("utf-8").splitlines()
SENTENCES = [line.split("\t", 1)[1] for line in LINES]  # of many languages
ALL_CHARACTERS = "".join(chr(code) if not 0xD800 <= code < 0xE000 else " " for code in range(0x110000))


def odd_texts():
  """Returns texts of all kinds of characters, mixed."""
  rng = random.Random(0)
  classes = [regex.findall(f"[{inside}]", ALL_CHARACTERS) for inside in words.CLASSES.values()]
  classes += [
    list("'\u2019\":.,_-<>"),
    list("一あก\u1100한"),
    list(" \t\x1c\u3000"),
    list("￭￬▁01"),
    ["<unk>"],
  ]
  mixed = ["".join(rng.choice(rng.choice(classes)) for _ in range(rng.randrange(10))) for _ in range(300)]
  return mixed + [f"{char} a{char}b 1{char}1'{char}\u05d0" for char in ALL_CHARACTERS[::4999]]


def in_page(texts, **options):
  """Returns the tokens and the text of these for each text, by the page."""
  program = """
return given.texts.map((text) => {
  const tokens = explorer.tokenize(given.language, text);
  return [tokens, explorer.detokenize(given.language, tokens)];
});
"""
  language = {"unit": "word", "joins": "text", "lowercase": False, "words": [], "pattern": words.PATTERN}
  language |= {"classes": words.class_ranges(), **options}
  return browser.in_node(program, {"language": language, "texts": texts})


def test_characters_have_the_same_classes():
  program = """
const isCharacter = (code) => code < 0xd800 || code >= 0xe000;
const character = (_, code) => (isCharacter(code) ? String.fromCodePoint(code) : " ");
const every = Array.from({ length: 0x110000 }, character).join("");
return Object.values(given).map((inside) =>
  [...every.matchAll(new RegExp(`[${inside}]+`, "gu"))].map(([run]) => [run.codePointAt(0), [...run].length]),
);
"""
  expected = [
    [[match.start(), len(match[0])] for match in regex.finditer(f"[{inside}]+", ALL_CHARACTERS)]
    for inside in words.CLASSES.values()
  ]
  assert browser.in_node(program, words.class_ranges()) == expected


def test_tokens_are_equal():
  texts = SENTENCES + odd_texts()
  for text, result in zip(texts, in_page(texts), strict=True):
    assert result == [[*words.tokenize(text)], " ".join(text.split())], ascii(text)
  for text, result in zip(texts, in_page(texts, unit="character", joins="characters"), strict=True):
    assert result == [[*CharacterTokenizer().tokenize(text)], " ".join(text.split())], ascii(text)
  for text, result in zip(SENTENCES, in_page(SENTENCES, lowercase=True), strict=True):
    assert result[0] == [*words.tokenize(text.lower())]
