"""translate.py on the toy run, and on a run on files that has learned a few words."""

import numpy as np
import pytest
from helpers import scripts

pytestmark = pytest.mark.slow

WORDS = dict(zip("abcde", ("uno", "due", "tre", "quattro", "cinque"), strict=True))
MAX_LENGTH = 5  # tokens of a translation, including EOS
BEAM = "--beam_size=4"

# Lines with equal words but different line ends or whitespace.
SAME, OTHERS, EMPTY = (0, 3, 4, 10, 11), (2, 5), (1, 6)
LINES = ["\ufeffa b", "", "c d\r", "a\u2028b", "A  B", "c d", "   ", "zebra c gnu", "a b c d e a b c d e"]
LINES += ["gnu e", "\x85a\x1cb\x0c", "a\rb"]


@pytest.fixture(scope="module")
def files_run(run, tmp_path_factory):
  """The folder of a run on files, without attention."""
  folder, rng = tmp_path_factory.mktemp("run"), np.random.default_rng(0)
  for split, count in (("train", 101), ("validation", 7)):
    sentences = [rng.choice(list(WORDS), rng.integers(1, MAX_LENGTH + 1)) for _ in range(count)]
    lines = [f"{' '.join(words)}\t{' '.join(map(WORDS.get, words))}\n" for words in sentences]
    (folder / f"{split}.tsv").write_text("".join(lines), "utf-8")
  finished = run(
    "train",
    f"--workdir={folder / 'run'}",
    "--config=configs/parallel_text.py",
    *(f"--config.data.{split}_file={folder / split}.tsv" for split in ("train", "validation")),
    *("--config.data.tokenization=word", "--config.data.num_buckets=1"),
    *("--config.model.attention=none", "--config.model.dtype=bfloat16", "--config.model.dropout_rate=0"),
    *("--config.model.embed_dim=13", "--config.model.features=17"),
    *("--config.train.num_train_steps=150", "--config.train.eval_every_steps=150"),
    *("--config.train.batch_size=23", "--config.train.learning_rate=0.03"),
    *("--config.evaluation.batch_size=7", f"--config.evaluation.max_decode_length={MAX_LENGTH}"),
  )
  assert finished.output.count("  source  ") == 5
  assert [path.name for path in (folder / "run" / "figures").iterdir()] == ["training_curves.png"]
  assert {*(folder / "run" / "vocabulary.source.txt").read_text("utf-8").splitlines()} == {*WORDS}
  (folder / "train.tsv").unlink()  # translation needs no training files
  return folder / "run"


@pytest.fixture(scope="module")
def translate(files_run, run):
  def translate(*flags, lines=""):
    return run("translate", f"--workdir={files_run}", *flags, lines=lines)

  return translate


@pytest.fixture(scope="module")
def source(tmp_path_factory):
  path = tmp_path_factory.mktemp("source") / "lines.txt"
  path.write_bytes("\n".join(LINES).encode("utf-8"))  # the last line has no line end
  return path


@pytest.fixture(scope="module")
def translated(translate, source, tmp_path_factory):
  """The translated lines of a file, and the messages on standard error."""
  output = tmp_path_factory.mktemp("translated") / "lines.txt"
  output.write_text("mine", "utf-8")
  finished = translate(f"--input={source}", f"--output={output}", BEAM)
  assert finished.output == "" and [path.name for path in output.parent.iterdir()] == ["lines.txt"]
  content = output.read_bytes().decode("utf-8")
  assert content.endswith("\n") and "\r" not in content
  return content.split("\n")[:-1], finished.errors


def test_lines_keep_their_order(translated):
  lines, errors = translated
  assert len(lines) == len(LINES)
  assert [i for i, line in enumerate(lines) if not line] == list(EMPTY)
  assert {lines[i] for i in SAME} == {lines[0]} and {lines[i] for i in OTHERS} == {lines[2]}
  # The run has learned the first words.
  assert [lines[i].split()[0] for i in (0, 2, 8)] == ["uno", "tre", "uno"]
  truncated = [line for line in lines if len(line.split()) == MAX_LENGTH]
  assert lines[8] in truncated
  assert errors.splitlines() == [
    "unknown words: zebra gnu",
    f"translations truncated to --max_length={MAX_LENGTH} tokens: {len(truncated)}",
  ]


def test_standard_input_is_translated_by_line(translate, translated):
  finished = translate(BEAM, lines="\n".join(LINES))
  assert finished.output.split("\n")[:-1] == translated[0]
  unknown = [line for line in finished.errors.splitlines() if "unknown" in line]
  assert unknown == ["unknown words: zebra gnu", "unknown words: gnu"]
  finished = translate(BEAM, "--n_best=2", lines="a b\n\nc\n")
  assert [line.split("\t")[0] for line in finished.output.splitlines()] == ["1", "1", "2", "3", "3"]


def test_n_best_prints_numbers_and_scores(translate, source, translated):
  finished = translate(f"--input={source}", BEAM, "--n_best=3")
  n_best = {number: [] for number in range(1, len(LINES) + 1)}
  rows = [line.split("\t") for line in finished.output.split("\n")[:-1]]
  assert [int(number) for number, *_ in rows] == sorted(int(number) for number, *_ in rows)
  for number, score, text in rows:
    n_best[int(number)].append((float(score), text))
  assert [translations[0][1] for translations in n_best.values()] == translated[0]
  for number, translations in n_best.items():
    if number - 1 in EMPTY:
      assert translations == [(0.0, "")]
      continue
    assert len(translations) == len({text for _, text in translations}) == 3
    # Finished translations are first, then truncated ones, each sorted by score.
    keys = [(len(text.split()) == MAX_LENGTH, -score) for score, text in translations]
    assert keys == sorted(keys)


def test_samples_depend_on_the_seed(translate, source):
  flags = "--temperature=3", f"--input={source}"
  first, other = (translate(*flags, f"--seed={seed}").output for seed in (5, 7))
  assert first != other and len(first.split("\n")[:-1]) == len(LINES)
  assert translate("--temperature=3", "--seed=5", lines="\n".join(LINES)).output == first
  assert len({first.split("\n")[i] for i in SAME}) > 1


def test_empty_files_have_no_translations(translate, tmp_path):
  path = tmp_path / "lines"
  path.write_bytes(b"")
  translate(f"--input={path}", f"--output={tmp_path / 'out'}")
  assert (tmp_path / "out").read_bytes() == b""
  path.write_text("\n \n", "utf-8")
  assert translate(f"--input={path}", "--replace_unknown").output == "\n\n"  # this needs no attention


def test_models_without_attention_have_no_maps(files_run, tmp_path):
  for flag in (f"--attention_png={tmp_path / 'map.png'}", "--replace_unknown"):
    finished = scripts.run("translate", f"--workdir={files_run}", "--text=a", flag)
    line = f"error: {flag.split('=')[0]} needs a model with attention"
    assert finished.code == 2 and finished.errors.splitlines()[-1] == line
  assert list(tmp_path.iterdir()) == []


def test_maps_are_written(trained, run, tmp_path):
  figure = tmp_path / "map.png"
  text = "--text=the red cat does not see the zebra"
  finished = run("translate", f"--workdir={trained[0]}", text, f"--attention_png={figure}", "--max_length=99")
  assert "unknown words: zebra\n" in finished.errors and f"wrote {figure}\n" in finished.errors
  text = " and ".join(["the cat sees the dog"] * 12)
  finished = run("translate", f"--workdir={trained[0]}", f"--text={text}", "--tokens")
  assert "sources longer than in training (14 tokens): 1, up to 71 tokens\n" in finished.errors
  assert len(finished.output.splitlines()) == 1 and figure.read_bytes().startswith(b"\x89PNG")


def test_ensembles_of_one_equal_it(trained, run, error_of):
  text = "--text=the red cat sleeps"
  workdirs = f"--workdir={trained[0]}", f"--workdir={trained[0]},{trained[0]}"
  single, twice = (run("translate", flag, text, "--checkpoint=last").output for flag in workdirs)
  assert twice == single
  assert "nowhere: no run here" in error_of("translate", f"--workdir={trained[0]},nowhere", text)


def test_files_are_checked(files_run, error_of, source, tmp_path):
  def error(*flags):
    return error_of("translate", f"--workdir={files_run}", *flags)

  path, link, content = tmp_path / "latin", tmp_path / "link", source.read_bytes()
  path.write_bytes("a b\ncaff\xe8\n".encode("latin-1"))
  link.symlink_to(source)
  same, folder = "must not be the same file as --input, got", "--output must be in an existing folder"
  invalid = f"{path}:2: expected UTF-8, got byte 0xe8: invalid continuation byte"
  assert error(f"--input={path}", f"--output={tmp_path / 'out'}") == invalid
  assert error(f"--input={source}", f"--output={link}") == f"--output {same} {str(link)!r}"
  assert error(f"--input={source}", f"--output={path}/out").startswith(folder)
  assert error(f"--input={source}", f"--output={tmp_path}").startswith("--output must be a file, got the fol")
  assert error(f"--input={tmp_path}/gone").endswith("gone: cannot read the file: No such file or directory")
  assert source.read_bytes() == content and not (tmp_path / "out").exists()
  finished = scripts.run("translate", f"--workdir={files_run}", lines="caff\udce8\n")
  assert finished.code == 2 and finished.errors.startswith("error: standard input: expected UTF-8")


CONFLICTS = [
  (["--text=a\nb"], "--text must be one line; use --input for several lines"),
  (["--text=a", "--text=b"], "--text must be set once, got 'b'"),
  (["--input="], "--input must name a file, got none"),
  (["--text=a", "--replace_unknown", "--dictionary="], "--dictionary must name a file, got none"),
  (["--text=a", "--dictionary=a"], "--dictionary needs --replace_unknown"),
  (["--text=a", "--attention_png=no/a.png"], "--attention_png must be in an existing folder, got 'no/"),
  (["--text=a", "--attention_png=a.pdf"], "--attention_png must end in .png, got 'a.pdf'"),
  (["--input=a", "--attention_png=a.png"], "--attention_png needs --text"),
  (["--text= ", "--attention_png=a.png"], "must have at least one word for --attention_png, got ' '"),
  (["--text=a", "--input=a"], "--text and --input must not be set together"),
  (["--text=a", "--output=a"], "--output needs --input"),
  (["--n_best=2", "--temperature=1"], "--n_best must not be set with --temperature=1.0"),
  (["--n_best=3", "--beam_size=2"], "--n_best must be at most --beam_size=2, got 3"),
]


@pytest.mark.parametrize(("flags", "message"), CONFLICTS)
def test_conflicting_flags_are_errors(files_run, error_of, flags, message):
  assert message in error_of("translate", f"--workdir={files_run}", *flags)
  assert not (scripts.ROOT / "a.png").exists()
