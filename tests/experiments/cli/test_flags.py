"""Tests of user errors in scripts: one line, exit code 2, and no files written."""

import os
import subprocess
import sys

import pytest
from helpers import scripts

from configs import base
from experiments.data.tasks import make_task
from experiments.runs.record import Record, write_run

TOY = make_task(base.Config())
LANGUAGES = TOY.source, TOY.target


def _tree(folder):
  """Returns the content of each file below a folder."""
  return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _error(script, *flags):
  """Returns the error line of a script."""
  finished = scripts.run(script, *flags)
  assert finished.code == 2, finished
  assert finished.output == ""
  assert finished.errors.startswith("error: ")
  assert finished.errors.count("\n") == 1
  assert finished.errors.endswith("\n")
  return finished.errors[len("error: ") : -1]


def _train_error(tmp_path, *flags):
  folder = tmp_path / "run"
  line = _error("train", f"--workdir={folder}", *flags)
  assert not folder.exists()
  return line


@pytest.mark.parametrize(
  ("flag", "line"),
  [
    (
      "--config.train.num_train_step=3",
      "unknown flag --config.train.num_train_step; did you mean --config.train.num_train_steps?",
    ),
    (
      "--config.modle.features=3",
      "unknown flag --config.modle.features; did you mean --config.model.features?",
    ),
    ("--wokdir=x", "unknown flag --wokdir; did you mean --workdir?"),
    ("--num_trian_steps=10", "unknown flag --num_trian_steps; did you mean --config.train.num_train_steps?"),
    ("--nonsense", "unknown flag --nonsense"),
  ],
)
def test_unknown_flags_suggest_a_flag(tmp_path, flag, line):
  assert _train_error(tmp_path, flag) == line


@pytest.mark.parametrize(
  ("flag", "line"),
  [
    ("config.train.num_train_steps=abc", "--config.train.num_train_steps must be an integer, got 'abc'"),
    ("config.train.num_train_steps=1.5", "--config.train.num_train_steps must be an integer, got '1.5'"),
    ("config.train.learning_rate=fast", "--config.train.learning_rate must be a number, got 'fast'"),
    ("config.data.lowercase=maybe", "--config.data.lowercase must be true or false, got 'maybe'"),
    ("config.train.batch_size", "--config.train.batch_size needs a value"),
    ("cpu_devices=257", "--cpu_devices must be from 1 to 256, got '257'"),
    ("noconfig.data.lowercase=1", "--noconfig.data.lowercase=1 does not take an argument"),
  ],
)
def test_invalid_types_name_the_flag(tmp_path, flag, line):
  assert _train_error(tmp_path, f"--{flag}") == line


@pytest.mark.parametrize(
  ("flag", "line"),
  [
    (
      "--config.train.num_train_steps=-1",
      "config.train.num_train_steps must be from 1 to 2,147,483,647, got -1",
    ),
    (
      "--config.model.encoder=lstm",
      "config.model.encoder must be one of recurrent, transformer, or a custom component "
      "(package.module:Name), got 'lstm'",
    ),
  ],
)
def test_invalid_values_name_the_field(tmp_path, flag, line):
  assert _train_error(tmp_path, flag) == line


def test_errors_in_configs_are_printed(tmp_path):
  path = tmp_path / "mine.py"
  path.write_text("def get_config():\n  return {}['width']\n", "utf-8")
  assert _train_error(tmp_path, f"--config={path}") == f"{path}: KeyError: 'width' (line 2)"


def _run_python_in(folder, *arguments):
  """Runs Python in a folder outside the project."""
  return subprocess.run(
    [sys.executable, *arguments],
    cwd=folder,
    env=os.environ | {"PYTHONPATH": str(scripts.ROOT)},
    capture_output=True,
    encoding="utf-8",
    check=False,
  )


def test_default_config_works_in_any_folder(tmp_path):
  finished = _run_python_in(tmp_path, "-m", "experiments.train", "--config.train.num_train_steps=0")
  assert finished.returncode == 2
  assert finished.stderr == "error: config.train.num_train_steps must be from 1 to 2,147,483,647, got 0\n"


@pytest.mark.parametrize(
  "text",
  [
    "steps: 3\nencoder = {\n",
    "x = 1\n",
    "1 / 0\n",
    "import sys\nsys.exit(3)\n",
    "def get_config(): return 3\n",
    "from configs import base\ndef get_config(): return base.Config(data=None)\n",
  ],
)
def test_invalid_config_files_are_errors(tmp_path, text):
  path = tmp_path / "mine.py"
  path.write_text(text, "utf-8")
  assert "mine.py" in _train_error(tmp_path, f"--config={path}")


def test_misspelled_fields_suggest_a_field(tmp_path):
  path = tmp_path / "mine.py"
  path.write_text("from configs import base\nconfig = base.Config()\nconfig.model.featuers = 8\n", "utf-8")
  line = _train_error(tmp_path, f"--config={path}")
  # Python 3.13 adds to its message.
  assert line.startswith(f"{path}: AttributeError: 'Model' object has no attribute 'featuers'")
  assert line.endswith(" (line 3); did you mean 'features'?")


@pytest.mark.parametrize(
  ("field", "value", "allowed"),
  [
    ("model.features", "64.0", "an integer"),
    ("train.learning_rate", "[]", "a number"),
    ("data.train_file", "3", "a string"),
    ("data.lowercase", "'maybe'", "true or false"),
  ],
)
def test_config_files_need_values_of_each_type(tmp_path, field, value, allowed):
  path = tmp_path / "mine.py"
  lines = "from configs import base", "def get_config():", "  config = base.Config()"
  path.write_text("\n".join([*lines, f"  config.{field} = {value}", "  return config", ""]), "utf-8")
  line = _train_error(tmp_path, f"--config={path}")
  assert line.startswith(f"--config.{field} must be {allowed}, got ")


_FLAGS_IN_FILE = "--config=configs/scan.py\n# the size\n--config.model.features=-1\n"


@pytest.mark.parametrize(
  ("text", "before", "after", "width"),
  [
    (_FLAGS_IN_FILE, [], [], -1),
    (_FLAGS_IN_FILE, [], ["--config.model.features=-2"], -2),
    ("--config.model.features=-3\n", [], [], -3),
    ("--config=configs/scan.py\n", [], ["--config.model.features=-4"], -4),
  ],
)
def test_flag_files_set_fields(tmp_path, text, before, after, width):
  path = tmp_path / "flags"
  path.write_text(text, "utf-8")
  line = _train_error(tmp_path, *before, f"--flagfile={path}", *after)
  assert line == f"config.model.features must be from 1 to 1,048,576, got {width}"


def test_errors_in_flag_files_are_reported(tmp_path):
  path = tmp_path / "flags"
  path.write_text("--config=nothing.py\n", "utf-8")
  assert "nothing.py: no such file" in _train_error(tmp_path, f"--flagfile={path}")
  path.write_text("--config.train.num_train_stepps=5\n", "utf-8")
  assert "did you mean --config.train.num_train_steps?" in _train_error(tmp_path, "--flagfile", str(path))


def test_unreadable_flag_files_are_errors(tmp_path):
  binary = tmp_path / "binary"
  binary.write_bytes(b"\xd0\xd0")
  for flag, reason in (
    ("--flagfile=/nowhere", "--flagfile: No such file or directory: '/nowhere'"),
    (f"--flagfile={tmp_path}", "--flagfile: Is a directory"),
    (f"--flagfile={binary}", "--flagfile must be a text file in UTF-8, got 'utf-8' codec can't decode"),
    ("--flagfile", "--flagfile needs a value"),
  ):
    for script in ("train", "evaluate"):
      assert _error(script, flag).startswith(reason)


def test_configs_must_be_files(tmp_path):
  example = "a Python file such as configs/toy_translation.py"
  assert _train_error(tmp_path, "--config=") == f"--config must name {example}, got none"
  expected = f"{tmp_path}: expected a file, got a folder; --config must name {example}"
  assert _train_error(tmp_path, f"--config={tmp_path}") == expected


def test_long_values_are_truncated(tmp_path):
  bad = tmp_path / "bad.tsv"
  for text in ("a\tb\t" + "x" * 10**6, "a\tb\t" + "0-0 " * 10**5 + "x", "a\tb\t" + "9" * 10**6 + "-0"):
    bad.write_text(text, "utf-8")
    line = _train_error(tmp_path, *_data_flags(bad, bad))
    assert line.startswith(f"{bad}:1: ") and len(line) < 2_100
  line = _train_error(tmp_path, f"--config.model.attention={'x' * 10**5}")
  assert line.startswith("config.model.attention must be one of additive") and len(line) < 2_100


def test_positional_arguments_are_errors(tmp_path):
  line = _train_error(tmp_path, "configs/toy_translation.py")
  assert line == "arguments must be flags (--name=value), got 'configs/toy_translation.py'"


def _data_flags(train, validation, test=""):
  return (
    "--config=configs/parallel_text.py",
    f"--config.data.train_file={train}",
    f"--config.data.validation_file={validation}",
    f"--config.data.test_file={test}",
    "--config.data.min_count=1",
    # If an error is not detected, training is short.
    "--config.model.features=2",
    "--config.model.embed_dim=1",
    "--config.train.num_train_steps=1",
  )


def test_malformed_lines_are_errors(tmp_path):
  bad = tmp_path / "bad.tsv"
  bad.write_text("a b\tx y\nno tab here\n", "utf-8")
  assert _train_error(tmp_path, *_data_flags(bad, bad)).startswith(f"{bad}:2: ")


def test_config_changes_name_the_fields(tmp_path):
  write_run(tmp_path, Record(base.Config(), {}, ""), LANGUAGES)
  before = _tree(tmp_path)
  line = _error("train", f"--workdir={tmp_path}", "--config.train.num_train_steps=7", "--config.seed=3")
  assert f"train.num_train_steps {base.Train().num_train_steps} (now 7)" in line
  assert "seed 0 (now 3)" in line
  assert "batch_size" not in line
  assert _tree(tmp_path) == before


@pytest.mark.parametrize(
  ("flag", "line"),
  [
    ("--fsdp_size=3", "--fsdp_size must divide the number of devices, "),
    ("--profile=7", "--profile must be FIRST:LAST with 1 <= FIRST <= LAST, got '7'"),
    ("--profile=0:7", "--profile must be FIRST:LAST with 1 <= FIRST <= LAST, got '0:7'"),
    ("--profile=8:7", "--profile must be FIRST:LAST with 1 <= FIRST <= LAST, got '8:7'"),
    ("--profile=901:999", "--profile must start within the 900 steps, got '901:999'"),
    (
      "--num_processes=2",
      "--coordinator, --num_processes and --process_id must be set together, or --coordinator=auto alone, "
      "got None, 2, None",
    ),
    ("--coordinator=localhost:1", "must be set together"),
    ("--process_id=-1", "--process_id must be a non-negative integer, got '-1'"),
    ("--num_processes=0", "--num_processes must be a positive integer, got '0'"),
  ],
)
def test_launch_errors_are_one_line(tmp_path, flag, line):
  assert line in _train_error(tmp_path, flag)


@pytest.mark.parametrize(
  ("coordinator", "line"),
  [
    ("auto", "or --coordinator=auto alone, got 'auto', 2, 2"),
    ("localhost", "--coordinator must be HOST:PORT, got 'localhost'"),
    ("localhost:1", "--process_id must be less than --num_processes=2, got 2"),
  ],
)
def test_cluster_flags_are_checked(tmp_path, coordinator, line):
  flags = (f"--coordinator={coordinator}", "--num_processes=2", "--process_id=2")
  assert line in _train_error(tmp_path, *flags)


@pytest.mark.parametrize(
  ("flags", "line"),
  [
    (["--top_k=3"], "--top_k needs a positive --temperature"),
    (["--temperature=0.5", "--beam_size=2"], "--beam_size must not be set with --temperature=0.5"),
    (["--temperature=1e-30"], "--temperature must be 0, or from 0.0001 to 10000, got 1e-30"),
    (["--temperature=1", "--top_p=1.5"], "--top_p must be from 0.000001 to 1, got 1.5"),
    (["--length_penalty=11"], "--length_penalty must be from 0 to 10, got 11.0"),
    (["--length_penalty=nan"], "--length_penalty must be from 0 to 10, got nan"),
    (["--beam_size=0"], "--beam_size must be from 1 to 1048576, got '0'"),
    (["--checkpoint=newest"], "--checkpoint must be one of best, last, average, got 'newest'"),
  ],
)
@pytest.mark.parametrize("script", ["evaluate", "translate"])
def test_decoding_flags_are_checked(tmp_path, script, flags, line):
  text = ["--text=a"] if script == "translate" else []
  assert line in _error(script, f"--workdir={tmp_path}", *flags, *text)


def _run_main(main, **environment):
  """Returns the result of a script whose main function is an expression."""
  text = f"import jax; from experiments.cli import flags as cli; cli.run(lambda: {main})"
  return subprocess.run(
    [sys.executable, "-c", text],
    cwd=scripts.ROOT,
    env={**os.environ, **environment},
    capture_output=True,
    check=False,
  )


@pytest.mark.parametrize("main", ["jax.numpy.zeros(2**50)", "bytes(10**17)"])
def test_full_memory_is_one_line(main):
  finished = _run_main(main)
  assert finished.returncode == 2
  assert finished.stderr.startswith(b"error: out of memory; try a smaller batch, beam or model: ")
  assert finished.stderr.count(b"\n") == 1


def test_output_is_utf_8():
  finished = _run_main(r"print('\u00e8')", PYTHONIOENCODING="ascii")
  assert (finished.returncode, finished.stdout) == (0, "\u00e8\n".encode())


def test_pipes_are_errors(tmp_path):
  os.mkfifo(tmp_path / "pipe")
  line = _train_error(tmp_path, *_data_flags(tmp_path / "pipe", tmp_path / "pipe"))
  assert line == f"{tmp_path / 'pipe'}: expected a file, got a pipe, which cannot be read twice"


def test_workdirs_must_be_folders(tmp_path):
  path = tmp_path / "file"
  path.write_text("mine", "utf-8")
  assert _error("train", f"--workdir={path}") == f"{path}: expected a folder, got a file"
  assert str(path) in _error("evaluate", f"--workdir={path}")
  assert path.read_text("utf-8") == "mine"


@pytest.mark.parametrize("script", ["evaluate", "translate"])
def test_workdirs_must_have_a_run(tmp_path, script):
  line = _error(script, f"--workdir={tmp_path}", *(["--text=a"] if script == "translate" else []))
  assert line.startswith(f"{tmp_path}: no run here")
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
  ("flags", "line"),
  [
    (["--attention_png=map.png"], "--attention_png needs --text"),
    (["--attention_png=map.jpg", "--text=a"], "--attention_png must end in .png, got 'map.jpg'"),
  ],
)
def test_attention_png_is_checked(tmp_path, flags, line):
  assert _error("translate", f"--workdir={tmp_path}", *flags) == line


@pytest.mark.parametrize(
  ("flags", "line"),
  [
    ([], "--output must name a file, got none"),
    (["--num_examples=0"], "--num_examples must be at least 1 for a task with unlimited sentences, got 0"),
    (["--num_examples=-1"], "--num_examples must be a non-negative integer, got '-1'"),
    (
      ["--split=training"],
      "--split must be one of train, validation, test, length, composition, got 'training'",
    ),
    (["--config.train.num_train_stepz=3"], "did you mean --config.train.num_train_steps?"),
  ],
)
def test_export_errors_are_one_line(tmp_path, flags, line):
  output = [] if not flags else [f"--output={tmp_path / 'pairs.tsv'}"]
  assert line in _error("export_data", *flags, *output)
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("script", ["train", "evaluate", "translate", "export_data"])
def test_help_lists_the_flags(script):
  finished = scripts.run(script, "--help")
  assert finished.code == 1  # the exit code of absl
  assert f"python -m experiments.{script}" in finished.output
  expected = ["--output"] if script == "export_data" else ["--workdir"]
  expected += ["--config"] if script in ("train", "export_data") else []
  for flag in expected:
    assert f"{flag}:" in finished.output


def test_full_help_gives_ranges():
  output = " ".join(scripts.run("train", "--helpfull").output.split())
  assert "--config.model.num_layers: number of encoder layers; from 1 to 1,000" in output


def test_control_characters_are_escaped(tmp_path):
  assert _train_error(tmp_path, "--config=a\x1b[2J.py").startswith(r"a\x1b[2J.py: no such file")


def test_long_errors_are_one_line(tmp_path):
  path = tmp_path / "mine.py"
  path.write_text("raise ValueError('first\\n  second')\n", "utf-8")
  assert _train_error(tmp_path, f"--config={path}") == f"{path}: ValueError: first second (line 1)"
