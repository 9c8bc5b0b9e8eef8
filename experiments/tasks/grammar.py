"""A toy language: English sentences, their Italian translations, and what translates what.

A sentence is a tree (clauses, noun phrases, prepositional phrases). The tree is written in both languages
at once, so the true alignment is known. The words are in lexicon.py; drawing.py draws the trees.

Every English sentence has one translation:

* Articles, "quello" and "bello" follow gender, number and the first sound of the next word
  ("lo zio", "il vecchio zio", "quel bell'uomo"). The definite article contracts with in, su, di
  and a ("nel", "sullo", "dell'"). "e" and "a" become "ed" and "ad" before their own vowel.
* Pronouns that are subjects are dropped. "does not see" is "non vede".
* A possessive takes an article ("il mio gatto"), except before one relative without an adjective
  ("mio zio"; but "il mio vecchio zio", "i miei zii" and always "il loro zio").
* Subjects joined by "and" take a plural verb, and a masculine adjective unless all are feminine.

The alignment is a set of (target position, source position):

* A word is aligned with the word it translates: an article with "the" or "a", "non" with "not".
* A contraction is aligned with the preposition and with the article: "nel" with "in" and "the".
* One verb may translate two words: "cerca" is aligned with "looks" and with "for".
* Two words may translate one: "vicino" and "a" are both aligned with "near".
* Dropped pronouns, "do" and "does" are aligned with nothing, and so is the article of a possessive,
  "il" in "il mio gatto"; contracted, it adds nothing: in "del mio gatto", "del" is "of".
"""

import functools
from collections.abc import Iterable
from typing import NamedTuple

from experiments.tasks.lexicon import ARTICLE, BE, CONTRACTIONS, PRONOUNS, THIRD_PLURAL, THIRD_SINGULAR
from experiments.tasks.word_classes import Adjective, Determiner, Form, Noun, Preposition, Verb


class Pair(NamedTuple):
  """A sentence, its translation, and the set of aligned (target position, source position)."""

  source: tuple[str, ...]
  target: tuple[str, ...]
  alignment: frozenset[tuple[int, int]]


# The tree of a sentence.


class NounPhrase(NamedTuple):
  """The old red cat near the house."""

  determiner: Determiner
  noun: Noun
  plural: bool = False
  leading: Adjective | None = None
  trailing: Adjective | None = None
  attached: "PrepositionalPhrase | None" = None

  @property
  def feminine(self) -> bool:
    return self.noun.feminine[self.plural]


class PrepositionalPhrase(NamedTuple):
  """Near the house."""

  preposition: Preposition
  phrase: NounPhrase


class Clause(NamedTuple):
  """The cat and the dog do not see the house; she sleeps near the house; the cat is red.

  The subject is a pronoun, or the noun phrases that "and" joins. After the verb comes one of
  objects, place and predicate, or nothing.
  """

  subject: str | tuple[NounPhrase, ...]
  verb: Verb
  negated: bool = False
  objects: tuple[NounPhrase, ...] = ()
  place: PrepositionalPhrase | None = None
  predicate: Adjective | None = None


# From the tree to both languages.


class _Draft:
  """A pair being written: English words, and Italian forms with the positions they translate."""

  def __init__(self):
    self.source: list[str] = []
    self.target: list[tuple[Form, tuple[int, ...]]] = []

  def english(self, word: str) -> int:
    """Appends an English word, turning "a" before a vowel into "an", and returns its position."""
    position = len(self.source)
    if word[0] in "aeiou" and position and self.source[-1] == "a":
      self.source[-1] = "an"
    self.source.append(word)
    return position

  def italian(self, form: Form, *positions: int):
    """Appends an Italian form that translates the words at these positions."""
    self.target.append((form, positions))

  def both(self, word: str, form: Form):
    """Appends a word and its translation."""
    self.italian(form, self.english(word))


def translate(clauses: Iterable[Clause]) -> Pair:
  """Returns the pair that says these clauses, joined by "and".

  Args:
    clauses: one or more.

  Returns:
    The pair.

  >>> from experiments.tasks.lexicon import DETERMINERS, PREPOSITIONS, VERBS
  >>> from experiments.tasks.nouns import NOUNS
  >>> words = {word.english: word for word in DETERMINERS + PREPOSITIONS}
  >>> uncle = next(noun for noun in NOUNS if noun.kin)
  >>> sleep = next(verb for verb in VERBS if "sleep" in verb.english)
  >>> near = PrepositionalPhrase(words["near"], NounPhrase(words["my"], uncle))
  >>> " ".join(translate([Clause("she", sleep, negated=True, place=near)]).target)
  'non dorme vicino a mio zio'
  """
  draft = _Draft()
  _joined(draft, clauses, _clause)
  return _finished(draft)


def _joined(draft, parts, write):
  """Writes the parts with "and" between them."""
  for i, part in enumerate(parts):
    if i:
      draft.both("and", "e")
    write(draft, part)


def _clause(draft, clause):
  """Writes a clause; the verb agrees with the subject, and an adjective after it too."""
  if isinstance(clause.subject, str):
    draft.english(clause.subject)
    person, agreement = PRONOUNS[clause.subject], int(clause.subject == "she")
  else:
    _joined(draft, clause.subject, _noun_phrase)
    plural = len(clause.subject) > 1 or clause.subject[0].plural
    person = THIRD_PLURAL if plural else THIRD_SINGULAR
    agreement = 2 * plural + all(phrase.feminine for phrase in clause.subject)
  _verb(draft, clause.verb, person, clause.negated)
  _joined(draft, clause.objects, _noun_phrase)
  if clause.place:
    _prepositional_phrase(draft, clause.place)
  if clause.predicate:
    draft.both(clause.predicate.english, clause.predicate.italian[agreement])


def _verb(draft, verb, person, negated):
  """Writes a verb: "sees", "vede"; "does not look for", "non cerca"; "is not", "non è"."""
  third = person == THIRD_SINGULAR
  if negated and verb is not BE:
    draft.english("does" if third else "do")
    draft.both("not", "non")
    third = False
  positions = [draft.english(verb.english[third])]
  if negated and verb is BE:
    draft.both("not", "non")
  if verb.particle:
    positions.append(draft.english(verb.particle))
  draft.italian(verb.italian[person], *positions)


def _noun_phrase(draft, phrase):
  """Writes a noun phrase: "my old red cat", "il mio vecchio gatto rosso"."""
  determiner, noun, plural, leading, trailing, attached = phrase
  agreement = 2 * plural + phrase.feminine
  one_relative = noun.kin and not (plural or leading or trailing) and determiner.english != "their"
  if determiner.possessive and not one_relative:
    draft.italian(ARTICLE[agreement])
  draft.both(determiner.english, determiner.italian[agreement])
  if leading:
    draft.both(leading.english, leading.leading[agreement])
  position = draft.english(trailing.english) if trailing else None
  draft.both(noun.english[plural], noun.italian[plural])
  if trailing:
    draft.italian(trailing.italian[agreement], position)
  if attached:
    _prepositional_phrase(draft, attached)


def _prepositional_phrase(draft, prepositional):
  """Writes a preposition and its noun phrase."""
  position = draft.english(prepositional.preposition.english)
  for word in prepositional.preposition.italian:
    draft.italian(word, position)
  _noun_phrase(draft, prepositional.phrase)


def _finished(draft):
  """Returns the pair; what depends on the next word is chosen here, from the last to the first."""
  words: list[str] = []
  links: list[tuple[int, ...]] = []
  word = ""
  for form, positions in reversed(draft.target):
    following, word = word, _before(word, form)
    if (word, following) in CONTRACTIONS:
      words[-1] = word = CONTRACTIONS[word, following]
      links[-1] += positions
    else:
      words.append(word)
      links.append(positions)
  last = len(words) - 1
  alignment = frozenset([(last - i, s) for i, positions in enumerate(links) for s in positions])
  return Pair(tuple(draft.source), tuple(reversed(words)), alignment)


@functools.cache
def _before(following, form):
  """Returns what becomes of a form before the following word."""
  if not isinstance(form, str):
    return form[_sound(following)]
  same_vowel = (form == "e" and following[0] in "eè") or (form == "a" and following[0] == "a")
  return form + "d" if same_vowel else form


def _sound(word):
  """Returns what a word begins with: 0 a simple consonant, 1 an impure one, 2 a vowel."""
  if word[0] in "aeiouè":
    return 2
  impure = word[0] in "zxy" or word[:2] in ("gn", "ps", "pn")
  return int(impure or (word[0] == "s" and word[1] not in "aeiou"))


def join(words: Iterable[str]) -> str:
  """Returns the words as plain text; a token that ends in an apostrophe joins the next one.

  Args:
    words: English words or Italian tokens.

  Returns:
    One line of text.

  >>> join(["l'", "amico", "vede", "un'", "oca"])
  "l'amico vede un'oca"
  """
  return " ".join(words).replace("' ", "'")
