"""Checkpoints of a run: orbax writes, reads and deletes them; a digest of each file detects damage.

    checkpoints/200/         the state, the data position and the score, by orbax
    checkpoints/200/sha256   a digest of each file, as `sha256sum --check sha256` reads it

orbax renames a checkpoint into place when it is complete. One without `sha256`, where a run was killed before
it was written, is used unchecked.
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
from experiments.runs.multihost import is_primary, of_main, wait_for_all

_DELETED = "deleted"  # checkpoints are moved here before they are deleted, so none is deleted by half
_DIGESTS = "sha256"
_METADATA = "_CHECKPOINT_METADATA"  # where orbax writes `custom_metadata`
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO)


class CheckpointError(UserError):
  """A checkpoint that cannot be written, or does not fit the model."""


class Checkpoint(NamedTuple):
  """What a run resumes from.

  Attributes:
    step: number of training steps.
    state: a pytree of arrays.
    position: state of the data pipeline, JSON.
  """

  step: int
  state: Any
  position: dict[str, Any]


class Checkpoints(contextlib.AbstractContextManager):
  """The checkpoints of one run. A context manager; all processes of a run make the same calls.

  The newest two are kept, the newest `keep` with a score, and the best.

  Args:
    folder: created by the first `save`.
    higher_is_better: whether a higher score is better.
    keep: number of the newest checkpoints with a score that are kept.
    read_only: whether to leave the folder as it is. If not, damaged checkpoints are moved to the folder
      `damaged` next to it.

  Raises:
    CheckpointError: if `folder` is a file.
  """

  def __init__(self, folder: pathlib.Path, *, higher_is_better: bool, keep: int = 2, read_only: bool = False):
    self._folder = folder.absolute()
    if self._folder.exists() and not self._folder.is_dir():
      raise CheckpointError(f"{self._folder} must be a folder, got a file")
    self._higher_is_better, self._keep, self._read_only = higher_is_better, keep, read_only
    options = ocp.CheckpointManagerOptions(
      create=False,
      cleanup_tmp_directories=not read_only,
      enable_async_checkpointing=False,
      preservation_policy=self,
      save_root_metadata=False,
      todelete_subdir=_DELETED,
    )
    self._manager = ocp.CheckpointManager(self._folder, options=options)
    self._records: dict[int, dict[str, Any]] = {}
    self._damaged: dict[int, str] = {}
    for step in self._manager.all_steps():
      if damage := _damage(self._folder / str(step), _METADATA):
        self._damaged[step] = damage
      else:
        text = (self._folder / str(step) / _METADATA).read_text("utf-8")
        self._records[step] = json.loads(text)["custom_metadata"]  # orbax's reader opens all arrays, too

  def __exit__(self, *_) -> None:
    self._manager.close()

  def latest_step(self) -> int | None:
    """Returns the step of the newest checkpoint, or None if there is none."""
    return max(self._records, default=None)

  def newest_steps(self) -> list[int]:
    """Returns the steps of the newest checkpoints with a score, at most `keep`, in order.

    A checkpoint without a score was written where a run was interrupted.
    """
    scored = [step for step, record in self._records.items() if record["score"] is not None]
    return sorted(scored)[-self._keep :]

  def best_step(self) -> int | None:
    """Returns the step with the best score, the latest of equal ones. No score is worst, then NaN."""
    return max(self._records, key=self._rank, default=None)

  def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
    """Returns whether each checkpoint is kept; this is orbax's `PreservationPolicy`."""
    del context
    kept = {*sorted(self._records)[-2:], *self.newest_steps(), self.best_step()}
    return [info.step in kept for info in checkpoints]

  def save(self, step: int, state: Any, position: dict[str, Any], score: float | None) -> None:
    """Writes a checkpoint, unless there is one of this step.

    Args:
      step: number of training steps.
      state: pytree of arrays, on any devices of any processes.
      position: state of the data pipeline, JSON.
      score: of the model; None if it was not measured.

    Raises:
      CheckpointError: if the disk is full or cannot be written. Earlier checkpoints stay.
    """
    if step in self._records:
      return
    last, path = self.latest_step(), self._folder / str(step)
    self._records[step] = {"position": position, "score": score, "arrays": _arrays(state)}
    try:
      self._folder.mkdir(parents=True, exist_ok=True)
      args = ocp.args.StandardSave(state)
      with _quiet():
        self._manager.save(step, args=args, custom_metadata=self._records[step], force=True)
      if is_primary():
        write_text(path / _DIGESTS, "".join(f"{digest}  {name}\n" for name, digest in _digests(path).items()))
        shutil.rmtree(self._folder / _DELETED, ignore_errors=True)
    except (OSError, ValueError) as error:
      if reason := _disk_error(error):
        whole = "there is no other" if last is None else f"the last one is of step {last}"
        raise CheckpointError(f"cannot write the checkpoint of step {step}: {reason}; {whole}") from error
      raise
    wait_for_all()  # until its digests are there
    self._records = {kept: self._records[kept] for kept in self._manager.all_steps()}

  def restore(self, like: Any, step: int | None = None) -> Checkpoint | None:
    """Returns a checkpoint, or None if there is none at all.

    Instead of a damaged one, the newest whole one is returned, and a line on stderr says so.

    Args:
      like: the state's pytree of arrays or `jax.ShapeDtypeStruct`, with the sharding of each; without a
        sharding, an array is put on the first device of this process.
      step: the step of the checkpoint. Default: the newest.

    Raises:
      CheckpointError: if there is none of the step, none is whole, or its arrays are not those of `like`.
    """
    steps = sorted({*self._records, *self._damaged}, reverse=True)
    if step is not None and step not in steps:
      raise CheckpointError(f"{self._folder} holds no checkpoint of step {step}, only {steps}")
    for candidate in sorted(steps, key=lambda other: other != step):
      if candidate in self._damaged or not self._is_whole(candidate):
        continue
      for damaged, reason in sorted(self._damaged.items(), reverse=True):
        if is_primary():
          line = f"checkpoint of step {damaged} is damaged ({reason}); using step {candidate}"
          print(line, file=sys.stderr, flush=True)
        self._move_aside(damaged)
      self._damaged = {}
      record = self._records[candidate]
      _check_same_arrays(self._folder / str(candidate), record["arrays"], _arrays(like))
      args = ocp.args.StandardRestore(jax.tree.map(_with_sharding, like))
      return Checkpoint(candidate, self._manager.restore(candidate, args=args), record["position"])
    if steps:
      listed = "; ".join(f"step {damaged}: {reason}" for damaged, reason in sorted(self._damaged.items()))
      raise CheckpointError(
        f"{self._folder} holds no whole checkpoint ({listed}); move it away to start anew"
      )
    return None

  def _rank(self, step: int) -> tuple[int, float, int]:
    score = self._records[step]["score"]
    if score is None or math.isnan(score):
      return (1 if score is None else 0), 0.0, step
    return 2, (score if self._higher_is_better else -score), step

  def _is_whole(self, step: int) -> bool:
    """Returns whether no file is damaged; process 0 decides for all."""
    damage = _damage(self._folder / str(step)) if is_primary() else ""
    if not of_main(bool(damage)):
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
    self._manager.reload()


def _damage(path: pathlib.Path, *names: str) -> str:
  """Returns what is wrong with files of a checkpoint; with none named, with any."""
  if not path.exists():
    return "it was deleted"
  try:
    lines = (path / _DIGESTS).read_text("ascii").splitlines()
  except FileNotFoundError:
    return ""
  except ValueError:
    return f"{_DIGESTS} has changed"
  except OSError as error:
    return f"it cannot be read: {error.strerror}"
  expected = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
  try:
    digests = _digests(path, *names)
  except OSError as error:
    return f"it cannot be read: {error.strerror}"
  changed = [name for name in names or {**expected, **digests} if digests.get(name) != expected.get(name)]
  return f"{changed[0]} has changed" if changed else ""


def _digests(path: pathlib.Path, *names: str) -> dict[str, str]:
  """Returns the SHA-256 of files of a checkpoint that exist; with none named, of all."""
  files = [path / name for name in names] or sorted(path.rglob("*"))
  digests = {}
  for file in files:
    if file.is_file() and file.name != _DIGESTS:
      with file.open("rb") as opened:
        digests[str(file.relative_to(path))] = hashlib.file_digest(opened, "sha256").hexdigest()
  return digests


def _arrays(state: Any) -> dict[str, str]:
  """Returns the type and shape of each array by its name."""
  leaves = jax.tree_util.tree_leaves_with_path(state)
  return {jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}


def _check_same_arrays(path: pathlib.Path, theirs: dict[str, str], ours: dict[str, str]) -> None:
  for name in sorted(theirs.keys() | ours.keys()):
    there, here = theirs.get(name, "missing"), ours.get(name, "missing")
    if there != here:
      raise CheckpointError(f"{path} is of another version of the model: {name} is {there}, here {here}")


def _with_sharding(leaf: Any) -> jax.ShapeDtypeStruct:
  sharding = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _disk_error(error: OSError | ValueError) -> str:
  """Returns what is wrong with the disk, or nothing. Errors of tensorstore are ValueErrors."""
  if isinstance(error, OSError) and error.strerror:
    return error.strerror
  return next((os.strerror(number) for number in _DISK_ERRORS if os.strerror(number) in str(error)), "")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Hides what threads of orbax print about an error that is raised, too."""
  hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
  try:
    yield
  except Exception:
    time.sleep(0.1)  # tasks that orbax has given up
    gc.collect()
    raise
  finally:
    sys.unraisablehook = hook
