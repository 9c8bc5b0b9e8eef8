"""Words and their ids."""

import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.data.vocabularies import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Vocabulary

# Letters, and characters that may be lost when lines are read.
WORDS = st.text(string.ascii_letters + "èß'-\ufeff\u200b\x00", min_size=1, max_size=7)


def test_special_ids_come_first():
  vocabulary = Vocabulary(("il", "gatto"))
  assert (PAD_ID, BOS_ID, EOS_ID, UNK_ID, len(vocabulary)) == (0, 1, 2, 3, 6)
  assert vocabulary.encode(["gatto", "cane", "il"]) == [5, UNK_ID, 4]
  assert vocabulary.decode([BOS_ID, 4, PAD_ID, UNK_ID, 5, EOS_ID, 4, 99]) == ("il", "<unk>", "gatto")
  assert vocabulary.unknown(["cane", "il", "bue", "cane"]) == ("cane", "bue")


def test_unk_token_is_unknown():
  vocabulary = Vocabulary.build([["<unk>", "il", "<unk>"]])
  assert vocabulary.words == ("il",)
  assert vocabulary.encode(vocabulary.decode([UNK_ID, 4])) == [UNK_ID, 4]


def test_equivalent_encodings_have_one_id():
  vocabulary = Vocabulary.build([["perche\u0301", "no", "perch\xe9"]])
  assert vocabulary.words == ("perch\xe9", "no")
  assert vocabulary.encode(["perche\u0301", "perch\xe9"]) == [4, 4]
  assert vocabulary.unknown(["perche\u0301"]) == ()
  assert Vocabulary(("e\u0301",)).encode(["\xe9"]) == [4]


def test_frequent_words_come_first():
  sentences = [["b", "c", "a"], ["d", "c", "d"], ["c"]]
  assert Vocabulary.build(sentences).words == ("c", "d", "a", "b")
  assert Vocabulary.build(sentences[::-1]).words == ("c", "d", "a", "b")
  assert Vocabulary.build(sentences, min_count=2).words == ("c", "d")


@given(st.lists(WORDS, min_size=1, unique=True))
@settings(max_examples=50)
def test_files_round_trip(tmp_path_factory, words):
  path = tmp_path_factory.mktemp("vocabulary") / "words.txt"
  Vocabulary(tuple(words)).save(path)
  assert Vocabulary.load(path).words == tuple(words)


COUNT = "the count of the most frequent word"


INVALID = [
  (lambda: Vocabulary(()), "words must have at least one word, got none"),
  (lambda: Vocabulary(("il", "")), "words must be non-empty and without whitespace, got ''"),
  (lambda: Vocabulary(("il gatto",)), "words must be non-empty and without whitespace, got 'il gatto'"),
  (lambda: Vocabulary(("il", "la", "il")), "words must be distinct, got 'il' twice"),
  (lambda: Vocabulary(("e\u0301", "\xe9")), "words must be distinct, got '\xe9' twice"),
  (lambda: Vocabulary(("<unk>",)), "words must not contain <unk>, which stands for unknown words"),
  (lambda: Vocabulary(("a", "b")).decode([4, -1]), "ids must be in [0, 6), got -1"),
  (lambda: Vocabulary(("a", "b")).decode([4, 6]), "ids must be in [0, 6), got 6"),
  (lambda: Vocabulary(("a",)).encode("a b"), "words must be a sequence of words, got the string 'a b'"),
  (lambda: Vocabulary.build([["a", "a"]], min_count=3), f"min_count must be at most 2, {COUNT}, got 3"),
  (lambda: Vocabulary.build([]), f"min_count must be at most 0, {COUNT}, got 1"),
]


@pytest.mark.parametrize(("call", "message"), INVALID)
def test_invalid_arguments_are_errors(call, message):
  with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
    call()


@pytest.mark.parametrize("content", [b"", b"il\n\nla\n", b"il\nil\n", b"il la\n", b"perch\xe9"])
def test_invalid_files_are_errors(tmp_path, content):
  path = tmp_path / "words.txt"
  path.write_bytes(content)
  with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: invalid vocabulary file: .*$"):  # one line
    Vocabulary.load(path)
