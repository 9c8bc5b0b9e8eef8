"""Provenance of a run: command, versions, devices, and checksums of data."""

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
  """Returns the command, versions and devices of this process as JSON.

  Args:
    data: `digests` of the files of the run.
  """
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
  """Returns the SHA-256 of files by config field. Fields with an empty path are omitted.

  Raises:
    DataError: if a file cannot be read.
  """
  return {field: _sha256(path) for field, path in files.items() if path}


def record_launch(folder: pathlib.Path, launch: dict[str, Any]) -> None:
  """Appends a line to launches.jsonl. If the folder has no run yet, it becomes the only line."""
  launches = read_lines(folder / _LAUNCHES, {"data": dict}) if has_run(folder) else []
  write_text(folder / _LAUNCHES, "".join(f"{json.dumps(line)}\n" for line in [*launches, launch]))


def check_same_data(folder: pathlib.Path, files: Mapping[str, str]) -> None:
  """Checks that files have not changed since a run began. They may have moved.

  Args:
    folder: folder of the run. Nothing is checked if it has no run.
    files: paths by config field, as in `digests`.

  Raises:
    DataError: if a file has changed.
    WorkdirError: if launches.jsonl is missing.
  """
  current = digests(files)
  if not current or not has_run(folder):
    return
  launch = first_launch(folder)
  if launch is None:
    raise WorkdirError(f"{folder}: {_LAUNCHES} is missing, so the data of the run cannot be checked")
  for field, digest in current.items():
    if digest != launch["data"].get(field):
      raise DataError(
        f"{files[field]}: file has changed since the run in {folder} began; pass another --workdir"
      )


def first_launch(folder: pathlib.Path) -> dict[str, Any] | None:
  """Returns the `describe_launch` of the first start of a run, or None if it is unknown."""
  launches = read_lines(folder / _LAUNCHES, {"data": dict})
  return launches[0] if launches else None


def vocabulary_digest(words: Sequence[Sequence[str]]) -> str:
  """Returns a SHA-256 of the words of vocabularies."""
  return hashlib.sha256(json.dumps(words).encode("utf-8")).hexdigest()


def check_same_vocabularies(folder: pathlib.Path, words: Sequence[Sequence[str]]) -> None:
  """Raises WorkdirError if the vocabularies of a run have changed since it began."""
  if not has_run(folder):  # launches.jsonl may be from a start that was killed
    return
  launch = first_launch(folder) or {}
  if launch.get("vocabularies") not in (None, vocabulary_digest(words)):
    raise WorkdirError(f"{folder}: the vocabularies have changed since the run began")


def _sha256(path: str) -> str:
  if stat.S_ISFIFO(os.stat(path).st_mode if os.path.exists(path) else 0):
    raise DataError(f"{path}: expected a file, got a pipe, which cannot be read twice")
  try:
    with open(path, "rb") as file:
      return hashlib.file_digest(file, "sha256").hexdigest()
  except OSError as error:
    raise DataError(f"{path}: cannot read the file: {error.strerror}") from error


def _git(*arguments: str) -> str | None:
  """Returns the output of git in the folder of this file, or None if git fails."""
  folder = pathlib.Path(__file__).parent
  try:
    process = subprocess.run(
      ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=20
    )
  except (OSError, subprocess.SubprocessError):
    return None
  return process.stdout.strip()
