"""Strictness for every test: no silent rank or dtype promotion, no warnings, the same examples every time."""

import gc
import os
import pathlib
import shutil

import hypothesis
import jax
import pytest

from attention import functional
from attention.arrays import sharding
from attention.scores import additive_kernel as additive

# Nearly all the time of the tests is compilation: what is compiled is kept for the next time, and for the
# scripts that tests start.
COMPILED = pathlib.Path(__file__).parents[1] / ".jax_cache"
KEEP = {
  "jax_compilation_cache_dir": str(COMPILED),
  "jax_persistent_cache_min_compile_time_secs": 0.0,
  "jax_persistent_cache_min_entry_size_bytes": -1,
}
for name, value in KEEP.items():
  jax.config.update(name, value)
  os.environ[name.upper()] = str(value)
# Of each kept program, XLA would tell some machines that it was compiled for a processor it does not know.
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

# The tests compile as users do. `make test` sets QUICK_COMPILATION for those that are not of the contract of
# attention: nearly all their time is compilation, which takes a third without the optimizations and with the
# old way of XLA to write loops (JAX 0.11 has it no more).
if os.environ.get("QUICK_COMPILATION") == "1":
  jax.config.update("jax_disable_most_optimizations", True)
  os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # for the scripts that tests start
  if jax.__version_info__ < (0, 11):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"

# One CPU is several devices, for tests of what is sharded. XLA's pool has as many threads as NPROC says: with
# one for each device, two collectives at once can take all threads and wait for ever.
jax.config.update("jax_num_cpu_devices", 8)
os.environ["NPROC"] = "32"

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, database=None, max_examples=10)
hypothesis.settings.load_profile("ci")


def pytest_configure(config):
  config.addinivalue_line("filterwarnings", "error")
  # Another process may be writing what this one looks for; then it is compiled once more.
  config.addinivalue_line("filterwarnings", "ignore:Error reading persistent compilation cache")
  if not hasattr(config, "workerinput"):  # not in each of several processes
    COMPILED.mkdir(exist_ok=True)
    if sum(path.stat().st_size for path in COMPILED.glob("*-cache")) > 4 * 2**30:
      shutil.rmtree(COMPILED)
      COMPILED.mkdir()


def pytest_collection_finish(session):
  """Makes Python look for garbage less often: tracing creates many objects, and imported modules stay."""
  gc.set_threshold(200_000, 50, 100)
  gc.collect()
  gc.freeze()


@pytest.fixture
def float64():
  """Runs a test with JAX's 64-bit types on; they are off for all others."""
  with jax.enable_x64(True):
    yield


@pytest.fixture
def fresh_programs():
  """Runs a test that patches the library without the programs that earlier eager calls compiled."""
  functional.attend_checked.clear_cache()
  yield
  functional.attend_checked.clear_cache()


@pytest.fixture
def additive_in_loops(fresh_programs, monkeypatch):
  """Runs a test with additive scores computed in loops, as for many pairs, though there are few."""
  monkeypatch.setattr(additive, "MAX_TERMS_WITHOUT_LOOPS", 0)


# Applies itself, because the eight simulated devices above would change how every test is compiled.
@pytest.fixture(autouse=True)
def alone(request, monkeypatch):
  """Runs a test as on a machine with one device, unless it asks for `spread`."""
  if "spread" not in request.fixturenames:
    monkeypatch.setattr(sharding, "leading_axes_may_be_sharded", lambda: False)


@pytest.fixture
def spread(fresh_programs):
  """Runs a test as on a machine with several devices."""


# Applies itself, because a program is several memory maps, of which Linux allows a process 65,530: with more
# the compiler crashes.
@pytest.fixture(scope="module", autouse=True)
def forget_programs():
  """Frees the programs that the tests of a file have compiled."""
  yield
  jax.clear_caches()
