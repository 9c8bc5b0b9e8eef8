"""Tests of experiments/runs/profiles.py; test_scripts.py has a profile that JAX wrote."""

import contextlib

import jax
import pytest

from experiments.runs.profiles import Profile


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
def test_the_steps_that_are_wanted_are_recorded(events, tmp_path, steps):
  first, last = steps
  _train(events, tmp_path, steps)
  begin, end = events.index(f"start {tmp_path}"), events.index("stop")
  recorded = [event for event in events[begin:end] if isinstance(event, int)]
  assert recorded == list(range(first, last + 1))
  assert events[begin - 1] == f"waited for {first}"
  assert events[end - 1] == f"waited for {last}"
  assert events[end + 1] == f"wrote {tmp_path}, a profile"
  assert events.count(f"start {tmp_path}") == events.count("stop") == 1


def test_without_steps_nothing_is_recorded_or_waited_for(events, tmp_path):
  _train(events, tmp_path, None)
  assert events == list(range(1, 21))


def test_a_run_that_goes_on_after_the_steps_says_that_it_records_nothing(events, tmp_path):
  _train(events, tmp_path, (3, 8), start=8)
  assert events == [*range(9, 21), "no profile: none of the steps 3 to 8 was made"]


def test_a_run_that_goes_on_between_the_steps_records_the_rest(events, tmp_path):
  _train(events, tmp_path, (3, 12), start=10)
  assert events[:6] == ["waited for 11", f"start {tmp_path}", 11, 12, "waited for 12", "stop"]


@pytest.mark.parametrize("error", [None, KeyError])
def test_a_run_that_ends_before_has_recorded_what_it_made(events, tmp_path, error):
  with contextlib.suppress(KeyError), Profile(tmp_path, (3, 30), events.append) as profile:
    profile.before(3, 3)
    if error:
      raise error
  assert events == ["waited for 3", f"start {tmp_path}", "stop", f"wrote {tmp_path}, a profile"]
