"""Tests of the toy language: the sentences that are drawn, their splits and alignments."""

import hashlib
import os
import subprocess
import sys

import pytest
from helpers.toy_parser import read, translate

from experiments.tasks import grammar, lexicon, sentence_sampler
from experiments.tasks.sentence_sampler import SPLITS, pair

DRAWS = {"train": 10000, "validation": 1500, "test": 1500, "length": 2000, "composition": 1500}


@pytest.fixture(scope="module")
def drawn():
  """Some pairs of each split, from two seeds."""
  return {
    split: [pair(seed=seed, split=split, index=i) for seed in (0, 1) for i in range(count // 2)]
    for split, count in DRAWS.items()
  }


@pytest.fixture(scope="module")
def everything(drawn):
  return [each for pairs in drawn.values() for each in pairs]


def test_english_decides_the_translation(everything):
  for each in everything:
    assert translate(" ".join(each.source)) == each


def test_splits_share_no_source(drawn):
  sources = {split: {each.source for each in pairs} for split, pairs in drawn.items()}
  assert sum(map(len, sources.values())) == len(set().union(*sources.values()))


def test_lengths(drawn):
  longest = {split: max(len(each.source) for each in pairs) for split, pairs in drawn.items()}
  assert longest.pop("length") == sentence_sampler.MAX_SOURCE_LENGTH
  assert set(longest.values()) == {sentence_sampler.TRAIN_MAX_SOURCE_LENGTH}
  shortest = min(len(each.source) for each in drawn["length"])
  assert shortest == sentence_sampler.TRAIN_MAX_SOURCE_LENGTH + 1


def noun_phrases(clause):
  """Returns every noun phrase of a clause, the nested ones too."""
  subject = () if isinstance(clause.subject, str) else clause.subject
  phrases = [*subject, *clause.objects, *([clause.place.phrase] if clause.place else [])]
  for phrase in phrases:
    if phrase.attached:
      phrases.append(phrase.attached.phrase)
  return phrases


def described(words):
  """Returns the (adjective, noun) pairs of a sentence."""
  pairs = set()
  for clause in read(words):
    if clause.predicate and not isinstance(clause.subject, str):
      pairs |= {(clause.predicate, phrase.noun) for phrase in clause.subject}
    for phrase in noun_phrases(clause):
      pairs |= {(phrase.leading, phrase.noun), (phrase.trailing, phrase.noun)}
  return {(adjective.english, noun.english[0]) for adjective, noun in pairs if adjective}


def test_prepositions_follow_their_words(everything):
  for each in everything:
    for clause in read(each.source):
      assert not (clause.place and clause.place.preposition.english == "of")
      assert not any(p.determiner.possessive and p.attached for p in noun_phrases(clause))


def test_composition_has_unseen_pairs(drawn):
  pairs = {split: [described(each.source) for each in drawn[split]] for split in SPLITS}
  composition = pairs.pop("composition")
  elsewhere = set().union(*(found for split in pairs.values() for found in split))
  assert all(found - elsewhere for found in composition)
  unseen = set().union(*composition) - elsewhere
  assert 0.05 < len(unseen) / len(unseen | elsewhere) < 0.08


def test_vocabularies_are_the_words_that_occur(everything):
  for words, side in ((grammar.source_words(), "source"), (grammar.target_words(), "target")):
    assert list(words) == sorted(set(words))
    assert set(words) == {word for each in everything for word in getattr(each, side)}


def test_alignments_cross_merge_vanish_and_appear(drawn):
  crossed = merged = split = vanished = appeared = 0
  for each in drawn["train"]:
    links = sorted(each.alignment)
    targets, sources = zip(*links, strict=True)
    crossed += list(sources) != sorted(sources)
    merged += len(targets) > len(set(targets))
    split += len(sources) > len(set(sources))
    vanished += len(set(sources)) < len(each.source)
    appeared += len(set(targets)) < len(each.target)
  share = 0.05 * len(drawn["train"])
  assert min(crossed, merged, split, vanished, appeared) > share


def test_only_pronouns_and_do_vanish(everything):
  for each in everything:
    aligned = {s for _, s in each.alignment}
    vanished = {word for s, word in enumerate(each.source) if s not in aligned}
    assert vanished <= {*lexicon.PRONOUNS, "do", "does"}


def test_only_articles_of_possessives_appear(everything):
  possessives = {form for each in lexicon.DETERMINERS if each.possessive for form in each.italian}
  for each in everything:
    aligned = {t for t, _ in each.alignment}
    for t, word in enumerate(each.target):
      if t not in aligned:
        assert word in ("il", "la", "i", "le")
        assert each.target[t + 1] in possessives


# The interface.


def test_pairs_are_reproducible():
  code = (
    "from experiments.tasks.sentence_sampler import SPLITS, pair\n"
    "pairs = [pair(seed=5, split=split, index=i) for split in SPLITS for i in range(20)]\n"
    "print([(each.source, each.target, sorted(each.alignment)) for each in pairs])"
  )
  pairs = [pair(seed=5, split=split, index=i) for split in SPLITS for i in range(20)]
  expected = str([(each.source, each.target, sorted(each.alignment)) for each in pairs])
  for hash_seed in ("1", "2"):
    environment = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    printed = subprocess.check_output(command, env=os.environ | environment, text=True)
    assert printed.strip() == expected


def test_sentences_never_change():
  """The numbers of findings, and runs that are resumed, are of these sentences."""
  pairs = [pair(seed=seed, split=split, index=i) for split in SPLITS for seed in (0, 7) for i in range(100)]
  text = "\n".join(f"{each.source} {each.target} {sorted(each.alignment)}" for each in pairs)
  assert (
    hashlib.sha256(text.encode()).hexdigest()
    == "13f87e7dcb2e8c0bce7c7a91c5f18f5aeeb93baf1fda4bc372eb4d31f8ff1857"
  )


def test_unknown_splits_are_refused():
  with pytest.raises(ValueError, match=r"train, validation, test, .*, got split='dev'"):
    pair(seed=0, split="dev", index=0)
