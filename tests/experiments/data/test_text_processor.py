"""Languages: tokenizers with their vocabularies."""

import functools

import pytest

from experiments.data.text_processor import TextProcessor

TRAINING = ("The cat sees the dog.", "A dog saw the cat!", "L'albero è alto.", "Perche\u0301 no?")
tokenizations = pytest.mark.parametrize("tokenization", ["word", "character", "subword"])


@functools.cache
def learn(tokenization, texts=TRAINING, **options):
  defaults = {"lowercase": True, "min_count": 1, "vocabulary_size": 285, "subword_model": "bpe"}
  return TextProcessor.learn(texts, tokenization=tokenization, **(defaults | options))


@pytest.mark.parametrize("tokenization", ["word", "subword"])
def test_accents_are_normalized(tokenization):
  composed = ("the cat sees the dog.", "a dog saw the cat!", "l'albero è alto.", "perché no?")
  assert learn(tokenization, composed, lowercase=False).vocabulary == learn(tokenization).vocabulary
  both = learn(tokenization).encode_all(["perche\u0301 no", "perché no"])
  assert both[0].tolist() == both[1].tolist()


@tokenizations
def test_lowercase_is_optional(tokenization):
  for lowercase, expected in ((True, "the cat"), (False, "The Cat")):
    language = learn(tokenization, lowercase=lowercase)
    assert language.normalize("The Cat") == language.detokenize(language.tokenize("The Cat")) == expected
    ids = language.encode_all(["The Cat", "The cat"])
    assert (ids[0].tolist() == ids[1].tolist()) == lowercase
    assert ids[1].tolist() == language.vocabulary.encode(language.tokenize("The cat"))
    assert any("T" in word for word in language.vocabulary.words if word[0] != "<") != lowercase


def test_training_lines_are_evenly_spaced():
  # At most 100,000 lines are used: here every second one.
  texts = ["ab", "xy"] * 100_000
  language = TextProcessor.learn(
    texts, tokenization="subword", lowercase=True, min_count=1, vocabulary_size=264, subword_model="bpe"
  )
  assert set(language.vocabulary.words[256:]) == {"▁", "a", "b", "ab"}


@tokenizations
def test_files_round_trip(tokenization, tmp_path):
  learn(tokenization).save(tmp_path, "source")
  other = learn(tokenization, TRAINING[:3], vocabulary_size=280)
  other.save(tmp_path, "target")
  models = ["subwords.source.model", "subwords.target.model"] if tokenization == "subword" else []
  names = [*models, "vocabulary.source.txt", "vocabulary.target.txt"]
  assert sorted(path.name for path in tmp_path.iterdir()) == names
  loaded = TextProcessor.load(tmp_path, "source", tokenization=tokenization, lowercase=True)
  assert loaded == learn(tokenization)
  assert loaded.encode_all(TRAINING).ids.tolist() == learn(tokenization).encode_all(TRAINING).ids.tolist()
  loaded = TextProcessor.load(tmp_path, "target", tokenization=tokenization, lowercase=False)
  assert loaded.vocabulary == other.vocabulary
  assert not loaded.lowercase


def test_new_words_come_last():
  language = learn("word", ("a cat",))
  extended = language.extended(["The dog, the a", "dogs <unk> the"], min_count=1)
  assert extended.vocabulary.words == ("a", "cat", "the", "dog", "dogs", "￭,")
  assert language.extended(["The dog, the a", "dogs"], min_count=2).vocabulary.words == ("a", "cat", "the")
  assert learn("subword").extended(["dogs"], min_count=1) == learn("subword")


def test_broken_files_are_errors(tmp_path):
  load = functools.partial(TextProcessor.load, tmp_path, "source", tokenization="subword", lowercase=True)
  learn("subword").save(tmp_path, "source")
  model, vocabulary = tmp_path / "subwords.source.model", tmp_path / "vocabulary.source.txt"
  learn("subword", vocabulary_size=284).vocabulary.save(vocabulary)
  with pytest.raises(ValueError, match=f"^{model}: the subword model does not match {vocabulary}$"):
    load()
  model.write_bytes(model.read_bytes()[:-7])
  with pytest.raises(ValueError, match=rf"^{model}: model must be a sentencepiece model, got \d+ invalid"):
    load()


INVALID = [
  ("word", {"min_count": 9}, r"min_count must be at most 3, the count of the most frequent word, got 9"),
  ("subword", {"vocabulary_size": 9000}, r"vocabulary_size must be at most \d+ for this text, got 9000"),
  ("subword", {"vocabulary_size": 260}, r"vocabulary_size must be at least \d+ for this text, got 260"),
  ("subword", {"texts": ()}, r"texts must have at least one that is not blank, got none"),
]


@pytest.mark.parametrize(("tokenization", "options", "message"), INVALID)
def test_invalid_options_are_errors(tokenization, options, message):
  with pytest.raises(ValueError, match=f"^{message}.*$"):  # one line
    learn(tokenization, **options)
