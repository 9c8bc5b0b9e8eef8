"""Tests of experiments/runs/progress.py, on a clock that stands still but where it is moved."""

import contextlib
import re
import sys

import jax
import pytest

from experiments.runs import progress
from experiments.runs.progress import Profile, Progress


@pytest.fixture
def clock(monkeypatch):
  """Gives a function that lets seconds go by."""
  now = 1000.0

  def spend(seconds):
    nonlocal now
    now += seconds

  monkeypatch.setattr(progress.time, "perf_counter", lambda: now)
  return spend


def test_speed_leaves_out_other_time(clock):
  with Progress(0, 40) as shown:
    clock(2)
    shown.advance(10)
    assert shown.record(3.0, 100.0) == {"train/tokens_per_second": 50.0}
    clock(4)
    with shown.aside("resting"):
      clock(100)
    shown.advance(20)
    assert shown.record(2.0, 100.0) == {"train/tokens_per_second": 25.0}


def test_records_are_lines(clock, capsys):
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


def test_summaries_name_all_times(clock):
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


def test_terminals_have_a_bar(clock, capsys, monkeypatch):
  monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
  with Progress(0, 10) as shown:
    clock(2)
    shown.advance(10)
    shown.record(3.0, 100.0)
    shown.print_primary("a line")
  output, errors = capsys.readouterr()
  assert "10/10" in errors
  assert output.strip("\r\n") == "a line"


@pytest.fixture
def events(monkeypatch):
  """Gives the list of what happens."""
  found = []
  monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: found.append(f"start {folder}"))
  monkeypatch.setattr(jax, "block_until_ready", lambda step: found.append(f"waited for {step}"))
  monkeypatch.setattr(jax.profiler, "stop_trace", lambda: found.append("stop"))
  return found


def _train(events, folder, steps, *, start=0, end=20):
  with Profile(folder, steps, events.append) as profile:
    for step in range(start + 1, end + 1):
      profile.before(step, step)
      events.append(step)
      profile.after(step, step)


@pytest.mark.parametrize("steps", [(1, 1), (4, 4), (5, 8), (2, 20)])
def test_profiles_record_the_given_steps(events, tmp_path, steps):
  first, last = steps
  _train(events, tmp_path, steps)
  begin, end = events.index(f"start {tmp_path}"), events.index("stop")
  recorded = [event for event in events[begin:end] if isinstance(event, int)]
  assert recorded == list(range(first, last + 1))
  assert events[begin - 1] == f"waited for {first}"
  assert events[end - 1] == f"waited for {last}"
  assert events[end + 1] == f"wrote {tmp_path}, a profile"
  assert events.count(f"start {tmp_path}") == events.count("stop") == 1


def test_profiles_are_off_by_default(events, tmp_path):
  _train(events, tmp_path, None)
  assert events == list(range(1, 21))


def test_profiles_of_past_steps_are_reported(events, tmp_path):
  _train(events, tmp_path, (3, 8), start=8)
  assert events == [*range(9, 21), "no profile: none of the steps 3 to 8 was made"]


def test_profiles_can_begin_late(events, tmp_path):
  _train(events, tmp_path, (3, 12), start=10)
  assert events[:6] == ["waited for 11", f"start {tmp_path}", 11, 12, "waited for 12", "stop"]


@pytest.mark.parametrize("error", [None, KeyError])
def test_profiles_can_end_early(events, tmp_path, error):
  with contextlib.suppress(KeyError), Profile(tmp_path, (3, 30), events.append) as profile:
    profile.before(3, 3)
    if error:
      raise error
  assert events == ["waited for 3", f"start {tmp_path}", "stop", f"wrote {tmp_path}, a profile"]
