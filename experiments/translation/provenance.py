"""What a run was made with: the command, the versions, the devices, the data."""

import datetime
import hashlib
import importlib.metadata
import json
import pathlib
import platform
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import jax

from configs import base
from experiments.translation.pairs import DataError
from experiments.translation.workdir import read_lines, write_text

PACKAGES = (
  "jax",
  "jaxlib",
  "flax",
  "optax",
  "numpy",
  "orbax-checkpoint",
  "grain",
  "sentencepiece",
  "sacrebleu",
)


def describe_launch(config: base.Config) -> dict[str, Any]:
  """Returns what this process runs with, as JSON can hold it."""
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
    "data": digests(config.data),
  }


def digests(data: base.Data, splits: Iterable[str] = ("train", "validation", "test")) -> dict[str, str]:
  """Returns the SHA-256 of the files of a config.

  Raises:
    DataError: if a file cannot be read.
  """
  return {path: _sha256(path) for split in splits if (path := getattr(data, split))}


def record_launch(folder: pathlib.Path, launch: dict[str, Any]) -> None:
  """Adds a line to launches.jsonl."""
  path = folder / "launches.jsonl"
  launches = [*read_lines(path), launch]
  write_text(path, "".join(f"{json.dumps(each)}\n" for each in launches))


def check_same_data(folder: pathlib.Path, found: dict[str, str]) -> None:
  """Raises DataError if a data file is not what it was when the run began.

  Args:
    folder: the workdir.
    found: from `digests`.
  """
  for launch in read_lines(folder / "launches.jsonl")[:1]:
    for name, digest in found.items():
      if launch["data"].get(name) != digest:
        raise DataError(f"{name}: expected the file that the run in {folder} began with, got a changed one")


def _sha256(path: str) -> str:
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
