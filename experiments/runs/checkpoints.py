"""Checkpoints of a run, written by orbax, with checksums to detect damage.

    checkpoints/200/         training state, data position and score, by orbax
    checkpoints/200/sha256   checksum of each file; check with `sha256sum --check sha256`

orbax alone restores wrong numbers without an error if a bit of its data file has changed (orbax 0.12.8: 12 of
12 such changes), and empty `custom_metadata` if that file is damaged. Hence the checksums.

orbax renames a checkpoint when it is complete. A checkpoint without `sha256`, because the run was killed
before it was written, is used without a check if orbax can restore it.
"""

import contextlib
import errno
import gc
import hashlib
import json
import math
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp

from experiments.cli.errors import UserError
from experiments.cli.io import write_text
from experiments.devices.multihost import broadcast_primary, is_primary, max_over_processes, wait_for_all

_DELETED = "deleted"  # checkpoints are moved here before deletion, so that none is partially deleted
_CHECKSUMS = "sha256"
_METADATA = "_CHECKPOINT_METADATA"  # file of orbax with `custom_metadata`
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


class Checkpoints(contextlib.AbstractContextManager):
  """The checkpoints of a run, as a context manager. All processes of the run must make the same calls.

  It keeps the two newest checkpoints, the `keep` newest with a score, and the best.

  Args:
    folder: folder of the checkpoints, created by the first `save`.
    higher_is_better: higher scores are better.
    keep: number of newest checkpoints with a score to keep.
    read_only: never change the folder. Otherwise damaged checkpoints are moved to `damaged` next to it.

  Raises:
    CheckpointError: if `folder` is a file.
  """

  def __init__(self, folder: pathlib.Path, *, higher_is_better: bool, keep: int = 2, read_only: bool = False):
    self._folder = folder.absolute()
    if self._folder.exists() and not self._folder.is_dir():
      raise CheckpointError(f"{self._folder}: expected a folder, got a file")
    self._higher_is_better, self._keep, self._read_only = higher_is_better, keep, read_only
    self._manager: ocp.CheckpointManager | None = None
    self._records: dict[int, dict[str, Any]] = {}
    self._damaged: dict[int, str] = {}
    for path in [path for path in self._folder.glob("*") if path.name.isdecimal() and path.is_dir()]:
      try:
        self._records[int(path.name)] = _read_record(path)
      except CheckpointError as error:
        self._damaged[int(path.name)] = str(error)

  def __exit__(self, *_) -> None:
    if self._manager:
      self._manager.close()

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

  def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
    """Returns whether to keep each checkpoint. It implements `PreservationPolicy` of orbax."""
    del context
    kept = {*sorted(self._records)[-2:], *self.newest_steps(), self.best_step()}
    return [info.step in kept for info in checkpoints]

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
    last, path = self.latest_step(), self._folder / str(step)
    self._records[step] = {"position": position, "score": score, "arrays": _arrays(state)}
    try:
      self._folder.mkdir(parents=True, exist_ok=True)
      args = ocp.args.StandardSave(state)
      with _quiet():
        manager = self._manager = self._manager or self._make_manager()
        manager.save(step, args=args, custom_metadata=self._records[step], force=True)
      if is_primary():
        lines = (f"{checksum}  {name}\n" for name, checksum in _checksums(path).items())
        write_text(path / _CHECKSUMS, "".join(lines))
        shutil.rmtree(self._folder / _DELETED, ignore_errors=True)
    except (OSError, ValueError) as error:
      if reason := _disk_error(error):
        previous = "there is no other" if last is None else f"the last one is of step {last}"
        raise CheckpointError(f"cannot write the checkpoint of step {step}: {reason}; {previous}") from error
      raise
    wait_for_all()  # until the checksums are written
    self._records = {kept: self._records[kept] for kept in manager.all_steps()}

  def restore(self, target: Any, step: int | None = None) -> Checkpoint | None:
    """Restores a checkpoint. Returns None if there are no checkpoints.

    A damaged checkpoint is replaced by the newest undamaged one, with a warning on standard error.

    Args:
      target: pytree of arrays or `jax.ShapeDtypeStruct` like the state. Arrays are restored with their
        shardings. An array without a sharding is placed on the first device of this process.
      step: step of the checkpoint. Default: the newest.

    Raises:
      CheckpointError: if the step has no checkpoint, all are damaged, or the arrays do not match `target`.
    """
    steps = sorted({*self._records, *self._damaged}, reverse=True)
    if step is not None and step not in steps:
      raise CheckpointError(f"step must be one of the checkpoints {steps} in {self._folder}, got {step}")
    for candidate in sorted(steps, key=lambda candidate: candidate != step):
      if candidate in self._damaged or not self._check_undamaged(candidate):
        continue
      state = self._restore_state(candidate, target)
      if state is None:
        continue
      for damaged, reason in sorted(self._damaged.items(), reverse=True):
        if is_primary():
          warning = f"checkpoint of step {damaged} is damaged ({reason}); using step {candidate}"
          print(warning, file=sys.stderr, flush=True)
        self._move_aside(damaged)
      self._damaged = {}
      return Checkpoint(candidate, state, self._records[candidate]["position"])
    if steps:
      listed = "; ".join(f"step {damaged}: {reason}" for damaged, reason in sorted(self._damaged.items()))
      raise CheckpointError(
        f"{self._folder}: all checkpoints are damaged ({listed}); move the folder away to train from scratch"
      )
    return None

  def _make_manager(self) -> ocp.CheckpointManager:
    """Returns the manager of orbax, which cannot be created if a checkpoint is damaged."""
    options = ocp.CheckpointManagerOptions(
      create=False,
      cleanup_tmp_directories=not self._read_only,
      enable_async_checkpointing=False,
      preservation_policy=self,
      save_root_metadata=False,
      todelete_subdir=_DELETED,
    )
    return ocp.CheckpointManager(self._folder, options=options)

  def _restore_state(self, step: int, target: Any) -> Any:
    """Returns the state of a checkpoint, or None if it has no checksums and cannot be restored."""
    path, state, failure = self._folder / str(step), None, ""
    try:
      _check_same_arrays(path, self._records[step]["arrays"], _arrays(target))
      with _quiet(), ocp.StandardCheckpointer() as checkpointer:
        state = checkpointer.restore(path / "default", jax.tree.map(_with_sharding, target))
    except Exception as error:  # orbax and tensorstore raise many types
      is_damage = not isinstance(error, (MemoryError, jax.errors.JaxRuntimeError))
      if (path / _CHECKSUMS).exists() or not is_damage:
        raise
      failure = f"it has no {_CHECKSUMS} and cannot be restored: {type(error).__name__}"
    if not max_over_processes(bool(failure)):
      return state
    self._damaged[step] = failure or "another process cannot restore it"
    del self._records[step]
    return None

  def _rank(self, step: int) -> tuple[int, float, int]:
    score = self._records[step]["score"]
    if score is None or math.isnan(score):
      return (1 if score is None else 0), 0.0, step
    return 2, (score if self._higher_is_better else -score), step

  def _check_undamaged(self, step: int) -> bool:
    """Returns whether all files are undamaged. Process 0 checks them for all processes."""
    damage = _damage(self._folder / str(step)) if is_primary() else ""
    if not broadcast_primary(bool(damage)):
      return True
    self._damaged[step] = damage
    del self._records[step]
    return False

  def _move_aside(self, step: int) -> None:
    """Moves a damaged checkpoint to the folder `damaged`."""
    if self._read_only:
      return
    if is_primary():
      target = self._folder.parent / "damaged" / str(step)
      shutil.rmtree(target, ignore_errors=True)
      target.parent.mkdir(exist_ok=True)
      shutil.move(self._folder / str(step), target)
    wait_for_all()


def _read_record(path: pathlib.Path) -> dict[str, Any]:
  """Returns what `Checkpoints.save` stored about a checkpoint. The reader of orbax would open all arrays.

  Raises:
    CheckpointError: if it is damaged.
  """
  if damage := _damage(path, _METADATA):
    raise CheckpointError(damage)
  try:
    record = json.loads((path / _METADATA).read_text("utf-8"))["custom_metadata"]
    score = None if record["score"] is None else float(record["score"])
    return {"position": dict(record["position"]), "score": score, "arrays": dict(record["arrays"])}
  except (OSError, ValueError, LookupError, TypeError) as error:
    raise CheckpointError(f"{_METADATA} cannot be read") from error


def _damage(path: pathlib.Path, *names: str) -> str:
  """Returns a description of the damage of some or all files of a checkpoint, or an empty string."""
  if not path.exists():
    return "it was deleted"
  try:
    lines = (path / _CHECKSUMS).read_text("ascii").splitlines()
  except FileNotFoundError:
    return ""
  except ValueError:
    return f"{_CHECKSUMS} has changed"
  except OSError as error:
    return f"it cannot be read: {error.strerror}"
  expected = {name: checksum for checksum, _, name in (line.partition("  ") for line in lines)}
  try:
    checksums = _checksums(path, *names)
  except OSError as error:
    return f"it cannot be read: {error.strerror}"
  changed = [name for name in names or {**expected, **checksums} if checksums.get(name) != expected.get(name)]
  return f"{changed[0]} has changed" if changed else ""


def _checksums(path: pathlib.Path, *names: str) -> dict[str, str]:
  """Returns the SHA-256 of some or all existing files of a checkpoint."""
  files = [path / name for name in names] or sorted(path.rglob("*"))
  checksums = {}
  for file in files:
    if file.is_file() and file.name != _CHECKSUMS:
      with file.open("rb") as opened:
        checksums[str(file.relative_to(path))] = hashlib.file_digest(opened, "sha256").hexdigest()
  return checksums


def _arrays(state: Any) -> dict[str, str]:
  """Returns the dtype and shape of each array, by path."""
  leaves = jax.tree_util.tree_leaves_with_path(state)
  return {jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}


def _check_same_arrays(path: pathlib.Path, saved: dict[str, str], target: dict[str, str]) -> None:
  for name in sorted(saved.keys() | target.keys()):
    expected, actual = target.get(name, "missing"), saved.get(name, "missing")
    if actual != expected:
      raise CheckpointError(f"{path} does not fit the model: {name} must be {expected}, got {actual}")


def _with_sharding(leaf: Any) -> jax.ShapeDtypeStruct:
  sharding = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _disk_error(error: OSError | ValueError) -> str:
  """Returns a description of a disk error, or an empty string. Disk errors of tensorstore are ValueErrors."""
  if isinstance(error, OSError) and error.strerror:
    return error.strerror
  return next((os.strerror(number) for number in _DISK_ERRORS if os.strerror(number) in str(error)), "")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Hides messages of orbax threads about an error that is also raised."""
  hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
  try:
    yield
  except Exception:
    time.sleep(0.1)  # until abandoned tasks of orbax have failed
    gc.collect()
    raise
  finally:
    sys.unraisablehook = hook
