"""Sentences of the toy language, drawn at random, and the split that each belongs to."""

import hashlib
import random
import zlib
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from experiments.tasks import lexicon
from experiments.tasks.grammar import Clause, NounPhrase, Pair, PrepositionalPhrase, translate
from experiments.tasks.lexicon import KINDS, LIVING, PERSON, Adjective, Noun, Preposition
from experiments.tasks.nouns import NOUNS

T = TypeVar("T")

SPLITS = ("train", "validation", "test", "length", "composition")
TRAIN_MAX_SOURCE_LENGTH = 14
TRAIN_MAX_TARGET_LENGTH = 16
MAX_SOURCE_LENGTH = 22
MAX_TARGET_LENGTH = 24


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
  determiner for determiner in lexicon.DETERMINERS for _ in range(_FREQUENCIES.get(determiner.english, 1))
)
_TRANSITIVE = tuple(verb for verb in lexicon.VERBS if verb.objects)
_OTHER_VERBS = tuple(verb for verb in lexicon.VERBS if not verb.objects)
_AFTER_VERBS = tuple(word for word in lexicon.PREPOSITIONS if word.english != "of")
_PRONOUNS = tuple(lexicon.PRONOUNS)
_LEADING = {kind: tuple(a for a in lexicon.ADJECTIVES if kind in a.kinds and a.leading) for kind in KINDS}
_TRAILING = {
  kind: tuple(a for a in lexicon.ADJECTIVES if kind in a.kinds and not a.leading) for kind in KINDS
}
# Training never has one of these adjectives describe its noun.
_HELD_OUT = {
  (adjective, noun)
  for adjective in lexicon.ADJECTIVES
  for noun in NOUNS
  if zlib.crc32(f"{adjective.english} {noun.english[0]}".encode()) % 100 < 7
}


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
    drawer = _Drawer(rng)
    drawn = translate(drawer.sentence(chances))
    if _split_of(drawn, has_held_out=not _HELD_OUT.isdisjoint(drawer.described)) == split:
      return drawn


def _split_of(drawn: Pair, *, has_held_out: bool) -> str | None:
  """Returns the split that a sentence belongs to, or None."""
  length = len(drawn.source)
  if length > TRAIN_MAX_SOURCE_LENGTH:
    fits = length <= MAX_SOURCE_LENGTH and len(drawn.target) <= MAX_TARGET_LENGTH
    return "length" if fits and not has_held_out else None
  if len(drawn.target) > TRAIN_MAX_TARGET_LENGTH:
    return None
  if has_held_out:
    return "composition"
  bucket = zlib.crc32(" ".join(drawn.source).encode()) % 16
  return ("validation", "test")[bucket] if bucket < 2 else "train"


class _Drawer:
  """Draws the tree of a sentence.

  Attributes:
    described: the nouns that were drawn with an adjective, before the noun or after the verb: pairs of both.
  """

  def __init__(self, rng: random.Random):
    self._rng = rng
    self.described: list[tuple[Adjective, Noun]] = []

  def choose(self, options: Sequence[T]) -> T:
    """Returns one of the options; only `random` itself promises the same numbers in every Python."""
    return options[int(self._rng.random() * len(options))]

  def sentence(self, chances: _Chances) -> list[Clause]:
    """Draws one clause, or two without joined noun phrases (what joins what would be ambiguous)."""
    if self._rng.random() >= chances.compound:
      return [self.clause(chances)]
    return [self.clause(chances._replace(joined=0)) for _ in range(2)]

  def clause(self, chances: _Chances) -> Clause:
    negated = self._rng.random() < _NEGATED
    kind = self._rng.random()
    if kind < _PREDICATE:
      return self.description(chances, negated)
    if self._rng.random() < _PRONOUN:
      subject: str | tuple[NounPhrase, ...] = self.choose(_PRONOUNS)
    else:
      subject = self.noun_phrases(LIVING, chances)
    if kind < _PREDICATE + _INTRANSITIVE:
      place = self.prepositional_phrase(_AFTER_VERBS, chances)
      return Clause(subject, self.choose(_OTHER_VERBS), negated, place=place)
    verb = self.choose(_TRANSITIVE)
    return Clause(subject, verb, negated, self.noun_phrases(verb.objects, chances))

  def description(self, chances: _Chances, negated: bool) -> Clause:
    """Draws "he is tired", "the cats near the house are not red"; the adjective fits its nouns."""
    if self._rng.random() < _PRONOUN:
      pronoun = self.choose(("he", "she"))
      return Clause(
        pronoun,
        lexicon.BE,
        negated,
        predicate=self.choose(_TRAILING[PERSON] + _LEADING[PERSON]),
      )
    kind = self.choose(KINDS)
    subject = self.noun_phrases((kind,), chances._replace(leading=0, trailing=0))
    predicate = self.choose(_TRAILING[kind] + _LEADING[kind])
    self.described += [(predicate, phrase.noun) for phrase in subject]
    return Clause(subject, lexicon.BE, negated, predicate=predicate)

  def noun_phrases(self, kinds: tuple[str, ...], chances: _Chances) -> tuple[NounPhrase, ...]:
    """Draws one noun phrase, or two to be joined by "and"."""
    count = 2 if self._rng.random() < chances.joined else 1
    return tuple(self.noun_phrase(kinds, chances) for _ in range(count))

  def noun_phrase(self, kinds: tuple[str, ...], chances: _Chances) -> NounPhrase:
    random = self._rng.random
    determiner = self.choose(_DRAWN_DETERMINERS)
    noun = self.choose([noun for noun in NOUNS if noun.kind in kinds])
    plural = random() < _PLURAL if determiner.plural is None else determiner.plural
    leading = self.choose(_LEADING[noun.kind]) if random() < chances.leading else None
    trailing = self.choose(_TRAILING[noun.kind]) if random() < chances.trailing else None
    self.described += [(adjective, noun) for adjective in (leading, trailing) if adjective]
    attached = None
    if not determiner.possessive and random() < chances.attached:
      attached = self.prepositional_phrase(lexicon.PREPOSITIONS, chances)
    return NounPhrase(determiner, noun, plural, leading, trailing, attached)

  def prepositional_phrase(
    self, prepositions: Sequence[Preposition], chances: _Chances
  ) -> PrepositionalPhrase:
    preposition = self.choose(prepositions)
    rarer = chances._replace(attached=chances.attached / 2)
    return PrepositionalPhrase(preposition, self.noun_phrase(preposition.kinds, rarer))
