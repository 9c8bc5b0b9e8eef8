"""Tests of experiments/text/vocabularies.py."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.text.vocabularies import END, PAD, START, UNKNOWN, Vocabulary

# Letters, and characters that a careless reader of lines would trip over.
WORDS = st.text(string.ascii_letters + "èß'-\ufeff\u200b\x00", min_size=1, max_size=7)


def test_special_ids_come_first():
  assert (PAD, START, END, UNKNOWN) == (0, 1, 2, 3)
  assert Vocabulary(("il", "gatto")).encode(["il", "gatto"]) == [4, 5]


def test_other_words_are_unknown():
  assert Vocabulary(("il", "gatto")).encode(["gatto", "cane", "il"]) == [5, UNKNOWN, 4]


def test_decode_skips_special_ids():
  vocabulary = Vocabulary(("il", "gatto"))
  assert vocabulary.decode([START, 4, PAD, UNKNOWN, 5, END, 4, 99]) == ("il", "<unk>", "gatto")


def test_unk_is_unknown():
  vocabulary = Vocabulary.build([["<unk>", "il", "<unk>"]])
  assert vocabulary.words == ("il",)
  assert vocabulary.encode(vocabulary.decode([UNKNOWN, 4])) == [UNKNOWN, 4]


def test_spellings_have_one_id():
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


def test_build_leaves_out_rare_words():
  assert Vocabulary.build([["b", "c", "b"], ["c", "a", "b"]], min_count=2).words == ("b", "c")


@given(st.lists(WORDS, min_size=1, unique=True))
@settings(max_examples=50)
def test_load_reads_what_save_wrote(tmp_path_factory, words):
  path = tmp_path_factory.mktemp("vocabulary") / "words.txt"
  Vocabulary(tuple(words)).save(path)
  assert Vocabulary.load(path).words == tuple(words)


@pytest.mark.parametrize(
  ("words", "message"),
  [
    ((), "words must be at least one word, got none"),
    (("il", ""), "words must be non-empty and without whitespace, got ''"),
    (("il gatto",), "words must be non-empty and without whitespace, got 'il gatto'"),
    (("il", "la", "il"), "words must be distinct, got 'il' twice"),
    (("e\u0301", "\xe9"), "words must be distinct, got '\xe9' twice"),
    (("<unk>",), "words must not be <unk>, which is written for unknown words"),
  ],
)
def test_wrong_words_are_errors(words, message):
  with pytest.raises(ValueError) as caught:
    Vocabulary(words)
  assert str(caught.value) == message


@pytest.mark.parametrize("number", [-1, 6])
def test_ids_must_be_in_range(number):
  with pytest.raises(ValueError, match=rf"^ids must be in \[0, 6\), got {number}$"):
    Vocabulary(("il", "gatto")).decode([4, number])


def test_strings_are_not_words():
  with pytest.raises(ValueError, match=r"sequence of words, got the string 'il gatto'"):
    Vocabulary(("il",)).encode("il gatto")


def test_min_count_must_leave_words():
  with pytest.raises(ValueError, match=r"got min_count=3 where the most frequent word occurs 2 "):
    Vocabulary.build([["il", "il", "la"]], min_count=3)
  with pytest.raises(ValueError, match=r"got min_count=1 where the most frequent word occurs 0 "):
    Vocabulary.build([])


@pytest.mark.parametrize("content", [b"", b"il\n\nla\n", b"il\nil\n", b"il la\n", b"perch\xe9"])
def test_damaged_files_are_named(tmp_path, content):
  path = tmp_path / "words.txt"
  path.write_bytes(content)
  with pytest.raises(ValueError) as caught:
    Vocabulary.load(path)
  message = str(caught.value)
  assert message.startswith(f"{path}: not a vocabulary, one word a line: ")
  assert "\n" not in message
