"""Ctrl-C and SIGTERM."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
from helpers.scripts import ROOT

from experiments.cli.signals import SIGNALS, stop_requests

STOPPING = "stopping; press Ctrl-C again to stop immediately\n"
IMPORT = "from experiments.cli.signals import exit_on_signals, stop_requests\n"
# The main thread is in one C function, in which Python runs no handlers, as when XLA compiles a step.
BLOCK = "print('started', flush=True)\n__import__('hashlib').pbkdf2_hmac('sha256', b'', b'', 10**9)\n"
each_signal = pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])


@contextlib.contextmanager
def started(*arguments, **environment):
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


def assert_ends(process, code):
  _, errors = process.communicate(timeout=60)
  assert (process.returncode, errors) == (code, "stopped\n")


@pytest.mark.parametrize("number", SIGNALS)
def test_signals_are_reported(number, capfd):
  before = {number: signal.getsignal(number) for number in SIGNALS}
  with pytest.raises(KeyError), stop_requests() as requested:
    assert requested() == 0
    os.kill(os.getpid(), number)
    assert requested() == number
    raise KeyError
  assert capfd.readouterr().err == STOPPING
  assert {number: signal.getsignal(number) for number in SIGNALS} == before


def test_other_signals_are_ignored(capfd):
  before = signal.signal(signal.SIGUSR1, lambda *_: None)
  with stop_requests() as requested:
    signal.raise_signal(signal.SIGUSR1)
    assert requested() == 0
  signal.signal(signal.SIGUSR1, before)
  assert capfd.readouterr().err == ""


def test_signals_work_with_closed_streams():
  program = f"{IMPORT}with stop_requests() as get:\n  __import__('signal').raise_signal(15)\n  print(get())"
  reader, writer = os.pipe()
  os.close(reader)
  finished = subprocess.run(
    [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=writer, check=False
  )
  os.close(writer)
  assert (finished.returncode, finished.stdout) == (0, b"15\n")


@each_signal
def test_signals_end_blocked_programs(number, code):
  with started("-c", f"{IMPORT}exit_on_signals()\n{BLOCK}") as process:
    process.send_signal(number)
    assert_ends(process, code)


@each_signal
def test_second_signal_ends_blocked_programs(number, code):
  block = BLOCK.replace("\n", "\n  ")
  with started("-c", f"{IMPORT}with stop_requests():\n  {block}") as process:
    process.send_signal(signal.SIGTERM)
    assert process.stderr.readline() == STOPPING
    process.send_signal(signal.SIGTERM)  # at once, like `timeout`, so it is the same request
    time.sleep(0.6)
    assert process.poll() is None
    process.send_signal(number)
    assert_ends(process, code)


@each_signal
def test_signals_end_imports(tmp_path, number, code):
  (tmp_path / "jax.py").write_text("import time\nprint('started', flush=True)\ntime.sleep(60)\n", "utf-8")
  with started("-m", "experiments.compare", PYTHONPATH=str(tmp_path)) as process:
    process.send_signal(number)
    assert_ends(process, code)


def test_signals_in_callbacks_are_not_lost():
  # Python only prints exceptions of a finalizer, like JAX those of its garbage collection.
  text = "print('started', flush=True)\nclass Object:\n"
  text += "  def __del__(self):\n    __import__('signal').raise_signal(2)\nObject()\n"
  with started("-c", f"{IMPORT}exit_on_signals()\n{text}{BLOCK}") as process:
    assert_ends(process, 130)


def test_terminated_children_never_stop_parents():
  program = """
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
    [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
  )
  assert (finished.returncode, finished.stdout, finished.stderr) == (0, "-15\n-15 0\n", "")
