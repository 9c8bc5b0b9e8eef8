"""Checkpoints of a run.

    checkpoints/200/state/       training state, written by orbax
    checkpoints/200/record.json  data position and score
    checkpoints/200/sha256       checksums of all other files; check with `sha256sum --check sha256`

A checkpoint is written in the folder `unfinished`, and renamed when it is complete. The checksums detect
damage, because orbax restores wrong numbers without an error if a bit of its data files has changed (orbax
0.12.8: 12 of 12 such changes).
"""

import contextlib
import errno
import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import sys
from typing import Any, Literal, NamedTuple

import jax
import orbax.checkpoint as ocp

from configs import base
from experiments.cli.errors import UserError
from experiments.cli.io import write_text
from experiments.devices.multihost import broadcast_primary, is_primary, wait_for_all
from experiments.evaluation.metrics import HIGHER_IS_BETTER

_CHECKSUMS, _RECORD = "sha256", "record.json"
_UNFINISHED, _DELETED = "unfinished", "deleted"
_WAS_DELETED = "was deleted"
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO)


class CheckpointError(UserError):
  """A checkpoint that cannot be written or read, or does not fit the model."""


class Checkpoint(NamedTuple):
  """A restored checkpoint.

  Attributes:
    step: number of training steps.
    state: pytree of arrays.
    position: state of the data pipeline, JSON.
  """

  step: int
  state: Any
  position: dict[str, Any]


class Checkpoints:
  """The checkpoints of a run. All processes of the run must make the same calls.

  It keeps the two newest checkpoints, the `keep` newest with a score, and the best.

  Args:
    folder: folder of the checkpoints, created by the first `save`.
    higher_is_better: higher scores are better.
    keep: number of newest checkpoints with a score to keep.
    read_only: never change the folder. Otherwise damaged checkpoints are moved to `damaged` next to it.

  Raises:
    CheckpointError: if `folder` is a file, or all checkpoints are damaged.
  """

  def __init__(self, folder: pathlib.Path, *, higher_is_better: bool, keep: int = 2, read_only: bool = False):
    self._folder = folder.absolute()
    if self._folder.exists() and not self._folder.is_dir():
      raise CheckpointError(f"{self._folder}: expected a folder, got a file")
    self._higher_is_better, self._keep, self._read_only = higher_is_better, keep, read_only
    self._records: dict[int, dict[str, Any]] = {}
    self._lost: dict[int, str] = {}  # why checkpoints cannot be used
    self._num_reported = 0
    for path in self._folder.glob("*"):
      if not path.name.isdecimal():
        continue
      problem = _problem(path, only=_RECORD)
      if problem and problem != _WAS_DELETED:
        self._lost[int(path.name)] = problem
      with contextlib.suppress(FileNotFoundError):  # deleted meanwhile, by the training process
        if not problem:
          self._records[int(path.name)] = json.loads((path / _RECORD).read_text("utf-8"))
    if self._lost and not self._records:
      raise self._all_lost()

  def latest_step(self) -> int | None:
    """Returns the step of the newest checkpoint, or None if there is none."""
    return max(self._records, default=None)

  def newest_steps(self) -> list[int]:
    """Returns the steps of the `keep` newest checkpoints with a score, sorted.

    Checkpoints without a score are written when a run is interrupted.
    """
    scored = [step for step, record in self._records.items() if record["score"] is not None]
    return sorted(scored)[-self._keep :]

  def best_step(self) -> int | None:
    """Returns the step with the best score, or the latest of several. NaN is worse, and no score is worst."""
    return max(self._records, key=self._rank, default=None)

  def _rank(self, step: int) -> tuple[int, float, int]:
    score = self._records[step]["score"]
    if score is None or math.isnan(score):
      return (1 if score is None else 0), 0.0, step
    return 2, (score if self._higher_is_better else -score), step

  def save(self, step: int, state: Any, position: dict[str, Any], score: float | None) -> None:
    """Writes a checkpoint, unless this step already has one.

    Args:
      step: number of training steps.
      state: pytree of arrays, with any sharding.
      position: state of the data pipeline, JSON.
      score: score of the model, or None if it was not measured.

    Raises:
      CheckpointError: if the disk is full or not writable. Earlier checkpoints are kept.
    """
    if step in self._records:
      return
    last, path = self.latest_step(), self._folder / _UNFINISHED
    record = {"position": position, "score": score}
    try:
      if is_primary():
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        write_text(path / _RECORD, json.dumps(record))
      wait_for_all()
      # When orbax finds a full disk, its threads also print tracebacks.
      if shutil.disk_usage(path).free < sum(leaf.nbytes for leaf in jax.tree.leaves(state)):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
      _checkpointer().save(path / "state", args=ocp.args.StandardSave(state))
      if is_primary():
        lines = [f"{_checksum(file)}  {file.relative_to(path)}\n" for file in _files(path)]
        write_text(path / _CHECKSUMS, "".join(lines))
        path.rename(self._folder / str(step))
    except (OSError, ValueError) as error:
      if reason := _disk_error(error):
        previous = "there is no other" if last is None else f"the last one is of step {last}"
        raise CheckpointError(f"cannot write the checkpoint of step {step}: {reason}; {previous}") from error
      raise
    wait_for_all()  # until the checkpoint is complete
    self._records[step] = record
    for old in {*self._records} - {*sorted(self._records)[-2:], *self.newest_steps(), self.best_step()}:
      del self._records[old]
      if is_primary():
        with contextlib.suppress(OSError):  # it is deleted later
          # Renamed before, so that no checkpoint is partially deleted.
          (self._folder / str(old)).rename(self._folder / f"{_DELETED}.{old}")
    if is_primary():
      for path in self._folder.glob(f"{_DELETED}.*"):
        shutil.rmtree(path, ignore_errors=True)

  def restore(self, target: Any, step: int | Literal["best", "last"] = "last") -> Checkpoint | None:
    """Restores a checkpoint. Returns None if there are no checkpoints.

    A damaged checkpoint is replaced by the newest undamaged one, or by the next best if `step` is "best". A
    warning on standard error says so.

    Args:
      target: pytree of arrays or `jax.ShapeDtypeStruct` like the state. Arrays are restored with their
        shardings. An array without a sharding is placed on the first device of this process.
      step: step of the checkpoint, "best" or "last".

    Raises:
      CheckpointError: if the step has no checkpoint, all are damaged, or the arrays do not match `target`.
    """
    steps = sorted({*self._records, *self._lost}, reverse=True)
    if isinstance(step, int) and step not in steps:
      raise CheckpointError(f"step must be one of the checkpoints {steps} in {self._folder}, got {step}")
    ordered = sorted(self._records, reverse=True, key=self._rank if step == "best" else None)
    for candidate in sorted(ordered, key=lambda candidate: candidate != step):
      # Process 0 checks the files for all processes.
      problem = _problem(self._folder / str(candidate)) if is_primary() else ""
      state = None
      if not broadcast_primary(bool(problem)):
        try:
          state = self._read(candidate, target)
        except Exception:
          if (self._folder / str(candidate)).exists():
            raise
          problem = _WAS_DELETED  # meanwhile, by the training process
      if state is not None:
        self._report(candidate)
        return Checkpoint(candidate, state, self._records[candidate]["position"])
      self._lost[candidate] = problem
      del self._records[candidate]
    if steps:
      raise self._all_lost()
    return None

  def _read(self, step: int, target: Any) -> Any:
    path = self._folder / str(step) / "state"
    _check_same_arrays(path, target)
    return _checkpointer().restore(path, args=ocp.args.StandardRestore(jax.tree.map(_with_sharding, target)))

  def _report(self, used: int) -> None:
    """Warns once of checkpoints that cannot be used, and moves damaged ones to the folder `damaged`."""
    new = sorted([*self._lost.items()][self._num_reported :], reverse=True)
    self._num_reported = len(self._lost)
    for step, problem in new if is_primary() else ():
      print(f"checkpoint of step {step} {problem}; using step {used}", file=sys.stderr, flush=True)
      if not self._read_only and problem != _WAS_DELETED:
        target = self._folder.parent / "damaged" / str(step)
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(exist_ok=True)
        shutil.move(self._folder / str(step), target)
    wait_for_all()

  def _all_lost(self) -> CheckpointError:
    listed = "; ".join(f"that of step {step} {problem}" for step, problem in sorted(self._lost.items()))
    return CheckpointError(
      f"{self._folder}: no checkpoint can be used ({listed}); pass another --workdir to train from scratch"
    )


def open_checkpoints(config: base.Config, folder: pathlib.Path, *, read_only: bool = True) -> Checkpoints:
  """Returns the checkpoints of a run."""
  higher_is_better = HIGHER_IS_BETTER[config.train.best_metric]
  return Checkpoints(
    folder / "checkpoints",
    higher_is_better=higher_is_better,
    keep=config.train.max_to_keep,
    read_only=read_only,
  )


def _checkpointer() -> ocp.Checkpointer:
  return ocp.Checkpointer(ocp.StandardCheckpointHandler())


def _problem(path: pathlib.Path, only: str = "") -> str:
  """Returns why a checkpoint cannot be used, or an empty string. It checks all files, or one."""
  try:
    changed = _changed_file(path, only)
  except OSError as error:
    changed = f"{error.filename} cannot be read: {error.strerror}"
  if not changed:
    return ""
  return f"is damaged ({changed})" if path.exists() else _WAS_DELETED


def _changed_file(path: pathlib.Path, only: str) -> str:
  """Returns which file of a checkpoint has changed, or an empty string."""
  if not (path / _CHECKSUMS).is_file():
    return f"{_CHECKSUMS} is missing"
  lines = (path / _CHECKSUMS).read_text("ascii", errors="replace").splitlines()
  if not lines or not all(re.fullmatch(r"[0-9a-f]{64}  \S+", line) for line in lines):
    return f"{_CHECKSUMS} has changed"
  expected = {line[66:]: line[:64] for line in lines}
  for name in [only] if only else sorted(expected):
    if not (path / name).is_file() or _checksum(path / name) != expected.get(name):
      return f"{name} has changed"
  names = {str(file.relative_to(path)) for file in _files(path)}
  return f"{_CHECKSUMS} has changed" if names - {*expected, _CHECKSUMS} else ""


def _files(path: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files of a checkpoint, but not hidden ones, such as .DS_Store or .nfs0001."""
  return [file for file in sorted(path.rglob("*")) if file.is_file() and not file.name.startswith(".")]


def _checksum(path: pathlib.Path) -> str:
  with path.open("rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def _check_same_arrays(path: pathlib.Path, target: Any) -> None:
  """Raises CheckpointError if arrays of a checkpoint have other names, shapes or dtypes than the target."""
  saved, wanted = _arrays(_checkpointer().metadata(path).item_metadata.tree), _arrays(target)
  for name in sorted(saved.keys() | wanted.keys()):
    expected, actual = wanted.get(name, "missing"), saved.get(name, "missing")
    if actual != expected:
      raise CheckpointError(f"{path} does not fit the model: {name} must be {expected}, got {actual}")


def _arrays(tree: Any) -> dict[str, str]:
  """Returns the dtype and shape of each array, by path."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): f"{leaf.dtype}{list(leaf.shape)}"
    for path, leaf in leaves
  }


def _with_sharding(leaf: Any) -> jax.ShapeDtypeStruct:
  sharding = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _disk_error(error: OSError | ValueError) -> str:
  """Returns a description of a disk error, or an empty string. Disk errors of tensorstore are ValueErrors."""
  if isinstance(error, OSError) and error.strerror:
    return error.strerror
  return next((os.strerror(number) for number in _DISK_ERRORS if os.strerror(number) in str(error)), "")
