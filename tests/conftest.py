"""Strictness for every test: no silent rank or dtype promotion, no warnings, the same examples every time."""

import os

import hypothesis
import jax
import pytest

from attention import additive

# A CPU pretends to be several devices, for what is spread over them; all else runs on the first.
jax.config.update("jax_num_cpu_devices", 8)

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Nearly all the time of the tests is compilation, and this halves it. What is compiled for use is tested by
# the training run of test_scripts.py, and by all tests with JAX_DISABLE_MOST_OPTIMIZATIONS=false.
if "JAX_DISABLE_MOST_OPTIMIZATIONS" not in os.environ:
  jax.config.update("jax_disable_most_optimizations", True)

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, database=None, max_examples=10)
hypothesis.settings.load_profile("ci")


def pytest_configure(config):
  config.addinivalue_line("filterwarnings", "error")


@pytest.fixture
def float64():
  """Runs a test with JAX's 64-bit types on; they are off for all others."""
  with jax.enable_x64(True):
    yield


@pytest.fixture
def additive_in_loops(monkeypatch):
  """Runs a test with additive scores calculated as many are, though there are few."""
  monkeypatch.setattr(additive, "FEW_TERMS", 0)
