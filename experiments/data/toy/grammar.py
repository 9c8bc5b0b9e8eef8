"""A toy language: English sentences, their Italian translations and word alignments.

A sentence is a tree of clauses, noun phrases and prepositional phrases. Both languages are generated from the
tree, so the true alignment is known. The words are in lexicon.py and nouns.py. sentence_sampler.py samples
trees.

Each English sentence has exactly one translation:

* Articles, "quello" and "bello" depend on gender, number and the first sound of the next word
  ("lo zio", "il vecchio zio", "quel bell'uomo"). The definite article contracts with in, su, di
  and a ("nel", "sullo", "dell'"). "e" and "a" become "ed" and "ad" before the same vowel.
* Subject pronouns are dropped. "does not see" is "non vede".
* A possessive takes an article ("il mio gatto"), except before one relative without an adjective
  ("mio zio"; but "il mio vecchio zio", "i miei zii" and always "il loro zio").
* Subjects joined by "and" take a plural verb, and a masculine adjective unless all are feminine.

The alignment is a set of (target position, source position):

* A word is aligned with the word that it translates: an article with "the" or "a", "non" with "not".
* A contraction is aligned with the preposition and with the article: "nel" with "in" and "the".
* One verb may translate two words: "cerca" is aligned with "looks" and with "for".
* Two words may translate one: "vicino" and "a" are both aligned with "near".
* Dropped pronouns, "do" and "does" are not aligned. The article of a possessive, such as "il" in "il mio
  gatto", is not aligned either. In the contraction "del mio gatto", "del" is aligned with "of" only.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from experiments.data.toy import lexicon
from experiments.data.toy.lexicon import Adjective, Determiner, Form, Noun, Preposition, Verb
from experiments.data.toy.nouns import NOUNS


class Pair(NamedTuple):
  """A sentence, its translation, and the set of aligned (target position, source position)."""

  source: tuple[str, ...]
  target: tuple[str, ...]
  alignment: frozenset[tuple[int, int]]


# Trees.


class NounPhrase(NamedTuple):
  """A noun phrase, such as "the old red cat near the house"."""

  determiner: Determiner
  noun: Noun
  plural: bool = False
  leading: Adjective | None = None
  trailing: Adjective | None = None
  attached: "PrepositionalPhrase | None" = None


class PrepositionalPhrase(NamedTuple):
  """A prepositional phrase, such as "near the house"."""

  preposition: Preposition
  phrase: NounPhrase


class Clause(NamedTuple):
  """A clause, such as "the cat and the dog do not see the house" or "she sleeps near the house".

  The subject is a pronoun, or noun phrases joined by "and". At most one of objects, place and predicate
  follows the verb.
  """

  subject: str | tuple[NounPhrase, ...]
  verb: Verb
  negated: bool = False
  objects: tuple[NounPhrase, ...] = ()
  place: PrepositionalPhrase | None = None
  predicate: Adjective | None = None


# Generation.


def translate(clauses: Iterable[Clause]) -> Pair:
  """Returns the sentence pair of some clauses, joined by "and".

  Args:
    clauses: at least one clause.

  >>> words = {word.english: word for word in lexicon.DETERMINERS + lexicon.PREPOSITIONS}
  >>> uncle = next(noun for noun in NOUNS if noun.kin)
  >>> sleep = next(verb for verb in lexicon.VERBS if "sleep" in verb.english)
  >>> near = PrepositionalPhrase(words["near"], NounPhrase(words["my"], uncle))
  >>> " ".join(translate([Clause("she", sleep, negated=True, place=near)]).target)
  'non dorme vicino a mio zio'
  """
  writer = _Writer()
  for i, clause in enumerate(clauses):
    if i:
      writer.word("and", "e")
    writer.clause(clause)
  target, alignment = _inflect(writer.target)
  return Pair(tuple(writer.source), target, alignment)


class _Writer:
  """Generates English words, and Italian forms with the positions of the words that they translate."""

  def __init__(self):
    self.source: list[str] = []
    self.target: list[tuple[Form, tuple[int, ...]]] = []

  def word(self, english: str, italian: Form | None = None) -> int:
    """Appends an English word, and its translation if given. Returns the position of the word."""
    position = len(self.source)
    if english[0] in "aeiou" and self.source[-1:] == ["a"]:
      self.source[-1] = "an"
    self.source.append(english)
    if italian is not None:
      self.target.append((italian, (position,)))
    return position

  def clause(self, clause: Clause) -> None:
    """Generates a clause. The verb and the predicate agree with the subject."""
    if isinstance(clause.subject, str):
      self.word(clause.subject)
      person, agreement = lexicon.PRONOUNS[clause.subject], int(clause.subject == "she")
    else:
      self.noun_phrases(clause.subject)
      plural = len(clause.subject) > 1 or clause.subject[0].plural
      person = lexicon.THIRD_PLURAL if plural else lexicon.THIRD_SINGULAR
      agreement = 2 * plural + all(phrase.noun.feminine[phrase.plural] for phrase in clause.subject)
    self.verb(clause.verb, person, clause.negated)
    self.noun_phrases(clause.objects)
    if clause.place:
      self.prepositional_phrase(clause.place)
    if clause.predicate:
      self.word(clause.predicate.english, clause.predicate.italian[agreement])

  def verb(self, verb: Verb, person: int, negated: bool) -> None:
    """Generates a verb: "sees", "vede"; "does not look for", "non cerca"; "is not", "non è"."""
    third = person == lexicon.THIRD_SINGULAR
    if negated and verb is not lexicon.BE:
      self.word("does" if third else "do")
      self.word("not", "non")
      third = False
    positions = [self.word(verb.english[third])]
    if negated and verb is lexicon.BE:
      self.word("not", "non")
    if verb.particle:
      positions.append(self.word(verb.particle))
    self.target.append((verb.italian[person], tuple(positions)))

  def noun_phrases(self, phrases: Iterable[NounPhrase]) -> None:
    """Generates noun phrases joined by "and", such as "my old red cat", "il mio vecchio gatto rosso"."""
    for i, phrase in enumerate(phrases):
      if i:
        self.word("and", "e")
      determiner, noun, plural, leading, trailing, attached = phrase
      agreement = 2 * plural + noun.feminine[plural]
      one_relative = noun.kin and not (plural or leading or trailing) and determiner.english != "their"
      if determiner.possessive and not one_relative:
        self.target.append((lexicon.ARTICLE[agreement], ()))
      self.word(determiner.english, determiner.italian[agreement])
      if leading and leading.leading:
        self.word(leading.english, leading.leading[agreement])
      position = self.word(trailing.english) if trailing else None
      self.word(noun.english[plural], noun.italian[plural])
      if trailing and position is not None:
        self.target.append((trailing.italian[agreement], (position,)))
      if attached:
        self.prepositional_phrase(attached)

  def prepositional_phrase(self, prepositional: PrepositionalPhrase) -> None:
    """Generates a preposition and its noun phrase."""
    position = self.word(prepositional.preposition.english)
    for word in prepositional.preposition.italian:
      self.target.append((word, (position,)))
    self.noun_phrases([prepositional.phrase])


def _inflect(
  forms: Sequence[tuple[Form, tuple[int, ...]]],
) -> tuple[tuple[str, ...], frozenset[tuple[int, int]]]:
  """Returns Italian words and their links. Forms depend on the next word, so they are chosen from the end."""
  words: list[str] = []
  links: list[tuple[int, ...]] = []
  word = ""
  for form, positions in reversed(forms):
    following, word = word, _form_before(word, form)
    if (word, following) in lexicon.CONTRACTIONS:
      words[-1] = word = lexicon.CONTRACTIONS[word, following]
      links[-1] += positions
    else:
      words.append(word)
      links.append(positions)
  last = len(words) - 1
  alignment = frozenset([(last - i, s) for i, positions in enumerate(links) for s in positions])
  return tuple(reversed(words)), alignment


@functools.cache
def _form_before(following: str, form: Form) -> str:
  """Returns the word of a form before the following word."""
  if isinstance(form, str):
    same_vowel = (form == "e" and following[0] in "eè") or (form == "a" and following[0] == "a")
    return form + "d" if same_vowel else form
  if following[0] in "aeiouè":
    return form[2]
  is_impure = following[0] in "zxy" or following[:2] in ("gn", "ps", "pn")
  return form[is_impure or (following[0] == "s" and following[1] not in "aeiou")]


def join(words: Iterable[str]) -> str:
  """Returns words as plain text, without a space after an apostrophe.

  >>> join(["l'", "amico", "vede", "un'", "oca"])
  "l'amico vede un'oca"
  """
  return " ".join(words).replace("' ", "'")


def source_words() -> tuple[str, ...]:
  """Returns all English words of the language, sorted.

  >>> "mice" in source_words()
  True
  """
  words = {"an", "and", "do", "does", "not", *lexicon.PRONOUNS, *lexicon.BE.english}
  words.update(adjective.english for adjective in lexicon.ADJECTIVES)
  words.update(word.english for word in (*lexicon.DETERMINERS, *lexicon.PREPOSITIONS))
  for verb in lexicon.VERBS:
    words.update(verb.english, [verb.particle] if verb.particle else [])
  for noun in NOUNS:
    words.update(noun.english)
  return tuple(sorted(words))


def target_words() -> tuple[str, ...]:
  """Returns all Italian words of the language, sorted.

  >>> "dell'" in target_words()
  True
  """
  words = {"a", "ad", "e", "ed", "non", "è", "sono", *lexicon.CONTRACTIONS.values()}
  forms: list[Form] = [form for word in lexicon.DETERMINERS for form in word.italian]
  for adjective in lexicon.ADJECTIVES:
    forms += [*adjective.italian, *(adjective.leading or ())]
  for word in (*lexicon.VERBS, *NOUNS, *lexicon.PREPOSITIONS):
    forms += word.italian
  for form in forms:
    words.update([form] if isinstance(form, str) else form)
  return tuple(sorted(words - {""}))
