"""What a run was made with: the command, the versions, the devices, the data."""

import datetime
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from experiments.cli.errors import DataError
from experiments.cli.io import write_text
from experiments.runs.workdir import WorkdirError, has_run, read_lines

_LAUNCHES = "launches.jsonl"

PACKAGES = (
  "jax",
  "jaxlib",
  "flax",
  "optax",
  "numpy",
  "orbax-checkpoint",
  "grain",
  "regex",
  "sentencepiece",
  "sacrebleu",
)


def describe_launch(data: dict[str, str]) -> dict[str, Any]:
  """Returns what this process runs with, as JSON can hold it; the data are the `digests` of its files."""
  device, changes = jax.devices()[0], _git("status", "--porcelain", "--untracked-files=no")
  return {
    "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    "command": [sys.executable, *sys.orig_argv[1:]],
    "commit": _git("rev-parse", "HEAD"),
    "has_local_changes": None if changes is None else bool(changes),
    "python": platform.python_version(),
    "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
    "machine": f"{platform.system()} {platform.machine()}",
    "device": f"{device.platform}: {device.device_kind}",
    "devices": jax.device_count(),
    "processes": jax.process_count(),
    "data": data,
  }


def digests(files: Mapping[str, str]) -> dict[str, str]:
  """Returns the SHA-256 of the file that each field of the config names; a field without a path is left out.

  Raises:
    DataError: if a file cannot be read.
  """
  return {field: _sha256(path) for field, path in files.items() if path}


def record_launch(folder: pathlib.Path, launch: dict[str, Any]) -> None:
  """Adds a line to launches.jsonl. Where no run has begun yet, it is the first."""
  earlier = read_lines(folder / _LAUNCHES, {"data": dict}) if has_run(folder) else []
  write_text(folder / _LAUNCHES, "".join(f"{json.dumps(each)}\n" for each in [*earlier, launch]))


def check_same_data(folder: pathlib.Path, files: Mapping[str, str]) -> None:
  """Checks that files are what they were when a run began, wherever they are; without a run it does nothing.

  Args:
    folder: the workdir.
    files: as for `digests`.

  Raises:
    DataError: if one is not.
    WorkdirError: if nothing says what they were.
  """
  found = digests(files)
  if not found or not has_run(folder):
    return
  began_with = first_launch(folder)
  if began_with is None:
    raise WorkdirError(f"{folder} holds a run without its {_LAUNCHES}: what its data were is not known")
  for field, digest in found.items():
    if digest != began_with["data"].get(field):
      began = f"the file that the run in {folder} began with"
      raise DataError(f"{files[field]}: expected {began}, got a changed one; take another --workdir")


def first_launch(folder: pathlib.Path) -> dict[str, Any] | None:
  """Returns what a run began with, as `describe_launch` has it; None if nothing says so."""
  launches = read_lines(folder / _LAUNCHES, {"data": dict})
  return launches[0] if launches else None


def digest_of(words: Sequence[Sequence[str]]) -> str:
  """Returns a digest of the words of some vocabularies."""
  return hashlib.sha256(json.dumps(words).encode("utf-8")).hexdigest()


def check_same_vocabularies(folder: pathlib.Path, words: Sequence[Sequence[str]]) -> None:
  """Raises WorkdirError if a run's vocabularies are not those that it began with."""
  if not has_run(folder):  # a start that was killed before may have left a line
    return
  launch = first_launch(folder) or {}
  if launch.get("vocabularies") not in (None, digest_of(words)):
    raise WorkdirError(f"{folder} holds other vocabularies than its run began with")


def _sha256(path: str) -> str:
  if stat.S_ISFIFO(os.stat(path).st_mode if os.path.exists(path) else 0):
    raise DataError(f"{path}: expected a file, for it is read more than once, got a pipe")
  try:
    with open(path, "rb") as file:
      return hashlib.file_digest(file, "sha256").hexdigest()
  except OSError as error:
    raise DataError(f"{path}: expected a readable file, got: {error.strerror}") from error


def _git(*arguments: str) -> str | None:
  """Returns what git says about the folder of this file, or None where it says nothing."""
  folder = pathlib.Path(__file__).parent
  try:
    answer = subprocess.run(
      ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=20
    )
  except (OSError, subprocess.SubprocessError):
    return None
  return answer.stdout.strip()
