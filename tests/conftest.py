"""Strictness for every test: no silent rank or dtype promotion, no warnings, the same examples every time."""

import os

import hypothesis
import jax
import pytest

from attention import functional
from attention.arrays import devices
from attention.scores import sums_of_tanh as additive

# The tests compile as users do. `make test` sets QUICK_COMPILATION for those that are not of the contract of
# attention: nearly all their time is compilation, which takes a third without the optimizations and with the
# old way of XLA to write loops (JAX 0.11 has it no more).
if os.environ.get("QUICK_COMPILATION") == "1":
  jax.config.update("jax_disable_most_optimizations", True)
  if jax.__version_info__ < (0, 11):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"

# A CPU pretends to be several devices, for what is spread over them; all else runs on the first.
jax.config.update("jax_num_cpu_devices", 8)

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

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


@pytest.fixture(autouse=True)
def alone(request, monkeypatch):
  """Runs a test as on a machine of one device, but those of what is spread over several."""
  if "spread" not in request.fixturenames:
    monkeypatch.setattr(devices, "leading_axes_may_be_spread", lambda: False)


@pytest.fixture(autouse=True)
def forget_eager_programs():
  """Lets no test of other devices or limits find what one before it has compiled."""
  functional._attend.clear_cache()


@pytest.fixture
def spread():
  """Runs a test as on a machine of several devices."""


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
  """Frees what the tests of a file have compiled."""
  yield
  # A program is several memory maps, of which Linux allows a process 65,530: at more the compiler crashes.
  jax.clear_caches()
