"""A parser of the English sentences of the toy language, independent of its generator."""

from experiments.data.toy import grammar, lexicon, nouns
from experiments.data.toy.grammar import Clause, NounPhrase, PrepositionalPhrase

DETERMINERS = {determiner.english: determiner for determiner in lexicon.DETERMINERS}
DETERMINERS["an"] = DETERMINERS["a"]
ADJECTIVES = {adjective.english: adjective for adjective in lexicon.ADJECTIVES}
NOUNS = {word: (noun, bool(plural)) for noun in nouns.NOUNS for plural, word in enumerate(noun.english)}
VERBS = {word: verb for verb in (*lexicon.VERBS, lexicon.BE) for word in verb.english}
PREPOSITIONS = {preposition.english: preposition for preposition in lexicon.PREPOSITIONS}


def translate(text):
  """Returns the Pair for an English sentence."""
  return grammar.translate(read(text.split()))


def read(words):
  """Returns the clauses of a sentence. If there are two, the only "and" is between them."""
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
