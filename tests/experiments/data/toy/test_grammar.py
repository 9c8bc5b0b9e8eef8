"""Translations and alignments, written by hand in translations.tsv.

Its columns are English, Italian, and in the last lines links "target-source". It has noun phrases after
"he sees", prepositional phrases after "the dog", agreement of adjectives and verbs, and "e" and "ed".
"""

import pathlib

import pytest
from helpers.toy_parser import DETERMINERS, translate

from experiments.data.toy import grammar, lexicon, nouns

LINES = pathlib.Path(__file__).with_name("translations.tsv").read_text("utf-8").splitlines()


@pytest.mark.parametrize("line", LINES)
def test_translations_match_the_file(line):
  english, italian, *links = line.split("\t")
  pair = translate(english)
  assert (grammar.join(pair.source), grammar.join(pair.target)) == (english, italian)
  if links:
    assert pair.alignment == {tuple(map(int, link.split("-"))) for link in links[0].split()}


def test_translations_cover_the_lexicon():
  english, italian = map(" ".join, zip(*(line.split("\t")[:2] for line in LINES), strict=True))
  assert set(lexicon.CONTRACTIONS.values()) <= set(italian.replace("'", "' ").split())
  assert set(DETERMINERS) <= set(english.split())


def test_english_forms_are_unambiguous():
  words = (*nouns.NOUNS, *lexicon.VERBS, lexicon.BE)
  forms = [form for word in words for form in word.english]
  forms += [word.english for word in (*lexicon.ADJECTIVES, *lexicon.DETERMINERS, *lexicon.PREPOSITIONS)]
  assert len(forms) == len(set(forms))
