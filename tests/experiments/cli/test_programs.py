"""Errors of whole programs: full disks, closed outputs, any folder."""

import os
import subprocess
import sys

import pytest
from helpers import scripts

pytestmark = pytest.mark.slow


def python(*arguments, cwd=scripts.ROOT, **environment):
  """Runs Python in a new process."""
  environment = {**os.environ, "PYTHONPATH": str(scripts.ROOT), **environment}
  return subprocess.run(
    [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, encoding="utf-8", check=False
  )


def run_main(main, **environment):
  """Runs a script whose main function is an expression."""
  program = f"import jax, os; from experiments.cli import flags as cli; cli.run(lambda: {main})"
  return python("-c", program, **environment)


def test_default_config_works_in_any_folder(tmp_path):
  finished = python("-m", "experiments.train", "--config.train.num_train_steps=0", cwd=tmp_path)
  line = "error: config.train.num_train_steps must be from 1 to 2,147,483,647, got 0\n"
  assert (finished.returncode, finished.stderr) == (2, line)


ERRORS = [
  ("jax.numpy.zeros(2**50)", "error: out of memory; try a smaller batch, beam or model: "),
  ("bytes(10**17)", "error: out of memory; try a smaller batch, beam or model: "),
  ("os.write(os.open('/dev/full', os.O_WRONLY), b'a')", "error: could not write: No space left on device"),
]


@pytest.mark.parametrize(("main", "line"), ERRORS)
def test_full_disks_print_one_line(main, line):
  finished = run_main(main)
  assert (finished.returncode, finished.stderr.count("\n")) == (2, 1), finished
  assert finished.stderr.startswith(line)


def test_bugs_keep_their_traceback():
  finished = run_main("(print(chr(0xe8)), [].pop())", PYTHONIOENCODING="ascii")
  assert (finished.returncode, finished.stdout) == (1, "\u00e8\n")  # UTF-8
  assert finished.stderr.startswith("Traceback")


def test_readers_may_close_the_output():
  reader, writer = os.pipe()
  os.close(reader)
  program = "from experiments.cli import flags as cli; cli.run(lambda: print('a'))"
  finished = subprocess.run(
    [sys.executable, "-c", program], cwd=scripts.ROOT, stdout=writer, stderr=subprocess.PIPE, check=False
  )
  os.close(writer)
  assert (finished.returncode, finished.stderr) == (0, b"")
