"""Tests of experiments/runs/progress.py, on a clock that stands still but where it is moved."""

import re
import sys

import pytest

from experiments.runs import progress
from experiments.runs.progress import Progress


@pytest.fixture
def clock(monkeypatch):
  """Gives a function that lets seconds go by."""
  now = 1000.0

  def spend(seconds):
    nonlocal now
    now += seconds

  monkeypatch.setattr(progress.time, "perf_counter", lambda: now)
  return spend


def test_the_speed_is_that_since_the_last_record_without_what_was_aside(clock):
  with Progress(0, 40) as shown:
    clock(2)
    shown.advance(10)
    assert shown.record(3.0, 100.0) == {"train/tokens_per_second": 50.0}
    clock(4)
    with shown.aside("resting"):
      clock(100)
    shown.advance(20)
    assert shown.record(2.0, 100.0) == {"train/tokens_per_second": 25.0}


def test_a_line_tells_the_step_the_loss_the_speed_and_what_is_left(clock, capsys):
  with Progress(100, 130) as shown:
    with shown.compiling("2 pairs of 3 and 4 tokens"):
      clock(7)
    clock(5)
    shown.advance(110)
    shown.record(3.25, 10_000.0)
    clock(5)
    shown.advance(130)
    shown.record(3.0, 10_000.0)
  assert capsys.readouterr().out.splitlines() == [
    "compiling the step for 2 pairs of 3 and 4 tokens",
    "compiled the step in 7.0 s",
    "step 110/130, loss 3.2500, 2,000 tokens/s, 10 s left",
    "step 130/130, loss 3.0000, 2,000 tokens/s",
  ]


def test_the_summary_tells_what_all_the_steps_took(clock):
  with Progress(0, 10) as shown:
    with shown.compiling("something"):
      clock(3)
    with shown.waiting():
      clock(0.5)
    clock(1.5)
    shown.advance(10)
    shown.record(1.0, 600.0)
    with shown.aside("validating"):
      clock(15)
  text = shown.summary()
  assert text.startswith(
    "trained 10 steps in 20 s (2 s of steps, 3 s compiling 1 shape, 15 s validating): 200 ms a step, "
    "300 target tokens/s, 25.0% of the time waiting for data; peak memory "
  )
  assert 1 < int(re.search(r"peak memory ([\d,]+) MiB$", text).group(1).replace(",", "")) < 10**6


def test_what_is_not_shown_is_measured(clock, capsys):
  with Progress(0, 10, is_shown=False) as shown:
    with shown.compiling("something"):
      clock(3)
    clock(2)
    shown.advance(10)
    assert shown.record(3.0, 100.0) == {"train/tokens_per_second": 50.0}
    shown.say("a line")
  assert capsys.readouterr() == ("", "")


def test_at_a_terminal_there_is_a_bar_and_no_line_for_a_record(clock, capsys, monkeypatch):
  monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
  with Progress(0, 10) as shown:
    clock(2)
    shown.advance(10)
    shown.record(3.0, 100.0)
    shown.say("a line")
  output, errors = capsys.readouterr()
  assert "10/10" in errors
  assert output.strip("\r\n") == "a line"
