"""The words of the toy language, English and Italian, as plain tables.

Italian forms that agree are listed as masculine singular, feminine singular, masculine plural,
feminine plural. A form that depends on the first sound of the next word is itself a triple: before
a simple consonant, before an impure one (z, gn, ps, or s and a consonant), before a vowel.
"""

from experiments.tasks.nouns import NOUNS
from experiments.tasks.word_classes import (
  ANIMAL,
  FOOD,
  KINDS,
  LIVING,
  PERSON,
  PLACE,
  THING,
  Adjective,
  Determiner,
  Forms,
  Preposition,
  Verb,
)

_COLOURED = (ANIMAL, FOOD, PLACE, THING)
_SMALL: Forms = ("piccolo", "piccola", "piccoli", "piccole")
_BIG: Forms = ("grande", "grande", "grandi", "grandi")
_ENORMOUS: Forms = ("enorme", "enorme", "enormi", "enormi")
_STRANGE: Forms = ("strano", "strana", "strani", "strane")
_UGLY: Forms = ("brutto", "brutta", "brutti", "brutte")
_OLD: Forms = ("vecchio", "vecchia", "vecchi", "vecchie")
_NEW: Forms = ("nuovo", "nuova", "nuovi", "nuove")
_YOUNG: Forms = ("giovane", "giovane", "giovani", "giovani")
_BEAUTIFUL: Forms = ("bello", "bella", "belli", "belle")
_BEAUTIFUL_LEADING: Forms = (
  ("bel", "bello", "bell'"),
  ("bella", "bella", "bell'"),
  ("bei", "begli", "begli"),
  "belle",
)

ADJECTIVES = (
  Adjective("small", _SMALL, KINDS, leading=_SMALL),
  Adjective("big", _BIG, KINDS, leading=_BIG),
  Adjective("enormous", _ENORMOUS, KINDS, leading=_ENORMOUS),
  Adjective("strange", _STRANGE, KINDS, leading=_STRANGE),
  Adjective("ugly", _UGLY, (ANIMAL, PLACE, THING), leading=_UGLY),
  Adjective("old", _OLD, (ANIMAL, PERSON, PLACE, THING), leading=_OLD),
  Adjective("new", _NEW, (PLACE, THING), leading=_NEW),
  Adjective("young", _YOUNG, LIVING, leading=_YOUNG),
  Adjective("beautiful", _BEAUTIFUL, KINDS, leading=_BEAUTIFUL_LEADING),
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
_QUESTO: Forms = (
  ("questo", "questo", "quest'"),
  ("questa", "questa", "quest'"),
  "questi",
  "queste",
)
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


def source_words() -> tuple[str, ...]:
  """Returns every English word that can occur, sorted.

  >>> "mice" in source_words()
  True
  """
  words = {"an", "and", "do", "does", "not", *PRONOUNS, *BE.english}
  words.update(word.english for word in (*DETERMINERS, *ADJECTIVES, *PREPOSITIONS))
  for verb in VERBS:
    words.update(verb.english, [verb.particle] if verb.particle else [])
  for noun in NOUNS:
    words.update(noun.english)
  return tuple(sorted(words))


def target_words() -> tuple[str, ...]:
  """Returns every Italian token that can occur, sorted.

  >>> "dell'" in target_words()
  True
  """
  words = {"a", "ad", "e", "ed", "non", BE.italian[THIRD_SINGULAR], BE.italian[THIRD_PLURAL]}
  words.update(CONTRACTIONS.values())
  for word in (*DETERMINERS, *ADJECTIVES, *VERBS, *NOUNS, *PREPOSITIONS):
    leading = word.leading or () if isinstance(word, Adjective) else ()
    for form in (*word.italian, *leading):
      words.update([form] if isinstance(form, str) else form)
  return tuple(sorted(words - {""}))
