"""Tests of experiments/commands/compilation.py."""

import os
import pathlib
import warnings

import jax
import pytest

from experiments.commands import compilation

OPTIONS = (
  "jax_compilation_cache_dir",
  "jax_enable_compilation_cache",
  "jax_persistent_cache_min_compile_time_secs",
)


@pytest.fixture
def options(monkeypatch, tmp_path):
  """Gives JAX's options, which are as they were when the test has ended."""
  before = {name: getattr(jax.config, name) for name in OPTIONS}
  jax.config.update("jax_compilation_cache_dir", None)
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  yield jax.config
  for name, value in before.items():
    jax.config.update(name, value)


def test_programs_are_kept_in_the_users_cache_by_kind_of_machine(options, tmp_path, monkeypatch):
  compilation.keep_compiled()
  folder = tmp_path / "cache" / "attention-jax"
  (own,) = folder.iterdir()
  assert options.jax_compilation_cache_dir == str(own)
  jax.config.update("jax_compilation_cache_dir", None)
  monkeypatch.setattr(compilation, "_cpu_flags", lambda: "flags: another")
  compilation.keep_compiled()
  assert len(list(folder.iterdir())) == 2


def test_a_persons_own_folder_is_left(options, tmp_path):
  jax.config.update("jax_compilation_cache_dir", str(tmp_path / "mine"))
  compilation.keep_compiled()
  assert options.jax_compilation_cache_dir == str(tmp_path / "mine")
  assert not (tmp_path / "cache").exists()


def test_nothing_is_kept_if_a_person_says_so(options, tmp_path):
  jax.config.update("jax_enable_compilation_cache", False)
  compilation.keep_compiled()
  assert options.jax_compilation_cache_dir is None
  assert not (tmp_path / "cache").exists()


def test_where_nothing_can_be_written_nothing_is_kept(options, tmp_path, monkeypatch):
  (tmp_path / "file").touch()
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
  compilation.keep_compiled()
  assert options.jax_compilation_cache_dir is None


def test_without_a_home_nothing_is_kept(options, monkeypatch):
  def fail():
    raise RuntimeError("Could not determine home directory.")

  monkeypatch.delenv("XDG_CACHE_HOME")
  monkeypatch.setattr(compilation.pathlib.Path, "home", fail)
  compilation.keep_compiled()
  assert options.jax_compilation_cache_dir is None


def test_programs_that_cannot_be_read_make_room_for_new_ones(options, monkeypatch):
  monkeypatch.setattr(warnings, "showwarning", lambda message, *_: said.append(str(message)))
  said = []
  compilation.keep_compiled()
  folder = pathlib.Path(options.jax_compilation_cache_dir)
  for name in ("jit_step-12ab-cache", "jit_step-12ab-atime", "jit_step_back-12ab-cache"):
    (folder / name).touch()
  for _ in range(2):  # as JAX does
    warnings.warn("Error reading persistent compilation cache entry for 'jit_step': error: cut", stacklevel=1)
  assert not (folder / "jit_step-12ab-cache").exists() and len(list(folder.iterdir())) == 2
  warnings.filterwarnings("always", "another")
  warnings.warn("another", stacklevel=1)
  assert said == ["another"]


def test_the_programs_not_used_for_longest_make_room(tmp_path):
  (tmp_path / "xla_gpu_per_fusion_autotune_cache_dir").mkdir()  # JAX's, where there is a GPU
  for age, name in enumerate("dcba"):
    path = tmp_path / f"{name}-cache"
    path.write_bytes(b"x" * 10)
    os.utime(path, (1000 - age, 1000 - age))
  os.utime(tmp_path / "a-cache", (2000, 1000 - 3))  # it was read since
  for _ in range(2):
    compilation.make_room(tmp_path, 25)
    assert sorted(path.name for path in tmp_path.glob("*-cache")) == ["a-cache", "d-cache"]
