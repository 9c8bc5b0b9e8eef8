"""Translations and alignments, written by hand."""

import pytest
from helpers.toy_parser import DETERMINERS, translate

from experiments.data.toy import grammar, lexicon, nouns


def italian(text):
  """Returns the translation of an English sentence as plain text."""
  pair = translate(text)
  assert grammar.join(pair.source) == text
  return grammar.join(pair.target)


# fmt: off
# What "he sees" is followed by, and "vede".
NOUN_PHRASES = [
  ("the man", "l'uomo"), ("the men", "gli uomini"), ("the student", "lo studente"),
  ("the students", "gli studenti"), ("the psychologist", "lo psicologo"),
  ("the psychologists", "gli psicologi"), ("the uncle", "lo zio"), ("the uncles", "gli zii"),
  ("the actress", "l'attrice"), ("the actresses", "le attrici"), ("the cat", "il gatto"),
  ("the mice", "i topi"), ("the egg", "l'uovo"), ("the eggs", "le uova"), ("the goose", "l'oca"),
  ("the geese", "le oche"), ("the mirror", "lo specchio"), ("the mirrors", "gli specchi"),
  ("the photo", "la foto"), ("the photos", "le foto"), ("the city", "la città"),
  ("the cities", "le città"), ("the small friend", "il piccolo amico"), ("the old uncles", "i vecchi zii"),
  ("the strange cat", "lo strano gatto"), ("the strange cats", "gli strani gatti"),
  ("the enormous stadium", "l'enorme stadio"), ("the enormous house", "l'enorme casa"),
  ("the enormous horses", "gli enormi cavalli"), ("the happy friend", "l'amico felice"),
  ("a cat", "un gatto"), ("a friend", "un amico"), ("a student", "uno studente"), ("an uncle", "uno zio"),
  ("an aunt", "una zia"), ("an actress", "un'attrice"), ("a small student", "un piccolo studente"),
  ("a strange friend", "uno strano amico"), ("an ugly mirror", "un brutto specchio"),
  ("an enormous mirror", "un enorme specchio"), ("an enormous box", "un'enorme scatola"),
  ("this white egg", "quest'uovo bianco"), ("two eggs", "due uova"),
  ("these white eggs", "queste uova bianche"), ("this cat", "questo gatto"), ("this uncle", "questo zio"),
  ("this actress", "quest'attrice"), ("this house", "questa casa"), ("these friends", "questi amici"),
  ("that dog", "quel cane"), ("that student", "quello studente"), ("that bird", "quell'uccello"),
  ("that city", "quella città"), ("that classroom", "quell'aula"), ("those dogs", "quei cani"),
  ("those birds", "quegli uccelli"), ("those mirrors", "quegli specchi"),
  ("those classrooms", "quelle aule"), ("that old friend", "quel vecchio amico"),
  ("some men", "alcuni uomini"), ("some cities", "alcune città"), ("the beautiful cat", "il bel gatto"),
  ("the beautiful mirror", "il bello specchio"), ("the beautiful friend", "il bell'amico"),
  ("the beautiful woman", "la bella donna"), ("the beautiful classroom", "la bell'aula"),
  ("the beautiful cats", "i bei gatti"), ("the beautiful mirrors", "i begli specchi"),
  ("the beautiful eggs", "le belle uova"), ("that beautiful man", "quel bell'uomo"),
  ("the small red cat", "il piccolo gatto rosso"), ("the nice friends", "gli amici simpatici"),
  ("some pink photos", "alcune foto rosa"), ("a blue key", "una chiave blu"),
  ("two young tired women", "due giovani donne stanche"), ("my cat", "il mio gatto"),
  ("my friends", "i miei amici"), ("his key", "la sua chiave"), ("her mirrors", "i suoi specchi"),
  ("her aunts", "le sue zie"), ("our umbrella", "il nostro ombrello"), ("their stadium", "il loro stadio"),
  ("their keys", "le loro chiavi"), ("my uncle", "mio zio"), ("her mother", "sua madre"),
  ("our sister", "nostra sorella"), ("his brothers", "i suoi fratelli"),
  ("my old uncle", "il mio vecchio zio"), ("my tired aunt", "la mia zia stanca"),
  ("their uncle", "il loro zio"), ("my beautiful umbrella", "il mio bell'ombrello"),
]

# What "the dog" is followed by, and "il cane".
PREPOSITIONAL_PHRASES = [
  ("in the garden", "nel giardino"), ("in the stadium", "nello stadio"), ("in the hotel", "nell'albergo"),
  ("in the kitchen", "nella cucina"), ("in the lakes", "nei laghi"), ("in the hotels", "negli alberghi"),
  ("in the classrooms", "nelle aule"), ("in the strange garden", "nello strano giardino"),
  ("on the table", "sul tavolo"), ("on the mirror", "sullo specchio"), ("on the tree", "sull'albero"),
  ("on the chair", "sulla sedia"), ("on the books", "sui libri"), ("on the umbrellas", "sugli ombrelli"),
  ("on the boxes", "sulle scatole"), ("of the king", "del re"), ("of the uncle", "dello zio"),
  ("of the actress", "dell'attrice"), ("of the woman", "della donna"), ("of the poets", "dei poeti"),
  ("of the students", "degli studenti"), ("of the girls", "delle ragazze"),
  ("of the old uncle", "del vecchio zio"), ("near the lake", "vicino al lago"),
  ("near the student", "vicino allo studente"), ("near the bee", "vicino all'ape"),
  ("near the city", "vicino alla città"), ("near the cats", "vicino ai gatti"),
  ("near the squirrels", "vicino agli scoiattoli"),
  ("near the enormous houses", "vicino alle enormi case"), ("in my garden", "nel mio giardino"),
  ("of our friends", "dei nostri amici"), ("of my uncle", "di mio zio"),
  ("near her mother", "vicino a sua madre"), ("in a garden", "in un giardino"),
  ("on that tree", "su quell'albero"), ("of an actress", "di un'attrice"),
  ("near some trees", "vicino ad alcuni alberi"), ("with the squirrel", "con lo scoiattolo"),
  ("under the chair", "sotto la sedia"), ("behind his house", "dietro la sua casa"),
  ("on the table in the kitchen", "sul tavolo nella cucina"),
]

SENTENCES = [
  # Adjectives agree with all subjects, and are masculine unless all are feminine.
  ("the cat is small", "il gatto è piccolo"), ("the goose is not small", "l'oca non è piccola"),
  ("the cats are small", "i gatti sono piccoli"), ("the geese are not small", "le oche non sono piccole"),
  ("the geese are big", "le oche sono grandi"), ("the goose is pink", "l'oca è rosa"),
  ("the cats are beautiful", "i gatti sono belli"), ("he is tired", "è stanco"), ("she is tired", "è stanca"),
  ("the bees and the man are tired", "le api e l'uomo sono stanchi"),
  ("the aunt and the girls are tired", "la zia e le ragazze sono stanche"),
  ("the egg and the apple are red", "l'uovo e la mela sono rossi"),
  ("the eggs and the apple are red", "le uova e la mela sono rosse"),
  ("the aunt near the man and the girl are happy", "la zia vicino all'uomo e la ragazza sono felici"),
  ("the woman near the boxes is tired", "la donna vicino alle scatole è stanca"),
  # Verbs agree with the subject.
  ("i see the cat", "vedo il gatto"), ("she sees the cat", "vede il gatto"),
  ("we do not see the cat", "non vediamo il gatto"), ("they see the cat", "vedono il gatto"),
  ("the man does not see the cat", "l'uomo non vede il gatto"),
  ("the man and the girl see the cat", "l'uomo e la ragazza vedono il gatto"),
  ("i have a cat", "ho un gatto"), ("he has a cat", "ha un gatto"), ("we have a cat", "abbiamo un gatto"),
  ("she carries the cake", "porta la torta"), ("they look for the cat", "cercano il gatto"),
  ("we listen to the cat", "ascoltiamo il gatto"), ("she sleeps near a cat", "dorme vicino a un gatto"),
  # "e" and "ed"
  ("she sings under the tree and he is beautiful", "canta sotto l'albero ed è bello"),
  ("we eat the apple and an egg", "mangiamo la mela e un uovo"),
  ("i see my friend and they sleep in the garden", "vedo il mio amico e dormono nel giardino"),
]
# The alignment, as "target-source".
LINKS = [
  ("the red cat does not see the apples", "il gatto rosso non vede le mele", "0-0 1-2 2-1 3-4 4-5 5-6 6-7"),
  ("she sees my friend", "vede il mio amico", "0-1 2-2 3-3"),
  ("he sees my uncle", "vede mio zio", "0-1 1-2 2-3"),
  ("he does not look for the bee", "non cerca l' ape", "0-2 1-3 1-4 2-5 3-6"),
  ("i sleep near the house", "dormo vicino alla casa", "0-1 1-2 2-2 2-3 3-4"),
  ("i sleep near a house", "dormo vicino a una casa", "0-1 1-2 2-2 3-3 4-4"),
  ("i sleep near my dog", "dormo vicino al mio cane", "0-1 1-2 2-2 3-3 4-4"),
  ("we run in the old clean kitchen", "corriamo nella vecchia cucina pulita", "0-1 1-2 1-3 2-4 3-6 4-5"),
  ("the egg of the bee is old and he is sad", "l' uovo dell' ape è vecchio ed è triste",
   "0-0 1-1 2-2 2-3 3-4 4-5 5-6 6-7 7-9 8-10"),
]
# fmt: on


@pytest.mark.parametrize(("english", "expected"), NOUN_PHRASES)
def test_noun_phrase(english, expected):
  assert italian(f"he sees {english}") == f"vede {expected}"


@pytest.mark.parametrize(("english", "expected"), PREPOSITIONAL_PHRASES)
def test_prepositional_phrase(english, expected):
  assert italian(f"the dog {english} sings near a bee") == f"il cane {expected} canta vicino a un'ape"


def test_phrases_cover_the_lexicon():
  english, translations = zip(*NOUN_PHRASES, *PREPOSITIONAL_PHRASES, strict=True)
  assert set(lexicon.CONTRACTIONS.values()) <= set(" ".join(translations).replace("'", "' ").split())
  assert set(DETERMINERS) <= set(" ".join(english).split())


@pytest.mark.parametrize(("english", "expected"), SENTENCES)
def test_sentence(english, expected):
  assert italian(english) == expected


@pytest.mark.parametrize(("english", "target", "links"), LINKS)
def test_links_are_target_then_source(english, target, links):
  pair = translate(english)
  assert pair.target == tuple(target.split())
  assert pair.alignment == {tuple(map(int, link.split("-"))) for link in links.split()}


def test_english_forms_are_unambiguous():
  words = (*nouns.NOUNS, *lexicon.VERBS, lexicon.BE)
  forms = [form for word in words for form in word.english]
  forms += [word.english for word in (*lexicon.ADJECTIVES, *lexicon.DETERMINERS, *lexicon.PREPOSITIONS)]
  assert len(forms) == len(set(forms))
