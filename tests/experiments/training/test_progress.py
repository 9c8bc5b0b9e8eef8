"""Progress and profiles, with a fake clock."""

import contextlib
import re
import sys
import time

import jax
import pytest

from experiments.training.progress import Profile, Progress


@pytest.fixture
def clock(monkeypatch):
  """Returns a function that advances the clock."""
  now = 1000.0

  def spend(seconds):
    nonlocal now
    now += seconds

  monkeypatch.setattr(time, "perf_counter", lambda: now)
  return spend


def test_speed_excludes_pauses(clock):
  with Progress(0, 40, tokens=30.0) as progress:  # of steps before an interruption
    clock(2)
    progress.advance(10)
    assert progress.record(3.0, 130.0) == {"train/tokens_per_second": 50.0}
    clock(4)
    with progress.paused("resting"):
      clock(100)
    progress.advance(20)
    assert progress.record(2.0, 100.0) == {"train/tokens_per_second": 25.0}


def test_records_are_printed(clock, capsys):
  with Progress(100, 130) as progress:
    for _ in range(2):  # once for each shape
      with progress.compiling("2 pairs of 3 and 4 tokens"):
        clock(3.5)
    clock(1.5)
    progress.advance(110)
    progress.record(3.25, 10_000.0)
    clock(5)
    progress.advance(130)
    progress.record(3.0, 10_000.0)
  assert capsys.readouterr().out.splitlines() == [
    "compiling the step for 2 pairs of 3 and 4 tokens",
    "compiled the step in 3.5 s",
    "step 110/130, loss 3.2500, 2,000 tokens/s, 10 s left",
    "step 130/130, loss 3.0000, 2,000 tokens/s",
  ]
  with Progress(0, 10, is_visible=False) as progress:
    progress.print("a line")
  assert capsys.readouterr().out == ""


def test_summaries_have_all_times(clock):
  with Progress(0, 10) as progress:
    with progress.compiling("something"):
      clock(3)
    with progress.waiting():
      clock(0.5)
    clock(1.5)
    progress.advance(10)
    progress.record(1.0, 600.0)
    for _ in range(2):
      with progress.paused("validating"):
        clock(7.5)
  text = progress.summary()
  assert text.startswith(
    "trained 10 steps in 20 s (2 s of steps, 3 s compiling 1 shape, 15 s validating): 200 ms/step, "
    "300 target tokens/s, 25.0% of the time waiting for data; peak memory "
  )
  assert 10 < int(re.search(r"peak memory ([\d,]+) MiB$", text).group(1).replace(",", "")) < 10**6


def test_terminals_have_a_progress_bar(clock, capsys, monkeypatch):
  monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
  with Progress(0, 10) as progress:
    clock(2)
    progress.advance(10)
    progress.record(3.0, 100.0)
    progress.print("a line")
  output, errors = capsys.readouterr()
  assert "10/10" in errors
  assert output.strip("\r\n") == "a line"


@pytest.fixture
def events(monkeypatch):
  """A list of profiler calls and steps."""
  events = []
  monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: events.append("start"))
  monkeypatch.setattr(jax, "block_until_ready", lambda step: events.append(f"waited for {step}"))
  monkeypatch.setattr(jax.profiler, "stop_trace", lambda: events.append("stop"))
  return events


def train(events, folder, steps, *, start=0, end=20):
  with Profile(folder, steps, events.append) as profile:
    for step in range(start + 1, end + 1):
      profile.before(step, step)
      events.append(step)
      profile.after(step, step)


@pytest.mark.parametrize(("start", "first", "last"), [(0, 1, 1), (0, 5, 8), (0, 2, 20), (10, 3, 12)])
def test_profiles_record_selected_steps(events, tmp_path, start, first, last):
  train(events, tmp_path, (first, last), start=start)
  first = max(first, start + 1)  # a resumed run may start late
  assert events == [
    *range(start + 1, first),
    *(f"waited for {first}", "start"),
    *range(first, last + 1),
    *(f"waited for {last}", "stop", f"wrote a profile to {tmp_path}"),
    *range(last + 1, 21),
  ]


def test_profiles_may_be_missing(events, tmp_path):
  train(events, tmp_path, None)
  train(events, tmp_path, (3, 8), start=8)
  text = "no profile was written: steps 3 to 8 did not run"
  assert events == [*range(1, 21), *range(9, 21), text]


def test_profiles_can_end_early(events, tmp_path):
  with contextlib.suppress(KeyError), Profile(tmp_path, (3, 30), events.append) as profile:
    profile.before(3, 3)
    raise KeyError
  assert events == ["waited for 3", "start", "stop", f"wrote a profile to {tmp_path}"]
