"""Fixtures for tests that train in this process."""

import jax
import pytest
from helpers.small_runs import CONFIG

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


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
  """The folder of a run of CONFIG. Tests must not change it."""
  folder = tmp_path_factory.mktemp("trained") / "run"
  with jax.numpy_dtype_promotion("standard"):
    loop.train(CONFIG, folder)
  return folder


@pytest.fixture
def as_users_run():
  """JAX's default promotion, which custom components and optax use."""
  with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
    yield


@pytest.fixture
def break_step(monkeypatch):
  """Returns a function that damages the state that a step of training returns.

  It patches the training loop, since nothing else runs at a given step.
  """
  make_step = loop.make_step

  def install(broken_step, damage):
    def make_broken_step(spec):
      step = make_step(spec)

      def broken(state, batch, rng):
        state, gradient_norm = step(state, batch, rng)
        return (damage(state) if int(state.step) == broken_step else state), gradient_norm

      return broken

    monkeypatch.setattr(loop, "make_step", make_broken_step)

  return install
