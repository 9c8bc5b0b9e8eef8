"""Sentences of the toy language, drawn at random, and the split that each belongs to."""

import functools
import hashlib
import random
import zlib
from typing import NamedTuple

from experiments.tasks.grammar import Clause, NounPhrase, Pair, PrepositionalPhrase, translate
from experiments.tasks.lexicon import ADJECTIVES, BE, DETERMINERS, PREPOSITIONS, PRONOUNS, VERBS
from experiments.tasks.nouns import NOUNS
from experiments.tasks.word_classes import KINDS, LIVING, PERSON

SPLITS = ("train", "validation", "test", "length", "composition")
TRAIN_MAX_SOURCE_LENGTH = 14
TRAIN_MAX_TARGET_LENGTH = 16
MAX_SOURCE_LENGTH = 22
MAX_TARGET_LENGTH = 24


# Drawing a tree.


class _Chances(NamedTuple):
  """The probability of each thing that a sentence can do without."""

  leading: float
  trailing: float
  attached: float
  joined: float
  compound: float


_USUAL = _Chances(leading=0.25, trailing=0.3, attached=0.25, joined=0.12, compound=0.15)
_LONG = _Chances(leading=0.3, trailing=0.4, attached=0.6, joined=0.4, compound=0.4)
_NEGATED, _PRONOUN, _PREDICATE, _INTRANSITIVE = 0.2, 0.3, 0.12, 0.15
_PLURAL = 0.4
_FREQUENCIES = {"the": 14, "a": 7}
_DRAWN_DETERMINERS = tuple(
  determiner for determiner in DETERMINERS for _ in range(_FREQUENCIES.get(determiner.english, 1))
)
_TRANSITIVE = tuple(verb for verb in VERBS if verb.objects)
_OTHER_VERBS = tuple(verb for verb in VERBS if not verb.objects)
_AFTER_VERBS = tuple(word for word in PREPOSITIONS if word.english != "of")
_PRONOUNS = tuple(PRONOUNS)
_LEADING = {kind: tuple(a for a in ADJECTIVES if kind in a.kinds and a.leading) for kind in KINDS}
_TRAILING = {kind: tuple(a for a in ADJECTIVES if kind in a.kinds and not a.leading) for kind in KINDS}


def _draw_sentence(rng, chances):
  """Draws one clause, or two without joined noun phrases (what joins what would be ambiguous)."""
  if rng.random() >= chances.compound:
    return (_draw_clause(rng, chances),)
  chances = chances._replace(joined=0)
  return _draw_clause(rng, chances), _draw_clause(rng, chances)


def _draw_clause(rng, chances):
  negated = rng.random() < _NEGATED
  kind = rng.random()
  if kind < _PREDICATE:
    return _draw_description(rng, chances, negated)
  subject = _draw_subject(rng, chances)
  if kind < _PREDICATE + _INTRANSITIVE:
    place = _draw_prepositional_phrase(rng, _AFTER_VERBS, chances)
    return Clause(subject, _choose(rng, _OTHER_VERBS), negated, place=place)
  verb = _choose(rng, _TRANSITIVE)
  return Clause(subject, verb, negated, _draw_joined(rng, verb.objects, chances))


def _draw_subject(rng, chances):
  if rng.random() < _PRONOUN:
    return _choose(rng, _PRONOUNS)
  return _draw_joined(rng, LIVING, chances)


def _draw_description(rng, chances, negated):
  """Draws "he is tired", "the cats near the house are not red"; the adjective fits its nouns."""
  if rng.random() < _PRONOUN:
    subject, kind = _choose(rng, ("he", "she")), PERSON
  else:
    kind = _choose(rng, KINDS)
    subject = _draw_joined(rng, (kind,), chances._replace(leading=0, trailing=0))
  predicate = _choose(rng, _TRAILING[kind] + _LEADING[kind])
  return Clause(subject, BE, negated, predicate=predicate)


def _draw_joined(rng, kinds, chances):
  """Draws one noun phrase, or two to be joined by "and"."""
  count = 2 if rng.random() < chances.joined else 1
  return tuple(_draw_noun_phrase(rng, kinds, chances) for _ in range(count))


def _draw_noun_phrase(rng, kinds, chances):
  determiner = _choose(rng, _DRAWN_DETERMINERS)
  noun = _choose(rng, _nouns(kinds))
  plural = determiner.plural
  if plural is None:
    plural = rng.random() < _PLURAL
  leading = _choose(rng, _LEADING[noun.kind]) if rng.random() < chances.leading else None
  trailing = _choose(rng, _TRAILING[noun.kind]) if rng.random() < chances.trailing else None
  attached = None
  if not determiner.possessive and rng.random() < chances.attached:
    attached = _draw_prepositional_phrase(rng, PREPOSITIONS, chances)
  return NounPhrase(determiner, noun, plural, leading, trailing, attached)


def _draw_prepositional_phrase(rng, prepositions, chances):
  preposition = _choose(rng, prepositions)
  rarer = chances._replace(attached=chances.attached / 2)
  return PrepositionalPhrase(preposition, _draw_noun_phrase(rng, preposition.kinds, rarer))


def _choose(rng, options):
  """Returns one of the options; only `random` itself promises the same numbers in every Python."""
  return options[int(rng.random() * len(options))]


@functools.cache
def _nouns(kinds):
  return tuple(noun for noun in NOUNS if noun.kind in kinds)


# From a tree to the split it belongs to.


def pair(*, seed: int, split: str, index: int) -> Pair:
  """Returns one pair of a split; the same three arguments always give the same pair.

  No source sentence is in two splits, whatever the seeds:

  * train, validation, test: at most TRAIN_MAX_SOURCE_LENGTH words and TRAIN_MAX_TARGET_LENGTH in
    the translation; a hash of the source decides;
  * length: more words than that, at most MAX_SOURCE_LENGTH;
  * composition: as long as train, with an adjective and the noun it describes that are never
    together in another split.

  Args:
    seed: which of the endless data sets.
    split: one of SPLITS.
    index: which pair of the split.

  Returns:
    The pair; sentences of at most MAX_SOURCE_LENGTH and MAX_TARGET_LENGTH words.

  Raises:
    ValueError: if there is no such split.

  >>> len(pair(seed=0, split="length", index=0).source) > TRAIN_MAX_SOURCE_LENGTH
  True
  """
  if split not in SPLITS:
    raise ValueError(f"split must be one of {', '.join(SPLITS)}, got split={split!r}")
  digest = hashlib.sha256(f"{seed} {split} {index}".encode()).digest()
  rng = random.Random(int.from_bytes(digest[:8], "big"))
  chances = _LONG if split == "length" else _USUAL
  while True:
    sentence = _draw_sentence(rng, chances)
    drawn = translate(sentence)
    if _split_of(sentence, drawn) == split:
      return drawn


def _split_of(sentence, drawn):
  """Returns the split that a sentence belongs to, or None."""
  length = len(drawn.source)
  unseen = any(map(_held_out, _described(sentence)))
  if length > TRAIN_MAX_SOURCE_LENGTH:
    fits = length <= MAX_SOURCE_LENGTH and len(drawn.target) <= MAX_TARGET_LENGTH
    return "length" if fits and not unseen else None
  if len(drawn.target) > TRAIN_MAX_TARGET_LENGTH:
    return None
  if unseen:
    return "composition"
  bucket = zlib.crc32(" ".join(drawn.source).encode()) % 16
  return ("validation", "test")[bucket] if bucket < 2 else "train"


@functools.cache
def _held_out(described):
  """Whether training never has this adjective describe this noun."""
  adjective, noun = described
  return zlib.crc32(f"{adjective} {noun}".encode()) % 100 < 7


def _described(sentence):
  """Returns the (adjective, noun) pairs of a sentence, before the noun and after the verb alike."""
  pairs = []
  for clause in sentence:
    subject = () if isinstance(clause.subject, str) else clause.subject
    if clause.predicate:
      pairs += [(clause.predicate.english, phrase.noun.english[0]) for phrase in subject]
    phrases = [*subject, *clause.objects]
    if clause.place:
      phrases.append(clause.place.phrase)
    for phrase in phrases:
      while phrase:
        adjectives = filter(None, (phrase.leading, phrase.trailing))
        pairs += [(adjective.english, phrase.noun.english[0]) for adjective in adjectives]
        phrase = phrase.attached and phrase.attached.phrase
  return pairs
