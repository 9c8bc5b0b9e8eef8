"""User errors in scripts: one line, exit code 2, and no files written."""

import os

import pytest
from helpers.scripts import error_of, run


def train_error(tmp_path, *flags):
  line = error_of("train", f"--workdir={tmp_path / 'run'}", *flags)
  assert not (tmp_path / "run").exists()
  return line


TRAINING = [
  ("--config.train.num_train_step=3", "unknown flag --config.train.num_train_step; did you mean"),
  ("--wokdir=x", "unknown flag --wokdir; did you mean --workdir?"),
  ("--num_trian_steps=1", "--num_trian_steps; did you mean --config.train.num_train_steps?"),
  ("--nonsense", "unknown flag --nonsense"),
  ("--config.train.num_train_steps=abc", "--config.train.num_train_steps must be an integer, got 'abc'"),
  ("--config.train.learning_rate=fast", "--config.train.learning_rate must be a number, got 'fast'"),
  ("--config.data.lowercase=maybe", "--config.data.lowercase must be true or false, got 'maybe'"),
  ("--config.train.batch_size", "--config.train.batch_size needs a value"),
  ("--noconfig.data.lowercase=1", "--noconfig.data.lowercase=1 does not take an argument"),
  ("--config.train.num_train_steps=-1", "config.train.num_train_steps must be from 1 to 2,147,483,647"),
  ("--config=", "--config must name a Python file such as configs/toy_translation.py, got none"),
  ("--config=configs", "configs: expected a file, got a folder; --config must name a Python file such as"),
  ("--config=a\x1b[2J.py", r"a\x1b[2J.py: no such file"),
  ("configs/scan.py", "arguments must be flags (--name=value), got 'configs/scan.py'"),
  ("--fsdp_size=3", "--fsdp_size must divide the number of devices, "),
  ("--profile=0:7", "--profile must be FIRST:LAST with 1 <= FIRST <= LAST, got '0:7'"),
  ("--profile=8:7", "--profile must be FIRST:LAST with 1 <= FIRST <= LAST, got '8:7'"),
  ("--profile=901:999", "--profile must start within the 900 steps, got '901:999'"),
  ("--num_processes=2", "--coordinator, --num_processes and --process_id must be set together, or"),
  ("--coordinator=a:1 --num_processes=2", "must be set together"),
  ("--coordinator=auto --num_processes=2 --process_id=1", "or --coordinator=auto alone, got 'auto', 2, 1"),
  ("--coordinator=a --num_processes=2 --process_id=1", "--coordinator must be HOST:PORT, got 'a'"),
  ("--coordinator=a:1 --num_processes=2 --process_id=2", "must be less than --num_processes=2, got 2"),
  ("--flagfile=/nowhere", "--flagfile: No such file or directory: '/nowhere'"),
  ("--flagfile", "--flagfile needs a value"),
]


@pytest.mark.parametrize(("flags", "line"), TRAINING)
def test_flags_of_training_are_checked(tmp_path, flags, line):
  assert line in train_error(tmp_path, *flags.split())


DECODING = [
  ("--top_k=3", "--top_k needs a positive --temperature"),
  ("--temperature=0.5 --beam_size=2", "--beam_size must not be set with --temperature=0.5"),
  ("--temperature=1e-30", "--temperature must be 0, or from 0.0001 to 10000, got 1e-30"),
  ("--temperature=1 --top_p=1.5", "--top_p must be from 0.000001 to 1, got 1.5"),
  ("--length_penalty=11", "--length_penalty must be from 0 to 10, got 11.0"),
  ("--length_penalty=nan", "--length_penalty must be from 0 to 10, got nan"),
  ("--beam_size=0", "--beam_size must be from 1 to 1048576, got '0'"),
  ("--checkpoint=newest", "--checkpoint must be one of best, last, average, got 'newest'"),
  ("--temperature=0 --length_penalty=10", ": no run here"),  # valid flags
  ("--temperature=1e4 --top_p=1 --top_k=0 --seed=0", ": no run here"),
]


@pytest.mark.parametrize(("flags", "line"), DECODING)
def test_decoding_flags_are_checked(tmp_path, flags, line):
  assert line in error_of("evaluate", f"--workdir={tmp_path}", *flags.split())
  assert list(tmp_path.iterdir()) == []


def test_flags_of_exports_are_checked(tmp_path):
  assert error_of("export_data") == "--output must name a file, got none"
  for flag, line in (
    ("--num_examples=0", "--num_examples must be at least 1 for a task with unlimited sentences, got 0"),
    ("--split=training", "--split must be one of train, validation, test, length, composition, got 'train"),
  ):
    assert line in error_of("export_data", flag, f"--output={tmp_path / 'pairs.tsv'}")
  assert list(tmp_path.iterdir()) == []


def test_workdirs_must_be_folders_of_runs(tmp_path):
  path = tmp_path / "file"
  path.write_text("mine", "utf-8")
  assert error_of("train", f"--workdir={path}") == f"{path}: expected a folder, got a file"
  assert error_of("translate") == "--workdir must name the folder of a run, got none"
  assert error_of("translate", f"--workdir={tmp_path}", "--text=a").startswith(f"{tmp_path}: no run here")
  assert [*tmp_path.iterdir()] == [path] and path.read_text("utf-8") == "mine"


CONFIG = "from configs import base\ndef get_config():\n  config = base.Config()\n  {}\n  return config\n"


CONFIGS = [
  ("def get_config():\n  return {}['width']\n", "mine.py: KeyError: 'width' (line 2)"),
  ("encoder = {\n", "mine.py: SyntaxError: "),
  ("x = 1\n", "mine.py: function get_config is missing"),
  ("import sys\nsys.exit(3)\n", "mine.py: SystemExit: 3 (line 2)"),
  ("raise ValueError('first\\n  second')\n", "mine.py: ValueError: first second (line 1)"),
  ("def get_config(): return 3\n", "mine.py: get_config must return a configs.base.Config, got 3"),
  (CONFIG.format("config.data = None"), "mine.py: get_config must return a configs.base.Config, got"),
  # Python 3.13 adds to the first part.
  (CONFIG.format("config.model.featuers = 8"), "'Model' object has no attribute 'featuers'"),
  (CONFIG.format("config.model.featuers = 8"), " (line 4); did you mean 'features'?"),
  (CONFIG.format("config.model.features = -3"), "config.model.features must be from 1 to 1,048,576, got -3"),
  (CONFIG.format("config.model.features = 64.0"), "--config.model.features must be an integer, got "),
  (CONFIG.format("config.train.learning_rate = []"), "--config.train.learning_rate must be a number, got"),
  (CONFIG.format("config.data.train_file = 3"), "--config.data.train_file must be a string, got "),
]


@pytest.mark.parametrize(("text", "line"), CONFIGS)
def test_invalid_config_files_are_errors(tmp_path, text, line):
  path = tmp_path / "mine.py"
  path.write_text(text, "utf-8")
  assert line in train_error(tmp_path, f"--config={path}")


def test_flag_files_set_fields(tmp_path):
  path = tmp_path / "flags"
  path.write_text("--config=configs/scan.py\n# the size\n--config.model.features=-1\n", "utf-8")
  line = "config.model.features must be from 1 to 1,048,576, got "  # not the 128 of the config file
  assert train_error(tmp_path, f"--flagfile={path}") == f"{line}-1"
  assert train_error(tmp_path, f"--flagfile={path}", "--config.model.features=-2") == f"{line}-2"
  path.write_text("--config.train.num_train_stepps=5\n", "utf-8")
  assert "did you mean --config.train.num_train_steps?" in train_error(tmp_path, "--flagfile", str(path))
  path.write_bytes(b"\xd0\xd0")
  expected = "--flagfile must be a text file in UTF-8, got 'utf-8' codec can't decode"
  assert train_error(tmp_path, f"--flagfile={path}").startswith(expected)


def test_data_files_are_checked(tmp_path):
  bad = tmp_path / "bad.tsv"
  flags = ["--config=configs/parallel_text.py"]
  flags += [f"--config.data.{name}_file={bad}" for name in ("train", "validation")]
  for text in ("a\tb\t" + "x" * 10**6, "no tab here\n"):
    bad.write_text(text, "utf-8")
    line = train_error(tmp_path, *flags)
    assert line.startswith(f"{bad}:1: ") and len(line) < 2_100  # long values are truncated
  bad.unlink()
  os.mkfifo(bad)
  assert train_error(tmp_path, *flags) == f"{bad}: expected a file, got a pipe, which cannot be read twice"


def test_long_errors_are_truncated(tmp_path):
  line = train_error(tmp_path, f"--config.model.attention={'x' * 10**5}")
  assert line.startswith("config.model.attention must be one of additive") and len(line) < 2_100


def test_help_lists_the_flags():
  for script, listed in (("train", ("--workdir", "--config")), ("translate", ("--workdir", "--beam_size"))):
    finished = run(script, "--help")
    assert finished.code == 1  # the exit code of absl
    assert f"python -m experiments.{script}" in finished.output
    assert all(f"{flag}:" in finished.output for flag in listed)
  output = " ".join(run("train", "--helpfull").output.split())
  assert "--config.model.num_layers: number of encoder layers; from 1 to 1,000" in output
