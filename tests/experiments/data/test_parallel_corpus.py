"""Tests of experiments/data/parallel_corpus.py."""

import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.cli.messages import is_blank
from experiments.data.parallel_corpus import DataError, SentencePair, format_pair, read_pairs, write_pairs
from experiments.data.words import tokenize

ALIGNED = SentencePair("she sees me", "mi vede", frozenset({(0, 2), (1, 0), (1, 1)}))
# All UTF-8 characters that a line of this format can contain.
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\t\n\r"), max_size=17).filter(
  lambda text: not is_blank(text) and not text.startswith("\ufeff")
)


@st.composite
def sentence_pairs(draw):
  source, target = draw(TEXTS), draw(TEXTS)
  last_target, last_source = len(tokenize(target)) - 1, len(tokenize(source)) - 1
  links = st.tuples(st.integers(0, last_target), st.integers(0, last_source))
  return SentencePair(source, target, draw(st.none() | st.frozensets(links, max_size=5)))


def _written(tmp_path, content, name="pairs.tsv"):
  path = tmp_path / name
  path.write_bytes(content)
  return path


def _message(path):
  """Returns the error of `read_pairs` without the file name, and checks that it is one line."""
  with pytest.raises(DataError) as caught:
    read_pairs(path)
  message = str(caught.value)
  assert "\n" not in message
  assert message.startswith(f"{path}:")
  return message.removeprefix(f"{path}:")


def test_source_comes_first(tmp_path):
  path = _written(tmp_path, "the cat\til gatto\nwhy\tperché\n".encode())
  assert read_pairs(path) == [
    SentencePair("the cat", "il gatto", None),
    SentencePair("why", "perché", None),
  ]


def test_pharaoh_links_are_source_first(tmp_path):
  path = _written(tmp_path, b"she sees me\tmi vede\t0-1 1-1 2-0\n")
  assert read_pairs(path) == [ALIGNED]


def test_empty_alignments_differ_from_none(tmp_path):
  path = _written(tmp_path, b"yes\tno\t\nyes\tno\n")
  assert [pair.alignment for pair in read_pairs(path)] == [frozenset(), None]


def test_unusual_line_ends_are_accepted(tmp_path):
  path = _written(tmp_path, b"\xef\xbb\xbfa\tb\r\nc\td")
  assert read_pairs(path) == [SentencePair("a", "b"), SentencePair("c", "d")]


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\x0b", "\x0c", "\x1c"])
def test_only_newlines_end_lines(tmp_path, separator):
  path = _written(tmp_path, f"a{separator}b\tc\n".encode())
  assert read_pairs(path) == [SentencePair(f"a{separator}b", "c")]


@given(st.lists(sentence_pairs(), min_size=1, max_size=5), st.sampled_from(["p.tsv", "p.tsv.gz"]))
@settings(max_examples=50)
def test_pairs_round_trip(tmp_path_factory, pairs, name):
  path = tmp_path_factory.mktemp("pairs") / name
  write_pairs(path, pairs)
  assert read_pairs(path, alignment_tokens="words") == pairs


def test_compression_is_reproducible(tmp_path):
  write_pairs(tmp_path / "a.gz", [ALIGNED])
  write_pairs(tmp_path / "b.gz", iter([ALIGNED]))
  content = (tmp_path / "a.gz").read_bytes()
  assert gzip.decompress(content) == b"she sees me\tmi vede\t0-1 1-1 2-0\n"
  assert content[4:8] == bytes(4)  # the time of writing
  assert (tmp_path / "b.gz").read_bytes() == content


HINT = (
  "; set --alignment_tokens=whitespace, or --config.data.alignment_tokens in training, if the text was "
  "tokenized before alignment"
)
FIELDS = "expected source TAB target, optionally TAB alignment, got"


@pytest.mark.parametrize(
  ("line", "message"),
  [
    (b"only one side", f"{FIELDS} 1 column"),
    (b"a\tb\t0-0\tc", f"{FIELDS} 4 columns"),
    (b"\tb", "source must not be blank, got ''"),
    (b"a\t \xc2\xa0", "target must not be blank, got ' \\xa0'"),
    (b"a\tb\t" + b"9" * 10_000, f"expected an alignment like '0-0 1-2' (source-target), got '{'9' * 60}…'"),
    (b"a\rb\tc", "source must not contain tabs or line ends, got 'a\\rb'"),
    (b"\xef\xbb\xbfa\tb", "source must not begin with a byte-order mark, got '\\ufeffa'"),
    (b"a\tperch\xe9", "expected UTF-8, got byte 0xe9 at column 8: unexpected end of data"),
    (b"a\tb\t0-0,0-0", "expected an alignment like '0-0 1-2' (source-target), got '0-0,0-0'"),
    (
      b"a b\tc\t0-0 1-1",
      "alignment must link 2 source words and 1 target word, counted from 0, got 1-1" + HINT,
    ),
    (
      b"a\tb c\t1-0",
      "alignment must link 1 source word and 2 target words, counted from 0, got 1-0" + HINT,
    ),
  ],
)
@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.tsv.gz"])
def test_malformed_lines_are_errors(tmp_path, line, message, name):
  content = b"a\tb\r\n\xe2\x80\xa8c\td\n" + line + b"\ne\tf\n"
  path = _written(tmp_path, gzip.compress(content) if name.endswith("gz") else content, name)
  assert _message(path) == f"3: {message}"


@pytest.mark.parametrize(
  ("column", "links"), [(b" ", set()), (b"0-0 ", {(0, 0)}), (b" 0-0  0-1 ", {(0, 0), (1, 0)})]
)
def test_alignments_may_have_extra_spaces(tmp_path, column, links):
  (pair,) = read_pairs(_written(tmp_path, b"a\tb c\t" + column + b"\n"))
  assert pair.alignment == links


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_empty_files_are_errors(tmp_path, content):
  expected = " file is empty; expected one sentence pair per line"
  assert _message(_written(tmp_path, content)) == expected
  assert _message(_written(tmp_path, gzip.compress(content), "pairs.gz")) == expected


def test_missing_files_are_named(tmp_path):
  expected = " cannot read the file: No such file or directory"
  assert _message(tmp_path / "missing.tsv") == expected


def test_truncated_gzip_files_are_errors(tmp_path):
  content = gzip.compress(b"a\tb\n")
  message = " gzip file is truncated"
  assert _message(_written(tmp_path, content[:-5], "pairs.gz")) == message


def test_invalid_gzip_files_are_errors(tmp_path):
  content = bytearray(gzip.compress(bytes(range(256)) * 7))
  content[10] ^= 0xFF
  message = _message(_written(tmp_path, bytes(content), "pairs.gz"))
  assert message.startswith(" invalid gzip file: ")


@pytest.mark.parametrize(
  ("pair", "message"),
  [
    (SentencePair("", "b"), "source must not be blank, got ''"),
    (SentencePair("a", "b\tc"), "target must not contain tabs or line ends, got 'b\\tc'"),
    (SentencePair("a\nb", "c"), "source must not contain tabs or line ends, got 'a\\nb'"),
    (
      SentencePair("a", "b", frozenset({(-1, 0)})),
      "alignment must link 1 source word and 1 target word, counted from 0, got 0--1" + HINT,
    ),
  ],
)
def test_invalid_pairs_are_not_written(pair, message):
  with pytest.raises(ValueError) as caught:
    format_pair(pair)
  assert str(caught.value) == message


def test_empty_files_are_not_written(tmp_path):
  with pytest.raises(ValueError, match=r"^pairs must not be empty$"):
    write_pairs(tmp_path / "pairs.tsv", [])
  assert not (tmp_path / "pairs.tsv").exists()


SPACED = "the cat, it sleeps.\til gatto, dorme.\t0-0 1-1 3-2\n"


def test_ambiguous_links_need_a_choice(tmp_path):
  path = _written(tmp_path, SPACED.encode())
  assert "set --alignment_tokens to whitespace" in _message(path)
  # the cat , it sleeps . / il gatto , dorme .
  (pair,) = read_pairs(path, alignment_tokens="whitespace")
  assert pair.alignment == {(0, 0), (1, 1), (3, 4)}
  (pair,) = read_pairs(path, alignment_tokens="words")
  assert pair.alignment == {(0, 0), (1, 1), (2, 3)}
  assert read_pairs(path, alignment_tokens=None)[0].alignment is None


def test_unambiguous_links_are_accepted(tmp_path):
  for line, links in [
    ("the cat, it sleeps.\til gatto, dorme.\t0-0 1-1 4-3", {(0, 0), (1, 1), (3, 4)}),
    ("the cat sleeps.\til gatto dorme.\t0-0 1-1 2-2", {(0, 0), (1, 1), (2, 2)}),
    ("the friend\tl'amico\t0-0 1-1", {(0, 0), (1, 1)}),
  ]:
    assert read_pairs(_written(tmp_path, line.encode()))[0].alignment == links


def test_whitespace_tokens_link_all_words(tmp_path):
  path = _written(tmp_path, b"the tree ...\tl'albero !?\t0-0 1-0 2-1\n")
  # the tree . . . / l' albero ! ?
  (pair,) = read_pairs(path, alignment_tokens="whitespace")
  assert pair.alignment == {(t, s) for t in (0, 1) for s in (0, 1)} | {
    (t, s) for t in (2, 3) for s in (2, 3, 4)
  }


def test_whitespace_links_are_checked(tmp_path):
  path = _written(tmp_path, b"a, b\tc\t2-0\n")
  with pytest.raises(
    DataError,
    match=r"link 2 source whitespace tokens and 1 target whitespace token, counted from 0, got 2-0$",
  ):
    read_pairs(path, alignment_tokens="whitespace")
