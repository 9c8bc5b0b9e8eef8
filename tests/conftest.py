"""Strict settings for all tests: no implicit rank or dtype promotion, warnings are errors, fixed examples."""

import gc
import os
import pathlib
import shutil

# JAX reads this when it is imported. Otherwise XLA may print, for each cached program, that it was compiled
# for another processor.
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import hypothesis
import jax
import pytest

collect_ignore = ["data/make_references.py"]  # it needs PyTorch
# A failing assert of these modules shows its values, as one of a test does.
pytest.register_assert_rewrite("helpers", "cases", "derivatives", "transformations")

# Most of the time of the tests is compilation. Compiled programs are cached for later runs, and for the
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

# Without QUICK_COMPILATION, programs are compiled as users compile them. With it, compilation takes a third
# of the time: without most optimizations, each program as one part instead of 32, and with XLA's old emitter
# of loops (removed in JAX 0.11). It computes some large second derivatives wrongly:
# tests/contract/test_transformations.py needs the default.
if os.environ.get("QUICK_COMPILATION") == "1":
  jax.config.update("jax_disable_most_optimizations", True)
  os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # for scripts that tests start
  flags = [os.environ.get("XLA_FLAGS", ""), "--xla_cpu_parallel_codegen_split_count=1"]
  if jax.__version_info__ < (0, 11):
    flags.append("--xla_cpu_use_fusion_emitters=false")
  os.environ["XLA_FLAGS"] = " ".join(flags)

# Tests run on one device, as most users do. Files marked `eight_devices` need DEVICES=8, which simulates
# devices on one CPU. XLA's thread pool has NPROC threads: with one per device, two concurrent collectives can
# occupy all threads and deadlock.
DEVICES = int(os.environ.get("DEVICES", "1"))
if DEVICES > 1:
  jax.config.update("jax_num_cpu_devices", DEVICES)
  os.environ["NPROC"] = "32"

# These compile next to nothing, so that a typo shows in seconds.
FIRST = "tests/test_imports.py", *(f"tests/experiments/{name}/" for name in ("cli", "data", "comparison"))

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, database=None, max_examples=10)
hypothesis.settings.load_profile("ci")


def pytest_configure(config):
  config.addinivalue_line("filterwarnings", "error")
  # Another process may be writing the same file; the program is then compiled again.
  config.addinivalue_line("filterwarnings", "ignore:Error reading persistent compilation cache")
  if not hasattr(config, "workerinput"):  # not in each of several processes
    COMPILED.mkdir(exist_ok=True)
    if sum(path.stat().st_size for path in COMPILED.glob("*-cache")) > 4 * 2**30:
      shutil.rmtree(COMPILED)
      COMPILED.mkdir()


def pytest_collection_modifyitems(items):
  """Skips tests of several devices on one. Tests without programs are first, then slow files."""
  for item in items:
    if DEVICES < 8 and item.get_closest_marker("eight_devices"):
      item.add_marker(pytest.mark.skip(reason="needs DEVICES=8"))
  items.sort(key=lambda item: (not item.nodeid.startswith(FIRST), item.get_closest_marker("slow") is None))


def pytest_collection_finish(session):
  """Reduces garbage collection, since tracing creates many objects."""
  gc.set_threshold(200_000, 50, 100)
  gc.collect()
  gc.freeze()


@pytest.fixture
def float64():
  """Enables JAX's 64-bit types for a test."""
  with jax.enable_x64(True):
    yield


# Applied to every file, since a program uses several memory maps, of which Linux allows a process 65,530.
# Beyond that, the compiler crashes.
@pytest.fixture(scope="module", autouse=True)
def clear_programs():
  """Frees the programs that the tests of a file compiled."""
  yield
  jax.clear_caches()
