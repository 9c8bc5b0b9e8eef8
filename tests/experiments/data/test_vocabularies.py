"""Tests of experiments/data/vocabularies.py."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.data.vocabularies import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Vocabulary

# Letters, and characters that may be lost when lines are read.
WORDS = st.text(string.ascii_letters + "èß'-\ufeff\u200b\x00", min_size=1, max_size=7)


def test_special_ids_come_first():
  assert (PAD_ID, BOS_ID, EOS_ID, UNK_ID) == (0, 1, 2, 3)
  assert Vocabulary(("il", "gatto")).encode(["il", "gatto"]) == [4, 5]


def test_other_words_are_unknown():
  assert Vocabulary(("il", "gatto")).encode(["gatto", "cane", "il"]) == [5, UNK_ID, 4]


def test_decode_skips_special_ids():
  vocabulary = Vocabulary(("il", "gatto"))
  assert vocabulary.decode([BOS_ID, 4, PAD_ID, UNK_ID, 5, EOS_ID, 4, 99]) == ("il", "<unk>", "gatto")


def test_unk_token_is_unknown():
  vocabulary = Vocabulary.build([["<unk>", "il", "<unk>"]])
  assert vocabulary.words == ("il",)
  assert vocabulary.encode(vocabulary.decode([UNK_ID, 4])) == [UNK_ID, 4]


def test_equivalent_encodings_have_one_id():
  vocabulary = Vocabulary.build([["perche\u0301", "no", "perch\xe9"]])
  assert vocabulary.words == ("perch\xe9", "no")
  assert vocabulary.encode(["perche\u0301", "perch\xe9"]) == [4, 4]
  assert Vocabulary(("e\u0301",)).encode(["\xe9"]) == [4]
  assert vocabulary.unknown(["perche\u0301"]) == ()


def test_unknown_words_are_listed_once():
  assert Vocabulary(("il",)).unknown(["cane", "il", "bue", "cane"]) == ("cane", "bue")


def test_frequent_words_come_first():
  sentences = [["b", "c", "a"], ["d", "c", "d"], ["c"]]
  assert Vocabulary.build(sentences).words == ("c", "d", "a", "b")
  assert Vocabulary.build(sentences[::-1]).words == ("c", "d", "a", "b")


def test_rare_words_are_excluded():
  assert Vocabulary.build([["b", "c", "b"], ["c", "a", "b"]], min_count=2).words == ("b", "c")


@given(st.lists(WORDS, min_size=1, unique=True))
@settings(max_examples=50)
def test_files_round_trip(tmp_path_factory, words):
  path = tmp_path_factory.mktemp("vocabulary") / "words.txt"
  Vocabulary(tuple(words)).save(path)
  assert Vocabulary.load(path).words == tuple(words)


@pytest.mark.parametrize(
  ("words", "message"),
  [
    ((), "words must have at least one word, got none"),
    (("il", ""), "words must be non-empty and without whitespace, got ''"),
    (("il gatto",), "words must be non-empty and without whitespace, got 'il gatto'"),
    (("il", "la", "il"), "words must be distinct, got 'il' twice"),
    (("e\u0301", "\xe9"), "words must be distinct, got '\xe9' twice"),
    (("<unk>",), "words must not contain <unk>, which stands for unknown words"),
  ],
)
def test_invalid_words_are_errors(words, message):
  with pytest.raises(ValueError) as caught:
    Vocabulary(words)
  assert str(caught.value) == message


@pytest.mark.parametrize("token_id", [-1, 6])
def test_ids_must_be_in_range(token_id):
  with pytest.raises(ValueError, match=rf"^ids must be in \[0, 6\), got {token_id}$"):
    Vocabulary(("il", "gatto")).decode([4, token_id])


def test_strings_are_not_words():
  with pytest.raises(ValueError, match=r"sequence of words, got the string 'il gatto'"):
    Vocabulary(("il",)).encode("il gatto")


def test_min_count_is_checked():
  with pytest.raises(ValueError, match=r"must be at most 2, the count of the most frequent word, got 3$"):
    Vocabulary.build([["il", "il", "la"]], min_count=3)
  with pytest.raises(ValueError, match=r"must be at most 0, the count of the most frequent word, got 1$"):
    Vocabulary.build([])


@pytest.mark.parametrize("content", [b"", b"il\n\nla\n", b"il\nil\n", b"il la\n", b"perch\xe9"])
def test_invalid_files_are_errors(tmp_path, content):
  path = tmp_path / "words.txt"
  path.write_bytes(content)
  with pytest.raises(ValueError) as caught:
    Vocabulary.load(path)
  message = str(caught.value)
  assert message.startswith(f"{path}: invalid vocabulary file: ")
  assert "\n" not in message
