"""Start of a run: checks, then creation and locking of its folder, and a line in launches.jsonl."""

import contextlib
import datetime
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jax

from configs import base
from experiments.cli import components
from experiments.cli.config_fields import ConfigError
from experiments.data.parallel_text import ParallelText
from experiments.data.task import Task
from experiments.data.tasks import make_task
from experiments.devices.multihost import is_primary, together
from experiments.devices.sharding import check_equal_device_counts, make_mesh
from experiments.learning.model import make_task_model
from experiments.learning.step import TrainSpec, abstract_state, make_train_spec
from experiments.runs import workdir
from experiments.runs.component_checks import check_custom_components
from experiments.runs.record import (
  Record,
  check_not_imported_from,
  check_same,
  file_digests,
  inherited_languages,
  language_digest,
  make_run_task,
  write_run,
)
from experiments.runs.restore import check_warm_start
from experiments.runs.validation import validate

_PACKAGES = (
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


@contextlib.contextmanager
def open_run(config: base.Config, folder: pathlib.Path, fsdp_size: int) -> Iterator[tuple[Task, TrainSpec]]:
  """Yields the task and the training spec of a run, and locks its folder.

  The folder is created after all checks. If one process fails, all processes stop.
  """
  check_equal_device_counts()
  with contextlib.ExitStack() as exits:
    with together() as settings:
      saved, record, task, spec = _prepare(config, folder, fsdp_size)
      launch = describe_launch()
      settings += [record.as_json(), launch["versions"], launch["commit"], str(folder.resolve()), fsdp_size]
    if config.init_from and saved is None:
      check_warm_start(config, spec)
    with together():
      if is_primary():
        exits.enter_context(workdir.workdir_lock(folder))
        check_same(folder, config, record.data)  # another process may have started a run meanwhile
    if is_primary():
      _log_launch(folder / "launches.jsonl", launch)
      write_run(folder, record, (task.source, task.target))
    yield task, spec


def _prepare(
  config: base.Config, folder: pathlib.Path, fsdp_size: int
) -> tuple[Record | None, Record, Task, TrainSpec]:
  """Checks a run, without writing. Returns the record in its folder, if any, its record, task and spec."""
  check_not_imported_from(folder, config)
  validate(config)
  workdir.check_complete(folder)
  data = file_digests(config)
  saved = check_same(folder, config, data)
  if saved is not None:
    task = make_run_task(folder, saved._replace(config=config))
  else:
    task = make_task(config, inherited_languages(config) if config.init_from else None)
    if config.init_from and isinstance(task, ParallelText):
      task.add_new_words()
  spec = make_train_spec(config, make_task_model(config, task), make_mesh(fsdp_size))
  if components.custom_components(config):
    check_custom_components(config, task, spec)
  task.training_batch(0)
  for split in (task.validation_split, *task.splits):
    task.examples(split, 1)
  _check_memory(spec)
  return saved, Record(config, data, language_digest((task.source, task.target))), task, spec


def _check_memory(spec: TrainSpec) -> None:
  """Raises ConfigError if parameters and optimizer state exceed the memory of the machine, on a CPU."""
  leaves = jax.tree.leaves(abstract_state(spec))
  needed = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
  available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  if jax.default_backend() == "cpu" and needed > available:
    raise ConfigError(
      "parameters and optimizer state must fit into the memory of this machine, "
      f"{available / 2**30:,.0f} GiB, got {needed / 2**30:,.0f} GiB; reduce the sizes in config.model"
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
    "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
    "machine": f"{platform.system()} {platform.machine()}",
    "device": f"{device.platform}: {device.device_kind}",
    "devices": jax.device_count(),
    "processes": jax.process_count(),
  }


def _log_launch(path: pathlib.Path, launch: dict[str, Any]) -> None:
  """Appends a line to launches.jsonl, which is for people: no script reads it."""
  try:
    with path.open("a", encoding="utf-8") as log:
      log.write(json.dumps(launch) + "\n")
  except OSError as error:
    raise workdir.WorkdirError(f"cannot write to {path}: {error.strerror}") from error


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
