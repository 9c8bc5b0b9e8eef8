"""Tests of experiments/commands/stopping.py."""

import os
import signal
import subprocess
import sys

import pytest
from helpers import scripts

from experiments.commands.mistakes import Interrupted
from experiments.commands.stopping import EXIT_CODES, stop_requests


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_told_and_raises_nothing(number, capfd):
  with stop_requests() as requested:
    assert requested() == 0
    os.kill(os.getpid(), number)
    assert requested() == number
  assert capfd.readouterr().err == "stopping soon; Ctrl-C again stops at once\n"


def test_a_signal_is_seen_also_where_nobody_reads_what_is_told():
  reader, writer = os.pipe()
  os.close(reader)
  before = os.dup(2)
  try:
    os.dup2(writer, 2)
    with stop_requests() as requested:
      os.kill(os.getpid(), signal.SIGTERM)
      assert requested() == signal.SIGTERM
  finally:
    os.dup2(before, 2)
    os.close(before)
    os.close(writer)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_after_a_signal_stops_at_once(number):
  before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
  try:
    with stop_requests():
      os.kill(os.getpid(), number)
      with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
  finally:
    signal.signal(signal.SIGINT, before)


def test_the_handlers_are_afterwards_what_they_were():
  before = {number: signal.getsignal(number) for number in EXIT_CODES}
  with pytest.raises(KeyError), stop_requests():
    assert {number: signal.getsignal(number) for number in EXIT_CODES} != before
    raise KeyError
  assert {number: signal.getsignal(number) for number in EXIT_CODES} == before


def test_a_handler_that_python_does_not_know_is_no_obstacle(monkeypatch):
  set_handler = signal.signal
  with monkeypatch.context() as patch:
    patch.setattr(signal, "signal", lambda *arguments: set_handler(*arguments) and None)
    with stop_requests():
      pass
  assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
  signal.signal(signal.SIGINT, signal.default_int_handler)


def test_exit_codes_are_those_of_a_shell():
  assert EXIT_CODES == {signal.SIGINT: 130, signal.SIGTERM: 143}
  assert Interrupted("stopped", 143).code == 143


_SCRIPT = """
import gc, os, pathlib, signal
from experiments.commands import stopping
stopping.end_at_interrupts()
gc.callbacks.append(lambda *_: os.kill(os.getpid(), signal.SIGINT))
with stopping.cleaned_up(lambda: print("cleaned")):
  gc.collect()
print("goes on")
"""


def test_ctrl_c_ends_in_a_callback_of_the_garbage_collector():
  ended = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=False)
  assert (ended.returncode, ended.stdout, ended.stderr) == (130, "cleaned\n", "stopped\n")


def test_only_scripts_change_what_ctrl_c_does():
  text = "import signal, experiments; print(signal.getsignal(2) is signal.default_int_handler)"
  ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
  assert ended.stdout == "True\n"


def test_ctrl_c_ends_imports_with_one_line(tmp_path):
  (tmp_path / "jax.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)", "utf-8")
  command = [sys.executable, "-m", "experiments.train"]
  paths = os.pathsep.join([str(tmp_path), str(scripts.ROOT)])
  environment = os.environ | {"PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}
  ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
  assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "stopped\n")
