"""Files of sentence pairs."""

import gzip
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.cli.errors import DataError
from experiments.cli.messages import is_blank
from experiments.data.parallel_corpus import SentencePair, format_pair, read_pairs, write_pairs
from experiments.data.words import tokenize

# All UTF-8 characters that a line of this format can contain, such as other line separators.
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\t\n\r"), max_size=17).filter(
  lambda text: not is_blank(text) and not text.startswith("\ufeff")
)
ALIGNED, GOT = "alignment must link", ", counted from 0, got"
HINT = "; set --alignment_tokens=whitespace, or --config.data.alignment_tokens in training, if the text was"
HINT += " tokenized before alignment"


@st.composite
def sentence_pairs(draw):
  source, target = draw(TEXTS), draw(TEXTS)
  links = st.tuples(st.integers(0, len(tokenize(target)) - 1), st.integers(0, len(tokenize(source)) - 1))
  sure = draw(st.none() | st.frozensets(links, max_size=5))
  possible = frozenset() if sure is None else draw(st.frozensets(links, max_size=3)) - sure
  return SentencePair(source, target, sure, possible)


@pytest.fixture
def read(tmp_path):
  """Returns a function that reads pairs from the content of a file."""

  def read(content, name="pairs.tsv", **options):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_pairs(path, **options)

  return read


def test_pharaoh_links_are_source_first(read):
  assert read("she sees me\tmi vede\t0-1 1-1 2-0\nyes\tno\t\nwhy\tperché\n") == [
    SentencePair("she sees me", "mi vede", frozenset({(0, 2), (1, 0), (1, 1)})),
    SentencePair("yes", "no", frozenset()),
    SentencePair("why", "perché", None),
  ]
  assert read("a\tb c\t 0-0  0-1 \n")[0].alignment == {(0, 0), (1, 0)}


def test_unusual_line_ends_are_accepted(read):
  assert read(b"\xef\xbb\xbfa\tb\r\nc\td") == [SentencePair("a", "b"), SentencePair("c", "d")]
  # Only "\n" ends a line.
  assert read("a\u2028\x85\x0b\x0c\x1cb\tc\n") == [SentencePair("a\u2028\x85\x0b\x0c\x1cb", "c")]


@given(st.lists(sentence_pairs(), min_size=1, max_size=5), st.sampled_from(["p.tsv", "p.tsv.gz"]))
@settings(max_examples=25)
def test_pairs_round_trip(tmp_path_factory, pairs, name):
  path = tmp_path_factory.mktemp("pairs") / name
  write_pairs(path, pairs)
  assert read_pairs(path, alignment_tokens="words") == pairs


def test_compression_is_reproducible(tmp_path):
  pairs = [SentencePair("she sees me", "mi vede", frozenset({(0, 2)}))]
  write_pairs(tmp_path / "a.gz", pairs)
  write_pairs(tmp_path / "b.gz", iter(pairs))
  content = (tmp_path / "a.gz").read_bytes()
  assert gzip.decompress(content) == b"she sees me\tmi vede\t2-0\n"
  assert content[4:8] == bytes(4)  # the time of writing
  assert (tmp_path / "b.gz").read_bytes() == content


# fmt: off
MALFORMED = [
  (b"only one side", "expected source TAB target, optionally TAB alignment, got 1 column"),
  (b"a\tb\t0-0\tc", "expected source TAB target, optionally TAB alignment, got 4 columns"),
  (b"\tb", "source must not be blank, got ''"),
  (b"a\t \xc2\xa0", "target must not be blank, got ' \\xa0'"),
  (b"a\rb\tc", "source must not contain tabs or line ends, got 'a\\rb'"),
  (b"\xef\xbb\xbfa\tb", "source must not begin with a byte-order mark, got '\\ufeffa'"),
  (b"a\tperch\xe9", "expected UTF-8, got byte 0xe9 at column 8: unexpected end of data"),
  (b"a\tb\t0-0,0-0", "expected an alignment like '0-0 1-2' (source-target), got '0-0,0-0'"),
  (b"a\tb\t" + b"9" * 100, f"expected an alignment like '0-0 1-2' (source-target), got '{'9' * 60}…'"),
  (b"a b\tc\t0-0 1-1", f"{ALIGNED} 2 source words and 1 target word{GOT} 1-1{HINT}"),
  (b"a\tb c\t0-0 1p0", f"{ALIGNED} 1 source word and 2 target words{GOT} 1-0{HINT}"),
]
# fmt: on


@pytest.mark.parametrize(("line", "message"), MALFORMED)
@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.tsv.gz"])
def test_malformed_lines_are_errors(read, tmp_path, name, line, message):
  content = b"a\tb\r\n\xe2\x80\xa8c\td\n" + line + b"\ne\tf\n"
  with pytest.raises(DataError, match=re.escape(f"{tmp_path / name}:3: {message}") + "$"):
    read(gzip.compress(content) if name.endswith("gz") else content, name)


BROKEN_GZIP = bytearray(gzip.compress(bytes(range(256)) * 7, mtime=0))
BROKEN_GZIP[10] ^= 0xFF


UNREADABLE = [
  ("pairs.tsv", b"", "file is empty; expected one sentence pair per line"),
  ("pairs.tsv", b"\xef\xbb\xbf", "file is empty; expected one sentence pair per line"),
  ("pairs.gz", gzip.compress(b"", mtime=0), "file is empty; expected one sentence pair per line"),
  ("pairs.gz", gzip.compress(b"a\tb\n", mtime=0)[:-5], "gzip file is truncated"),
  ("pairs.gz", bytes(BROKEN_GZIP), "invalid gzip file: "),
]


@pytest.mark.parametrize(("name", "content", "message"), UNREADABLE)
def test_unreadable_files_are_errors(read, tmp_path, name, content, message):
  with pytest.raises(DataError, match=f"^{re.escape(str(tmp_path / name))}: {message}.*$"):  # one line
    read(content, name)


INVALID = [
  (SentencePair("", "b"), "source must not be blank, got ''"),
  (SentencePair("a", "b\tc"), "target must not contain tabs or line ends, got 'b\\tc'"),
  (SentencePair("a\nb", "c"), "source must not contain tabs or line ends, got 'a\\nb'"),
  (
    SentencePair("a", "b", frozenset({(-1, 0)})),
    f"{ALIGNED} 1 source word and 1 target word{GOT} 0--1{HINT}",
  ),
]


@pytest.mark.parametrize(("pair", "message"), INVALID)
def test_invalid_pairs_are_not_written(pair, message):
  with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
    format_pair(pair)


def test_missing_files_are_errors(tmp_path):
  with pytest.raises(ValueError, match=r"^pairs must not be empty$"):
    write_pairs(tmp_path / "pairs.tsv", [])
  with pytest.raises(DataError, match=r"pairs\.tsv: cannot read the file: No such file or directory"):
    read_pairs(tmp_path / "pairs.tsv")


def test_ambiguous_links_need_a_choice(read):
  # the cat , it sleeps . / il gatto , dorme .
  line = "the cat, it sleeps.\til gatto, dorme.\t0-0 1-1 3-2\n"
  with pytest.raises(DataError, match="set --alignment_tokens to whitespace or words"):
    read(line)
  assert read(line, alignment_tokens="whitespace")[0].alignment == {(0, 0), (1, 1), (3, 4)}
  for tokens in ("words", "unconverted"):
    assert read(line, alignment_tokens=tokens)[0].alignment == {(0, 0), (1, 1), (2, 3)}
  assert read(line, alignment_tokens=None)[0].alignment is None


def test_unambiguous_links_are_accepted(read):
  for line, links in [
    ("the cat, it sleeps.\til gatto, dorme.\t0-0 4-3", {(0, 0), (3, 4)}),
    ("the cat sleeps.\til gatto dorme.\t2-2", {(2, 2)}),
    # One line that does not fit whitespace tokens decides for all.
    ("the cat, it sleeps.\til gatto, dorme.\t3-2\na, b\tc\t2-0", {(2, 3)}),
  ]:
    assert read(line)[0].alignment == links


def test_whitespace_tokens_link_all_words(read):
  # the tree . . . / l' albero ! ?
  line = "the tree ...\tl'albero !?\t0-0 1-0 2-1\n"
  links = {(0, 0), (0, 1), (1, 0), (1, 1), (2, 2), (2, 3), (2, 4), (3, 2), (3, 3), (3, 4)}
  assert read(line, alignment_tokens="whitespace")[0].alignment == links
  # Without the comma, which is no word.
  pair = SentencePair("the cat, asleep", "il gatto", frozenset({(0, 0)}), frozenset({(1, 1), (1, 3)}))
  assert format_pair(pair) == "the cat, asleep\til gatto\t0-0 1p1 3p1"
  assert read("the cat, asleep\til gatto\t0-0 1p1 2p1", alignment_tokens="whitespace") == [pair]


def test_whitespace_links_are_checked(read):
  message = r"link 2 source whitespace tokens and 1 target whitespace token, counted from 0, got 2-0$"
  with pytest.raises(DataError, match=message):
    read("a, b\tc\t2-0\n", alignment_tokens="whitespace")
