"""Tests of experiments/data/toy/grammar.py: translations and alignments written by hand."""

import pytest
from helpers.toy_parser import DETERMINERS, NOUNS, VERBS, translate

from experiments.data.toy import grammar, lexicon, nouns


def italian(text):
  """Returns the translation of an English sentence as plain text."""
  pair = translate(text)
  assert grammar.join(pair.source) == text
  return grammar.join(pair.target)


# Words, written by hand.

# fmt: off
NOUN_FORMS = {
  "man": "l'uomo",                       "men": "gli uomini",
  "woman": "la donna",                   "women": "le donne",
  "child": "il bambino",                 "children": "i bambini",
  "girl": "la ragazza",                  "girls": "le ragazze",
  "friend": "l'amico",                   "friends": "gli amici",
  "student": "lo studente",              "students": "gli studenti",
  "poet": "il poeta",                    "poets": "i poeti",
  "doctor": "il medico",                 "doctors": "i medici",
  "psychologist": "lo psicologo",        "psychologists": "gli psicologi",
  "actress": "l'attrice",                "actresses": "le attrici",
  "king": "il re",                       "kings": "i re",
  "uncle": "lo zio",                     "uncles": "gli zii",
  "aunt": "la zia",                      "aunts": "le zie",
  "brother": "il fratello",              "brothers": "i fratelli",
  "sister": "la sorella",                "sisters": "le sorelle",
  "mother": "la madre",                  "mothers": "le madri",
  "cat": "il gatto",                     "cats": "i gatti",
  "dog": "il cane",                      "dogs": "i cani",
  "horse": "il cavallo",                 "horses": "i cavalli",
  "mouse": "il topo",                    "mice": "i topi",
  "bird": "l'uccello",                   "birds": "gli uccelli",
  "wolf": "il lupo",                     "wolves": "i lupi",
  "squirrel": "lo scoiattolo",           "squirrels": "gli scoiattoli",
  "bee": "l'ape",                        "bees": "le api",
  "goose": "l'oca",                      "geese": "le oche",
  "apple": "la mela",                    "apples": "le mele",
  "egg": "l'uovo",                       "eggs": "le uova",
  "orange": "l'arancia",                 "oranges": "le arance",
  "fig": "il fico",                      "figs": "i fichi",
  "cake": "la torta",                    "cakes": "le torte",
  "tomato": "il pomodoro",               "tomatoes": "i pomodori",
  "book": "il libro",                    "books": "i libri",
  "key": "la chiave",                    "keys": "le chiavi",
  "knife": "il coltello",                "knives": "i coltelli",
  "mirror": "lo specchio",               "mirrors": "gli specchi",
  "backpack": "lo zaino",                "backpacks": "gli zaini",
  "table": "il tavolo",                  "tables": "i tavoli",
  "chair": "la sedia",                   "chairs": "le sedie",
  "box": "la scatola",                   "boxes": "le scatole",
  "tree": "l'albero",                    "trees": "gli alberi",
  "umbrella": "l'ombrello",              "umbrellas": "gli ombrelli",
  "photo": "la foto",                    "photos": "le foto",
  "letter": "la lettera",                "letters": "le lettere",
  "house": "la casa",                    "houses": "le case",
  "kitchen": "la cucina",                "kitchens": "le cucine",
  "garden": "il giardino",               "gardens": "i giardini",
  "city": "la città",                    "cities": "le città",
  "classroom": "l'aula",                   "classrooms": "le aule",
  "hotel": "l'albergo",                  "hotels": "gli alberghi",
  "lake": "il lago",                     "lakes": "i laghi",
  "stadium": "lo stadio",                "stadiums": "gli stadi",
  "school": "la scuola",                 "schools": "le scuole",
}


# cat, goose, cats, geese
ADJECTIVE_FORMS = {
  "small": ("piccolo", "piccola", "piccoli", "piccole"),
  "big": ("grande", "grande", "grandi", "grandi"),
  "beautiful": ("bello", "bella", "belli", "belle"),
  "red": ("rosso", "rossa", "rossi", "rosse"),
  "pink": ("rosa", "rosa", "rosa", "rosa"),
}


# I, she, we, they
VERB_FORMS = {
  "see": ("vedo", "vede", "vediamo", "vedono"),
  "watch": ("guardo", "guarda", "guardiamo", "guardano"),
  "look": ("cerco", "cerca", "cerchiamo", "cercano"),
  "listen": ("ascolto", "ascolta", "ascoltiamo", "ascoltano"),
  "have": ("ho", "ha", "abbiamo", "hanno"),
  "carry": ("porto", "porta", "portiamo", "portano"),
  "sleep": ("dormo", "dorme", "dormiamo", "dormono"),
}
# fmt: on
IRREGULAR_THIRD = {"have": "has", "carry": "carries", "watch": "watches"}


def test_table_has_all_nouns():
  assert set(NOUN_FORMS) == set(NOUNS)


@pytest.mark.parametrize("noun", NOUN_FORMS)
def test_nouns_and_articles(noun):
  assert italian(f"we see the {noun}") == f"vediamo {NOUN_FORMS[noun]}"


@pytest.mark.parametrize("adjective", ADJECTIVE_FORMS)
def test_adjectives_agree_with_the_subject(adjective):
  cat, goose, cats, geese = ADJECTIVE_FORMS[adjective]
  assert italian(f"the cat is {adjective}") == f"il gatto è {cat}"
  assert italian(f"the goose is not {adjective}") == f"l'oca non è {goose}"
  assert italian(f"the cats are {adjective}") == f"i gatti sono {cats}"
  assert italian(f"the geese are not {adjective}") == f"le oche non sono {geese}"


@pytest.mark.parametrize("verb", VERB_FORMS)
def test_verbs_agree_with_the_subject(verb):
  first, she, we, they = VERB_FORMS[verb]
  third = IRREGULAR_THIRD.get(verb, verb + "s")
  rest = {"look": " for the cat", "listen": " to the cat"}.get(verb, " the cat")
  il_gatto = "il gatto"
  if not VERBS[verb].objects:
    rest, il_gatto = " near the cat", "vicino al gatto"
  assert italian(f"i {verb}{rest}") == f"{first} {il_gatto}"
  assert italian(f"she {third}{rest}") == f"{she} {il_gatto}"
  assert italian(f"we do not {verb}{rest}") == f"non {we} {il_gatto}"
  assert italian(f"they {verb}{rest}") == f"{they} {il_gatto}"
  assert italian(f"the man does not {verb}{rest}") == f"l'uomo non {she} {il_gatto}"
  assert italian(f"the man and the girl {verb}{rest}") == f"l'uomo e la ragazza {they} {il_gatto}"


# Phrases after "he sees", "vede", written by hand.

NOUN_PHRASES = {
  # The article depends on the next word, not on the noun.
  "the small friend": "il piccolo amico",
  "the old uncle": "il vecchio zio",
  "the old uncles": "i vecchi zii",
  "the strange cat": "lo strano gatto",
  "the strange cats": "gli strani gatti",
  "the enormous stadium": "l'enorme stadio",
  "the enormous house": "l'enorme casa",
  "the enormous horses": "gli enormi cavalli",
  "the new classrooms": "le nuove aule",
  "the happy friend": "l'amico felice",
  "a cat": "un gatto",
  "a friend": "un amico",
  "a student": "uno studente",
  "a psychologist": "uno psicologo",
  "an uncle": "uno zio",
  "an aunt": "una zia",
  "an actress": "un'attrice",
  "an orange": "un'arancia",
  "a house": "una casa",
  "a small student": "un piccolo studente",
  "a small actress": "una piccola attrice",
  "a strange friend": "uno strano amico",
  "an ugly mirror": "un brutto specchio",
  "an enormous mirror": "un enorme specchio",
  "an enormous box": "un'enorme scatola",
  "an egg": "un uovo",
  "two eggs": "due uova",
  "these white eggs": "queste uova bianche",
  "this white egg": "quest'uovo bianco",
  # this, that, some
  "this cat": "questo gatto",
  "this uncle": "questo zio",
  "this actress": "quest'attrice",
  "this house": "questa casa",
  "these friends": "questi amici",
  "that dog": "quel cane",
  "that student": "quello studente",
  "that bird": "quell'uccello",
  "that city": "quella città",
  "that classroom": "quell'aula",
  "those dogs": "quei cani",
  "those birds": "quegli uccelli",
  "those mirrors": "quegli specchi",
  "those classrooms": "quelle aule",
  "that old friend": "quel vecchio amico",
  "some men": "alcuni uomini",
  "some cities": "alcune città",
  "two kings": "due re",
  # beautiful
  "the beautiful cat": "il bel gatto",
  "the beautiful mirror": "il bello specchio",
  "the beautiful friend": "il bell'amico",
  "the beautiful woman": "la bella donna",
  "the beautiful classroom": "la bell'aula",
  "the beautiful cats": "i bei gatti",
  "the beautiful mirrors": "i begli specchi",
  "the beautiful eggs": "le belle uova",
  "that beautiful man": "quel bell'uomo",
  # Adjectives before and after the noun.
  "the small red cat": "il piccolo gatto rosso",
  "the small red apples": "le piccole mele rosse",
  "two young tired women": "due giovani donne stanche",
  "the old white houses": "le vecchie case bianche",
  "some pink photos": "alcune foto rosa",
  "a blue key": "una chiave blu",
  "the nice friends": "gli amici simpatici",
  "the dirty mice": "i topi sporchi",
  # Possessives.
  "my cat": "il mio gatto",
  "my friends": "i miei amici",
  "my old friend": "il mio vecchio amico",
  "his key": "la sua chiave",
  "her key": "la sua chiave",
  "her mirrors": "i suoi specchi",
  "her aunts": "le sue zie",
  "our house": "la nostra casa",
  "our umbrella": "il nostro ombrello",
  "their stadium": "il loro stadio",
  "their keys": "le loro chiavi",
  "my beautiful umbrella": "il mio bell'ombrello",
  "my uncle": "mio zio",
  "her mother": "sua madre",
  "our sister": "nostra sorella",
  "his brothers": "i suoi fratelli",
  "my uncles": "i miei zii",
  "my old uncle": "il mio vecchio zio",
  "my tired aunt": "la mia zia stanca",
  "their uncle": "il loro zio",
  "the mother": "la madre",
  # Contractions: in, on, of, near, each with every article.
  "the dog in the garden": "il cane nel giardino",
  "the dog in the stadium": "il cane nello stadio",
  "the dog in the hotel": "il cane nell'albergo",
  "the dog in the classroom": "il cane nell'aula",
  "the dog in the kitchen": "il cane nella cucina",
  "the dog in the lakes": "il cane nei laghi",
  "the dog in the hotels": "il cane negli alberghi",
  "the dog in the classrooms": "il cane nelle aule",
  "the dog on the table": "il cane sul tavolo",
  "the dog on the mirror": "il cane sullo specchio",
  "the dog on the tree": "il cane sull'albero",
  "the dog on the chair": "il cane sulla sedia",
  "the dog on the books": "il cane sui libri",
  "the dog on the umbrellas": "il cane sugli ombrelli",
  "the dog on the boxes": "il cane sulle scatole",
  "the dog of the king": "il cane del re",
  "the dog of the uncle": "il cane dello zio",
  "the dog of the man": "il cane dell'uomo",
  "the dog of the actress": "il cane dell'attrice",
  "the dog of the woman": "il cane della donna",
  "the dog of the poets": "il cane dei poeti",
  "the dog of the students": "il cane degli studenti",
  "the dog of the girls": "il cane delle ragazze",
  "the dog near the lake": "il cane vicino al lago",
  "the dog near the student": "il cane vicino allo studente",
  "the dog near the bee": "il cane vicino all'ape",
  "the dog near the wolf": "il cane vicino al lupo",
  "the dog near the city": "il cane vicino alla città",
  "the dog near the cats": "il cane vicino ai gatti",
  "the dog near the squirrels": "il cane vicino agli scoiattoli",
  "the dog near the cities": "il cane vicino alle città",
  # The contraction also depends on the next word.
  "the dog of the old uncle": "il cane del vecchio zio",
  "the dog in the strange garden": "il cane nello strano giardino",
  "the dog near the enormous houses": "il cane vicino alle enormi case",
  "the dog in my garden": "il cane nel mio giardino",
  "the dog of our friends": "il cane dei nostri amici",
  "the dog of my uncle": "il cane di mio zio",
  "the dog near her mother": "il cane vicino a sua madre",
  # No contraction.
  "the dog in a garden": "il cane in un giardino",
  "the dog on that tree": "il cane su quell'albero",
  "the dog of an actress": "il cane di un'attrice",
  "the dog near a student": "il cane vicino a uno studente",
  "the dog near some trees": "il cane vicino ad alcuni alberi",
  "the dog with the squirrel": "il cane con lo scoiattolo",
  "the dog with the man": "il cane con l'uomo",
  "the dog under the chair": "il cane sotto la sedia",
  "the dog behind the tree": "il cane dietro l'albero",
  "the dog behind his house": "il cane dietro la sua casa",
  # Nested.
  "the cat on the table in the kitchen": "il gatto sul tavolo nella cucina",
  "the key of the sister of my friend": "la chiave della sorella del mio amico",
}


@pytest.mark.parametrize("english", NOUN_PHRASES)
def test_noun_phrase(english):
  assert italian("he sees " + english) == "vede " + NOUN_PHRASES[english]


def test_phrases_cover_the_lexicon():
  words = set(" ".join(NOUN_PHRASES.values()).replace("'", "' ").split())
  assert set(lexicon.CONTRACTIONS.values()) <= words
  assert set(DETERMINERS) <= set(" ".join(NOUN_PHRASES).split())


SENTENCES = {
  "the red cat does not see the apples": "il gatto rosso non vede le mele",
  "she does not look for the keys": "non cerca le chiavi",
  "we listen to the birds": "ascoltiamo gli uccelli",
  "the bees and the man are tired": "le api e l'uomo sono stanchi",
  "the aunt and the girls are tired": "la zia e le ragazze sono stanche",
  "the egg and the apple are red": "l'uovo e la mela sono rossi",
  "the eggs and the apple are red": "le uova e la mela sono rosse",
  "the aunt near the man and the girl are happy": "la zia vicino all'uomo e la ragazza sono felici",
  "the woman near the boxes is tired": "la donna vicino alle scatole è stanca",
  "he is tired": "è stanco",
  "she is tired": "è stanca",
  "he is not beautiful and she sings under the tree": "non è bello e canta sotto l'albero",
  "she sings under the tree and he is beautiful": "canta sotto l'albero ed è bello",
  "we eat the apple and an egg": "mangiamo la mela e un uovo",
  "they see the dog and the enormous cats": "vedono il cane e gli enormi gatti",
  "i see my friend and they sleep in the garden": "vedo il mio amico e dormono nel giardino",
  "the cat is small and the goose is white": "il gatto è piccolo e l'oca è bianca",
}


@pytest.mark.parametrize("english", SENTENCES)
def test_sentence(english):
  assert italian(english) == SENTENCES[english]


# Alignments, as "target-source" positions, written by hand.

ALIGNMENTS = {
  # il gatto rosso non vede le mele
  "the red cat does not see the apples": "0-0 1-2 2-1 3-4 4-5 5-6 6-7",
  # vede il mio amico
  "she sees my friend": "0-1 2-2 3-3",
  # vede mio zio
  "he sees my uncle": "0-1 1-2 2-3",
  # non cerca l' ape
  "he does not look for the bee": "0-2 1-3 1-4 2-5 3-6",
  # dormo vicino alla casa
  "i sleep near the house": "0-1 1-2 2-2 2-3 3-4",
  # dormo vicino a una casa
  "i sleep near a house": "0-1 1-2 2-2 3-3 4-4",
  # dormo vicino al mio cane
  "i sleep near my dog": "0-1 1-2 2-2 3-3 4-4",
  # corriamo nella vecchia cucina pulita dell' attrice
  "we run in the old clean kitchen of the actress": "0-1 1-2 1-3 2-4 3-6 4-5 5-7 5-8 6-9",
  # la torta non è bella e lo zio è felice
  "the cake is not beautiful and the uncle is happy": ("0-0 1-1 2-3 3-2 4-4 5-5 6-6 7-7 8-8 9-9"),
}


@pytest.mark.parametrize("english", ALIGNMENTS)
def test_alignment(english):
  links = {tuple(map(int, link.split("-"))) for link in ALIGNMENTS[english].split()}
  assert translate(english).alignment == links


def test_english_forms_are_unambiguous():
  forms = [form for noun in nouns.NOUNS for form in noun.english]
  forms += [form for verb in (*lexicon.VERBS, lexicon.BE) for form in verb.english]
  words = (*lexicon.ADJECTIVES, *lexicon.DETERMINERS, *lexicon.PREPOSITIONS)
  forms += [word.english for word in words]
  assert len(forms) == len(set(forms))
