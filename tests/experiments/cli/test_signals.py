"""Tests of experiments/cli/signals.py."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
from helpers.scripts import ROOT

from experiments.cli.signals import SIGNALS, stop_requests


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_reported(number, capfd):
  with stop_requests() as requested:
    assert requested() == 0
    os.kill(os.getpid(), number)
    assert requested() == number
  assert capfd.readouterr().err == "stopping; press Ctrl-C again to stop immediately\n"


def test_signals_work_with_closed_streams():
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


# The main thread is in one C function, in which Python runs no handlers, as when XLA compiles a step.
_BLOCK = "__import__('hashlib').pbkdf2_hmac('sha256', b'', b'', 10**9)"
_STOPPING = f"with stop_requests():\n  print('started', flush=True)\n  {_BLOCK}"
_EXITING = f"exit_on_signals()\nprint('started', flush=True)\n{_BLOCK}"


@contextlib.contextmanager
def _started(*arguments, **environment):
  """Yields a Python process that has printed one line."""
  before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in the background
  process = subprocess.Popen(
    [sys.executable, *arguments],
    cwd=ROOT,
    env={**os.environ, **environment},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  signal.signal(signal.SIGINT, before)
  try:
    assert process.stdout.readline() == "started\n"
    yield process
  finally:
    process.kill()
    process.communicate()


def _send(process, number):
  """Returns the exit code and the errors of a process after a signal."""
  process.send_signal(number)
  _, errors = process.communicate(timeout=60)
  return process.returncode, errors


def _program(text):
  return "-c", f"from experiments.cli.signals import exit_on_signals, stop_requests\n{text}"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_blocked_programs(number, code):
  with _started(*_program(_EXITING)) as process:
    assert _send(process, number) == (code, "stopped\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_second_signal_ends_blocked_programs(number, code):
  with _started(*_program(_STOPPING)) as process:
    process.send_signal(signal.SIGTERM)
    assert process.stderr.readline() == "stopping; press Ctrl-C again to stop immediately\n"
    process.send_signal(signal.SIGTERM)  # at once, like `timeout`, so it is the same request
    time.sleep(0.6)
    assert process.poll() is None
    assert _send(process, number) == (code, "stopped\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_imports(tmp_path, number, code):
  (tmp_path / "jax.py").write_text("import time\nprint('started', flush=True)\ntime.sleep(60)\n", "utf-8")
  with _started("-m", "experiments.compare", PYTHONPATH=str(tmp_path)) as process:
    assert _send(process, number) == (code, "stopped\n")


def test_other_signals_are_ignored(capfd):
  before = signal.signal(signal.SIGUSR1, lambda *_: None)
  with stop_requests() as requested:
    signal.raise_signal(signal.SIGUSR1)
    assert requested() == 0
  signal.signal(signal.SIGUSR1, before)
  assert capfd.readouterr().err == ""


def test_signals_in_callbacks_are_not_lost():
  # Python only prints exceptions of a finalizer, like JAX those of its garbage collection.
  text = "class Object:\n  def __del__(self):\n    __import__('signal').raise_signal(2)\n"
  with _started(*_program(f"exit_on_signals()\nprint('started')\n{text}Object()\n{_BLOCK}")) as process:
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "stopped\n")


def test_handlers_are_restored():
  before = {number: signal.getsignal(number) for number in SIGNALS}
  with pytest.raises(KeyError), stop_requests():
    assert {number: signal.getsignal(number) for number in SIGNALS} != before
    raise KeyError
  assert {number: signal.getsignal(number) for number in SIGNALS} == before


def test_foreign_handlers_are_replaced(monkeypatch):
  set_handler = signal.signal
  with monkeypatch.context() as patch:
    patch.setattr(signal, "signal", lambda *arguments: set_handler(*arguments) and None)
    with stop_requests():
      pass
  assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
  signal.signal(signal.SIGINT, signal.default_int_handler)


def test_terminated_children_do_not_stop_the_parent():
  code = """
import multiprocessing, time
from experiments.cli.signals import exit_on_signals, stop_requests

def terminate_a_child():
  child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
  child.start()
  child.terminate()
  child.join()
  return child.exitcode

exit_on_signals()
print(terminate_a_child())
with stop_requests() as requested:
  print(terminate_a_child(), requested())
"""
  finished = subprocess.run(
    [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
  )
  assert (finished.returncode, finished.stdout, finished.stderr) == (0, "-15\n-15 0\n", "")
