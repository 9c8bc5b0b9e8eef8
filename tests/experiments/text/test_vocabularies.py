"""Tests of experiments/text/vocabularies.py."""

import string

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.text.vocabularies import END, PAD, START, UNKNOWN, Vocabulary

# Letters, and characters that a careless reader of lines would trip over.
WORDS = st.text(string.ascii_letters + "èß'-\ufeff\u200b\x00", min_size=1, max_size=7)


def test_ids_of_the_specials_come_first():
  assert (PAD, START, END, UNKNOWN) == (0, 1, 2, 3)
  assert Vocabulary(("il", "gatto")).encode(["il", "gatto"]) == [4, 5]


def test_length_counts_words_and_specials():
  assert len(Vocabulary(("il", "gatto", "vede"))) == 7


def test_encode_gives_unknown_for_other_words_and_adds_nothing():
  assert Vocabulary(("il", "gatto")).encode(["gatto", "cane", "il"]) == [5, UNKNOWN, 4]


def test_decode_stops_at_end_and_skips_padding_and_start():
  vocabulary = Vocabulary(("il", "gatto"))
  assert vocabulary.decode([START, 4, PAD, 5, END, 4, 99]) == ("il", "gatto")


def test_decode_shows_unknown():
  assert Vocabulary(("il",)).decode([UNKNOWN, 4]) == ("<unk>", "il")


def test_decode_accepts_an_array():
  assert Vocabulary(("il", "gatto")).decode(np.array([5, 4, END], np.int32)) == ("gatto", "il")


def test_words_spelt_like_other_specials_are_words():
  assert Vocabulary(("</s>", "<pad>")).encode(["</s>", "<pad>"]) == [4, 5]
  assert Vocabulary(("il",)).encode(["<pad>", "</s>", "<s>"]) == [UNKNOWN] * 3


def test_what_is_written_for_unknown_words_is_unknown():
  vocabulary = Vocabulary.build([["<unk>", "il", "<unk>"]])
  assert vocabulary.words == ("il",)
  assert vocabulary.encode(vocabulary.decode([UNKNOWN, 4])) == [UNKNOWN, 4]


def test_both_spellings_of_a_word_have_one_id():
  vocabulary = Vocabulary.build([["perche\u0301", "no", "perch\xe9"]])
  assert vocabulary.words == ("perch\xe9", "no")
  assert vocabulary.encode(["perche\u0301", "perch\xe9"]) == [4, 4]
  assert Vocabulary(("e\u0301",)).encode(["\xe9"]) == [4]
  assert vocabulary.unknown(["perche\u0301"]) == ()


def test_unknown_names_each_missing_word_once_in_order():
  assert Vocabulary(("il",)).unknown(["cane", "il", "bue", "cane"]) == ("cane", "bue")


def test_build_sorts_by_frequency_and_then_by_alphabet():
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


@given(st.lists(WORDS, min_size=1, unique=True), st.data())
@settings(max_examples=50)
def test_decode_gives_back_what_encode_took(words, data):
  sentence = data.draw(st.lists(st.sampled_from(words)))
  vocabulary = Vocabulary(tuple(words))
  assert vocabulary.decode(vocabulary.encode(sentence)) == tuple(sentence)


def test_file_has_one_word_a_line(tmp_path):
  Vocabulary(("perché", "l'")).save(tmp_path / "words.txt")
  assert (tmp_path / "words.txt").read_bytes() == b"perch\xc3\xa9\nl'\n"


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
def test_ids_out_of_range_are_errors(number):
  with pytest.raises(ValueError, match=rf"^ids must be in \[0, 6\), got {number}$"):
    Vocabulary(("il", "gatto")).decode([4, number])


def test_a_string_in_place_of_words_is_an_error():
  with pytest.raises(ValueError, match=r"sequence of words, got the string 'il gatto'"):
    Vocabulary(("il",)).encode("il gatto")
  with pytest.raises(ValueError, match=r"sequence of words, got the string 'il gatto'"):
    Vocabulary(("il",)).unknown("il gatto")
  with pytest.raises(ValueError, match=r"sequence of words, got the string 'il gatto'"):
    Vocabulary.build(["il gatto"])


def test_min_count_below_one_is_an_error():
  with pytest.raises(ValueError, match=r"^min_count must be at least 1, got 0$"):
    Vocabulary.build([["il"]], min_count=0)


def test_min_count_that_leaves_no_word_is_an_error():
  with pytest.raises(ValueError, match=r"got min_count=3 where the most frequent word occurs 2 "):
    Vocabulary.build([["il", "il", "la"]], min_count=3)
  with pytest.raises(ValueError, match=r"got min_count=1 where the most frequent word occurs 0 "):
    Vocabulary.build([])


@pytest.mark.parametrize("content", [b"", b"il\n\nla\n", b"il\nil\n", b"il la\n", b"perch\xe9"])
def test_a_file_that_is_no_vocabulary_is_an_error_naming_it(tmp_path, content):
  path = tmp_path / "words.txt"
  path.write_bytes(content)
  with pytest.raises(ValueError) as caught:
    Vocabulary.load(path)
  message = str(caught.value)
  assert message.startswith(f"{path}: not a vocabulary, one word a line: ")
  assert "\n" not in message
