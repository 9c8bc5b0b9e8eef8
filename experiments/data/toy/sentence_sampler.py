"""Random sentences of the toy language, and their splits."""

import hashlib
import random
import zlib
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from experiments.data.toy import lexicon
from experiments.data.toy.grammar import Clause, NounPhrase, Pair, PrepositionalPhrase, translate
from experiments.data.toy.lexicon import KINDS, LIVING, PERSON, Adjective, Noun, Preposition
from experiments.data.toy.nouns import NOUNS

T = TypeVar("T")

SPLITS = ("train", "validation", "test", "length", "composition")
TRAIN_MAX_SOURCE_LENGTH = 14
TRAIN_MAX_TARGET_LENGTH = 16
MAX_SOURCE_LENGTH = 22
MAX_TARGET_LENGTH = 24


class _Probabilities(NamedTuple):
  """Probabilities of the optional parts of a sentence."""

  leading: float
  trailing: float
  attached: float
  joined: float
  compound: float


_USUAL = _Probabilities(leading=0.25, trailing=0.3, attached=0.25, joined=0.12, compound=0.15)
_LONG = _Probabilities(leading=0.3, trailing=0.4, attached=0.6, joined=0.4, compound=0.4)
_NEGATED, _PRONOUN, _PREDICATE, _INTRANSITIVE = 0.2, 0.3, 0.12, 0.15
_PLURAL = 0.4
_FREQUENCIES = {"the": 14, "a": 7}
_WEIGHTED_DETERMINERS = tuple(
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
# Adjective-noun pairs that occur in the split "composition" only.
_HELD_OUT = {
  (adjective, noun)
  for adjective in lexicon.ADJECTIVES
  for noun in NOUNS
  if zlib.crc32(f"{adjective.english} {noun.english[0]}".encode()) % 100 < 7
}


def pair(*, seed: int, split: str, index: int) -> Pair:
  """Returns a sentence pair of a split. It depends only on the arguments.

  No source sentence is in two splits, for any seeds:

  * train, validation, test: at most TRAIN_MAX_SOURCE_LENGTH source words and TRAIN_MAX_TARGET_LENGTH target
    words. A hash of the source selects the split.
  * length: more source words, at most MAX_SOURCE_LENGTH.
  * composition: as long as train, with an adjective-noun pair that is in no other split.

  Args:
    seed: random seed of the data set.
    split: one of SPLITS.
    index: index of the pair in the split.

  Returns:
    A pair of at most MAX_SOURCE_LENGTH and MAX_TARGET_LENGTH words.

  Raises:
    ValueError: if `split` is unknown.

  >>> len(pair(seed=0, split="length", index=0).source) > TRAIN_MAX_SOURCE_LENGTH
  True
  """
  if split not in SPLITS:
    raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
  digest = hashlib.sha256(f"{seed} {split} {index}".encode()).digest()
  rng = random.Random(int.from_bytes(digest[:8], "big"))
  probabilities = _LONG if split == "length" else _USUAL
  while True:
    sampler = _TreeSampler(rng)
    sample = translate(sampler.sentence(probabilities))
    if _split_of(sample, has_held_out=not _HELD_OUT.isdisjoint(sampler.adjective_noun_pairs)) == split:
      return sample


def _split_of(sample: Pair, *, has_held_out: bool) -> str | None:
  """Returns the split of a sentence pair, or None."""
  length = len(sample.source)
  if length > TRAIN_MAX_SOURCE_LENGTH:
    fits = length <= MAX_SOURCE_LENGTH and len(sample.target) <= MAX_TARGET_LENGTH
    return "length" if fits and not has_held_out else None
  if len(sample.target) > TRAIN_MAX_TARGET_LENGTH:
    return None
  if has_held_out:
    return "composition"
  bucket = zlib.crc32(" ".join(sample.source).encode()) % 16
  return ("validation", "test")[bucket] if bucket < 2 else "train"


class _TreeSampler:
  """Samples the tree of a sentence.

  Attributes:
    adjective_noun_pairs: the adjectives of the sentence with their nouns, including predicates.
  """

  def __init__(self, rng: random.Random):
    self._rng = rng
    self.adjective_noun_pairs: list[tuple[Adjective, Noun]] = []

  def choose(self, options: Sequence[T]) -> T:
    """Returns a random option. Only `Random.random` gives the same numbers in all versions of Python."""
    return options[int(self._rng.random() * len(options))]

  def sentence(self, probabilities: _Probabilities) -> list[Clause]:
    """Samples one clause, or two without joined noun phrases, which would make "and" ambiguous."""
    if self._rng.random() >= probabilities.compound:
      return [self.clause(probabilities)]
    return [self.clause(probabilities._replace(joined=0)) for _ in range(2)]

  def clause(self, probabilities: _Probabilities) -> Clause:
    negated = self._rng.random() < _NEGATED
    kind = self._rng.random()
    if kind < _PREDICATE:
      return self.description(probabilities, negated)
    if self._rng.random() < _PRONOUN:
      subject: str | tuple[NounPhrase, ...] = self.choose(_PRONOUNS)
    else:
      subject = self.noun_phrases(LIVING, probabilities)
    if kind < _PREDICATE + _INTRANSITIVE:
      place = self.prepositional_phrase(_AFTER_VERBS, probabilities)
      return Clause(subject, self.choose(_OTHER_VERBS), negated, place=place)
    verb = self.choose(_TRANSITIVE)
    return Clause(subject, verb, negated, self.noun_phrases(verb.objects, probabilities))

  def description(self, probabilities: _Probabilities, negated: bool) -> Clause:
    """Samples a predicate, such as "he is tired" or "the cats near the house are not red"."""
    if self._rng.random() < _PRONOUN:
      pronoun = self.choose(("he", "she"))
      return Clause(
        pronoun,
        lexicon.BE,
        negated,
        predicate=self.choose(_TRAILING[PERSON] + _LEADING[PERSON]),
      )
    kind = self.choose(KINDS)
    subject = self.noun_phrases((kind,), probabilities._replace(leading=0, trailing=0))
    predicate = self.choose(_TRAILING[kind] + _LEADING[kind])
    self.adjective_noun_pairs += [(predicate, phrase.noun) for phrase in subject]
    return Clause(subject, lexicon.BE, negated, predicate=predicate)

  def noun_phrases(self, kinds: tuple[str, ...], probabilities: _Probabilities) -> tuple[NounPhrase, ...]:
    """Samples one noun phrase, or two that are joined by "and"."""
    count = 2 if self._rng.random() < probabilities.joined else 1
    return tuple(self.noun_phrase(kinds, probabilities) for _ in range(count))

  def noun_phrase(self, kinds: tuple[str, ...], probabilities: _Probabilities) -> NounPhrase:
    random = self._rng.random
    determiner = self.choose(_WEIGHTED_DETERMINERS)
    noun = self.choose([noun for noun in NOUNS if noun.kind in kinds])
    plural = random() < _PLURAL if determiner.plural is None else determiner.plural
    leading = self.choose(_LEADING[noun.kind]) if random() < probabilities.leading else None
    trailing = self.choose(_TRAILING[noun.kind]) if random() < probabilities.trailing else None
    self.adjective_noun_pairs += [(adjective, noun) for adjective in (leading, trailing) if adjective]
    attached = None
    if not determiner.possessive and random() < probabilities.attached:
      attached = self.prepositional_phrase(lexicon.PREPOSITIONS, probabilities)
    return NounPhrase(determiner, noun, plural, leading, trailing, attached)

  def prepositional_phrase(
    self, prepositions: Sequence[Preposition], probabilities: _Probabilities
  ) -> PrepositionalPhrase:
    preposition = self.choose(prepositions)
    rarer = probabilities._replace(attached=probabilities.attached / 2)
    return PrepositionalPhrase(preposition, self.noun_phrase(preposition.kinds, rarer))
