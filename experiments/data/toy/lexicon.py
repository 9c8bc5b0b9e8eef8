"""English and Italian words of the toy language, except nouns.

Italian forms that agree with a noun are listed as masculine singular, feminine singular, masculine plural,
feminine plural. A form that depends on the first sound of the next word is a triple: before a simple
consonant, before an impure one (z, gn, ps, or s and a consonant), before a vowel.
"""

from typing import NamedTuple

Form = str | tuple[str, str, str]
Forms = tuple[Form, Form, Form, Form]

ANIMAL, FOOD, PERSON, PLACE, THING = KINDS = ("animal", "food", "person", "place", "thing")
LIVING = (PERSON, ANIMAL)
MASCULINE, FEMININE, SWITCHING = (False, False), (True, True), (False, True)


class Noun(NamedTuple):
  """A noun: (singular, plural) in each language, and whether each of these is feminine."""

  english: tuple[str, str]
  italian: tuple[str, str]
  feminine: tuple[bool, bool]
  kind: str
  kin: bool = False  # "mio zio", not "il mio zio"


class Adjective(NamedTuple):
  """An adjective, the kinds of nouns that it describes, and its forms before a noun if it can precede it."""

  english: str
  italian: Forms
  kinds: tuple[str, ...]
  leading: Forms | None = None


class Verb(NamedTuple):
  """A verb: (see, sees), its Italian forms for I, he or she, we, they, and the kinds of its objects."""

  english: tuple[str, str]
  italian: tuple[str, str, str, str]
  objects: tuple[str, ...] = ()
  particle: str = ""  # "for" in "look for"


class Determiner(NamedTuple):
  """A determiner, its Italian forms, and whether its noun is plural. None means either."""

  english: str
  italian: Forms
  plural: bool | None
  possessive: bool = False


class Preposition(NamedTuple):
  """A preposition, its Italian words, and the kinds of nouns that can follow it."""

  english: str
  italian: tuple[str, ...]
  kinds: tuple[str, ...]


_COLOURED = (ANIMAL, FOOD, PLACE, THING)
_LEADING = (
  ("small", ("piccolo", "piccola", "piccoli", "piccole"), KINDS),
  ("big", ("grande", "grande", "grandi", "grandi"), KINDS),
  ("enormous", ("enorme", "enorme", "enormi", "enormi"), KINDS),
  ("strange", ("strano", "strana", "strani", "strane"), KINDS),
  ("ugly", ("brutto", "brutta", "brutti", "brutte"), (ANIMAL, PLACE, THING)),
  ("old", ("vecchio", "vecchia", "vecchi", "vecchie"), (ANIMAL, PERSON, PLACE, THING)),
  ("new", ("nuovo", "nuova", "nuovi", "nuove"), (PLACE, THING)),
  ("young", ("giovane", "giovane", "giovani", "giovani"), LIVING),
)
_BEL: Forms = (("bel", "bello", "bell'"), ("bella", "bella", "bell'"), ("bei", "begli", "begli"), "belle")

ADJECTIVES = (
  *(Adjective(english, forms, kinds, leading=forms) for english, forms, kinds in _LEADING),
  Adjective("beautiful", ("bello", "bella", "belli", "belle"), KINDS, leading=_BEL),
  Adjective("red", ("rosso", "rossa", "rossi", "rosse"), _COLOURED),
  Adjective("white", ("bianco", "bianca", "bianchi", "bianche"), _COLOURED),
  Adjective("black", ("nero", "nera", "neri", "nere"), _COLOURED),
  Adjective("green", ("verde", "verde", "verdi", "verdi"), _COLOURED),
  Adjective("blue", ("blu", "blu", "blu", "blu"), _COLOURED),
  Adjective("pink", ("rosa", "rosa", "rosa", "rosa"), _COLOURED),
  Adjective("happy", ("felice", "felice", "felici", "felici"), LIVING),
  Adjective("sad", ("triste", "triste", "tristi", "tristi"), LIVING),
  Adjective("tired", ("stanco", "stanca", "stanchi", "stanche"), LIVING),
  Adjective("nice", ("simpatico", "simpatica", "simpatici", "simpatiche"), LIVING),
  Adjective("famous", ("famoso", "famosa", "famosi", "famose"), (PERSON, PLACE)),
  Adjective("elegant", ("elegante", "elegante", "eleganti", "eleganti"), (PERSON, PLACE)),
  Adjective("heavy", ("pesante", "pesante", "pesanti", "pesanti"), (FOOD, THING)),
  Adjective("dirty", ("sporco", "sporca", "sporchi", "sporche"), (ANIMAL, PLACE, THING)),
  Adjective("clean", ("pulito", "pulita", "puliti", "pulite"), (PLACE, THING)),
  Adjective("long", ("lungo", "lunga", "lunghi", "lunghe"), (THING,)),
)

VERBS = (
  Verb(("see", "sees"), ("vedo", "vede", "vediamo", "vedono"), KINDS),
  Verb(("love", "loves"), ("amo", "ama", "amiamo", "amano"), KINDS),
  Verb(("find", "finds"), ("trovo", "trova", "troviamo", "trovano"), KINDS),
  Verb(("watch", "watches"), ("guardo", "guarda", "guardiamo", "guardano"), KINDS),
  Verb(("prefer", "prefers"), ("preferisco", "preferisce", "preferiamo", "preferiscono"), KINDS),
  Verb(("look", "looks"), ("cerco", "cerca", "cerchiamo", "cercano"), KINDS, "for"),
  Verb(("follow", "follows"), ("seguo", "segue", "seguiamo", "seguono"), LIVING),
  Verb(("help", "helps"), ("aiuto", "aiuta", "aiutiamo", "aiutano"), LIVING),
  Verb(("listen", "listens"), ("ascolto", "ascolta", "ascoltiamo", "ascoltano"), LIVING, "to"),
  Verb(("greet", "greets"), ("saluto", "saluta", "salutiamo", "salutano"), (PERSON,)),
  Verb(("know", "knows"), ("conosco", "conosce", "conosciamo", "conoscono"), (PERSON, PLACE)),
  Verb(("eat", "eats"), ("mangio", "mangia", "mangiamo", "mangiano"), (FOOD,)),
  Verb(("wash", "washes"), ("lavo", "lava", "laviamo", "lavano"), (ANIMAL, FOOD, THING)),
  Verb(("have", "has"), ("ho", "ha", "abbiamo", "hanno"), (ANIMAL, FOOD, THING)),
  Verb(("buy", "buys"), ("compro", "compra", "compriamo", "comprano"), (FOOD, THING)),
  Verb(("sell", "sells"), ("vendo", "vende", "vendiamo", "vendono"), (FOOD, THING)),
  Verb(("want", "wants"), ("voglio", "vuole", "vogliamo", "vogliono"), (FOOD, THING)),
  Verb(("carry", "carries"), ("porto", "porta", "portiamo", "portano"), (FOOD, THING)),
  Verb(("choose", "chooses"), ("scelgo", "sceglie", "scegliamo", "scelgono"), (FOOD, THING)),
  Verb(("lose", "loses"), ("perdo", "perde", "perdiamo", "perdono"), (THING,)),
  Verb(("sleep", "sleeps"), ("dormo", "dorme", "dormiamo", "dormono")),
  Verb(("work", "works"), ("lavoro", "lavora", "lavoriamo", "lavorano")),
  Verb(("sing", "sings"), ("canto", "canta", "cantiamo", "cantano")),
  Verb(("run", "runs"), ("corro", "corre", "corriamo", "corrono")),
  Verb(("laugh", "laughs"), ("rido", "ride", "ridiamo", "ridono")),
  Verb(("dance", "dances"), ("ballo", "balla", "balliamo", "ballano")),
)
BE = Verb(("are", "is"), ("sono", "è", "siamo", "sono"))

# The columns of Verb.italian.
FIRST_SINGULAR, THIRD_SINGULAR, FIRST_PLURAL, THIRD_PLURAL = range(4)
PRONOUNS = {
  "i": FIRST_SINGULAR,
  "he": THIRD_SINGULAR,
  "she": THIRD_SINGULAR,
  "we": FIRST_PLURAL,
  "they": THIRD_PLURAL,
}

_SINGULAR, _PLURAL, _EITHER = False, True, None
ARTICLE: Forms = (("il", "lo", "l'"), ("la", "la", "l'"), ("i", "gli", "gli"), "le")
_UN: Forms = (("un", "uno", "un"), ("una", "una", "un'"), "", "")
_QUESTO: Forms = (("questo", "questo", "quest'"), ("questa", "questa", "quest'"), "questi", "queste")
_QUELLO: Forms = (
  ("quel", "quello", "quell'"),
  ("quella", "quella", "quell'"),
  ("quei", "quegli", "quegli"),
  "quelle",
)
_SUO: Forms = ("suo", "sua", "suoi", "sue")

DETERMINERS = (
  Determiner("the", ARTICLE, _EITHER),
  Determiner("a", _UN, _SINGULAR),
  Determiner("this", _QUESTO, _SINGULAR),
  Determiner("these", _QUESTO, _PLURAL),
  Determiner("that", _QUELLO, _SINGULAR),
  Determiner("those", _QUELLO, _PLURAL),
  Determiner("some", ("", "", "alcuni", "alcune"), _PLURAL),
  Determiner("two", ("", "", "due", "due"), _PLURAL),
  Determiner("my", ("mio", "mia", "miei", "mie"), _EITHER, possessive=True),
  Determiner("his", _SUO, _EITHER, possessive=True),
  Determiner("her", _SUO, _EITHER, possessive=True),
  Determiner("our", ("nostro", "nostra", "nostri", "nostre"), _EITHER, possessive=True),
  Determiner("their", ("loro", "loro", "loro", "loro"), _EITHER, possessive=True),
)

PREPOSITIONS = (
  Preposition("in", ("in",), (PLACE,)),
  Preposition("on", ("su",), (THING,)),
  Preposition("of", ("di",), LIVING),
  Preposition("near", ("vicino", "a"), KINDS),
  Preposition("with", ("con",), LIVING),
  Preposition("under", ("sotto",), (THING,)),
  Preposition("behind", ("dietro",), (PLACE, THING)),
)

_ARTICLES = ("il", "lo", "l'", "la", "i", "gli", "le")
CONTRACTIONS = {
  (preposition, article): contraction
  for preposition, contractions in (
    ("in", ("nel", "nello", "nell'", "nella", "nei", "negli", "nelle")),
    ("su", ("sul", "sullo", "sull'", "sulla", "sui", "sugli", "sulle")),
    ("di", ("del", "dello", "dell'", "della", "dei", "degli", "delle")),
    ("a", ("al", "allo", "all'", "alla", "ai", "agli", "alle")),
  )
  for article, contraction in zip(_ARTICLES, contractions, strict=True)
}
