"""The log of the starts of a run, launches.jsonl. No program reads it."""

import datetime
import importlib.metadata
import json
import pathlib
import platform
import subprocess
import sys
from typing import Any

import jax

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


def describe_launch() -> dict[str, Any]:
  """Returns the command, commit, versions and devices of this process as JSON."""
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
  }


def record_launch(folder: pathlib.Path, launch: dict[str, Any]) -> None:
  """Appends a line to launches.jsonl."""
  with (folder / "launches.jsonl").open("a", encoding="utf-8") as file:
    file.write(json.dumps(launch) + "\n")


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
