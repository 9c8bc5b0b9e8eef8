"""Checkpoints of a run, by orbax: checked when they are read, and lost to no kill and no full disk.

Each checkpoint is a folder named by its step. Beside the arrays it has a record: where the data stood, the
score, the names, types and shapes of the arrays, and a number that any damage to them changes.
"""

import contextlib
import errno
import gc
import json
import logging
import math
import os
import pathlib
import shutil
import sys
import textwrap
import time
import warnings
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from experiments.commands.mistakes import Mistake
from experiments.runs.integrity import integrity

_DELETED = "deleted"  # where checkpoints are moved to be deleted, so that none is ever half there
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO)


class CheckpointError(Mistake):
  """A checkpoint that cannot be written, or does not fit, told in one line."""


class DamagedError(CheckpointError):
  """There are checkpoints, and none is whole."""


class Checkpoint(NamedTuple):
  """What a run goes on from.

  Attributes:
    step: of the state.
    state: a pytree of arrays.
    position: of the data pipeline, as JSON has it.
  """

  step: int
  state: Any
  position: dict[str, Any]


class Checkpoints:
  """The checkpoints of one run; the newest ones and the best are kept. A context manager.

  All processes of a run make the same calls; they share the folder.

  Args:
    folder: where they are; it is made by the first `save`. Damaged ones are moved to `damaged` beside it.
    higher_is_better: which scores are better.
    keep: how many of the newest that have a score; also kept are the newest two, for one may be damaged.

  Raises:
    CheckpointError: if the folder is none.
  """

  def __init__(self, folder: pathlib.Path, *, higher_is_better: bool, keep: int = 2):
    self._folder = folder.absolute()
    if self._folder.exists() and not self._folder.is_dir():
      raise CheckpointError(f"{self._folder}: expected a folder, got a file")
    self._higher_is_better, self._keep = higher_is_better, keep
    options = ocp.CheckpointManagerOptions(
      create=False,
      enable_async_checkpointing=False,
      save_root_metadata=False,
      todelete_subdir=_DELETED,
    )
    with _quiet():
      self._manager = ocp.CheckpointManager(self._folder, options=options)
    self._unreadable: dict[int, str] = {}  # what is wrong with records, until it has been told
    self._scores = self._read_scores()

  def __enter__(self) -> "Checkpoints":
    return self

  def __exit__(self, *_) -> None:
    self._manager.close()

  def latest_step(self) -> int | None:
    """Returns the step of the newest checkpoint, or None if there is none."""
    return max(self._manager.all_steps(), default=None)

  def newest_steps(self) -> list[int]:
    """Returns the steps of the newest checkpoints that have a score, `keep` at most, in order.

    One without, where a run was stopped, is not among them: a run that never stopped has none.
    """
    return sorted(step for step, score in self._scores.items() if score is not None)[-self._keep :]

  def best_step(self) -> int | None:
    """Returns the step with the best score, the latest of equals; no score is worse than any, NaN worst."""
    return max(self._scores, key=self._rank, default=self.latest_step())

  def save(self, step: int, state: Any, position: dict[str, Any], score: float | None) -> None:
    """Writes a checkpoint, unless there is one of the step.

    Args:
      step: of the state.
      state: pytree of arrays, on any devices of any processes.
      position: of the data pipeline, JSON.
      score: of the model; None if it was not measured.

    Raises:
      CheckpointError: if the disk does not take it; those that are there stay. The run should end,
        for orbax may still be writing.
    """
    if step in self._manager.all_steps():
      return
    with _quiet():
      reason = self._write(step, state, position, score)
      if reason:
        _forget_tasks()
        self._clear()
    if reason:
      last = self.latest_step()
      whole = "there is no other" if last is None else f"the last whole one is of step {last}"
      raise CheckpointError(f"could not write the checkpoint of step {step}: {reason}; {whole}")
    self._scores[step] = score
    self.delete_old()

  def restore(self, like: Any, step: int | None = None, *, repairs: bool = False) -> Checkpoint | None:
    """Returns a checkpoint, or None if there is none at all.

    One that is damaged is told of on stderr, and passed over for the newest whole one. One whose record
    cannot be read is told of in any case: it may have been the best. If a trainer has deleted the one
    wanted meanwhile, there is a newer one, or if it was the best, another that is the best now.

    Args:
      like: the state's pytree of arrays or ShapeDtypeStructs, whose `sharding` says where each is put;
        None is the first device of this process.
      step: the checkpoint wanted; None for the newest.
      repairs: whether damaged ones are moved to `damaged`. Only who trains in the folder may do so.

    Raises:
      CheckpointError: if there is none of the step, or its arrays are not those of `like`.
      DamagedError: if there are some and none is whole; all stay where they are.
    """
    steps = sorted(self._manager.all_steps(), reverse=True)
    if step is not None:
      if step not in steps:
        raise CheckpointError(f"{self._folder} holds no checkpoint of step {step}; it holds {steps}")
      steps.sort(key=lambda other: other != step)
    damages, self._unreadable = self._unreadable, {}
    for candidate in steps:
      try:
        checkpoint = self._read(candidate, like)
      except _Damage as damage:
        if not repairs and not self._path(candidate).exists():
          was_best = candidate == step == self.best_step()
          self._manager.reload()
          self._scores = self._read_scores()
          return self.restore(like, self.best_step() if was_best else None)
        damages[candidate] = str(damage)
        continue
      for damaged, reason in _newest_first(damages):
        self._tell(f"checkpoint of step {damaged} is damaged ({reason}); going on from step {candidate}")
        if repairs:
          self._move_aside(damaged)
      return checkpoint
    if damages:
      listed = "; ".join(f"step {damaged}: {reason}" for damaged, reason in _newest_first(damages))
      raise DamagedError(f"{self._folder} holds no whole checkpoint ({listed}); move it away to begin anew")
    return None

  def delete_old(self) -> None:
    """Deletes what is not to be kept; `save` does so too, but may have been killed before."""
    steps = sorted(self._manager.all_steps())
    kept = {*steps[-2:], *self.newest_steps(), self.best_step()}
    for step in steps:
      # One whose record cannot be read may have been the best.
      if step in self._scores and step not in kept:
        self._manager.delete(step)
        del self._scores[step]
    self._clear()

  def _read_scores(self) -> dict[int, float | None]:
    """Returns the scores of all checkpoints whose record can be read, and takes note of the others."""
    scores = {}
    for step in self._manager.all_steps():
      try:
        scores[step] = self._read_record(step)["score"]
      except _Damage as damage:
        if self._path(step).exists():  # else a trainer has deleted it
          self._unreadable[step] = str(damage)
    return scores

  def _rank(self, step: int) -> tuple[int, float, int]:
    score = self._scores[step]
    if score is None or math.isnan(score):
      return (1 if score is None else 0), 0.0, step
    return 2, (score if self._higher_is_better else -score), step

  def _write(self, step: int, state: Any, position: dict[str, Any], score: float | None) -> str:
    """Writes a checkpoint, or returns what the disk has against it."""
    arrays, number = _described(state), integrity(state)
    record = {"step": step, "position": position, "score": score, "arrays": arrays, "integrity": number}
    args = ocp.args.Composite(
      state=ocp.args.StandardSave(state),
      record=ocp.args.JsonSave(_sealed(record)),
    )
    try:
      self._folder.mkdir(parents=True, exist_ok=True)
      self._clear()
      self._manager.save(step, args=args, force=True)
    except (OSError, ValueError) as error:
      reason = _disk_error(error)
      if not reason:
        raise
      return reason
    return ""

  def _read(self, step: int, like: Any) -> Checkpoint:
    """Returns a checkpoint that is whole, in all processes alike."""
    record, state, reason = {}, None, ""
    try:
      record = self._read_record(step)
    except _Damage as damage:
      reason = str(damage)
    if not reason:
      _check_same_arrays(self._path(step), record["arrays"], _described(like))
      with _quiet():
        state, reason = self._read_arrays(step, jax.tree.map(_placed, like))
        if reason:
          _forget_tasks()
    _agree(reason)
    if integrity(state) != record["integrity"]:
      raise _Damage("its arrays are not what was written")
    return Checkpoint(step, state, record["position"])

  def _read_arrays(self, step: int, like: Any) -> tuple[Any, str]:
    """Returns the arrays, or what is wrong with their files."""
    # Not by the manager: it waits for all processes, of which some may have met damage and left.
    handler = ocp.StandardCheckpointHandler()
    try:
      return handler.restore(self._path(step) / "state", args=ocp.args.StandardRestore(like)), ""
    except (MemoryError, PermissionError, jax.errors.JaxRuntimeError):
      raise
    except Exception as error:  # whatever orbax may meet in files that can hold anything
      return None, _told(error)
    finally:
      handler.close()

  def _path(self, step: int) -> pathlib.Path:
    return self._folder / str(step)

  def _record_path(self, step: int) -> pathlib.Path:
    return self._path(step) / "record" / "metadata"  # where orbax writes JSON

  def _read_record(self, step: int) -> dict[str, Any]:
    record = _unsealed(self._record_path(step))
    if record.get("step") != step:
      raise _Damage(f"its record is of step {record.get('step')}")
    return record

  def _clear(self) -> None:
    """Removes what a process left that was killed while it wrote or deleted."""
    if jax.process_index() == 0:
      for path in [*self._folder.glob("*.orbax-checkpoint-tmp*"), self._folder / _DELETED]:
        shutil.rmtree(path, ignore_errors=True)

  def _tell(self, text: str) -> None:
    if jax.process_index() == 0:
      print(text, file=sys.stderr, flush=True)

  def _move_aside(self, step: int) -> None:
    if jax.process_index() == 0:
      damaged = self._folder.parent / "damaged"
      damaged.mkdir(exist_ok=True)
      target, count = damaged / str(step), 1
      while target.exists():
        target, count = damaged / f"{step}.{count}", count + 1
      shutil.move(self._path(step), target)  # which may be on another disk
    if jax.process_count() > 1:
      multihost_utils.sync_global_devices(f"moved the checkpoint of step {step} aside")
    self._manager.reload()
    self._scores.pop(step, None)


def _newest_first(damages: dict[int, str]) -> list[tuple[int, str]]:
  return sorted(damages.items(), reverse=True)


class _Damage(Exception):
  """Files that are not what was written."""


def _described(state: Any) -> dict[str, str]:
  """Returns the type and shape of each array by its name."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(state)
  return {jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}


def _check_same_arrays(path: pathlib.Path, theirs: dict[str, str], ours: dict[str, str]) -> None:
  for name in sorted(theirs.keys() | ours.keys()):
    there, here = theirs.get(name, "missing"), ours.get(name, "missing")
    if there != here:
      raise CheckpointError(f"{path} is of another version of the model: {name} is {there}, here {here}")


def _placed(leaf: Any) -> jax.ShapeDtypeStruct:
  """Returns where and as what an array is to be read."""
  sharding = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _agree(reason: str) -> None:
  """Raises _Damage in all processes if one has met a reason."""
  anywhere = bool(reason)
  if jax.process_count() > 1:
    anywhere = bool(np.any(multihost_utils.process_allgather(np.array(anywhere))))
  if anywhere:
    raise _Damage(reason or "another process cannot read it")


def _sealed(value: Any) -> dict[str, Any]:
  text = json.dumps(value)
  return {"text": text, "crc32": zlib.crc32(text.encode("utf-8"))}


def _unsealed(path: pathlib.Path) -> Any:
  """Returns what was sealed in a file."""
  try:
    sealed = json.loads(path.read_text("utf-8"))
    if sealed["crc32"] != zlib.crc32(sealed["text"].encode("utf-8")):
      raise ValueError("its checksum differs")
    return json.loads(sealed["text"])
  except PermissionError:
    raise
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
    raise _Damage(f"its record: {_told(error)}") from error


def _disk_error(error: BaseException | None) -> str:
  """Returns what the disk has against a file; nothing if it was not the disk."""
  while error is not None:
    if isinstance(error, OSError) and error.strerror:
      return error.strerror
    for number in _DISK_ERRORS:  # tensorstore's are ValueErrors
      if os.strerror(number) in str(error):
        return os.strerror(number)
    error = error.__cause__ or error.__context__
  return ""


def _told(error: Exception) -> str:
  return textwrap.shorten(f"{type(error).__name__}: {error}", 160)


def _forget_tasks() -> None:
  """Lets the tasks that orbax gave up at an error end, and speak, while it is quiet."""
  time.sleep(0.1)
  gc.collect()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Hides what orbax's threads and tasks print of errors that are raised as well."""
  level, hook = logging.root.manager.disable, sys.unraisablehook
  logging.disable(logging.CRITICAL)
  sys.unraisablehook = lambda _: None
  try:
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      yield
  finally:
    logging.disable(level)
    sys.unraisablehook = hook
