"""Tests of experiments/cli/signals.py."""

import os
import signal

import pytest

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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_second_ctrl_c_stops(number):
  before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in the background
  try:
    with stop_requests():
      os.kill(os.getpid(), number)
      with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
  finally:
    signal.signal(signal.SIGINT, before)


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
