"""Tests of experiments/training/progress.py, with a fake clock."""

import contextlib
import re
import sys

import jax
import pytest

from experiments.training import progress
from experiments.training.progress import Profile, Progress


@pytest.fixture
def clock(monkeypatch):
  """Returns a function that advances the clock."""
  now = 1000.0

  def spend(seconds):
    nonlocal now
    now += seconds

  monkeypatch.setattr(progress.time, "perf_counter", lambda: now)
  return spend


def test_speed_excludes_pauses(clock):
  with Progress(0, 40) as progress_bar:
    clock(2)
    progress_bar.advance(10)
    assert progress_bar.record(3.0, 100.0) == {"train/tokens_per_second": 50.0}
    clock(4)
    with progress_bar.paused("resting"):
      clock(100)
    progress_bar.advance(20)
    assert progress_bar.record(2.0, 100.0) == {"train/tokens_per_second": 25.0}


def test_records_are_printed(clock, capsys):
  with Progress(100, 130) as progress_bar:
    with progress_bar.compiling("2 pairs of 3 and 4 tokens"):
      clock(7)
    clock(5)
    progress_bar.advance(110)
    progress_bar.record(3.25, 10_000.0)
    clock(5)
    progress_bar.advance(130)
    progress_bar.record(3.0, 10_000.0)
  assert capsys.readouterr().out.splitlines() == [
    "compiling the step for 2 pairs of 3 and 4 tokens",
    "compiled the step in 7.0 s",
    "step 110/130, loss 3.2500, 2,000 tokens/s, 10 s left",
    "step 130/130, loss 3.0000, 2,000 tokens/s",
  ]


def test_summaries_have_all_times(clock):
  with Progress(0, 10) as progress_bar:
    with progress_bar.compiling("something"):
      clock(3)
    with progress_bar.waiting():
      clock(0.5)
    clock(1.5)
    progress_bar.advance(10)
    progress_bar.record(1.0, 600.0)
    with progress_bar.paused("validating"):
      clock(15)
  text = progress_bar.summary()
  assert text.startswith(
    "trained 10 steps in 20 s (2 s of steps, 3 s compiling 1 shape, 15 s validating): 200 ms/step, "
    "300 target tokens/s, 25.0% of the time waiting for data; peak memory "
  )
  assert 1 < int(re.search(r"peak memory ([\d,]+) MiB$", text).group(1).replace(",", "")) < 10**6


def test_terminals_have_a_progress_bar(clock, capsys, monkeypatch):
  monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
  with Progress(0, 10) as progress_bar:
    clock(2)
    progress_bar.advance(10)
    progress_bar.record(3.0, 100.0)
    progress_bar.print("a line")
  output, errors = capsys.readouterr()
  assert "10/10" in errors
  assert output.strip("\r\n") == "a line"


@pytest.fixture
def events(monkeypatch):
  """A list of profiler calls and steps."""
  events_so_far = []
  monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: events_so_far.append(f"start {folder}"))
  monkeypatch.setattr(jax, "block_until_ready", lambda step: events_so_far.append(f"waited for {step}"))
  monkeypatch.setattr(jax.profiler, "stop_trace", lambda: events_so_far.append("stop"))
  return events_so_far


def _train(events, folder, steps, *, start=0, end=20):
  with Profile(folder, steps, events.append) as profile:
    for step in range(start + 1, end + 1):
      profile.before(step, step)
      events.append(step)
      profile.after(step, step)


@pytest.mark.parametrize("steps", [(1, 1), (4, 4), (5, 8), (2, 20)])
def test_profiles_record_selected_steps(events, tmp_path, steps):
  first, last = steps
  _train(events, tmp_path, steps)
  start, end = events.index(f"start {tmp_path}"), events.index("stop")
  recorded = [event for event in events[start:end] if isinstance(event, int)]
  assert recorded == list(range(first, last + 1))
  assert events[start - 1] == f"waited for {first}"
  assert events[end - 1] == f"waited for {last}"
  assert events[end + 1] == f"wrote a profile to {tmp_path}"
  assert events.count(f"start {tmp_path}") == events.count("stop") == 1


def test_profiles_are_off_by_default(events, tmp_path):
  _train(events, tmp_path, None)
  assert events == list(range(1, 21))


def test_profiles_of_past_steps_are_reported(events, tmp_path):
  _train(events, tmp_path, (3, 8), start=8)
  assert events == [*range(9, 21), "no profile was written: steps 3 to 8 did not run"]


def test_profiles_can_start_late(events, tmp_path):
  _train(events, tmp_path, (3, 12), start=10)
  assert events[:6] == ["waited for 11", f"start {tmp_path}", 11, 12, "waited for 12", "stop"]


@pytest.mark.parametrize("error", [None, KeyError])
def test_profiles_can_end_early(events, tmp_path, error):
  with contextlib.suppress(KeyError), Profile(tmp_path, (3, 30), events.append) as profile:
    profile.before(3, 3)
    if error:
      raise error
  assert events == ["waited for 3", f"start {tmp_path}", "stop", f"wrote a profile to {tmp_path}"]
