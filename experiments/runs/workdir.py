"""The folder of one run: what was asked, what was measured, what came out.

vocabulary.source.txt   the words, one a line; vocabulary.target.txt likewise
subwords.source.model   the subwords, if text is cut into them; subwords.target.model likewise
config.json             the config; it is written after the languages, so where it is, they are
launches.jsonl          one object a line for each start: command, versions, devices, digests of data, words
.lock                   held by the process that trains
checkpoints/            training states: the newest and the best
damaged/                those that could not be read
metrics.jsonl           one object a line: `step` and what was measured then; nothing that depends on time
tensorboard/            the same, and speeds, for TensorBoard
profile/                what `--profile` has recorded, for TensorBoard or Perfetto
results.json            split -> metric -> value, at the end of the run
results.900_steps.json  the same, of a run that was made longer after 900 steps
figures/                PNG
"""

import contextlib
import json
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import filelock
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar

from experiments.cli.errors import UserError
from experiments.cli.io import write_text
from experiments.runs.multihost import is_primary


class WorkdirError(UserError):
  """A folder that cannot be used as asked, told in one line."""


def has_run(folder: pathlib.Path) -> bool:
  """Returns whether a run has begun in a folder."""
  return (folder / "config.json").exists()


@contextlib.contextmanager
def workdir_lock(folder: pathlib.Path) -> Iterator[None]:
  """Locks a folder until the block, or this process, ends.

  Of several processes that train together, only one takes the lock.

  Args:
    folder: the workdir; it is created.

  Raises:
    WorkdirError: if another process has locked it.
  """
  folder.mkdir(parents=True, exist_ok=True)
  try:
    with filelock.FileLock(folder / ".lock", timeout=0.1):  # `is_locked` takes the lock for a moment
      yield
  except filelock.Timeout as error:
    raise WorkdirError(f"{folder}: another process trains here") from error


def is_locked(folder: pathlib.Path) -> bool:
  """Returns whether a process trains in a folder."""
  if not (folder / ".lock").exists():
    return False
  try:
    with filelock.FileLock(folder / ".lock", blocking=False):
      return False
  except filelock.Timeout:
    return True


def read_config(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the config of a run, as JSON has it.

  Raises:
    WorkdirError: if the folder holds no run, or its config is not JSON.
  """
  path = folder / "config.json"
  if not path.is_file():
    raise WorkdirError(f"{folder} holds no run: there is no {path}; train one with --workdir={folder}")
  try:
    return json.loads(path.read_text("utf-8"))
  except (ValueError, RecursionError) as error:
    raise WorkdirError(f"{path}: not a config of this version: {error}") from error


def write_config(folder: pathlib.Path, config: dict[str, Any]) -> None:
  """Writes the config, from which on the folder holds a run: last of all that a run begins with."""
  write_json(folder / "config.json", config)


def check_nothing_left(folder: pathlib.Path) -> None:
  """Raises WorkdirError if a folder that holds no run has something of one."""
  left = [name for name in ("checkpoints", "metrics.jsonl") if (folder / name).exists()]
  if left:
    raise WorkdirError(f"{folder} holds {left[0]} of a run without its config.json; take another --workdir")


def check_nothing_lost(folder: pathlib.Path) -> None:
  """Raises WorkdirError if what a run writes first is gone, and what it writes later is there."""
  # That of step 0, from which a warm start goes on, is written before all else.
  has_checkpoints = any((folder / "checkpoints").glob("[1-9]*"))
  if (folder / "results.json").exists() and not has_checkpoints:
    raise WorkdirError(
      f"{folder} holds the results of a run without its checkpoints; take another --workdir, "
      "or move results.json away to begin anew"
    )
  if has_checkpoints and not (folder / "metrics.jsonl").exists():
    raise WorkdirError(f"{folder} holds the checkpoints of a run without its metrics.jsonl")


def read_results(folder: pathlib.Path) -> dict[str, dict[str, float]]:
  """Returns what was measured at the end of a run, split -> metric -> value.

  Raises:
    WorkdirError: if it has not ended, or the file is damaged.
  """
  path = folder / "results.json"
  try:
    results = json.loads(path.read_text("utf-8"))
  except FileNotFoundError:
    raise WorkdirError(f"{folder} holds no results yet; train with --workdir={folder}") from None
  except (ValueError, RecursionError) as error:
    raise WorkdirError(f"{path}: expected JSON, got a damaged file: {error}") from error
  if not isinstance(results, dict) or not all(isinstance(values, dict) for values in results.values()):
    raise WorkdirError(f"{path}: expected splits and their metrics, got {results!r}")
  return results


def keep_results(folder: pathlib.Path, name: str) -> None:
  """Gives the results of a run that goes on another name, results.NAME.json."""
  with contextlib.suppress(FileNotFoundError):
    (folder / "results.json").rename(folder / f"results.{name}.json")


def write_json(path: pathlib.Path, value: Any) -> None:
  """Writes JSON so that a file of this name is never half written."""
  write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


class MetricsWriter(contextlib.AbstractContextManager):
  """Writes metrics to metrics.jsonl and TensorBoard, in process 0 only. A context manager.

  Args:
    folder: of the run.
    step: where the run goes on; later records, of steps that will be made again, are dropped.

  Raises:
    WorkdirError: here and when it writes, if the disk does not take it.
  """

  def __init__(self, folder: pathlib.Path, step: int):
    self._is_main = is_primary()
    if not self._is_main:
      return
    self._path = folder / "metrics.jsonl"
    kept = [record for record in read_metrics(folder) if record["step"] <= step]
    with self._told():
      write_text(self._path, "".join(map(_line, kept)))
      self._file = self._path.open("a", encoding="utf-8")
      (folder / "tensorboard").mkdir(exist_ok=True)
      # Not a SummaryWriter: its thread waits for ever on a full disk.
      self._board = EventsWriter(str(folder / "tensorboard" / "events"))
      # TensorBoard forgets what it has read from this step on.
      self._board.write_event(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))

  def __exit__(self, *_) -> None:
    if not self._is_main:
      return
    with contextlib.suppress(OSError):  # all has been flushed; what is wrong with the disk has been told
      self._file.close()
    with contextlib.suppress(OSError):
      self._board.close()

  def write(self, step: int, values: Mapping[str, float], speeds: Mapping[str, float] | None = None) -> None:
    """Records values at a step; speeds, which differ from run to run, for TensorBoard only."""
    if not self._is_main:
      return
    with self._told():
      self._file.write(_line({"step": step, **values}))
      self._file.flush()
      for name, value in {**values, **(speeds or {})}.items():
        self._board.write_event(Event(wall_time=time.time(), step=step, summary=scalar(name, value)))
      self._board.flush()

  @contextlib.contextmanager
  def _told(self) -> Iterator[None]:
    """Makes a mistake, told in one line, of what the disk does not take."""
    try:
      yield
    except OSError as error:
      raise WorkdirError(f"could not write {self._path.parent}: {error.strerror or error}") from error


def read_metrics(folder: pathlib.Path) -> list[dict[str, float]]:
  """Returns the records of metrics.jsonl, a last line that was cut short left out.

  Raises:
    WorkdirError: if another line is damaged.
  """
  records = read_lines(folder / "metrics.jsonl", {"step": int})
  for record in records:
    if any(not isinstance(value, (int, float)) for value in record.values()):
      raise WorkdirError(f"{folder / 'metrics.jsonl'}: expected numbers, got {record}")
  return records


def read_lines(path: pathlib.Path, types: Mapping[str, type]) -> list[dict[str, Any]]:
  """Returns the objects of a file of JSON lines, none if it is not there; as `read_metrics`.

  Args:
    path: the file.
    types: some names that each object has, and of which type their values are.
  """
  if not path.exists():
    return []
  try:
    *lines, last = path.read_text("utf-8").split("\n")
    records = [json.loads(line) for line in lines]
    with contextlib.suppress(ValueError):  # it was cut short; no part of an object is one
      records += [json.loads(last)]
    for number, record in enumerate(records, start=1):
      if not isinstance(record, dict):
        raise ValueError(f"line {number} is no object")
      for name, kind in types.items():
        if not isinstance(record.get(name), kind):
          raise ValueError(f"line {number} has no {name!r}")
  except (ValueError, RecursionError) as error:
    raise WorkdirError(f"{path}: expected one JSON object a line, got a damaged file: {error}") from error
  return records


def _line(record: Mapping[str, float]) -> str:
  return json.dumps(record) + "\n"
