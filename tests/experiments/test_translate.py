"""Tests of experiments/translate.py on one small run: files, n-best lists and sampling."""

import pathlib

import numpy as np
import pytest
from helpers import scripts

WORDS = dict(zip("abcde", ("uno", "due", "tre", "quattro", "cinque"), strict=True))
MAX_LENGTH = 5  # tokens of a translation, including EOS
BEAM = "--beam_size=4"

# Lines with equal words but different line ends or whitespace.
SAME, OTHERS = (0, 3, 4, 10, 11), (2, 5)
LINES = ["\ufeffa b", "", "c d\r", "a\u2028b", "A  B", "c d", "   ", "zebra c gnu", "a b c d e a b c d e"]
LINES += ["gnu e", "\x85a\x1cb\x0c", "a\rb"]
EMPTY = (1, 6)


def _pairs(rng, count):
  sentences = (rng.choice(list(WORDS), rng.integers(1, MAX_LENGTH + 1)) for _ in range(count))
  return "".join(f"{' '.join(words)}\t{' '.join(map(WORDS.get, words))}\n" for words in sentences)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """The folder of a run that has learned a few words."""
  folder, rng = tmp_path_factory.mktemp("run"), np.random.default_rng(0)
  for split, count in (("train", 101), ("validation", 7)):
    (folder / f"{split}.tsv").write_text(_pairs(rng, count), "utf-8")
  files = {split: str(folder / f"{split}.tsv") for split in ("train", "validation")}
  flags = (
    "--config=configs/parallel_text.py",
    *(f"--config.data.{split}_file={path}" for split, path in files.items()),
    "--config.data.tokenization=word",
    "--config.data.num_buckets=1",
    "--config.model.attention=none",
    "--config.model.dtype=bfloat16",  # test_scripts.py has float32
    "--config.model.embed_dim=13",
    "--config.model.features=17",
    "--config.model.dropout_rate=0",
    "--config.train.num_train_steps=150",
    "--config.train.batch_size=23",
    "--config.train.learning_rate=0.03",
    "--config.train.eval_every_steps=150",
    "--config.evaluation.batch_size=7",
    f"--config.evaluation.max_decode_length={MAX_LENGTH}",
  )
  finished = scripts.run("train", f"--workdir={folder / 'run'}", *flags)
  assert finished.code == 0, finished
  return folder / "run"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
  path = tmp_path_factory.mktemp("source") / "lines.txt"
  path.write_bytes("\n".join(LINES).encode("utf-8"))  # the last line has no line end
  return path


@pytest.fixture(scope="module")
def translate(trained):
  """Returns a function that translates with the run, which must succeed."""

  def run(*flags, lines=""):
    workdir = f"--workdir={trained}", *map(str, flags)
    finished = scripts.run("translate", *workdir, lines=lines)
    assert finished.code == 0, finished
    return finished

  return run


@pytest.fixture(scope="module")
def translated(translate, source, tmp_path_factory):
  """The translated lines of a file, and the messages on standard error."""
  output = tmp_path_factory.mktemp("translated") / "lines.txt"
  output.write_text("mine", "utf-8")
  finished = translate(f"--input={source}", f"--output={output}", BEAM)
  assert finished.output == ""
  assert [path.name for path in output.parent.iterdir()] == ["lines.txt"]
  content = output.read_bytes().decode("utf-8")
  assert content.endswith("\n")
  assert "\r" not in content
  return content.split("\n")[:-1], finished.errors


def _error(trained, *flags):
  """Returns the error line for some flags."""
  finished = scripts.run("translate", f"--workdir={trained}", *map(str, flags))
  assert (finished.code, finished.output) == (2, ""), finished
  assert finished.errors.count("\n") == 1
  return finished.errors.removeprefix("error: ").rstrip("\n")


def test_one_output_line_per_input_line(translated):
  lines, _ = translated
  assert len(lines) == len(LINES)
  assert [i for i, line in enumerate(lines) if not line] == list(EMPTY)


def test_lines_keep_their_order(translated):
  lines, _ = translated
  assert {lines[i] for i in SAME} == {lines[0]}
  assert {lines[i] for i in OTHERS} == {lines[2]}
  # The run has learned the first words.
  assert [lines[i].split()[0] for i in (0, 2, 8)] == ["uno", "tre", "uno"]


def test_unknown_words_are_reported_once(translated):
  _, errors = translated
  assert errors.splitlines()[0] == "unknown words: zebra gnu"


def test_truncated_translations_are_counted(translated):
  lines, errors = translated
  truncated = [line for line in lines if len(line.split()) == MAX_LENGTH]
  assert lines[8] in truncated
  message = f"translations truncated to --max_length={MAX_LENGTH} tokens: {len(truncated)}"
  assert errors.splitlines()[1:] == [message]


@pytest.mark.exhaustive
def test_max_length_may_exceed_the_config(translate, source, translated):
  lines, errors = translated
  assert max(len(line.split()) for line in lines) == MAX_LENGTH and "truncated" in errors
  longer = translate(f"--input={source}", BEAM, f"--max_length={MAX_LENGTH + 4}")
  longest = max(len(line.split()) for line in longer.output.splitlines())
  assert longest > MAX_LENGTH or "truncated" not in longer.errors


@pytest.mark.exhaustive
def test_without_an_output_translations_are_printed(translate, source, translated):
  finished = translate(f"--input={source}", BEAM)
  assert (finished.output.split("\n")[:-1], finished.errors) == translated


@pytest.mark.exhaustive
def test_standard_input_matches_a_file(translate, translated):
  lines, _ = translated
  finished = translate(BEAM, lines="\n".join(LINES))
  assert finished.output.split("\n")[:-1] == lines
  # Warnings are printed for each line.
  assert [line for line in finished.errors.splitlines() if "unknown" in line] == [
    "unknown words: zebra gnu",
    "unknown words: gnu",
  ]


def test_n_best_prints_numbers_and_scores(translate, source, translated):
  lines, _ = translated
  finished = translate(f"--input={source}", BEAM, "--n_best=3")
  n_best = {number: [] for number in range(1, len(LINES) + 1)}
  rows = [line.split("\t") for line in finished.output.split("\n")[:-1]]
  assert [int(number) for number, *_ in rows] == sorted(int(number) for number, *_ in rows)
  for number, score, text in rows:
    n_best[int(number)].append((float(score), text))
  assert [translations[0][1] for translations in n_best.values()] == lines
  for number, translations in n_best.items():
    if number - 1 in EMPTY:
      assert translations == [(0.0, "")]
      continue
    assert len(translations) == len({text for _, text in translations}) == 3
    # Finished translations are first, then truncated ones, each sorted by score.
    assert translations == sorted(
      translations, key=lambda translation: (len(translation[1].split()) == MAX_LENGTH, -translation[0])
    )


def test_lines_of_standard_input_are_numbered(translate):
  finished = translate(BEAM, "--n_best=2", lines="a b\n\nc\n")
  numbers = [line.split("\t")[0] for line in finished.output.splitlines()]
  assert numbers == ["1", "1", "2", "3", "3"]


@pytest.mark.exhaustive
def test_samples_depend_on_the_seed(translate, source):
  first, same_seed, other_seed = (
    translate(f"--input={source}", "--temperature=3", f"--seed={seed}").output for seed in (5, 5, 7)
  )
  assert first == same_seed != other_seed
  assert len(first.split("\n")[:-1]) == len(LINES)


@pytest.mark.exhaustive
def test_samples_from_standard_input_match_file(translate, source):
  flags = "--temperature=3", "--seed=5"
  sampled = translate(f"--input={source}", *flags).output
  assert translate(*flags, lines="\n".join(LINES)).output == sampled
  repeated = translate(*flags, lines="a b\n" * 7).output.splitlines()
  assert len(set(repeated)) > 1


def test_blank_lines_need_no_attention(translate, tmp_path):
  (tmp_path / "blank").write_text("\n \n", "utf-8")
  assert translate(f"--input={tmp_path / 'blank'}", "--replace_unknown").output == "\n\n"
  assert translate("--text=", "--replace_unknown", "--tokens").output == "\n"


def test_empty_files_have_no_translations(translate, tmp_path):
  (tmp_path / "empty").write_bytes(b"")
  translate(f"--input={tmp_path / 'empty'}", f"--output={tmp_path / 'out'}")
  assert (tmp_path / "out").read_bytes() == b""


def test_invalid_utf_8_files_are_errors(trained, tmp_path):
  path = tmp_path / "latin"
  path.write_bytes("a b\ncaff\xe8\n".encode("latin-1"))
  message = _error(trained, f"--input={path}", f"--output={tmp_path / 'out'}")
  assert message == f"{path}:2: expected UTF-8, got byte 0xe8: invalid continuation byte"
  assert not (tmp_path / "out").exists()


def test_missing_files_are_errors(trained, tmp_path):
  path = tmp_path / "gone"
  assert _error(trained, f"--input={path}") == f"{path}: cannot read the file: No such file or directory"


def test_unwritable_outputs_are_errors(trained, source, tmp_path):
  path = tmp_path / "gone" / "out"
  message = _error(trained, f"--input={source}", f"--output={path}")
  assert message == f"--output must be in an existing folder, got {str(path)!r}"
  message = _error(trained, f"--input={source}", f"--output={tmp_path}")
  assert message == f"--output must be a file, got the folder {str(tmp_path)!r}"


def test_output_must_differ_from_input(trained, source, tmp_path):
  content, link = source.read_bytes(), tmp_path / "link"
  link.symlink_to(source)
  for path in (source, link):
    message = _error(trained, f"--input={source}", f"--output={path}")
    assert message == f"--output must not be the same file as --input, got {str(path)!r}"
  assert source.read_bytes() == content


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (("--text=a\nb",), "--text must be one line; use --input for several lines"),
    (("--text=a", "--text=b"), "--text must be set once, got 'b'"),
    (("--input=",), "--input must name a file, got none"),
    (("--text=a", "--replace_unknown", "--dictionary="), "--dictionary must name a file, got none"),
    (
      ("--text=a", "--attention_png=no/such/folder/a.png"),
      "--attention_png must be in an existing folder, got 'no/such/folder/a.png'",
    ),
    (("--text=a", "--input=a"), "--text and --input must not be set together"),
    (("--output=a",), "--output needs --input"),
    (("--text=a", "--output=a"), "--output needs --input"),
    (
      ("--input=a", "--attention_png=a.png"),
      "--attention_png needs --text",
    ),
    (("--text=a", "--attention_png=a.pdf"), "--attention_png must end in .png, got 'a.pdf'"),
    (("--n_best=2", "--temperature=1"), "--n_best must not be set with --temperature=1.0"),
    (("--n_best=3", "--beam_size=2"), "--n_best must be at most --beam_size=2, got 3"),
  ],
)
def test_conflicting_flags_are_errors(trained, flags, message):
  assert not pathlib.Path("a").exists()
  assert _error(trained, *flags) == message
