"""Tests of the toy language: its Italian, checked by hand, its alignments and its splits."""

import os
import subprocess
import sys

import pytest

from experiments.tasks import grammar, lexicon
from experiments.tasks.grammar import SPLITS, Clause, NounPhrase, PrepositionalPhrase, pair

DRAWS = {"train": 10000, "validation": 1500, "test": 1500, "length": 2000, "composition": 1500}

# Reading English: an independent way from the words of a sentence to the tree of it.

DETERMINERS = {determiner.english: determiner for determiner in lexicon.DETERMINERS}
DETERMINERS["an"] = DETERMINERS["a"]
ADJECTIVES = {adjective.english: adjective for adjective in lexicon.ADJECTIVES}
NOUNS = {word: (noun, bool(plural)) for noun in lexicon.NOUNS for plural, word in enumerate(noun.english)}
VERBS = {word: verb for verb in (*lexicon.VERBS, lexicon.BE) for word in verb.english}
PREPOSITIONS = {preposition.english: preposition for preposition in lexicon.PREPOSITIONS}


def translate(text):
  """Returns the Pair for an English sentence."""
  return grammar.translate(read(text.split()))


def read(words):
  """Returns the clauses of a sentence; where there are two, the only "and" is between them."""
  words = list(words)
  if sum(word in VERBS for word in words) == 1:
    return [read_clause(words)]
  i = words.index("and")
  assert "and" not in words[i + 1 :]
  return [read_clause(words[:i]), read_clause(words[i + 1 :])]


def read_clause(words):
  i = next(i for i, word in enumerate(words) if word in VERBS)
  verb, negated = VERBS[words[i]], "not" in words
  rest = [word for word in words[i + 1 :] if word not in ("not", verb.particle)]
  subject = [word for word in words[:i] if word not in ("do", "does", "not")]
  subject = subject[0] if subject[0] in lexicon.PRONOUNS else read_noun_phrases(subject)
  if verb is lexicon.BE:
    return Clause(subject, verb, negated, predicate=ADJECTIVES[rest[0]])
  if verb.objects:
    return Clause(subject, verb, negated, objects=read_noun_phrases(rest))
  return Clause(subject, verb, negated, place=read_prepositional_phrase(rest))


def read_noun_phrases(words):
  if "and" not in words:
    return (read_noun_phrase(words),)
  i = words.index("and")
  return read_noun_phrase(words[:i]), *read_noun_phrases(words[i + 1 :])


def read_noun_phrase(words):
  i = next(i for i, word in enumerate(words) if word in NOUNS)
  adjectives = [ADJECTIVES[word] for word in words[1:i]]
  leading = [adjective for adjective in adjectives if adjective.leading]
  trailing = [adjective for adjective in adjectives if not adjective.leading]
  assert adjectives == leading[:1] + trailing[:1]
  attached = read_prepositional_phrase(words[i + 1 :]) if words[i + 1 :] else None
  return NounPhrase(
    DETERMINERS[words[0]], *NOUNS[words[i]], *(leading or [None]), *(trailing or [None]), attached
  )


def read_prepositional_phrase(words):
  return PrepositionalPhrase(PREPOSITIONS[words[0]], read_noun_phrase(words[1:]))


def italian(text):
  """Returns the Italian for an English sentence, as plain text."""
  drawn = translate(text)
  assert grammar.join(drawn.source) == text
  return grammar.join(drawn.target)


# Written by hand: the words.

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
  "enormous": ("enorme", "enorme", "enormi", "enormi"),
  "strange": ("strano", "strana", "strani", "strane"),
  "ugly": ("brutto", "brutta", "brutti", "brutte"),
  "old": ("vecchio", "vecchia", "vecchi", "vecchie"),
  "new": ("nuovo", "nuova", "nuovi", "nuove"),
  "young": ("giovane", "giovane", "giovani", "giovani"),
  "beautiful": ("bello", "bella", "belli", "belle"),
  "red": ("rosso", "rossa", "rossi", "rosse"),
  "white": ("bianco", "bianca", "bianchi", "bianche"),
  "black": ("nero", "nera", "neri", "nere"),
  "green": ("verde", "verde", "verdi", "verdi"),
  "blue": ("blu", "blu", "blu", "blu"),
  "pink": ("rosa", "rosa", "rosa", "rosa"),
  "happy": ("felice", "felice", "felici", "felici"),
  "sad": ("triste", "triste", "tristi", "tristi"),
  "tired": ("stanco", "stanca", "stanchi", "stanche"),
  "nice": ("simpatico", "simpatica", "simpatici", "simpatiche"),
  "famous": ("famoso", "famosa", "famosi", "famose"),
  "elegant": ("elegante", "elegante", "eleganti", "eleganti"),
  "heavy": ("pesante", "pesante", "pesanti", "pesanti"),
  "dirty": ("sporco", "sporca", "sporchi", "sporche"),
  "clean": ("pulito", "pulita", "puliti", "pulite"),
  "long": ("lungo", "lunga", "lunghi", "lunghe"),
}


# I, she, we, they
VERB_FORMS = {
  "see": ("vedo", "vede", "vediamo", "vedono"),
  "love": ("amo", "ama", "amiamo", "amano"),
  "find": ("trovo", "trova", "troviamo", "trovano"),
  "watch": ("guardo", "guarda", "guardiamo", "guardano"),
  "prefer": ("preferisco", "preferisce", "preferiamo", "preferiscono"),
  "look": ("cerco", "cerca", "cerchiamo", "cercano"),
  "follow": ("seguo", "segue", "seguiamo", "seguono"),
  "help": ("aiuto", "aiuta", "aiutiamo", "aiutano"),
  "listen": ("ascolto", "ascolta", "ascoltiamo", "ascoltano"),
  "greet": ("saluto", "saluta", "salutiamo", "salutano"),
  "know": ("conosco", "conosce", "conosciamo", "conoscono"),
  "eat": ("mangio", "mangia", "mangiamo", "mangiano"),
  "wash": ("lavo", "lava", "laviamo", "lavano"),
  "have": ("ho", "ha", "abbiamo", "hanno"),
  "buy": ("compro", "compra", "compriamo", "comprano"),
  "sell": ("vendo", "vende", "vendiamo", "vendono"),
  "want": ("voglio", "vuole", "vogliamo", "vogliono"),
  "carry": ("porto", "porta", "portiamo", "portano"),
  "choose": ("scelgo", "sceglie", "scegliamo", "scelgono"),
  "lose": ("perdo", "perde", "perdiamo", "perdono"),
  "sleep": ("dormo", "dorme", "dormiamo", "dormono"),
  "work": ("lavoro", "lavora", "lavoriamo", "lavorano"),
  "sing": ("canto", "canta", "cantiamo", "cantano"),
  "run": ("corro", "corre", "corriamo", "corrono"),
  "laugh": ("rido", "ride", "ridiamo", "ridono"),
  "dance": ("ballo", "balla", "balliamo", "ballano"),
}
# fmt: on
IRREGULAR_THIRD = {"have": "has", "carry": "carries", "watch": "watches", "wash": "washes"}


def test_tables_above_have_every_word():
  assert set(NOUN_FORMS) == set(NOUNS)
  assert set(ADJECTIVE_FORMS) == set(ADJECTIVES)
  assert set(VERB_FORMS) == {verb.english[0] for verb in lexicon.VERBS}


@pytest.mark.parametrize("noun", NOUN_FORMS)
def test_noun_and_its_article(noun):
  assert italian(f"we see the {noun}") == f"vediamo {NOUN_FORMS[noun]}"


@pytest.mark.parametrize("adjective", ADJECTIVE_FORMS)
def test_adjective_agrees_with_the_subject(adjective):
  cat, goose, cats, geese = ADJECTIVE_FORMS[adjective]
  assert italian(f"the cat is {adjective}") == f"il gatto è {cat}"
  assert italian(f"the goose is not {adjective}") == f"l'oca non è {goose}"
  assert italian(f"the cats are {adjective}") == f"i gatti sono {cats}"
  assert italian(f"the geese are not {adjective}") == f"le oche non sono {geese}"


@pytest.mark.parametrize("verb", VERB_FORMS)
def test_verb_agrees_with_the_subject(verb):
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


# Written by hand: the phrases, after "he sees", "vede".

NOUN_PHRASES = {
  # The article follows the next word, not the noun.
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
  # The contraction, too, follows the next word.
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


def test_phrases_have_every_contraction_and_determiner():
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


# Written by hand: alignments, as "target-source" positions.

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


# Drawn sentences.


@pytest.fixture(scope="module")
def drawn():
  """Some pairs of each split, from two seeds."""
  return {
    split: [pair(seed=seed, split=split, index=i) for seed in (0, 1) for i in range(count // 2)]
    for split, count in DRAWS.items()
  }


@pytest.fixture(scope="module")
def everything(drawn):
  return [each for pairs in drawn.values() for each in pairs]


def test_the_english_words_alone_decide_the_translation(everything):
  for each in everything:
    assert translate(" ".join(each.source)) == each


def test_one_source_has_one_target(everything):
  targets = {}
  for each in everything:
    assert targets.setdefault(each.source, each) == each


def test_few_sentences_are_drawn_twice(drawn):
  train = drawn["train"]
  assert len({each.source for each in train}) > 0.9 * len(train)
  assert len({each.source for each in drawn["length"]}) == len(drawn["length"])


def test_splits_share_no_source_whatever_the_seed(drawn):
  sources = {split: {each.source for each in pairs} for split, pairs in drawn.items()}
  assert sum(map(len, sources.values())) == len(set().union(*sources.values()))


def test_lengths(drawn):
  longest = {split: max(len(each.source) for each in pairs) for split, pairs in drawn.items()}
  assert longest.pop("length") == grammar.MAX_SOURCE_LENGTH
  assert set(longest.values()) == {grammar.TRAIN_MAX_SOURCE_LENGTH}
  shortest = min(len(each.source) for each in drawn["length"])
  assert shortest == grammar.TRAIN_MAX_SOURCE_LENGTH + 1


def test_no_target_is_longer_than_promised(everything):
  assert max(len(each.target) for each in everything) <= grammar.MAX_TARGET_LENGTH


def noun_phrases(clause):
  """Returns every noun phrase of a clause, the nested ones too."""
  subject = () if isinstance(clause.subject, str) else clause.subject
  phrases = [*subject, *clause.objects, *([clause.place.phrase] if clause.place else [])]
  for phrase in phrases:
    if phrase.attached:
      phrases.append(phrase.attached.phrase)
  return phrases


def described(words):
  """Returns the (adjective, noun) pairs of a sentence."""
  pairs = set()
  for clause in read(words):
    if clause.predicate and not isinstance(clause.subject, str):
      pairs |= {(clause.predicate, phrase.noun) for phrase in clause.subject}
    for phrase in noun_phrases(clause):
      pairs |= {(phrase.leading, phrase.noun), (phrase.trailing, phrase.noun)}
  return {(adjective.english, noun.english[0]) for adjective, noun in pairs if adjective}


def test_of_follows_a_noun_and_a_possessive_phrase_ends_at_its_noun(everything):
  for each in everything:
    for clause in read(each.source):
      assert not (clause.place and clause.place.preposition.english == "of")
      assert not any(p.determiner.possessive and p.attached for p in noun_phrases(clause))


def test_composition_needs_adjective_noun_pairs_of_no_other_split(drawn):
  pairs = {split: [described(each.source) for each in drawn[split]] for split in SPLITS}
  composition = pairs.pop("composition")
  elsewhere = set().union(*(found for split in pairs.values() for found in split))
  assert all(found - elsewhere for found in composition)
  unseen = set().union(*composition) - elsewhere
  assert 0.05 < len(unseen) / len(unseen | elsewhere) < 0.08


def test_composition_has_only_words_of_training(drawn):
  for side in ("source", "target"):
    known = {word for each in drawn["train"] for word in getattr(each, side)}
    assert {word for each in drawn["composition"] for word in getattr(each, side)} <= known


def test_vocabularies_are_the_words_that_occur(everything):
  for words, side in ((grammar.source_words(), "source"), (grammar.target_words(), "target")):
    assert list(words) == sorted(set(words))
    assert set(words) == {word for each in everything for word in getattr(each, side)}


def test_lexicon_is_as_large_as_asked():
  assert len(lexicon.NOUNS) >= 40
  assert len(lexicon.ADJECTIVES) >= 20
  assert len(lexicon.VERBS) >= 20


def test_no_english_form_has_two_readings():
  forms = [form for noun in lexicon.NOUNS for form in noun.english]
  forms += [form for verb in (*lexicon.VERBS, lexicon.BE) for form in verb.english]
  words = (*lexicon.ADJECTIVES, *lexicon.DETERMINERS, *lexicon.PREPOSITIONS)
  forms += [word.english for word in words]
  assert len(forms) == len(set(forms))


def test_alignments_are_in_range(everything):
  for each in everything:
    assert {t for t, _ in each.alignment} <= set(range(len(each.target)))
    assert {s for _, s in each.alignment} <= set(range(len(each.source)))


def test_alignments_cross_merge_vanish_and_appear(drawn):
  crossed = merged = split = vanished = appeared = 0
  for each in drawn["train"]:
    links = sorted(each.alignment)
    targets, sources = zip(*links, strict=True)
    crossed += list(sources) != sorted(sources)
    merged += len(targets) > len(set(targets))
    split += len(sources) > len(set(sources))
    vanished += len(set(sources)) < len(each.source)
    appeared += len(set(targets)) < len(each.target)
  share = 0.05 * len(drawn["train"])
  assert min(crossed, merged, split, vanished, appeared) > share


def test_only_pronouns_and_do_vanish(everything):
  for each in everything:
    aligned = {s for _, s in each.alignment}
    vanished = {word for s, word in enumerate(each.source) if s not in aligned}
    assert vanished <= {*lexicon.PRONOUNS, "do", "does"}


def test_only_articles_of_possessives_appear(everything):
  possessives = {form for each in lexicon.DETERMINERS if each.possessive for form in each.italian}
  for each in everything:
    aligned = {t for t, _ in each.alignment}
    for t, word in enumerate(each.target):
      if t not in aligned:
        assert word in ("il", "la", "i", "le")
        assert each.target[t + 1] in possessives


# The interface.


def test_a_pair_is_the_same_in_another_process():
  code = (
    "from experiments.tasks.grammar import SPLITS, pair\n"
    "pairs = [pair(seed=5, split=split, index=i) for split in SPLITS for i in range(20)]\n"
    "print([(each.source, each.target, sorted(each.alignment)) for each in pairs])"
  )
  pairs = [pair(seed=5, split=split, index=i) for split in SPLITS for i in range(20)]
  expected = str([(each.source, each.target, sorted(each.alignment)) for each in pairs])
  for hash_seed in ("1", "2"):
    environment = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    printed = subprocess.check_output(command, env=os.environ | environment, text=True)
    assert printed.strip() == expected


def test_seed_and_index_matter():
  assert len({pair(seed=seed, split="length", index=0) for seed in range(20)}) == 20
  assert len({pair(seed=0, split="length", index=index) for index in range(20)}) == 20


def test_unknown_split_is_an_error_that_names_the_splits():
  with pytest.raises(ValueError, match=r"train, validation, test, .*, got split='dev'"):
    pair(seed=0, split="dev", index=0)


def test_join_leaves_no_space_after_an_apostrophe():
  tokens = ("quell'", "uomo", "corre", "nell'", "enorme", "casa", "dell'", "ape")
  assert grammar.join(tokens) == "quell'uomo corre nell'enorme casa dell'ape"
  assert grammar.join(["the", "cat", "sleeps"]) == "the cat sleeps"
  assert grammar.join([]) == ""
