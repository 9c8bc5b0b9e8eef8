"""The classes of words of the toy language."""

from typing import NamedTuple

Form = str | tuple[str, str, str]
Forms = tuple[Form, Form, Form, Form]

ANIMAL, FOOD, PERSON, PLACE, THING = KINDS = ("animal", "food", "person", "place", "thing")
LIVING = (PERSON, ANIMAL)
MASCULINE, FEMININE, SWITCHING = (False, False), (True, True), (False, True)


class Noun(NamedTuple):
  """A noun: (singular, plural) in each language, and whether each of the two is feminine."""

  english: tuple[str, str]
  italian: tuple[str, str]
  feminine: tuple[bool, bool]
  kind: str
  kin: bool = False  # "mio zio", not "il mio zio"


class Adjective(NamedTuple):
  """An adjective, the kinds of nouns it describes, and its forms before a noun if it leads it."""

  english: str
  italian: Forms
  kinds: tuple[str, ...]
  leading: Forms | None = None


class Verb(NamedTuple):
  """A verb: (see, sees), its forms for I, he or she, we, they, and the kinds of its objects."""

  english: tuple[str, str]
  italian: tuple[str, str, str, str]
  objects: tuple[str, ...] = ()
  particle: str = ""  # "for" in "look for"


class Determiner(NamedTuple):
  """A determiner, its Italian forms, and whether its noun is plural (None: either)."""

  english: str
  italian: Forms
  plural: bool | None
  possessive: bool = False


class Preposition(NamedTuple):
  """A preposition, its Italian words and the kinds of the nouns that follow it."""

  english: str
  italian: tuple[str, ...]
  kinds: tuple[str, ...]
