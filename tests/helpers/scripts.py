"""Runs scripts as `python -m experiments.NAME` does, but imports JAX only once.

Each script runs in a process that is forked from a server, which has imported JAX but not used it.
"""

import atexit
import contextlib
import multiprocessing
import os
import pathlib
import runpy
import sys
import tempfile
import time
from typing import NamedTuple

from experiments.devices.sharding import make_mesh
from experiments.learning.step import abstract_state, make_train_spec
from experiments.runs.checkpoints import Checkpoints
from experiments.runs.record import make_run_task, read_record
from experiments.runs.restore import make_task_model

ROOT = pathlib.Path(__file__).parents[2]

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
  ["experiments.cli.flags", "experiments.training.loop", "experiments.figures.run_figures"]
)


class Finished(NamedTuple):
  code: int
  output: str
  errors: str


class Running(NamedTuple):
  process: multiprocessing.Process
  folder: pathlib.Path  # standard output

  def output(self):
    return (self.folder / "output").read_text("utf-8")

  def wait_for(self, text, seconds=300):
    """Waits until the script has printed a text."""
    end = time.monotonic() + seconds
    while text not in self.output():
      if not self.process.is_alive() or time.monotonic() > end:
        errors = (self.folder / "errors").read_text("utf-8")
        raise TimeoutError(f"{text!r} was never printed:\n{self.output()}\n{errors}")
      time.sleep(0.01)

  def finish(self, seconds=300):
    """Waits until the script ends, and returns its exit code and output."""
    self.process.join(seconds)
    if self.process.is_alive():
      raise TimeoutError(f"the script went on for {seconds} s:\n{self.output()}")
    return Finished(self.process.exitcode, self.output(), (self.folder / "errors").read_text("utf-8"))


def run(script, *flags, lines=""):
  """Runs a script of `experiments`, or a module, and returns its exit code and output."""
  with start(script, *flags, lines=lines) as running:
    return running.finish()


def succeed(script, *flags, lines=""):
  """Runs a script, which must succeed."""
  finished = run(script, *map(str, flags), lines=lines)
  assert finished.code == 0, finished
  return finished


def error_of(script, *flags):
  """Returns the error line of a script."""
  finished = run(script, *map(str, flags))
  assert (finished.code, finished.output, finished.errors.count("\n")) == (2, "", 1), finished
  assert finished.errors.startswith("error: ")
  return finished.errors.removeprefix("error: ")[:-1]


@contextlib.contextmanager
def start(script, *flags, lines=""):
  """Starts a script, compiled as the tests are."""
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    (folder / "input").write_text(lines, "utf-8", errors="surrogateescape")  # any bytes
    (folder / "output").touch()
    (folder / "errors").touch()
    process = _SERVER.Process(target=_run, args=(script, flags, folder))
    process.start()
    try:
      yield Running(process, folder)
    finally:
      process.kill()
      process.join()


def newest_checkpoint(folder):
  """Returns the newest checkpoint of a run, or None."""
  record = read_record(folder)
  config, task = record.config, make_run_task(folder, record)
  spec = make_train_spec(config, make_task_model(config, task), make_mesh())
  checkpoints = Checkpoints(folder / "checkpoints", higher_is_better=False, read_only=True)
  return checkpoints.restore(abstract_state(spec))


def _run(script, flags, folder):
  """Runs the script in this process, with its streams, arguments and directory."""
  for number, name in enumerate(("input", "output", "errors")):
    stream = os.open(folder / name, os.O_RDWR)
    os.dup2(stream, number)
    os.close(stream)
  sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 (multiprocessing has closed it)
  os.chdir(ROOT)
  sys.argv = [script, *flags]
  try:
    module = script if "." in script else f"experiments.{script}"
    runpy.run_module(module, run_name="__main__", alter_sys=True)
  finally:
    # multiprocessing skips these at exit; they make processes that train together end together.
    atexit._run_exitfuncs()
