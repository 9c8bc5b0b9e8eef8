"""Compiled programs, kept for the next start of a script by JAX's compilation cache."""

import contextlib
import hashlib
import os
import pathlib
import platform
import re
import warnings
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
  try:
    folder = _cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
  except (OSError, RuntimeError):  # there is no home, or it cannot be written to
    return
  make_room(folder, _LARGEST)
  _delete_what_cannot_be_read(folder)
  warnings.filterwarnings("ignore", "Error writing persistent compilation cache")
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


def _delete_what_cannot_be_read(folder: pathlib.Path) -> None:
  """Lets a program be kept anew that a kill has cut short, of which JAX only warns, at each start.

  The warning has no more than the name of the program: all of this name are deleted.
  """
  pattern = re.compile(r"Error reading persistent compilation cache entry for '(\w+)'")
  warnings.filterwarnings("always", "Error reading persistent compilation cache")
  show = warnings.showwarning

  def show_others(message: Any, *args: Any, **options: Any) -> None:
    if not (found := pattern.match(str(message))):
      show(message, *args, **options)
      return
    for path in folder.glob(f"{found[1]}-*-cache"):
      with contextlib.suppress(OSError):
        path.unlink()

  warnings.showwarning = show_others


def make_room(folder: pathlib.Path, size: int) -> None:
  """Deletes programs of a cache, those not used for longest, until what is left has at most so many bytes.

  JAX's own limit reads the times of all programs whenever it writes one, and needs one more package.
  """
  programs = []
  for path in folder.glob("*-cache"):
    with contextlib.suppress(OSError):  # another process makes room as well
      found = path.stat()
      programs.append((max(found.st_atime, found.st_mtime), found.st_size, path))
  total = sum(length for _, length, _ in programs)
  for _, length, path in sorted(programs):
    if total <= size:
      return
    with contextlib.suppress(OSError):
      path.unlink()
    total -= length
