"""Tests of experiments/commands/stopping.py."""

import os
import signal

import pytest

from experiments.commands.mistakes import Interrupted
from experiments.commands.stopping import SIGNALS, stop_requests


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
  before = {number: signal.getsignal(number) for number in SIGNALS}
  with pytest.raises(KeyError), stop_requests():
    assert {number: signal.getsignal(number) for number in SIGNALS} != before
    raise KeyError
  assert {number: signal.getsignal(number) for number in SIGNALS} == before


def test_a_handler_that_python_does_not_know_is_no_obstacle(monkeypatch):
  set_handler = signal.signal
  with monkeypatch.context() as patch:
    patch.setattr(signal, "signal", lambda *arguments: set_handler(*arguments) and None)
    with stop_requests():
      pass
  assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
  signal.signal(signal.SIGINT, signal.default_int_handler)


def test_exit_codes_are_those_of_a_shell():
  assert Interrupted("stopped", signal.SIGINT).code == 130
  assert Interrupted("stopped", signal.SIGTERM).code == 143
