"""Compiled programs, kept for the next start of a script by JAX's compilation cache."""

import hashlib
import os
import pathlib
import platform
from typing import Any

import jax

_LARGEST = 2**30  # bytes of all programs together
_QUICK = 0.1  # seconds; what compiles faster is not kept


def keep_compiled() -> None:
  """Lets programs that a script has compiled be there when one starts the next time.

  They are kept in `attention-jax` of the user's cache folder, the latest GiB of them. JAX's own variables say
  otherwise: JAX_COMPILATION_CACHE_DIR names another folder, JAX_ENABLE_COMPILATION_CACHE=false keeps none.
  """
  options: Any = jax.config
  if options.jax_compilation_cache_dir is not None or not options.jax_enable_compilation_cache:
    return
  folder = _cache_folder()
  try:
    folder.mkdir(parents=True, exist_ok=True)
    make_room(folder, _LARGEST)
  except OSError:  # a home that cannot be written to, or another process makes room as well
    return
  jax.config.update("jax_compilation_cache_dir", str(folder))
  jax.config.update("jax_persistent_cache_min_compile_time_secs", _QUICK)


def _cache_folder() -> pathlib.Path:
  """Returns the folder for machines of this kind, for several may share a home."""
  base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
  kind = f"{platform.machine()} {_cpu_flags()}"
  return pathlib.Path(base) / "attention-jax" / hashlib.sha256(kind.encode()).hexdigest()[:8]


def _cpu_flags() -> str:
  """Returns the instructions that this CPU has, where Linux tells: a program is compiled for them."""
  try:
    lines = pathlib.Path("/proc/cpuinfo").read_text("utf-8").splitlines()
  except OSError:
    return ""
  return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def make_room(folder: pathlib.Path, size: int) -> None:
  """Deletes the oldest files of a folder until those that are left have at most so many bytes."""
  files = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in folder.iterdir())
  total = sum(length for _, length, _ in files)
  for _, length, path in files:
    if total <= size:
      return
    path.unlink(missing_ok=True)
    total -= length
