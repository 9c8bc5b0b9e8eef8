"""Fixtures for tests that train in this process."""

import jax
import pytest
from helpers.small_runs import CONFIG, ONE_DEVICE, Steps

from experiments.runs import restore, run_setup
from experiments.training import loop


@pytest.fixture
def write_module(tmp_path, monkeypatch):
  """Returns a function that writes a module that tests and scripts can import, and returns its name."""
  monkeypatch.syspath_prepend(tmp_path)

  def write(text):
    name = f"module_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(text, "utf-8")
    return name

  return write


@pytest.fixture(scope="module")
def fast():
  """Trains on one device, with steps that are compiled once."""
  with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion("standard"):
    for module in (run_setup, restore):
      patch.setattr(module, "make_mesh", lambda shards=1: ONE_DEVICE)
    patch.setattr(loop, "make_step", Steps(lambda state: state))
    yield


@pytest.fixture
def break_step(monkeypatch):
  """Returns a function that damages the state that a step returns."""

  def install(broken_step, damage):
    steps = Steps(lambda state: damage(state) if int(state.step) == broken_step else state)
    monkeypatch.setattr(loop, "make_step", steps)

  return install


@pytest.fixture(scope="module")
def trained(tmp_path_factory, fast):
  folder = tmp_path_factory.mktemp("run")
  loop.train(CONFIG, folder)
  return folder
